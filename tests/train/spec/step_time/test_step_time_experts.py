"""A layer of experts, by hand and beside the dense layer that is the same work; what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.train.spec.step_time.test_step_time_kernels import DEVICE, PLAIN
from train.model.mlp import MLP
from train.model.moe import MoE
from train.spec.accounting.flops import per_token
from train.spec.communication.cluster import Rate, read_profile
from train.spec.config import (
    BatchConfig,
    BudgetConfig,
    CompileConfig,
    DataConfig,
    MemoryConfig,
    ModelConfig,
    OptimConfig,
    ParallelConfig,
    PrecisionConfig,
    RunConfig,
)
from train.spec.decoder import resolve_model
from train.spec.mesh import Axes
from train.spec.resolve import resolve
from train.spec.step_time import host, step_time
from train.spec.step_time.block import block_time, shape_of
from train.spec.step_time.device import IN_STEP, device_of
from train.spec.step_time.experts import ExpertShape, expert_passes, expert_products
from train.spec.step_time.products import busy, product
from train.spec.step_time.update import update_time

FAST = replace(DEVICE, memory=1e30, products=())
MANY = read_profile(Path(__file__).parents[4] / "conf" / "cluster" / "measured" / "h100_x8_400g.yaml")
SHAPE = ExpertShape(
    tokens=1024, width=256, hidden=512, count=8, here=8, chosen=2, branches=2, size=2, format="bf16", balanced=True,
    sigmoid=False, sent=False,
)  # fmt: skip
MODEL = ModelConfig(width=1024, layers=4, head_dim=64, mlp_width=512, experts=16, experts_per_token=2, qk_norm=False)


ONE = Axes()


def config(axes: Axes = ONE, **sections: Any) -> RunConfig:
    parallel = ParallelConfig(
        dp_replicate=axes.dp_replicate, dp_shard=axes.dp_shard, cp=axes.cp, ep=axes.ep, micro_batch_sequences=8
    )
    found = RunConfig(
        MODEL, DataConfig(vocab_size=8192, sequence_length=1024), BatchConfig(tokens=64 * 1024), parallel=parallel,
        precision=PrecisionConfig(name="bf16"), compile=CompileConfig(blocks=False), budget=BudgetConfig(tokens=10**8),
    )  # fmt: skip
    return resolve(replace(found, **sections))


def test_products_of_groups_have_the_tiles_of_all_groups() -> None:
    assert busy(256, 6400, 128, groups=132) == pytest.approx(100 / 101)  # a tile of each for each multiprocessor
    assert busy(128, 8192, 128, groups=2) == pytest.approx(2 / 132 * 128 / 129)  # no sum is cut
    assert busy(64, 6400, 128, groups=132) == pytest.approx(0.5 * 100 / 101)  # half a tile of rows
    assert product(FAST, "bf16", (256, 6400, 128), 2, 2, groups=132) == {
        "products of experts": pytest.approx(2 * 132 * 256 * 6400 * 128 / (IN_STEP * 1e12) * 101 / 100)
    }


def test_products_of_experts_by_hand() -> None:
    """256 rows of each of 8: gate and up, and down; their gradients are as many of rows and of weights."""
    flops = 2 * 2048 * 3 * 512 * 256
    forward = expert_products(SHAPE, FAST, "forward")
    rate = IN_STEP * 1e12
    up, down = busy(256, 256, 1024, 8), busy(256, 512, 256, 8)
    assert forward["products of experts"] == pytest.approx(flops / rate * (2 / 3 / up + 1 / 3 / down))
    backward = expert_products(SHAPE, FAST, "backward")["products of experts"]
    rows = 2 / 3 / busy(256, 1024, 256, 8) + 1 / 3 / busy(256, 256, 512, 8)
    weights = 2 / 3 / busy(1024, 256, 256, 8) + 1 / 3 / busy(256, 256, 512, 8)
    assert backward == pytest.approx(flops / rate * (rows + weights))


def test_passes_of_experts_by_hand() -> None:
    """Of a score 2 + 28 + 24 bytes, of a token its width, of a choice 7 widths, 3 hidden and its sort; and backward."""
    rows = 2 * 1024
    assert expert_passes(SHAPE, "forward") == 1024 * (54 * 8 + 2 * 256) + rows * (2 * (7 * 256 + 3 * 512) + 288)
    weights = 8 * 3 * 512 * 256
    assert expert_passes(SHAPE, "backward") == (
        1024 * (50 * 8 + 2 * 4 * 256) + rows * 2 * (11 * 256 + 5 * 512) + 2 * 2 * weights
    )
    sent = replace(SHAPE, sent=True, here=4)
    more = expert_passes(sent, "forward") - expert_passes(SHAPE, "forward")
    assert more == rows * (2 * 4 * 256 + 288)
    shared = replace(SHAPE, branches=3)
    assert expert_passes(shared, "forward") - expert_passes(SHAPE, "forward") == 1024 * 2 * 3 * 256


def test_a_profile_that_has_products_of_groups_is_heard() -> None:
    grouped = Rate("8 x 256 x 256 x 1024", "bf16", 0.25e12)
    device = device_of(replace(PLAIN, compute=replace(PLAIN.compute, grouped=(grouped,))))
    sides = (256, 256, 1024)
    seen = product(replace(device, memory=1e30), "bf16", sides, 2, 2, groups=8)["products of experts"]
    assert seen == pytest.approx(2 * 8 * 256 * 256 * 1024 / (IN_STEP * 0.25e12))
    assert product(device, "bf16", sides, 2, 2) == product(DEVICE, "bf16", sides, 2, 2), "plain products are not theirs"


def test_one_expert_that_all_tokens_go_through_is_a_dense_layer_with_a_router() -> None:
    """Of the same products: what remains is routing, and tiles that are not cut into parts of a sum."""
    one = config(model=replace(MODEL, experts=2, experts_per_token=2))
    dense = config(model=replace(MODEL, experts=0, experts_per_token=None, mlp_width=1024))
    for phase in ("forward", "backward"):
        shapes = [shape_of(c, Axes(), 8, window=None, sharded=False, narrow=False) for c in (one, dense)]
        routed, plain = (getattr(block_time(shape, FAST), phase) for shape in shapes)
        products = routed["products of experts"] + routed["matmul"]
        assert products == pytest.approx(plain["matmul"], rel=0.1)
        assert routed["attention"] == plain["attention"]


def test_arithmetic_of_a_step_is_the_flops_of_active_weights() -> None:
    """At the best rate, with no tile half full: 256 rows of each expert at least, and sides that are multiples."""
    run = config(Axes(), parallel=ParallelConfig(micro_batch_sequences=8))
    model = run.model
    flops = per_token(model, 8192, 1024)
    shape = shape_of(run, Axes(), 8, window=None, sharded=False, narrow=False)
    time = block_time(shape, FAST)
    rate = IN_STEP * 1e12
    products = time.forward["matmul"] + time.forward["products of experts"]
    least = 8 * 1024 * (flops.projections + flops.mlp) / model.layers / rate
    assert least <= products <= 1.35 * least
    back = time.backward["matmul"] + time.backward["products of experts"]
    assert 2 * least <= back <= 1.35 * 2 * least


@pytest.mark.parametrize("shared", [0, 1])
def test_what_is_made_again_is_all_but_the_last_product_and_sum(shared: int) -> None:
    run = config(model=replace(MODEL, shared_experts=shared))
    shape = shape_of(run, Axes(), 2, window=None, sharded=True, narrow=False)
    time = block_time(shape, DEVICE)
    down = sum(product(DEVICE, "bf16", (2048, 512, 1024), 2, 2).values()) if shared else 0.0
    last_sum = 2 * 3 * 1024 * 2048 / DEVICE.memory
    assert sum(time.again["full"].values()) == pytest.approx(sum(time.forward.values()) - down - last_sum)
    routing = time.forward["routing"]
    assert time.again["selective"]["recomputed elementwise"] == pytest.approx(
        time.forward["norms and elementwise"] + routing - last_sum
    )


def test_a_step_waits_for_rows_and_shows_what_goes_to_experts() -> None:
    alone, shared = Axes(dp_shard=8), Axes(dp_shard=8, ep=8)
    first, second = step_time(config(alone), alone, MANY), step_time(config(shared), shared, MANY)
    for found in (first, second):
        assert found.parts["products of experts"] > 0 and found.parts["routing"] > 0
        assert sum(found.parts.values()) == pytest.approx(found.compute)
        assert sum(found.limits.values()) == pytest.approx(found.seconds)
    assert "ep" not in first.exposed and second.exposed["ep"] > 0
    assert second.exposed["fsdp"] < first.exposed["fsdp"], "fewer experts are gathered"
    again = replace(config(shared), memory=MemoryConfig(checkpointing="full"))
    # Rows go both ways a third time, and their numbers a second one.
    assert step_time(again, shared, MANY).exposed["ep"] == pytest.approx(1.5 * second.exposed["ep"], rel=0.05)


@settings(max_examples=30, deadline=None)
@given(
    ep=st.sampled_from([1, 2, 4]),
    more=st.sampled_from(["experts_per_token", "shared_experts", "layers", "mlp_width"]),
    shard=st.sampled_from([4, 8]),
)
def test_more_work_never_takes_less_time(ep: int, more: str, shard: int) -> None:
    axes = Axes(dp_shard=shard, ep=ep)
    small = config(axes)
    values: dict[str, Any] = {"experts_per_token": 4, "shared_experts": 1, "layers": 6, "mlp_width": 1024}
    large = config(axes, model=replace(MODEL, **{more: values[more]}))
    before, after = (step_time(one, axes, MANY) for one in (small, large))
    assert after.seconds >= before.seconds * (1 - 1e-9)
    assert after.seconds - after.launch > before.seconds - before.launch


def test_the_host_waits_for_sizes() -> None:
    each = host.of_block(config(), Axes())
    assert (each.kernels, each.waits) == (host.OF_BLOCK + host.OF_EXPERTS, 0)
    sent = host.of_block(config(), Axes(dp_shard=8, ep=8))
    assert (sent.waits, sent.waits_again) == (1, 1) and sent.kernels > each.kernels
    full = host.of_block(config(precision=PrecisionConfig(name="fp32")), Axes(dp_shard=8, ep=8))
    assert full.kernels == sent.kernels + 6 * 2, "a product of each of two experts"
    assert host.waits(4, 3, 1.0, sent) == pytest.approx(host.LAUNCH * 3 * 5)
    assert host.of_block(replace(config(), model=ModelConfig()), Axes()) == host.PLAIN


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations that are kernels: no views, no memory alone."""

    views = (
        "view",
        ".t.",
        "transpose",
        "select",
        "unsqueeze",
        "expand",
        "detach",
        "unbind",
        "empty",
        "squeeze",
        "split",
    )

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not any(part in str(function) for part in self.views)
        return function(*args, **(kwargs or {}))


def operations(layer: nn.Module, call: Callable[[], torch.Tensor]) -> tuple[int, int]:
    for weight in layer.parameters():
        nn.init.normal_(weight, std=0.05)
    with Operations() as there:
        loss = call()
    with Operations() as back:
        loss.backward()  # type: ignore[no-untyped-call]
    return there.count, back.count


def test_launches_of_a_layer_are_those_of_its_operations() -> None:
    model = resolve_model(replace(MODEL, width=64, head_dim=32, mlp_width=64, experts=4), 128)
    x = torch.randn(2, 16, 64, requires_grad=True)
    routed, dense = MoE(model), MLP(model)

    def of_experts() -> torch.Tensor:
        made, said = routed(x, torch.ones(2, 16, dtype=torch.bool))
        total: torch.Tensor = made.sum() + said.balance
        return total

    def of_dense() -> torch.Tensor:
        made: torch.Tensor = dense(x)
        return made.sum()

    there, back = operations(routed, of_experts)
    first, last = operations(dense, of_dense)
    assert there - first == pytest.approx(host.EXPERTS_AGAIN, abs=6)
    assert there + back - first - last == pytest.approx(host.OF_EXPERTS, abs=8)


def test_muon_makes_every_expert_orthogonal() -> None:
    run = config(optim=OptimConfig(name="muon", muon_iterations=1, lr=0.01))
    plain = config(optim=OptimConfig(name="adamw", lr=0.01))
    muon = update_time(run, Axes(), 0, FAST) - update_time(plain, Axes(), 0, FAST)
    width, hidden, keys = 1024, 512, 1024

    def of(short: int, long: int, groups: int) -> float:
        first, last = busy(short, long, short, groups), busy(short, short, long, groups)
        flops = 2 * groups * short * short * long
        return flops / first + 2 * groups * short**3 / busy(short, short, short, groups) + flops / last

    expected = 2 * of(width, width, 1) + 2 * of(keys, width, 1) + of(16, width, 1) + 3 * of(hidden, width, 16)
    assert muon == pytest.approx(4 * expected / (IN_STEP * 1e12), rel=1e-6)
