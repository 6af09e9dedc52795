"""The bytes of every message of a step are those of the formulas (train.spec.communication), for every strategy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fake_corpus import write_corpus
from benchmarks.shard_evenness import pretended
from tests.forked import run_ranks
from tests.train.parallel import cells
from tests.train.parallel.cells import Cell
from tests.train.parallel.traffic import ALONE, TOGETHER, compare


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("traffic")
    write_corpus(made, cells.VOCABULARY, train_tokens=5_000, validation_tokens=2_000)
    return made


@pytest.mark.parametrize("cell", ALONE, ids=[cell.name for cell in ALONE])
def test_a_step_sends_what_is_predicted(cell: Cell, folder: Path) -> None:
    ranks = 1
    for size in (cell.parallel.dp_replicate, cell.parallel.dp_shard, cell.parallel.cp, cell.parallel.tp):
        ranks *= size or 1
    with pretended(ranks) as world:
        sent, predicted = compare(cell, folder, world)
    assert sent == predicted


def test_ranks_over_gloo_send_what_is_predicted(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "wrong.json"
    run_ranks(4, "tests.train.parallel.traffic", folder, out)
    wrong = json.loads(out.read_text())
    assert wrong == {cell.name: [] for cell in TOGETHER}
