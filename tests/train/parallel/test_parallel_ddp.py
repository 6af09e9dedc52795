"""What DistributedDataParallel keeps of gradients on two ranks: its buckets, and nothing beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fake_corpus import write_corpus
from tests.forked import run_ranks
from tests.once import folder_once
from tests.train.parallel import cells
from train.parallel import ddp


@pytest.fixture(scope="session")
def found(session_folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What both ranks found, by micro-batches of a step."""

    def fill(folder: Path) -> None:
        write_corpus(folder, cells.VOCABULARY, train_tokens=20_000, validation_tokens=5_000)
        run_ranks(2, "tests.train.parallel.ddp_buckets", folder, folder / "rows.json")

    folder = folder_once(session_folder / "ddp-buckets", fill)
    rows: dict[str, list[dict[str, Any]]] = json.loads((folder / "rows.json").read_text())
    return rows


def test_several_micro_batches_are_summed_in_the_buckets(found: dict[str, list[dict[str, Any]]]) -> None:
    for rank in found["3"]:
        buckets = rank["after"][0]  # torch keeps them for good: what is beside them is held as well
        assert len(buckets) > 1
        assert sum(size for _, size in buckets) == pytest.approx(4 * rank["numbers"], rel=0.02), "one copy, aligned"
        assert rank["after"] == [buckets] * 2, "they stay where they are"
        assert rank["between"] == [buckets] * 6, "no gradient is beside them, not even in the first step"


def test_the_only_micro_batch_of_a_step_is_copied_there(found: dict[str, list[dict[str, Any]]]) -> None:
    for rank in found["1"]:
        assert rank["between"] == [[], []]
        assert rank["after"][0] == rank["after"][1]


@pytest.mark.parametrize("micro_batches", ["1", "3"])
def test_gradients_are_those_without_buckets_bit_for_bit(
    found: dict[str, list[dict[str, Any]]], micro_batches: str
) -> None:
    assert [rank["same"] for rank in found[micro_batches]] == [[True, True]] * 2


@pytest.mark.parametrize("micro_batches", ["1", "3"])
def test_a_trial_of_a_micro_batch_is_in_the_buckets_too(
    found: dict[str, list[dict[str, Any]]], micro_batches: str
) -> None:
    for rank in found[micro_batches]:
        assert rank["trial"] == rank["after"]


def test_buffers_stay_under_the_name_that_torch_has_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Before:
        """Torch 2.11's, in what matters here."""

        def __init__(self, module: object, broadcast_buffers: bool = True, init_sync: bool = True) -> None: ...

    class Since(Before):
        """Torch 2.13's, which warns of the name before."""

        def __init__(
            self, module: object, broadcast_buffers: bool | None = None, forward_sync_buffers: bool | None = None
        ) -> None: ...

    for kind, name in ((Before, "broadcast_buffers"), (Since, "forward_sync_buffers")):
        monkeypatch.setattr(ddp, "DistributedDataParallel", kind)
        assert ddp._buffers_stay() == {name: False}
