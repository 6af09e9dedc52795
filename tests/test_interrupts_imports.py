"""Ctrl-C while a command's module is imported: all that are run mind it above their imports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pressed import run_pressed

ROOT = Path(__file__).parents[1]
PACKAGES = ("study", "train", "kernels", "sweeps", "analysis")
MAIN = 'if __name__ == "__main__":'
CALLS = re.compile(r'[^\n]*\n    from \S+ import (run|start|no_command)\n\n    \1\(\s*"([\w.]+)"')
JOBS = {
    "study.doctor.probe",
    "study.job.__main__",
    "study.job.slot",
    "study.search.worker",
    "study.workers.worker",
    "train.run",
    "train.serve",
}
"""What jobs run and what trains: signals tell these to save and end."""


def mains() -> dict[str, tuple[str, str]]:
    """Return what stands above and below the line that says a module is run, of all modules that have one."""
    found = {}
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        above, said, below = path.read_text("utf-8").partition(MAIN)
        if said:
            found[path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")] = above, below
    return found


def commands() -> list[str]:
    """Return the modules that are run as commands."""
    called = {module: CALLS.match(below) for module, (_, below) in mains().items()}
    return [module for module, found in called.items() if found is not None and found[1] != "no_command"]


def test_what_is_run_minds_ctrl_c_above_its_imports() -> None:
    for module in mains().keys() - JOBS:
        above, below = mains()[module]
        called = CALLS.match(below)
        assert called is not None and called[2] == module, f"{module} runs another, or does not call run or start"
        imports = re.findall(r"(?m)^(?:import \S|from \S+ import ).*", above)
        assert imports == ["from __future__ import annotations"], module
    assert mains().keys() >= JOBS


@pytest.mark.parametrize("how", ["raised", "dropped"])
@pytest.mark.parametrize("command", commands())
def test_ctrl_c_at_the_first_import_of_a_command_is_one_line_and_130(command: str, how: str) -> None:
    ended = run_pressed(command, how)
    name = "scaling-study" if command == "study.console" else command.removesuffix(".__main__")
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", f"{name}: interrupted\n")
