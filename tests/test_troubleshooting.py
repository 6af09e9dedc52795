"""Every mistake of docs/troubleshooting.md gets the answer that stands there, and does nothing else."""

from __future__ import annotations

import gzip
import os
import re
import shlex
from pathlib import Path

import pytest

from tests.environment import python_path
from tests.warm import Warm, warm

LIMIT_SECONDS = 900.0
"""What takes a second is waited for so long: a machine that is busy elsewhere is not wrong."""
ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
MISTAKES = re.findall(r"^\$ (.+)\n(.+)$", "\n".join(re.findall(r"^```console\n(.*?)^```$", PAGE, re.M | re.S)), re.M)
SPOILT = {
    "no-flops.csv": "params,tokens,loss\n1e6,2e7,3.1\n",
    "empty.csv": "",
    "header.csv": "params,tokens,flops,loss\n",
    "words.csv": "params,tokens,flops,loss\nbig,2e9,1e18,3.1\nbigger,3e9,1e18,3.0\n",
    "cut.parquet": "PAR1",
    "runs.pkl": "pickled",
    "cut.json": '{"study": ',
    "text.db": "hello",
}
WARM = ("study.sweep.plugins", "study.console", "analysis.fit", "analysis.inputs.rows", "sweeps.replay.__main__")


@pytest.fixture(scope="module")
def process() -> Warm:
    return warm(*WARM, PYTHONPATH=python_path())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables of runs, in which nobody has made a study yet."""
    path = tmp_path_factory.mktemp("mistakes")
    (path / "docs").mkdir()
    table = (ROOT / "docs/example-runs.csv").read_text(encoding="utf-8")
    (path / "docs/example-runs.csv").write_text(table, encoding="utf-8")
    for name, content in SPOILT.items():
        (path / "docs" / name).write_text(content, encoding="utf-8")
    (path / "docs/packed.csv").write_bytes(gzip.compress(table.encode()))
    (path / "docs/folder.csv").mkdir()
    (path / "file").touch()
    (path / "broken").symlink_to("nowhere")
    (path / "empty").mkdir()
    return path


@pytest.mark.parametrize(("command", "answer"), MISTAKES, ids=[command for command, _ in MISTAKES])
def test_a_mistake_is_answered_in_a_line(command: str, answer: str, process: Warm, folder: Path) -> None:
    words = shlex.split(command)
    module, rest = ("study.console", words[1:]) if words[0] == "scaling-study" else (words[2], words[3:])
    started = process.start(module, *rest, cwd=folder, env={**os.environ, "COLUMNS": "80"})
    out, err = started.communicate(timeout=LIMIT_SECONDS)
    assert started.returncode == 2, out + err
    pattern = ".*".join(map(re.escape, answer.split("…")))
    assert re.search(f"(?m)^{pattern}", err), f"{command}\n{err}"
    assert not {"runs", "reports"} & {path.name for path in folder.iterdir()}, "a mistake makes no study and no fit"


def test_there_are_answers_to_many_mistakes() -> None:
    assert len(MISTAKES) >= 60
    assert PAGE.count("\n$ ") == len(MISTAKES), "every command is followed by its answer"
