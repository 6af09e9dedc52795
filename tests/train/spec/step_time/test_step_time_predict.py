"""A step's time as a whole: what makes it longer and shorter, what it consists of, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.peers.ours import config_of
from benchmarks.peers.rows import find
from train.spec.communication.cluster import ClusterProfile, Level, read_profile
from train.spec.config import (
    BatchConfig,
    CompileConfig,
    DataConfig,
    MemoryConfig,
    ModelConfig,
    ParallelConfig,
    PrecisionConfig,
    RunConfig,
)
from train.spec.counts import flops_per_token
from train.spec.mesh import Axes
from train.spec.step_time import StepTime, step_time
from train.spec.step_time.device import device_of
from train.spec.step_time.recompute import modes

MEASURED = Path(__file__).parents[4] / "conf" / "cluster" / "measured"
FOUR = read_profile(MEASURED / "h200_x4.yaml")
MANY = read_profile(MEASURED / "h200_x8_400g.yaml")
ONE = Axes()
MODEL = ModelConfig(width=2048, layers=8, head_dim=128, mlp_width=5632, qk_norm=False)


def config(axes: Axes = ONE, **sections: Any) -> RunConfig:
    parallel: dict[str, Any] = {
        "dp_replicate": axes.dp_replicate,
        "dp_shard": axes.dp_shard,
        "cp": axes.cp,
        "tp": axes.tp,
    }
    parallel |= {"pp": axes.pp, "micro_batch_sequences": 2, **sections.pop("parallel", {})}
    found = RunConfig(
        MODEL,
        DataConfig(vocab_size=50304, sequence_length=2048),
        BatchConfig(tokens=32 * 2048),
        precision=PrecisionConfig(name="bf16"),
        parallel=ParallelConfig(**parallel),
        compile=CompileConfig(blocks=True),
    )
    return replace(found, **sections)


LAYOUTS = st.builds(
    Axes,
    dp_replicate=st.sampled_from([1, 2]),
    dp_shard=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2]),
)


def faster(cluster: ClusterProfile, links: float = 1.0, products: float = 1.0, memory: float = 1.0) -> ClusterProfile:
    levels = tuple(replace(level, bandwidth=links * level.bandwidth) for level in cluster.levels)
    compute = cluster.compute
    assert compute.copy is not None
    rates = tuple(replace(rate, per_second=products * rate.per_second) for rate in compute.matmul)
    return replace(cluster, levels=levels, compute=replace(compute, matmul=rates, copy=memory * compute.copy))


@settings(max_examples=40, deadline=None)
@given(LAYOUTS, st.sampled_from(["links", "products", "memory"]), st.floats(1.0, 10.0))
def test_more_bandwidth_or_flops_a_second_never_make_a_step_slower(axes: Axes, what: str, times: float) -> None:
    before, after = (step_time(config(axes), axes, faster(MANY, **{what: factor})) for factor in (1.0, times))
    assert after.seconds <= before.seconds * (1 + 1e-9)
    assert min([0.0, *before.exposed.values()]) >= 0.0
    assert min(before.compute, before.update) > 0.0 <= min(before.launch, before.bubble)
    assert sum(before.parts.values()) == pytest.approx(before.compute)


@settings(max_examples=30, deadline=None)
@given(LAYOUTS, st.integers(1, 8), st.integers(1, 4))
def test_more_work_never_takes_less_time(axes: Axes, layers: int, times: int) -> None:
    axes = replace(axes, pp=1)  # a pipeline shares layers of another width differently
    small = config(axes, model=replace(MODEL, layers=2 * layers))
    deeper = config(axes, model=replace(MODEL, layers=2 * layers + 2))
    wider = config(axes, model=replace(MODEL, layers=2 * layers, mlp_width=5632 * times))
    longer = config(axes, model=replace(MODEL, layers=2 * layers), batch=BatchConfig(tokens=32 * 2048 * times))
    base = step_time(small, axes, MANY)
    for more in (deeper, wider, longer):
        found = step_time(more, axes, MANY)
        assert found.seconds >= base.seconds * (1 - 1e-9)
        assert found.model_flops >= base.model_flops


@pytest.mark.parametrize(
    ("checkpointing", "part"),
    [("selective", "recomputed elementwise"), ("every", "recomputation"), ("full", "recomputation")],
)
def test_what_is_made_again_costs_time(checkpointing: str, part: str) -> None:
    again = step_time(config(memory=MemoryConfig(checkpointing=checkpointing)), Axes(), FOUR)
    plain = step_time(config(), Axes(), FOUR)
    assert again.seconds > plain.seconds and again.parts[part] > 0.0
    assert part not in plain.parts


def test_a_step_says_tokens_flops_and_mfu_as_the_trainer_does() -> None:
    axes = Axes(dp_shard=4)
    found = step_time(config(axes), axes, FOUR)
    flops = flops_per_token(MODEL, 50304, 2048) * 32 * 2048
    assert (found.tokens, found.model_flops, found.ranks) == (32 * 2048, flops, 4)
    assert found.tokens_per_second == pytest.approx(found.tokens / found.seconds)
    assert found.mfu(989.5e12) == pytest.approx(flops / found.seconds / 4 / 989.5e12)
    with pytest.raises(ValueError, match="peak=0 is not allowed"):
        found.mfu(0.0)


def test_the_binding_limit_is_the_largest_one() -> None:
    of = StepTime(
        compute=5.0, launch=1.0, exposed={"tp": 1.0, "fsdp": 0.5}, bubble=0.5, update=1.0,
        tokens=1, model_flops=1.0, ranks=1, parts={"matmul": 2.5, "attention": 0.5, "loss": 1.5, "gaps": 0.5},
    )  # fmt: skip
    assert of.seconds == 9.0
    expected = {"matmul": 3.0, "memory": 2.5, "communication": 1.5, "launch": 1.5, "pipeline": 0.5}
    assert of.limits == pytest.approx(expected)
    assert of.binding == "matmul"
    assert replace(of, update=3.0).binding == "memory"
    assert replace(of, exposed={"tp": 4.0}).binding == "communication"
    assert replace(of, launch=4.0).binding == "launch"
    assert replace(of, bubble=4.0).binding == "pipeline"


def test_slow_links_and_single_launches_show_as_what_they_are() -> None:
    tensor = Axes(tp=4)
    slow = step_time(config(tensor), tensor, faster(MANY, links=0.01))
    assert slow.binding == "communication" and max(slow.exposed, key=slow.exposed.__getitem__) == "tp"
    narrow = config(
        model=ModelConfig(width=64, layers=4, head_dim=32), batch=BatchConfig(tokens=2 * 2048),
        compile=CompileConfig(step_graph=False),
    )  # fmt: skip
    assert step_time(narrow, Axes(), FOUR).binding == "launch"
    graph = step_time(replace(narrow, compile=CompileConfig()), Axes(), FOUR)
    assert graph.launch == 0.0


def test_stragglers_cost_what_the_slowest_takes_longer() -> None:
    axes = Axes(dp_replicate=4)
    even, slow = (step_time(config(axes), axes, FOUR, slowest=slowest) for slowest in (1.0, 1.1))
    assert slow.exposed["stragglers"] == pytest.approx(0.1 * even.compute)
    assert slow.seconds == pytest.approx(even.seconds + 0.1 * even.compute)
    assert step_time(config(), Axes(), FOUR, slowest=1.1) == step_time(config(), Axes(), FOUR)


def test_more_micro_batches_leave_less_of_a_pipeline_idle() -> None:
    axes = Axes(pp=4)
    few, many = (step_time(config(axes, parallel={"micro_batch_sequences": size}), axes, FOUR) for size in (8, 1))
    assert few.bubble / few.seconds > many.bubble / many.seconds > 0.0
    turns = {"pp_schedule": "interleaved", "micro_batch_sequences": 8}
    assert step_time(config(axes, parallel=turns), axes, FOUR).bubble < few.bubble
    assert step_time(config(), Axes(), FOUR).bubble == 0.0


def test_a_budget_makes_again_what_does_not_fit() -> None:
    whole = config(memory=MemoryConfig(checkpointing="budget"))
    device = device_of(FOUR)

    def kept(gib: float) -> dict[str, float]:
        given = replace(whole, memory=MemoryConfig(checkpointing="budget", budget_gib=gib))
        return modes(given, Axes(), 0, blocks=8, sequences=16, device=device)

    assert kept(100.0) == {"none": 8.0}
    assert kept(0.1) == {"selective": 0.0, "full": 8.0}
    between = [kept(gib) for gib in (20.0, 22.0, 24.0)]
    assert all(sum(found.values()) == pytest.approx(8.0) for found in between)
    assert [found.get("full", 0.0) for found in between] == sorted(
        (found.get("full", 0.0) for found in between), reverse=True
    )
    assert modes(whole, Axes(), 0, blocks=8, sequences=2, device=device) == {"none": 8.0}
    every = replace(whole, memory=MemoryConfig(checkpointing="every", every=4))
    assert modes(every, Axes(), 0, blocks=8, sequences=2, device=device) == {"full": 2.0, "none": 6.0}
    layout = replace(whole.parallel, pp=4, pp_schedule="interleaved", pp_stages=2, pp_layers=(1,) * 8)
    ranks = [
        modes(replace(every, parallel=layout), Axes(pp=4), rank, blocks=2, sequences=2, device=device)
        for rank in (0, 1)
    ]
    assert ranks == [{"full": 2.0}, {"none": 2.0}], "blocks 0 and 4 of eight, 1 and 5"


def test_a_budget_makes_norms_again_before_products() -> None:
    """8B, 2 sequences of 8,192 on each of 2 GPUs: without anything made again it takes more than 105 GiB."""
    row = find("ours-8b-fsdp-x2")
    large, axes = config_of(row, Path("nowhere"), "cuda"), Axes(dp_shard=2)

    def kept(gib: float) -> dict[str, float]:
        given = replace(large, memory=MemoryConfig(checkpointing="budget", budget_gib=gib))
        return modes(given, axes, 0, blocks=32, sequences=2, device=device_of(FOUR))

    assert kept(200.0) == {"none": 32.0}
    most, some, least = (kept(gib) for gib in (113.0, 90.0, 10.0))
    assert most.keys() == {"none", "selective"} and 0.0 < most["selective"] < 32.0
    assert some.keys() == {"selective", "full"} and 0.0 < some["full"] < 32.0
    assert least == {"selective": 0.0, "full": 32.0}


def test_the_example_of_the_manual_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    root = MEASURED.parents[2]
    monkeypatch.chdir(root)
    page = (root / "docs" / "howto" / "step-time.md").read_text(encoding="utf-8")
    exec(page.split("```python\n")[1].split("```")[0], {})
    lines = capsys.readouterr().out.splitlines()
    assert " tokens/s, MFU " in lines[0] and lines[0].endswith(": matmul")
    assert [line.split()[0] for line in lines[1:3]] == ["matmul", "attention"]


@pytest.mark.parametrize(
    ("sections", "compute", "said"),
    [
        ({}, {"copy": None}, "cluster profile h200_x4: compute.copy is missing"),
        ({}, {"matmul": ()}, r"compute.matmul has no rate for bf16 \(it has none\), which precision.name needs"),
        ({"memory": MemoryConfig(checkpointing="budget")}, {"memory": None}, "compute.memory is missing, which memory"),
        ({"memory": MemoryConfig(offload="optimizer")}, {"host_to_device": None}, "compute.host_to_device is missing"),
        ({"memory": MemoryConfig(offload="parameters")}, {}, "memory.offload=parameters: .*choose memory.offload=none"),
    ],
)  # fmt: skip
def test_what_a_profile_lacks_is_told_by_its_key(sections: Any, compute: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        step_time(config(**sections), Axes(), replace(FOUR, compute=replace(FOUR.compute, **compute)))


def test_links_that_a_layout_needs_have_to_be_there() -> None:
    axes = Axes(dp_shard=8)
    with pytest.raises(ValueError, match=r"h200_x4 has the levels nvlink \(4 ranks\): they do not join 8 ranks"):
        step_time(config(axes), axes, FOUR)
    whole = replace(FOUR, levels=(*FOUR.levels, Level("network", 1e-5, 5e10)))
    assert step_time(config(axes), axes, whole).exposed["fsdp"] > 0.0
    with pytest.raises(ValueError, match=r"slowest=0.5 is not allowed: .* at least 1"):
        step_time(config(axes), axes, whole, slowest=0.5)
