"""Every layout of four ranks against one process: each weight's gradient, losses and gradient norms."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fake_corpus import write_corpus
from tests.forked import SECONDS, environments, run_ranks
from tests.train.compiler import compiles
from tests.train.parallel import cells, pipelines
from tests.train.parallel.cells import Cell
from tests.train.parallel.ranks import line
from tests.train.runs import REPOSITORY


def table(
    where: str, folder: Path, device: str = "cpu", ranks: int = 4, compiling: bool = False
) -> list[dict[str, Any]]:
    """Run the cells named `module:attribute,…` on ranks started once, and return a row for each.

    `compiling`: blocks are compiled in some of them.
    """
    write_corpus(folder, cells.VOCABULARY, train_tokens=20_000, validation_tokens=5_000)
    out, module = folder / "rows.json", "tests.train.parallel.ranks"
    if device == "cpu":
        run_ranks(ranks, module, folder, where, out, compiling=compiling)
    else:  # a process that was forked has no GPU
        command = [sys.executable, "-m", module, str(folder), where, str(out), device]
        processes = [
            subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, **env}, stderr=subprocess.PIPE, text=True)
            for env in environments(ranks)
        ]
        for process in processes:
            _, err = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, err
    rows: list[dict[str, Any]] = json.loads(out.read_text())
    return rows


def failures(wanted: Sequence[Cell], rows: Sequence[dict[str, Any]], slack: float = 1.0) -> list[str]:
    """Return what does not hold, cell by cell; `slack` widens bounds for a device whose sums have no fixed order."""
    assert [cell.name for cell in wanted] == [row["name"] for row in rows]
    bad = []
    for cell, row in zip(wanted, rows, strict=True):
        if "error" in row:
            bad.append(f"{cell.name}: {row['error']}")
            continue
        holds = {
            f"gradient of {row['weight']} off by {row['gradient']:.1e}": row["gradient"] <= slack * cell.gradient,
            f"loss off by {row['loss']:.1e}": row["loss"] <= slack * cell.loss,
            f"gradient norm off by {row['norm']:.1e}": row["norm"] <= slack * cell.gradient,
            "not every weight is somewhere": row["complete"],
            f"{row['skipped']} steps overflowed": bool(row["skipped"]) == cell.overflows,
            "not the same bits": row["bitwise"] or not cell.bitwise,
        }
        bad += [f"{cell.name}: {what}" for what, good in holds.items() if not good]
    return bad


@pytest.mark.slow
def test_every_layout_trains_as_one_process_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = "tests.train.parallel.cells"
    rows = table(f"{module}:EAGER,{module}:RECOMPUTED", tmp_path)
    with capsys.disabled():
        print("\n" + "\n".join(line(row) for row in rows))
    assert not failures((*cells.EAGER, *cells.RECOMPUTED), rows)


@compiles
@pytest.mark.slow
def test_compiled_layouts_and_pipelines_train_as_one_process_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Together, as loading the compiler takes longer than most cells."""
    folder = "tests.train.parallel"
    rows = table(f"{folder}.cells:COMPILED,{folder}.pipelines:COMPILED_PIPELINES", tmp_path, compiling=True)
    with capsys.disabled():
        print("\n" + "\n".join(line(row) for row in rows))
    assert not failures((*cells.COMPILED, *pipelines.COMPILED_PIPELINES), rows)
