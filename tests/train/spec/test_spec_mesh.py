"""The mesh: sizes that make up the world, and every refusal with its reason, without any process group."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from train.spec.config import (
    BudgetConfig,
    CompileConfig,
    DataConfig,
    MemoryConfig,
    ModelConfig,
    ParallelConfig,
    PrecisionConfig,
    RunConfig,
    RuntimeConfig,
)
from train.spec.mesh import Axes, axes, check, strategy
from train.spec.pipeline_layout import layers_of
from train.spec.resolve import resolve

CONF = Path(__file__).resolve().parents[3] / "conf"
MODEL = ModelConfig(width=64, head_dim=8, mlp_width=192)


def config(parallel: ParallelConfig, **changes: object) -> RunConfig:
    return replace(RunConfig(model=MODEL, data=DataConfig(sequence_length=128)), parallel=parallel, **changes)  # type: ignore[arg-type]


@given(st.tuples(*[st.integers(1, 4)] * 5), st.sampled_from(["dp_replicate", "dp_shard", None]))
def test_axes_make_up_the_world_and_an_open_one_takes_what_is_left(sizes: tuple[int, ...], left: str | None) -> None:
    wanted = Axes(*sizes)
    given_sizes = {name: getattr(wanted, name) for name in ("dp_replicate", "dp_shard", "cp", "tp", "pp")}
    if left is not None:
        given_sizes[left] = None
    found = axes(ParallelConfig(**given_sizes), wanted.size)
    assert found == wanted
    assert {type(size) for size in asdict(found).values()} == {int}
    assert (found.size, found.data, found.fsdp) == (math.prod(sizes), sizes[0] * sizes[1], sizes[1] * sizes[2])
    assert wanted.data * wanted.cp * wanted.tp * wanted.pp == wanted.size


@pytest.mark.parametrize(
    ("parallel", "world", "words"),
    [
        (ParallelConfig(dp_replicate=2), 1, ["parallel.dp_replicate=2 makes 2 ranks", "1 processes", "start 2"]),
        (ParallelConfig(tp=2, pp=2, dp_shard=None, dp_replicate=1), 6, ["4 ranks", "6 processes", "multiple of 4"]),
        (ParallelConfig(dp_shard=None), 4, ["dp_replicate and parallel.dp_shard are both null"]),
        (ParallelConfig(tp=0), 4, ["parallel.tp=0", "at least one rank"]),
        (ParallelConfig(zero=4), 1, ["parallel.zero=4", "1, 2 or 3"]),
        (ParallelConfig(ddp_bucket_mib=0.0), 1, ["parallel.ddp_bucket_mib=0.0", "at least 0.001", "null"]),
        (ParallelConfig(fsdp_prefetch=0), 1, ["parallel.fsdp_prefetch=0", "1 or more"]),
        (ParallelConfig(micro_batch_sequences=0), 1, ["parallel.micro_batch_sequences=0"]),
        (ParallelConfig(strategy="ddp", dp_shard=2), 2, ["strategy=ddp", "dp_shard=2", "strategy=fsdp"]),
        (ParallelConfig(strategy="ddp", tp=2), 2, ["strategy=ddp", "tp=2", "plain weights"]),
        (ParallelConfig(strategy="fsdp1", pp=2, dp_replicate=1), 2, ["strategy=fsdp1", "pp=2"]),
        (ParallelConfig(strategy="fsdp1", zero=1), 2, ["parallel.zero=1", "fsdp1"]),
        (ParallelConfig(dp_replicate=2, zero=1), 2, ["parallel.zero=1", "ddp", "strategy=fsdp"]),
        (ParallelConfig(strategy="fsdp1"), 2, ["strategy=fsdp1", "cannot save checkpoints"]),
        (ParallelConfig(tp=3), 3, ["parallel.tp=3", "model.kv_heads=8", "may be 1, 2, 4 or 8 here"]),
        (ParallelConfig(async_tp=True), 1, ["async_tp", "without tensor parallelism"]),
        (ParallelConfig(async_tp=True, tp=2), 2, ["async_tp", "compile.blocks"]),
        (ParallelConfig(cp=3), 3, ["data.sequence_length=128", "multiple of 6", "the nearest is 126"]),
        (ParallelConfig(cp=2, context="ring"), 2, ["parallel.context=ring", "gather"]),
        (ParallelConfig(dp_replicate=1), 2, ["parallel: every axis of size 1 makes 1 ranks but the world has 2"]),
        (ParallelConfig(dp_shard=2, tp=3, dp_replicate=1), 5, ["parallel.dp_shard=2 x parallel.tp=3 makes 6 ranks"]),
        (ParallelConfig(dp_replicate=0), 4, ["parallel.dp_replicate=0", "at least one rank"]),
        (ParallelConfig(strategy="ddp", dp_shard=None, dp_replicate=1), 2, ["strategy=ddp", "dp_shard=null"]),
        (ParallelConfig(strategy="ddp", pp=2), 2, ["strategy=ddp", "tp=1, pp=2"]),
        (ParallelConfig(strategy="fsdp1", tp=2), 2, ["strategy=fsdp1", "tp=2, pp=1"]),
        (ParallelConfig(zero=0), 1, ["parallel.zero=0"]),
        (ParallelConfig(cp=2, tp=3), 6, ["parallel.tp=3 does not divide model.kv_heads=8"]),
        (ParallelConfig(cp=5), 5, ["data.sequence_length=128 is not a multiple of 10", "the nearest is 130"]),
        (ParallelConfig(dp_replicate=2, zero=2), 2, ["parallel.zero=2", "ddp"]),
    ],
)
def test_refusals_say_what_is_wrong_and_what_to_do(parallel: ParallelConfig, world: int, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        check(config(parallel), world)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("parallel", "world"),
    [
        (ParallelConfig(), None),
        (ParallelConfig(), 1),
        (ParallelConfig(), 3),
        (ParallelConfig(micro_batch_sequences=1), 1),
        (ParallelConfig(strategy="ddp"), None),
        (ParallelConfig(strategy="ddp"), 2),
        (ParallelConfig(strategy="fsdp", dp_replicate=1, dp_shard=None, zero=1), 2),
        (ParallelConfig(strategy="fsdp", dp_replicate=1, dp_shard=None, zero=2), 2),
        (ParallelConfig(dp_replicate=1, dp_shard=5), 5),  # which does not divide the hidden channels, and need not
        (ParallelConfig(dp_replicate=1, dp_shard=None, tp=2), None),
        (ParallelConfig(dp_replicate=1, dp_shard=None, tp=2), 2),
        (ParallelConfig(tp=8), None),
        (ParallelConfig(cp=2), None),
        (ParallelConfig(cp=2, tp=2), 4),
        (ParallelConfig(context="ring"), 1),
        (ParallelConfig(pp=2, dp_replicate=1, dp_shard=2, zero=2, pp_schedule="zb1p"), 4),
        (ParallelConfig(pp=2, dp_replicate=1, dp_shard=2, pp_schedule="zb1p"), None),
        (ParallelConfig(pp=2, dp_replicate=1, pp_schedule="zb1p"), 2),
    ],
)
def test_layouts_that_just_can_be(parallel: ParallelConfig, world: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.spec.pipeline_layout.can_split", lambda: True)
    check(config(parallel, model=replace(MODEL, layers=4)), world)


def test_zero_bubble_schedules_are_refused_once_it_is_known_that_weights_are_put_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("train.spec.pipeline_layout.can_split", lambda: True)
    parallel = ParallelConfig(pp=2, dp_replicate=1, dp_shard=None, pp_schedule="zb1p")
    split = config(parallel, model=replace(MODEL, layers=4))
    check(split)
    check(split, 2)
    with pytest.raises(ValueError, match=r"pp_schedule=zb1p with parallel\.zero=3"):
        check(split, 4)


@pytest.mark.parametrize("name", ["dp_replicate", "dp_shard", "cp", "tp", "pp"])
def test_an_axis_has_at_least_one_rank(name: str) -> None:
    for size in (0, -1):
        none = replace(ParallelConfig(), **{name: size})  # type: ignore[arg-type]
        for refuse in (lambda layout=none: axes(layout, 4), lambda layout=none: check(config(layout))):
            with pytest.raises(ValueError, match=rf"parallel\.{name}={size} is not allowed: an axis has at least one"):
                refuse()


def test_a_length_may_be_odd_where_nothing_cuts_it() -> None:
    check(config(ParallelConfig(), data=DataConfig(sequence_length=127)), 1)
    for cp, tp, length in ((2, 1, 126), (2, 3, 124), (3, 1, 128)):
        model = replace(MODEL, width=48, kv_heads=6)
        uneven = config(
            ParallelConfig(cp=cp, tp=tp), model=model, data=DataConfig(vocab_size=96, sequence_length=length)
        )
        pieces = math.lcm(2 * cp, cp * tp)
        with pytest.raises(ValueError, match=rf"sequence_length={length} is not a multiple of {pieces}, which"):
            check(uneven)
        check(replace(uneven, data=replace(uneven.data, sequence_length=pieces * 11)))


def test_flat_weights_of_the_first_fsdp_are_for_runs_that_save_nothing() -> None:
    for zero in (2, 3):
        flat = config(ParallelConfig(strategy="fsdp1", dp_shard=2, zero=zero))
        check(flat, 2, saves=False)
        check(flat, None, saves=False)
        for saving in ({}, {"saves": True}):
            with pytest.raises(ValueError, match="cannot save checkpoints"):
                check(flat, 2, **saving)
    with pytest.raises(ValueError, match=r"parallel\.zero=1 is not supported"):
        check(config(ParallelConfig(strategy="fsdp1", dp_shard=2, zero=1)), 2, saves=False)


def test_parameters_are_offloaded_where_they_are_sharded_or_may_be() -> None:
    offloaded = config(ParallelConfig(dp_replicate=1, dp_shard=None), memory=MemoryConfig(offload="parameters"))
    check(offloaded)
    check(offloaded, 2)
    for alone in (offloaded, config(ParallelConfig(), memory=MemoryConfig(offload="parameters"))):
        with pytest.raises(ValueError, match=r"memory\.offload=parameters"):
            check(alone, 1)
    with pytest.raises(ValueError, match=r"memory\.offload=parameters"):
        check(config(ParallelConfig(), memory=MemoryConfig(offload="parameters")), 2)


def test_what_is_gathered_in_fp8_must_be_gathered_from_somewhere() -> None:
    model = ModelConfig(width=64, layers=4, head_dim=16, mlp_width=192)
    narrow = PrecisionConfig(name="fp8", fp8_gather=True)
    shared = config(ParallelConfig(dp_replicate=1, dp_shard=1, cp=2), model=model, precision=narrow)
    check(shared)
    check(shared, 2)
    alone = replace(shared, parallel=ParallelConfig(dp_replicate=None, dp_shard=1, strategy="fsdp"))
    for world in (None, 2):  # copies of whole weights
        with pytest.raises(ValueError, match="no weights are gathered here"):
            check(alone, world)


def test_which_sizes_of_tensor_parallelism_there_are_is_said_in_words() -> None:
    for heads, hidden, words in ((1, 8, "1"), (2, 8, "1 or 2"), (4, 12, "1, 2 or 4"), (6, 18, "1, 2, 3 or 6")):
        model = ModelConfig(width=48, head_dim=4, kv_heads=heads, mlp_width=hidden)
        with pytest.raises(ValueError, match=rf"parallel\.tp may be {words} here"):
            check(config(ParallelConfig(tp=7), model=model, data=DataConfig(vocab_size=36 * 4)))


@pytest.mark.parametrize(("dp_shard", "cp", "pieces"), [(None, 2, 4), (2, 2, 8), (2, 1, 4), (1, 2, 4)])
def test_hidden_channels_are_checked_as_far_as_the_layout_is_known(dp_shard: int | None, cp: int, pieces: int) -> None:
    parallel = ParallelConfig(dp_replicate=1, dp_shard=dp_shard, cp=cp, tp=2)
    check(config(parallel, model=replace(MODEL, mlp_width=25 * pieces)))
    with pytest.raises(ValueError, match=rf"{pieces // 2} ranks cannot.* to a multiple of {pieces}, such as "):
        check(config(parallel, model=replace(MODEL, mlp_width=25 * pieces + 2)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"data": DataConfig(tokenizer="bytes", vocab_size=257, sequence_length=128)},
            ["data.vocab_size=257", "parallel.tp=2", "may be 1 here", "bytes always has 257: use bpe"],
        ),
        ({"model": replace(MODEL, mlp_width=99)}, ["model.mlp_width=99"]),
        ({"model": replace(MODEL, kv_heads=1)}, ["model.kv_heads=1"]),
        ({"data": DataConfig(sequence_length=127)}, ["data.sequence_length=127", "multiple of 2"]),
    ],
)
def test_tensor_parallelism_wants_equal_parts(changes: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        check(config(ParallelConfig(tp=2), **changes))
    for word in words:
        assert word in str(caught.value)


def test_sharding_within_tensor_parallelism_wants_equal_parts_of_the_hidden_channels() -> None:
    uneven = config(ParallelConfig(tp=2, dp_shard=None, dp_replicate=1), model=replace(MODEL, mlp_width=198))
    check(uneven, 2)
    with pytest.raises(ValueError, match=r"mlp_width=198.*tp=2.*99 hidden.*2 ranks.*multiple of 4, such as 200"):
        check(uneven, 4)
    check(replace(uneven, model=replace(MODEL, mlp_width=200)), 4)
    check(replace(uneven, parallel=ParallelConfig(tp=2, dp_replicate=2)), 4)  # copies share nothing


def test_asynchronous_tensor_parallelism_is_for_compiled_blocks() -> None:
    overlapped = config(ParallelConfig(async_tp=True, tp=2), compile=CompileConfig(blocks=True))
    check(overlapped)
    check(replace(overlapped, runtime=RuntimeConfig(device="cuda")))
    check(config(ParallelConfig(tp=2), runtime=RuntimeConfig(device="cpu")))


def test_asynchronous_tensor_parallelism_is_not_for_a_cpu() -> None:
    on_cpu = config(ParallelConfig(async_tp=True, tp=2), runtime=RuntimeConfig(device="cpu"))
    with pytest.raises(ValueError, match=r"not on runtime\.device=cpu"):
        check(on_cpu)


@pytest.mark.parametrize(
    ("parallel", "world", "wanted"),
    [
        (ParallelConfig(), 1, "none"),
        (ParallelConfig(), 4, "ddp"),
        (ParallelConfig(strategy="fsdp"), 4, "fsdp"),
        (ParallelConfig(tp=4), 4, "none"),
        (ParallelConfig(tp=2), 4, "fsdp"),
        (ParallelConfig(cp=2), 2, "fsdp"),
        (ParallelConfig(cp=2), 4, "fsdp"),
        (ParallelConfig(pp=2), 2, "none"),
        (ParallelConfig(pp=2), 4, "fsdp"),
        (ParallelConfig(dp_replicate=2, dp_shard=2), 4, "fsdp"),
        (ParallelConfig(dp_shard=4), 4, "fsdp"),
        (ParallelConfig(), 2, "ddp"),
        (ParallelConfig(dp_replicate=2, cp=2), 4, "fsdp"),
        (ParallelConfig(dp_shard=2, cp=2), 4, "fsdp"),
        (ParallelConfig(cp=2, tp=2), 4, "fsdp"),
        (ParallelConfig(dp_replicate=2, tp=2), 4, "fsdp"),
        (ParallelConfig(dp_replicate=2, pp=2), 4, "fsdp"),
        (ParallelConfig(strategy="fsdp1"), 4, "fsdp1"),
    ],
)
def test_the_strategy_follows_the_axes(parallel: ParallelConfig, world: int, wanted: str) -> None:
    assert strategy(parallel, axes(parallel, world)) == wanted


@pytest.mark.parametrize("layout", sorted((CONF / "parallel").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_size_resolves_under_every_layout(layout: Path) -> None:
    preset = ParallelConfig(**yaml.safe_load(layout.read_text()))
    for size in sorted((CONF / "model").glob("*.yaml")):
        model = ModelConfig(**yaml.safe_load(size.read_text()))
        config = RunConfig(model=model, parallel=preset, budget=BudgetConfig(tokens=10**6))
        if model.experts and preset.tp > 1:
            with pytest.raises(ValueError, match=r"model.experts=\d+ is refused here: .*parallel\.tp=2"):
                resolve(config)
            continue
        run = resolve(config)
        check(run, 1 if layout.stem == "single" else 8)
        assert min(layers_of(run)) >= 1, size.stem


@pytest.mark.parametrize(("name", "billions"), [("150m", 0.162), ("1b", 1.028), ("8b", 8.03), ("70b", 70.55)])
def test_sizes_have_their_names_parameters(name: str, billions: float) -> None:
    from train.spec.counts import params

    model = ModelConfig(**yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text()))
    vocabulary = 128256 if name in ("8b", "70b") else 50304
    assert params(model, vocabulary).total / 1e9 == pytest.approx(billions, rel=2e-3)
