"""AdamW over many tensors in one pass; the mathematics is that of kernels.adamw.

Bytes for P parameters: reads weights, gradients and both moments, writes all but the gradients: 28 P for fp32, 22 P
for bf16 weights and gradients with fp32 moments, 14 P for all in bf16, and 8 P more with fp32 masters.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.core import launch
from kernels.core.launch import fp32
from kernels.core.launch_table import launch_of
from kernels.core.multi_tensor import tables


@triton.jit
def _stored(place, value, random, inside, STOCHASTIC: tl.constexpr, MASKED: tl.constexpr):
    """Store fp32 values in the place's format; bf16 rounds up with the probability of what it would cut off."""
    if STOCHASTIC and place.dtype.element_ty == tl.bfloat16:
        bits = value.to(tl.uint32, bitcast=True)
        finite = (bits & 0x7F800000) != 0x7F800000
        raised = (bits + (random & 0xFFFF)) & 0xFFFF0000
        value = tl.where(finite, raised, bits).to(tl.float32, bitcast=True)
    if MASKED:
        tl.store(place, value.to(place.dtype.element_ty), mask=inside)
    else:
        tl.store(place, value.to(place.dtype.element_ty))


@triton.jit
def _loaded(place, inside, MASKED: tl.constexpr):
    if MASKED:
        return tl.load(place, mask=inside, other=0.0).to(tl.float32)
    return tl.load(place).to(tl.float32)


@triton.jit
def _update(
    weight, gradient, mean, square, master, first, within, left, seed, scale, keep, rate, eps,
    beta1, rest1, beta2, rest2, bias2,
    MASTER: tl.constexpr, STOCHASTIC: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Update the elements first + within of one tensor; MASKED leaves out those past `left`."""
    inside = within < left
    place = first + within
    g = _loaded(gradient + place, inside, MASKED) * scale
    m = beta1 * _loaded(mean + place, inside, MASKED) + rest1 * g
    v = beta2 * _loaded(square + place, inside, MASKED) + rest2 * g * g
    p = _loaded(master + place, inside, MASKED)
    p = p * keep - rate * (m / (tl.sqrt(v) / bias2 + eps))
    random = within.to(tl.uint32)
    if STOCHASTIC:
        random = tl.randint(seed, within, 7).to(tl.uint32)
    _stored(mean + place, m, random >> 16, inside, STOCHASTIC, MASKED)
    _stored(square + place, v, (random * 40503) >> 16, inside, STOCHASTIC, MASKED)
    if MASTER:
        _stored(master + place, p, random, inside, False, MASKED)
    _stored(weight + place, p, random, inside, STOCHASTIC, MASKED)


@triton.jit
def adamw_kernel(
    addresses, sizes, owners, places, grad_scale, skip, scalars, lr, decay, beta1, rest1, beta2, rest2, eps,
    bias1, bias2, seed,
    WEIGHT: tl.constexpr, GRADIENT: tl.constexpr, MOMENT: tl.constexpr, MASTER: tl.constexpr, ARRAYS: tl.constexpr,
    SCALED: tl.constexpr, SKIP: tl.constexpr, ON_DEVICE: tl.constexpr, STOCHASTIC: tl.constexpr,
    ALIGNED: tl.constexpr, SPAN: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Update one block of SPAN elements, STEP at once; nothing at all if skip is not 0."""
    lr, decay, eps = fp32(lr), fp32(decay), fp32(eps)
    beta1, rest1, beta2, rest2 = fp32(beta1), fp32(rest1), fp32(beta2), fp32(rest2)
    bias1, bias2 = fp32(bias1), fp32(bias2)
    if ON_DEVICE:
        lr, bias1, bias2 = tl.load(scalars), tl.load(scalars + 1), tl.load(scalars + 2)
    scale = 1.0
    if SCALED:
        scale = tl.load(grad_scale).to(tl.float32)
    block = tl.program_id(0)
    owner = tl.load(owners + block).to(tl.int64)
    first = tl.load(places + block).to(tl.int64) * SPAN
    left = tl.minimum(tl.load(sizes + owner) - first, SPAN).to(tl.int32)
    if SKIP:
        left = tl.where(tl.load(skip) == 0, left, 0)
    table = addresses + owner * ARRAYS
    weight = tl.load(table).to(tl.pointer_type(WEIGHT))
    gradient = tl.load(table + 1).to(tl.pointer_type(GRADIENT))
    mean = tl.load(table + 2).to(tl.pointer_type(MOMENT))
    square = tl.load(table + 3).to(tl.pointer_type(MOMENT))
    if ALIGNED:
        weight, gradient = tl.multiple_of(weight, 16), tl.multiple_of(gradient, 16)
        mean, square = tl.multiple_of(mean, 16), tl.multiple_of(square, 16)
    master = weight
    if MASTER:
        master = tl.load(table + 4).to(tl.pointer_type(tl.float32))
        if ALIGNED:
            master = tl.multiple_of(master, 16)
    keep = 1.0 - lr * decay
    rate = lr / bias1
    own_seed = seed + block.to(tl.int64) * 4294967296
    whole = left // STEP * STEP  # without a mask, which would forbid 16-byte loads
    for start in range(0, whole, STEP):
        _update(
            weight, gradient, mean, square, master, first, start + tl.arange(0, STEP), left, own_seed, scale, keep,
            rate, eps, beta1, rest1, beta2, rest2, bias2, MASTER, STOCHASTIC, False,
        )  # fmt: skip
    if whole < left:
        _update(
            weight, gradient, mean, square, master, first, whole + tl.arange(0, STEP), left, own_seed, scale, keep,
            rate, eps, beta1, rest1, beta2, rest2, bias2, MASTER, STOCHASTIC, True,
        )  # fmt: skip


def adamw(
    arrays: list[list[Tensor]], grad_scale: Tensor | None, skip: Tensor | None, scalars: Tensor | None,
    numbers: tuple[float, ...], seed: int | None,
) -> None:  # fmt: skip
    """Update arrays: weights, gradients, both moments and maybe masters, each list of one dtype and device.

    numbers: lr, decay, β1, β2, ε, 1 - β1^t, √(1 - β2^t); `scalars` (3,) fp32 on the device replaces the first and the
    last two.
    """
    lr, decay, beta1, beta2, eps, bias1, bias2 = numbers
    found = tables(arrays, share=True)
    chosen = launch_of("adamw", found.span)
    weight, gradient, moment = (launch.language(arrays[i][0].dtype) for i in range(3))
    dummy = found.sizes
    launch.launch(
        adamw_kernel, (len(found.owners),), *found[:4], dummy if grad_scale is None else grad_scale,
        dummy if skip is None else skip, dummy if scalars is None else scalars, lr, decay, beta1, 1.0 - beta1, beta2,
        1.0 - beta2, eps, bias1, bias2, 0 if seed is None else seed, WEIGHT=weight, GRADIENT=gradient, MOMENT=moment,
        MASTER=len(arrays) == 5, ARRAYS=len(arrays), SCALED=grad_scale is not None, SKIP=skip is not None,
        ON_DEVICE=scalars is not None, STOCHASTIC=seed is not None, ALIGNED=found.aligned, SPAN=found.span,
        STEP=min(chosen.block, found.span), num_warps=chosen.warps,
    )  # fmt: skip
