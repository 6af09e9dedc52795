"""Small formulas of the specification by hand: muP, a pipeline's least step, communicators, what is wrong with YAML."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from train.spec import mup
from train.spec.accounting import outside
from train.spec.config import (
    BudgetConfig,
    CompileConfig,
    DataConfig,
    MemoryConfig,
    ModelConfig,
    ParallelConfig,
    RunConfig,
)
from train.spec.mesh import Axes
from train.spec.pipeline_schedule.closed_forms import closed_step, least_step, plain_idle_share
from train.spec.pipeline_schedule.simulation import Times
from train.spec.yamlfile import dump, read_mapping, why_unreadable

MODEL = ModelConfig(width=256, layers=8, head_dim=64, kv_heads=4, mlp_width=512)
WIDER = replace(MODEL, mup_base_width=64, mup_base_head_dim=16)


def test_standard_deviations_at_and_beyond_the_base_width() -> None:
    assert (mup.matrix_std(MODEL), mup.residual_std(MODEL), mup.head_std(MODEL)) == (1 / 16, 1 / 64, 1 / 16)
    assert (mup.matrix_std(WIDER), mup.residual_std(WIDER), mup.head_std(WIDER)) == (1 / 16, 1 / 64, 1 / 8)
    given = replace(WIDER, init_std=0.02, init_std_at="base")
    assert (mup.matrix_std(given), mup.residual_std(given), mup.head_std(given)) == (0.01, 0.0025, 0.02)
    assert mup.matrix_std(replace(MODEL, init_std=0.02)) == 0.02
    assert mup.residual_std(replace(MODEL, layers=2)) == 1 / 32


def test_scales_of_a_model_four_times_as_wide_as_its_base() -> None:
    assert (mup.ratio(WIDER), mup.output_scale(WIDER), mup.query_scale(WIDER)) == (4.0, 0.25, 0.5)
    assert (mup.ratio(MODEL), mup.output_scale(MODEL), mup.query_scale(MODEL)) == (1.0, 1.0, 1.0)
    assert mup.changes(WIDER) and not mup.changes(MODEL)
    assert not mup.changes(replace(MODEL, mup_base_width=256, mup_base_head_dim=64))
    assert mup.changes(replace(MODEL, mup_base_width=256, mup_base_head_dim=32))
    rates = {algorithm: [mup.lr_scale(WIDER, kind, algorithm) for kind in ("embedding", "head", "norm", "matrix")]
             for algorithm in ("adamw", "sgd", "match_rms", "spectral")}  # fmt: skip
    assert rates == {"adamw": [1, 1, 1, 0.25], "sgd": [4, 4, 4, 1], "match_rms": [1, 1, 1, 0.5], "spectral": [1] * 4}


def test_heads_at_the_base_are_given_or_derived_there() -> None:
    assert mup.base_head_dim(WIDER) == 16 and mup.base_head_dim(MODEL) == 64
    assert mup.base_head_dim(replace(WIDER, mup_base_head_dim=None)) == 64, "the head's own"
    derived = replace(MODEL, head_dim=None, width=512, mup_base_width=96)
    # The largest even divisor of the width that is at most an eighth of it, 12 at least and 64 at most.
    assert mup.base_head_dim(derived) == 12 and mup.base_head_dim(replace(derived, mup_base_width=None)) == 64


LAYOUT = ParallelConfig(pp=3, pp_schedule="1f1b", pp_stages=1)


def of_pipeline(passes: tuple[tuple[float, ...], ...], message: float, count: int, schedule: str = "1f1b") -> float:
    forward, backward, weight = passes
    layout = replace(LAYOUT, pp_schedule=schedule, pp=len(forward))
    return least_step(layout, count, Times(forward, backward, weight, message))


def test_the_least_step_of_a_pipeline() -> None:
    alike = ((1.0,) * 3,) * 3
    # The last rank begins after two forward passes and two messages, works 4 · 3, and two go back with two messages.
    assert of_pipeline(alike, 0.5, 4) == (2 + 1) + 12 + (4 + 1)
    assert of_pipeline(alike, 0.0, 4) == 2 + 12 + 4
    first = ((5.0, 1.0, 1.0), (7.0, 1.0, 1.0), (2.0, 1.0, 1.0))
    assert of_pipeline(first, 0.5, 4) == 4 * 14, "the first rank waits for nobody"
    middle = ((1.0, 5.0, 1.0), (1.5, 7.0, 1.0), (1.0, 2.0, 1.0))
    assert of_pipeline(middle, 0.25, 4) == (1 + 0.25) + 4 * 14 + (2.5 + 0.25)
    apart = ((1.0, 2.0, 4.0), (1.0, 3.0, 5.0), (2.0, 2.0, 2.0))
    assert of_pipeline(apart, 0.5, 1) == 7 + 9 + 6 + 4 * 0.5, "one micro-batch: all its passes and messages"


def test_where_gradients_of_weights_come_last_nothing_waits_for_them() -> None:
    alike = ((1.0,) * 3,) * 3
    assert of_pipeline(alike, 0.5, 4, "zb1p") == (2 + 1) + 12
    apart = ((1.0, 2.0, 4.0), (1.0, 3.0, 5.0), (2.0, 3.0, 9.0))
    assert of_pipeline(apart, 0.5, 1, "zb1p") == max(7 + 9 + 2 + 2, 3 + 1 + 18), "the last rank's own passes"


@pytest.mark.parametrize(
    ("schedule", "stages", "count", "step"),
    [
        ("gpipe", 1, 1, 1 * 3 + 3 * 3),
        ("1f1b", 1, 4, 4 * 3 + 3 * 3),
        ("1f1b", 1, 3, None),  # fewer micro-batches than ranks
        ("interleaved", 2, 8, 8 * 3 + 3 * 3 / 2),
        ("zb1p", 1, 8, 8 * 3 + 3 * 1),
        ("zbv", 2, 7, 7 * 3 + 3 * 1 / 2),
        ("zbv", 2, 6, None),
    ],
)
def test_closed_forms_of_a_step(schedule: str, stages: int, count: int, step: float | None) -> None:
    layout = replace(LAYOUT, pp=4, pp_schedule=schedule, pp_stages=stages)
    assert closed_step(layout, count, 1.0, 2.0) == step
    assert plain_idle_share(4, 8) == 3 / 11 and plain_idle_share(1, 8) == 0.0


@pytest.mark.parametrize(
    ("axes", "sharded", "ends", "count"),
    [
        (Axes(), False, False, 0),
        (Axes(), True, True, 0),
        (Axes(dp_replicate=4), False, False, 2),  # the data's ranks, and all of them
        (Axes(dp_shard=4), True, False, 3),  # and those that share weights
        (Axes(dp_replicate=2, dp_shard=4), True, False, 4),
        (Axes(tp=2), False, False, 2),
        (Axes(pp=2), False, False, 2),
        (Axes(pp=2), False, True, 3),
        (Axes(pp=2, tp=2, cp=2), False, True, 6),
        (Axes(dp_shard=4, ep=2), True, False, 5),
        (Axes(dp_shard=4, ep=4), True, False, 4),
    ],
)
def test_groups_of_ranks_that_send_messages(axes: Axes, sharded: bool, ends: bool, count: int) -> None:
    assert outside.communicators(axes, sharded, ends) == count
    assert ends or outside.communicators(axes, sharded) == count


def test_what_lies_beside_tensors_on_a_gpu_and_not_on_a_cpu() -> None:
    ring = 8 * 512 * 8 * 16 + 120 * 640 * 8 * 8 + 4 * 2**20
    assert (outside.nccl(3, "cuda"), outside.nccl(3, "cpu")) == (3 * 24 * ring, 0)
    assert (outside.context("cuda"), outside.context("cpu")) == (2**30, 0)
    peaks = [outside.margin(1000, sharded, device) for device in ("cuda", "cpu") for sharded in (False, True)]
    assert peaks == [10, 80, 0, 0]
    run = RunConfig(MODEL, DataConfig(), budget=BudgetConfig(tokens=10**6))
    plain = replace(run, compile=CompileConfig(step_graph=False))
    kept = replace(run, memory=MemoryConfig(offload="optimizer"))
    cases = ((run, Axes(), 3), (plain, Axes(), 2), (run, Axes(dp_shard=2), 2), (kept, Axes(), 2))
    assert [outside.workspaces(config, axes, "cuda") for config, axes, _ in cases] == [
        n * 32 * 2**20 for *_, n in cases
    ]
    assert outside.workspaces(run, Axes(), "cpu") == 0


def test_what_is_wrong_with_yaml_is_said_in_one_line_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: 1\nb: [1, 2\nc: 3\n")
    with pytest.raises(ValueError, match=r"a\.yaml is not YAML: .+ in line 3, column 2$"):
        read_mapping(path)
    assert why_unreadable(yaml.YAMLError("two\n  lines")) == "two lines"
    assert why_unreadable(yaml.MarkedYAMLError(problem="odd")) == "odd"
    path.write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"a\.yaml holds no mapping of sections"):
        read_mapping(path)
    path.write_text(dump({"b": 1e-3, "a": "1e-3", "c": "8474e0692244"}))
    assert read_mapping(path) == {"b": 1e-3, "a": "1e-3", "c": "8474e0692244"}
    path.write_text("a: 1e-3")
    assert read_mapping(path) == {"a": 0.001}
