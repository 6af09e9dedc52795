"""How large a micro-batch is by what is needed, what there is and what has been seen."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from train.spec import activations
from train.spec.config import BatchConfig, BudgetConfig, DataConfig, ModelConfig, PrecisionConfig, RunConfig
from train.spec.footprint import footprint
from train.spec.mesh import Axes
from train.spec.micro_batch import MARGIN, SHARE, Need, Seen, even, failed, most, need, ran, read, shape_of, smaller
from train.spec.resolve import resolve

NEED = Need(fixed=1000, sequence=100)


@pytest.mark.parametrize(
    ("free", "seen", "expected"),
    [
        (100_000, None, 64),  # all of it
        (3000, None, 17),
        (1000, None, 1),  # nothing fits: one is tried all the same
        (3000, Seen(fits=10, per_sequence=50), 32),
        (3000, Seen(fits=10, per_sequence=1000), 17),  # the estimate is one from above
        (3000, Seen(fails=12, free=3000), 11),
        (3000, Seen(fails=12, free=2900), 11),
        (3000, Seen(fails=12, free=2000), 17),  # somebody else had memory of it then
        (3000, Seen(fails=1, free=3000), 1),
    ],
)
def test_the_largest_that_memory_holds(free: int, seen: Seen | None, expected: int) -> None:
    assert most(64, NEED, free, seen) == expected
    assert most(7, NEED, free, seen) == min(7, expected), "never more than there are"


def test_after_out_of_memory_it_is_half_until_there_is_one() -> None:
    sizes = [80]
    while (size := smaller(80, sizes[-1])) is not None:
        sizes.append(size)
    assert sizes == [80, 40, 20, 10, 5, 2, 1]
    assert smaller(81, 81) == 27, "three equal ones"
    assert [even(10, size) for size in (10, 9, 4, 3, 1)] == [10, 5, 4, 3, 1]


def test_what_is_seen_adds_up() -> None:
    seen = failed(None, 40, free=9000)
    assert seen == Seen(0, None, 40, 9000)
    seen = ran(seen, 20, 70)
    assert seen == Seen(20, 70, 40, 9000)
    assert ran(seen, 10, 99) == seen, "of a smaller one less is learnt"
    assert ran(seen, 30, 60) == Seen(30, 60, 40, 9000)
    assert ran(seen, 40, 60) == Seen(40, 60), "it fits now"
    assert failed(seen, 20, 5000) == Seen(19, 70, 20, 5000)
    assert failed(None, 1, 5000) == Seen(0, None, 1, 5000)
    assert read(json.loads(json.dumps(asdict(seen)))) == seen
    wrongs: list[dict[str, Any]] = [{"fits": "many"}, {"fits": []}]
    for wrong in wrongs:
        with pytest.raises((ValueError, TypeError)):
            read(wrong)


def run(**changes: Any) -> RunConfig:
    model = ModelConfig(width=384, layers=6, head_dim=64)
    data = DataConfig(vocab_size=8192, sequence_length=512)
    config = RunConfig(model, data, BatchConfig(tokens=80 * 512), budget=BudgetConfig(tokens=10**7))
    return resolve(replace(config, **changes))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_small_model_on_a_large_gpu_is_not_cut(precision: str) -> None:
    config = run(precision=PrecisionConfig(name=precision))
    assert most(80, need(config, Axes()), 139 << 30) == 80
    assert most(80, need(config, Axes()), 16 << 30) == 80


def test_what_is_needed_is_all_that_the_plan_counts_and_more() -> None:
    config = run()
    for axes in (Axes(), Axes(dp_shard=4), Axes(tp=2)):
        needed, plan = need(config, axes), footprint(config, axes, "cuda")
        sequences = 80 // axes.data
        assert needed.fixed > plan.states + plan.gathered + activations.CHUNK_BYTES["cuda"] // axes.tp
        assert needed.fixed + sequences * needed.sequence > plan.states + plan.gathered + plan.activations


def test_filling_leaves_room() -> None:
    assert most(10**6, NEED, 10**6) == int((SHARE * 10**6 - 1000) / 100)
    assert most(10**6, NEED, 10**6, Seen(1, 50)) == int((SHARE * 10**6 - 1000) / int(50 * MARGIN))


def test_runs_of_one_shape_know_of_each_other() -> None:
    base = run()
    shape = shape_of(base, Axes(), "gpu")
    assert json.loads(json.dumps(shape)) == json.loads(json.dumps(shape_of(replace(base, seed=1), Axes(), "gpu")))
    for same in (
        {"parallel": replace(base.parallel, micro_batch_sequences=3)},
        {"compile": replace(base.compile, cache="/elsewhere")},
        {"optim": replace(base.optim, lr=1.0)},
    ):
        assert shape_of(replace(base, **same), Axes(), "gpu") == shape, same
    for other in (
        {"model": replace(base.model, layers=7)},
        {"data": replace(base.data, sequence_length=1024)},
        {"precision": replace(base.precision, name="bf16")},
        {"memory": replace(base.memory, checkpointing="full")},
    ):
        assert shape_of(replace(base, **other), Axes(), "gpu") != shape, other
    assert shape_of(base, Axes(), "another") != shape
    assert shape_of(base, Axes(dp_replicate=2), "gpu") != shape
