"""How long the update takes: gradient norm, clipping, the optimizer's pass over weights, gradients and state."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from train.spec.accounting.held import part_of
from train.spec.config import ModelConfig, RunConfig
from train.spec.counts import block_weights, head_dim, kv_heads, mlp_width
from train.spec.mesh import Axes
from train.spec.pipeline_layout import share_of
from train.spec.shard_shapes import largest_shards
from train.spec.step_time.device import STREAMED, Device
from train.spec.step_time.products import seconds

UPDATED = 0.955
"""What norm, clipping and AdamW reach of a copy's bandwidth, at 1.01e9 weights: 7.84 ms for 7.49
(benchmarks/results/kernels.txt)."""
NORM = 4
"""Bytes of a weight's gradient that the gradient norm reads."""
FIXED = 12
"""Bytes of weight and gradient that an update reads and writes: weight twice, gradient once, fp32."""
MOMENTS = {"adamw": 2, "muon": 1, "sgd": 1}
ROUNDING = 66
"""Bytes of a moment in bf16 that its way through fp32 and its stochastic rounding move beside the update itself, each
operation on its own (train.precision.stochastic_rounding): to fp32 6, random bits 4, added 12, cut off 8, difference 8,
compared 5, chosen 13, to bf16 6, copied 4."""
ADDED = 12
"""Bytes of a gradient that is added to another: both read, the sum written, fp32 (torch's AccumulateGrad)."""
MUON_PASSES = 40
"""Bytes of a weight that Muon's operations move before and after its iterations, each on its own over fp32 tensors
(train.optim.muon): clip 8, moving the momentum 12, looking ahead 12, format 6, and 2 of the update's result."""
ITERATION_LARGE, ITERATION_SMALL = 5, 5
"""Reads and writes of a matrix and of its product with itself by an iteration's sums: scaled (2) and added (3)."""


def update_time(config: RunConfig, axes: Axes, rank: int, device: Device) -> float:
    """Return the seconds of an update on one rank of the pipeline, of a config that `check` lets pass."""
    part = part_of(config, axes, rank)
    each = 2 if config.precision.optimizer_state == "bf16" else 4
    name = config.optim.name
    hidden = 0
    if name == "muon":
        matrices = [weight for weight in block_weights(config.model).values() if len(weight.shape) > 1]
        hidden = part.blocks * largest_shards(matrices, axes.fsdp if part.sharded else 1, axes.tp, axes.ep)
    plain = "adamw" if name == "muon" else name
    moment = 2 * 4 + (ROUNDING if each == 2 else 0)  # the update itself is of fp32 ones
    moments = moment * MOMENTS[plain]
    moved = (NORM + FIXED + moments) * (part.shard - hidden) + (NORM + FIXED + moment + MUON_PASSES) * hidden
    taken = moved / device.memory * STREAMED / UPDATED
    if config.memory.offload == "optimizer":
        assert device.host is not None
        taken += 2 * each * MOMENTS[name] * part.shard / device.host  # fetched for the update, and sent back
    if name == "muon":
        ranks = axes.fsdp if part.sharded else 1
        format = "fp32" if config.precision.name == "fp32" else "bf16"
        taken += share_of(config, axes.pp, rank)[0] * _muon(config, device, format) / ranks
    return taken


def accumulated(config: RunConfig, axes: Axes, rank: int, micro_batches: int) -> float:
    """Return the bytes of adding gradients of every micro-batch but the first to those there are, fp32.

    Where FSDP2 sums them over ranks at once they are shards; in a pipeline and with parallel.zero=1 they are whole.
    """
    if micro_batches == 1:
        return 0.0
    part = part_of(config, axes, rank)
    whole = part.sharded and (axes.pp > 1 or config.parallel.zero == 1)
    return ADDED * (micro_batches - 1.0) * (part.gathered if whole else part.shard)


def check(config: RunConfig, device: Device) -> None:
    """Raise ValueError, naming the key, for an update that is not modelled, or of which the profile lacks a figure."""
    if config.memory.offload == "parameters":
        raise ValueError(
            "memory.offload=parameters: the update runs on the CPU, whose speed no cluster profile has, so that the "
            "step's time is not predicted; choose memory.offload=none or optimizer"
        )
    if config.memory.offload == "optimizer" and device.host is None:
        raise ValueError(
            f"cluster profile {device.profile}: compute.host_to_device is missing, which memory.offload=optimizer "
            "needs: add it [B/s], as `python -m study bench comm profile=FILE` measures it, or set memory.offload=none"
        )


def _muon(config: RunConfig, device: Device, format: str) -> float:
    """Return the seconds of one block's Newton-Schulz iterations."""
    return config.optim.muon_iterations * sum(
        count * _iteration(device, format, *sorted(sides), groups) for count, groups, sides in _matrices(config.model)
    )


def _matrices(model: ModelConfig) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Yield how many matrices of which sides a block has for Muon: queries, keys and values each are one.

    (times, groups, sides): groups are matrices of one weight that go through products together, as experts' do.
    """
    width, keys, hidden = model.width, kv_heads(model) * head_dim(model), mlp_width(model)
    yield from ((2, 1, (width, width)), (2, 1, (keys, width)))
    if not model.experts:
        yield 3, 1, (hidden, width)
        return
    yield from ((1, 1, (model.experts, width)), (3, model.experts, (hidden, width)))
    if model.shared_experts:
        yield 3, 1, (model.shared_experts * hidden, width)


@lru_cache(maxsize=1024)
def _iteration(device: Device, format: str, short: int, long: int, groups: int) -> float:
    """Return the seconds of one iteration: x x', its square, and their product with x, with the sums between them."""
    size = 4 if format == "fp32" else 2
    large, small = groups * size * short * long, groups * size * short * short
    first = seconds(device, format, (short, long, short), 2.0 * large + small, groups)[0]
    square = seconds(device, format, (short, short, short), 3.0 * small, groups)[0]
    last = seconds(device, format, (short, short, long), small + 2.0 * large, groups)[0]
    sums = ITERATION_LARGE * large + ITERATION_SMALL * small
    return first + square + last + sums / device.memory
