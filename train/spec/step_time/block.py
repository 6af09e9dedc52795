"""How long one block takes for one micro-batch on one rank, forward, backward and made again, by kind of work.

Counted are the kernels that train.model runs on a GPU: products by cuBLAS, attention by cuDNN, and this repository's
kernels for the rest, each of which reads and writes whole tensors. Compiled blocks are taken to be as fast as those of
our kernels alone: they were, within 1 %, at 150M and 1B (benchmarks/results/kernels_end_to_end.md), and 4 % faster at
12 layers of 768 (benchmarks/trainer_notes.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from train.spec.activations import keeps_hidden
from train.spec.communication.stages import short
from train.spec.config import RunConfig
from train.spec.counts import head_dim, kv_heads, mlp_width
from train.spec.mesh import Axes
from train.spec.step_time.attention import Attention
from train.spec.step_time.device import Device
from train.spec.step_time.experts import ExpertShape, expert_passes, expert_products, expert_shape
from train.spec.step_time.products import product
from train.spec.step_time.result import (
    AGAIN,
    AGAIN_ELEMENTWISE,
    ATTENTION,
    CASTS,
    ELEMENTWISE,
    GROUPED,
    MATMUL,
    NARROW,
    ROUTING,
    added,
)

FP8_CASTS = {0: 6, 1: 4}
"""Bytes moved for each bf16 number that becomes an fp8 one in both layouts: the largest is sought, then it is read and
written twice (train.precision.float8); with a history the search is part of the kernel before."""
LEAST = 2.5e-6
"""Seconds of the smallest kernels: 48 casts of small weights and gradients take 0.12 ms at 384 x 6
(benchmarks/trainer_notes.md)."""
FULL = 4
"""Bytes of a weight or gradient as it is kept: fp32."""
PHASES = ("forward", "backward")


@dataclass(frozen=True)
class BlockShape:
    """A block's work on one rank: all that its time depends on.

    tokens: of the micro-batch, gathered over tp. width, joint (queries, keys and values), hidden: channels of the whole
    model. cut: ranks of tp. size: bytes of a number. format: of products. history: of fp8's factors. keep: the gated
    product is kept. casts: weights and their gradients change format here, not in FSDP2's messages. compiled: its
    forward pass is one function, all of which runs where it is made again. experts: those of its feed-forward layer, if
    it has any; hidden is of what every token goes through beside them, 0 where that is nothing.
    """

    tokens: int
    width: int
    joint: int
    hidden: int
    cut: int
    size: int
    format: str
    history: bool
    keep: bool
    casts: bool
    compiled: bool
    attention: Attention
    experts: ExpertShape | None = None

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """What its products make of what, on this rank: channels in, channels out; those of experts are not in it."""
        cut, width, hidden = self.cut, self.width, self.hidden // self.cut
        attention = ((width, self.joint // cut), (width // cut, width))
        router = ((width, self.experts.count),) if self.experts else ()
        return (*attention, *router, *(((width, 2 * hidden), (hidden, width)) if hidden else ()))

    @property
    def matrices(self) -> int:
        """Numbers of its matrices on this rank, of experts as well."""
        return sum(into * out for into, out in self.products) + (self.experts.numbers if self.experts else 0)


@dataclass(frozen=True)
class BlockTime:
    """Seconds of a block by part. again: what checkpointing makes again, by mode: none, selective, full."""

    forward: dict[str, float]
    backward: dict[str, float]
    again: dict[str, dict[str, float]]


def shape_of(
    config: RunConfig, axes: Axes, sequences: int, *, window: int | None, sharded: bool, narrow: bool
) -> BlockShape:
    """Return the shape of a block. sharded: FSDP2 or FSDP1 holds weights. narrow: its products are in fp8."""
    model, length = config.model, config.data.sequence_length
    size, each = short(config), head_dim(model)
    heads, groups = model.width // each, kv_heads(model)
    format = "bf16" if config.precision.name == "fp8" else config.precision.name
    tokens = sequences * length // axes.cp
    attention = Attention(
        sequences=sequences,
        heads=heads // axes.tp,
        groups=max(1, groups // axes.tp),
        channels=each,
        queries=length // axes.cp,
        keys=length,
        window=min(window or length, length),
        size=size,
        format=format,
    )
    return BlockShape(
        tokens=tokens,
        width=model.width,
        joint=model.width + 2 * groups * each,
        hidden=mlp_width(model) * (model.shared_experts if model.experts else 1),
        cut=axes.tp,
        size=size,
        format="fp8" if narrow else format,
        history=config.precision.fp8_history > 0,
        keep=keeps_hidden(model),
        casts=not sharded and size < FULL,
        compiled=config.compile.blocks is not False and not config.compile.cuda_graphs,
        attention=attention,
        experts=expert_shape(config, axes, tokens, size, format) if model.experts else None,
    )


@lru_cache(maxsize=4096)
def block_time(shape: BlockShape, device: Device) -> BlockTime:
    """Return the times of a block; they are shared, so nobody may change them."""
    forward = _products(shape, device, backward=False)
    elementwise = {ELEMENTWISE: _forward_passes(shape) / device.memory}
    mixed = {ATTENTION: shape.attention.seconds(device, "forward")}
    routing = _routing(shape, device, "forward")
    last = _one_product(shape, device, *shape.products[-1]) if shape.hidden else {}
    # Torch stops where the last tensor is there that the backward pass needs: the last product and sum are not made,
    # unless they are within compiled code.
    again_products = added((1.0, forward), (0.0 if shape.compiled else -1.0, last), (1.0, mixed))
    passes = elementwise[ELEMENTWISE] + sum(routing.values())
    partly = passes - _last_sum(shape) / device.memory
    again_passes = passes if shape.compiled else partly
    casts = _casts(shape, device, forward=True)
    return BlockTime(
        forward=added((1.0, forward), (1.0, mixed), (1.0, elementwise), (1.0, routing), (1.0, casts)),
        backward=added(
            (1.0, _products(shape, device, backward=True)),
            (1.0, {ATTENTION: shape.attention.seconds(device, "backward")}),
            (1.0, {ELEMENTWISE: _backward_passes(shape) / device.memory}),
            (1.0, _routing(shape, device, "backward")),
            (1.0, _casts(shape, device, forward=False)),
        ),
        again={
            "none": {},
            "selective": {AGAIN_ELEMENTWISE: partly},
            "full": {
                AGAIN: sum(again_products.get(name, 0.0) for name in (MATMUL, GROUPED, ATTENTION)),
                AGAIN_ELEMENTWISE: again_passes + again_products.get(NARROW, 0.0),
            },
        },
    )


def _sizes(shape: BlockShape) -> tuple[int, int]:
    """Return the bytes of a number that goes into a product, and of a weight's gradient that comes out."""
    return (1, FULL) if shape.format == "fp8" else (shape.size, shape.size)


def _one_product(shape: BlockShape, device: Device, into: int, out: int) -> dict[str, float]:
    return product(device, shape.format, (shape.tokens, into, out), _sizes(shape)[0], shape.size)


def _products(shape: BlockShape, device: Device, backward: bool) -> dict[str, float]:
    """Return its products: in the backward pass those of the inputs' gradients and of the weights'."""
    size, gradient = _sizes(shape)
    found: dict[str, float] = {}
    for into, out in shape.products:
        if not backward:
            found = added((1.0, found), (1.0, _one_product(shape, device, into, out)))
            continue
        of_input = product(device, shape.format, (shape.tokens, out, into), size, shape.size)
        of_weight = product(device, shape.format, (out, shape.tokens, into), size, gradient)
        found = added((1.0, found), (1.0, of_input), (1.0, of_weight))
    if shape.experts:
        found = added((1.0, found), (1.0, expert_products(shape.experts, device, PHASES[backward])))
    return found


def _routing(shape: BlockShape, device: Device, phase: str) -> dict[str, float]:
    return {ROUTING: expert_passes(shape.experts, phase) / device.memory} if shape.experts else {}


def _forward_passes(shape: BlockShape) -> float:
    """Return the bytes that kernels without products move in a forward pass.

    Read and written: first norm 2 widths, second norm with its sum 4, heads taken apart 2 joint, gated product 3
    hidden, last sum 3 widths. Norms and sums are of each rank's own tokens.
    """
    own, heads = shape.tokens / shape.cut, shape.tokens / shape.cut
    return shape.size * (9 * shape.width * own + (2 * shape.joint + 3 * shape.hidden) * heads)


def _last_sum(shape: BlockShape) -> float:
    return shape.size * 3 * shape.width * shape.tokens / shape.cut


def _backward_passes(shape: BlockShape) -> float:
    """Return the same of a backward pass.

    Both norms 4 widths each (gradients of result and stream, input; one written), heads 2 joint, gate and up 6 hidden
    (its result's gradient and both read, both gradients and the gated product written), 5 where that was kept.
    """
    gated = 5 if shape.keep or shape.format == "fp8" else 6
    each = 8 * shape.width + 2 * shape.joint + gated * shape.hidden
    return shape.size * each * shape.tokens / shape.cut


def _casts(shape: BlockShape, device: Device, forward: bool) -> dict[str, float]:
    """Return the time in which weights, their gradients and what goes into fp8 products change their format.

    A weight: 4 bytes read, 2 written, in fp8 read twice and written in both layouts. Its gradient: 2 read, 4 written.
    """
    moved = 0.0
    if shape.format == "fp8":
        each = FP8_CASTS[int(shape.history)]
        inputs = sum(into for into, _ in shape.products) if forward else sum(out for _, out in shape.products)
        moved += each * shape.tokens * inputs
        moved += (2 * FULL + 2) * shape.matrices if forward else 0
    elif shape.casts:
        moved += (FULL + shape.size) * shape.matrices
    return {CASTS: max(moved / device.memory, LEAST * (len(shape.products) + 2 * bool(shape.experts)))} if moved else {}
