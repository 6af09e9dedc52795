"""The docs say what the code says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from docs import make_tables
from sweeps.designs import DESIGNS
from sweeps.schedulers import SCHEDULERS


def test_the_page_of_commands_begins_with_a_list_of_its_sections() -> None:
    page = Path("docs/commands.md").read_text(encoding="utf-8")
    beginning = page.partition("\n## ")[0]
    assert re.findall(r"^- \[(.+)\]\(#", beginning, re.M) == re.findall(r"^## (.+)$", page, re.M)


def test_tables_are_those_of_the_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["make_tables.py", "--check"])
    assert make_tables.main() == 0, capsys.readouterr().out


def test_every_design_and_scheduler_can_be_chosen_by_its_file() -> None:
    from study.sweep.help import options

    assert {*DESIGNS, *SCHEDULERS} <= options([make_tables.HERE.parent / "conf"])["search"].keys()


ROOT = Path(__file__).parents[1]
WALKS = (ROOT / "docs/architecture.md").read_text("utf-8").split("\n## ")[1:]
STOP = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)((?:,? `[\w.]+`)*)")


def defined(path: Path) -> set[str]:
    """Return the functions and classes of a file, methods as Class.method."""
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("walk", WALKS, ids=[walk.partition("\n")[0] for walk in WALKS])
def test_every_stop_of_a_walk_is_there(walk: str) -> None:
    stops = [line for line in walk.splitlines() if re.match(r"\d+\. ", line)]
    assert 3 <= len(stops) <= 12
    for number, stop in enumerate(stops, 1):
        assert stop.startswith(f"{number}. [")
        for shown, path, names in STOP.findall(stop):
            assert (ROOT / path).is_file() and path.endswith(shown), stop
            missing = set(re.findall(r"`([\w.]+)`", names)) - defined(ROOT / path)
            assert not missing, f"{path} has no {missing}: {stop}"
