"""The mesh: sizes that make up the world, and every refusal with its reason, without any process group."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from train.spec.config import BudgetConfig, DataConfig, ModelConfig, ParallelConfig, RunConfig, RuntimeConfig
from train.spec.mesh import Axes, axes, check, strategy
from train.spec.pipeline import layers_of
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
    assert axes(ParallelConfig(**given_sizes), wanted.size) == wanted
    assert wanted.data * wanted.cp * wanted.tp * wanted.pp == wanted.size


@pytest.mark.parametrize(
    ("parallel", "world", "words"),
    [
        (ParallelConfig(dp_replicate=2), 1, ["parallel.dp_replicate=2 makes 2 ranks", "1 processes", "start 2"]),
        (ParallelConfig(tp=2, pp=2, dp_shard=None, dp_replicate=1), 6, ["4 ranks", "6 processes", "multiple of 4"]),
        (ParallelConfig(dp_shard=None), 4, ["dp_replicate and parallel.dp_shard are both null"]),
        (ParallelConfig(tp=0), 4, ["parallel.tp=0", "at least one rank"]),
        (ParallelConfig(zero=4), 1, ["parallel.zero=4", "1, 2 or 3"]),
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
    ],
)
def test_refusals_say_what_is_wrong_and_what_to_do(parallel: ParallelConfig, world: int, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        check(config(parallel), world)
    for word in words:
        assert word in str(caught.value)


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
        (ParallelConfig(cp=2), 4, "fsdp"),
        (ParallelConfig(dp_shard=4), 4, "fsdp"),
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
        run = resolve(RunConfig(model=model, parallel=preset, budget=BudgetConfig(tokens=10**6)))
        check(run, 1 if layout.stem == "single" else 8)
        assert min(layers_of(run)) >= 1, size.stem


@pytest.mark.parametrize(("name", "billions"), [("150m", 0.162), ("1b", 1.028), ("8b", 8.03), ("70b", 70.55)])
def test_sizes_have_their_names_parameters(name: str, billions: float) -> None:
    from train.spec.counts import params

    model = ModelConfig(**yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text()))
    vocabulary = 128256 if name in ("8b", "70b") else 50304
    assert params(model, vocabulary).total / 1e9 == pytest.approx(billions, rel=2e-3)
