"""Matrix products in fp8 (Micikevicius et al. 2022, "FP8 formats for deep learning") through torch._scaled_mm.

A factor of a product is divided by its largest magnitude, so that it fills the format's range, and rounded to 8 bits:
e4m3 (4 bits of exponent, largest 448) for activations and weights, e5m2 (largest 57,344) for gradients, which spread
wider. Scaling is dynamic: by the tensor as it is now. All three products of a linear layer are narrowed; sums
inside a product are fp32 and results come out in the compute format.

tensorwise: one factor for a tensor. What was narrowed for the forward pass serves the backward pass, too, so that
half as much is kept. rowwise: one factor for a row, finer against outliers, but the backward pass sums over rows and
has to narrow again, from what is kept in full; the weight's gradient is made in the compute format.
Products on an NVIDIA GPU want both axes in multiples of 16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.float8.api import Fp8, cast_fp8
from train.precision.product import Product
from train.spec.config import PrecisionConfig

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
Narrowed: TypeAlias = tuple[Tensor, Tensor]
"""Numbers in fp8 and the fp32 factor that brings them back."""


def convert(blocks: Mapping[int, nn.Module], layers: int, config: PrecisionConfig) -> int:
    """Give the products of these blocks, by their number in a model of `layers`, to fp8; return how many took it.

    `fp8_keep_blocks` at each end of the model stay as they are. A layer takes part by having an attribute `linear`, its
    products by the name of their weight. ValueError where no block of the model would be left to convert.
    """
    keep = config.fp8_keep_blocks
    if not 0 <= 2 * keep < layers:
        raise ValueError(
            f"precision.fp8_keep_blocks={keep} of {layers} blocks at each end leaves none in fp8: "
            f"use 0 to {(layers - 1) // 2}, or precision=bf16"
        )
    inner = [block for number, block in blocks.items() if keep <= number < layers - keep]
    changed = [(layer, name) for block in inner for layer, name in products(block)]
    for layer, name in changed:
        layer.linear[name] = _product_of(config)  # type: ignore[index, operator, assignment]
    return len(changed)


def products(module: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return the layers within a module whose products can be changed, each with the name of one of its weights."""
    return [(layer, name) for layer in module.modules() for name in getattr(layer, "linear", ())]


def _product_of(config: PrecisionConfig) -> Product:
    if config.fp8_gather:
        return Received()
    if config.fp8_history:
        return Delayed()
    return rowwise if config.fp8_scaling == "rowwise" else tensorwise


def tensorwise(x: Tensor, weight: Tensor) -> Tensor:
    """Return x @ weight.T in fp8 with one factor a tensor; x (..., columns), weight (rows, columns)."""
    return _apply(_Tensorwise, x, weight)


def rowwise(x: Tensor, weight: Tensor) -> Tensor:
    """Return x @ weight.T in fp8 with one factor for each token and each output; the weight's gradient is not fp8."""
    return _apply(_Rowwise, x, weight)


class Received:
    """The tensorwise product of a weight that comes to this rank in fp8, with one factor (see
    train.parallel.float8_all_gather).

    `values` (rows, columns) e4m3 and `factor` are there whenever the weight is; the weight itself stands for both where
    gradients are concerned, and its numbers are not read.
    """

    def __init__(self) -> None:
        self.values: Tensor | None = None
        self.factor: Tensor | None = None

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x @ weight.T, x (..., columns)."""
        assert self.values is not None, "no weight has come in fp8"
        assert self.factor is not None, "no weight has come in fp8"
        assert _compute_dtype(x) is not torch.float16, "refused by train.spec.precision"
        return _apply(_Received, x, weight, self.values, self.factor)


class Delayed:
    """The tensorwise product by the largest magnitudes of past steps (see train.precision.history).

    `largest` has those of input, weight and gradient, (3,) fp32, 0 where none is known; `seen`, three fp32 scalars,
    takes this step's.
    """

    def __init__(self) -> None:
        self.largest: Tensor | None = None
        self.seen: tuple[Tensor, Tensor, Tensor] | None = None

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x @ weight.T, x (..., columns); without gradients, as in an evaluation, nothing is noted."""
        assert self.largest is not None, "no history"
        assert self.seen is not None, "no history"
        seen = self.seen if torch.is_grad_enabled() else (None, None, None)
        return _apply(_Delayed, x, weight, self.largest, *seen)


def _apply(function: Any, x: Tensor, weight: Tensor, *more: Tensor | None) -> Tensor:
    """Apply to x as rows, in the compute format; products outside of a format that fp8 widens to are not narrowed."""
    dtype = _compute_dtype(x)
    if dtype is torch.float16:
        return F.linear(x, weight)
    with torch.autocast(x.device.type, enabled=False):
        out: Tensor = function.apply(x.reshape(-1, x.shape[-1]).to(dtype), weight, *more)
    return out.view(*x.shape[:-1], weight.shape[0])


def _compute_dtype(x: Tensor) -> torch.dtype:
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def _product(a: Narrowed, b: Narrowed, dtype: torch.dtype, fast: bool) -> Tensor:
    """Return a @ b in `dtype`; a's rows and b's columns are contiguous in memory, as the hardware reads them.

    fast: sums of a few products at a time in lower precision (Hopper's fp8 units), enough for a forward pass.
    """
    return torch._scaled_mm(a[0], b[0], scale_a=a[1], scale_b=b[1], out_dtype=dtype, use_fast_accum=fast)


class _Tensorwise(torch.autograd.Function):
    """x (tokens, columns) @ weight (rows, columns).T with one factor a tensor in all three products.

    Each tensor is narrowed once, into both layouts that its two products read (kernels.cast_fp8).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x8 = cast_fp8(x, dtype=FORWARD, by="tensor", transposed=ctx.needs_input_grad[1])
        w8 = cast_fp8(weight, dtype=FORWARD, by="tensor", transposed=ctx.needs_input_grad[0])
        ctx.save_for_backward(x8.transposed, x8.scale, w8.transposed, w8.scale)
        ctx.dtypes = x.dtype, weight.dtype
        return _product((x8.values, x8.scale), (w8.values.t(), w8.scale), x.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x8, x_factor, w8, w_factor = ctx.saved_tensors
        return _gradients(ctx, grads[0], (x8, x_factor), (w8, w_factor))


class _Received(torch.autograd.Function):
    """The same, its weight in fp8 already. The layout that the backward pass reads is made there, from what is there:
    so nothing of a weight is kept between the passes but what sharding frees and brings again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, values: Tensor, factor: Tensor) -> Tensor:
        x8 = cast_fp8(x, dtype=FORWARD, by="tensor", transposed=ctx.needs_input_grad[1])
        ctx.save_for_backward(x8.transposed, x8.scale, values, factor)
        ctx.dtypes = x.dtype, weight.dtype
        return _product((x8.values, x8.scale), (values.t(), factor), x.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x8, x_factor, w8, w_factor = ctx.saved_tensors
        copy = w8.t().contiguous() if ctx.needs_input_grad[0] else None
        return *_gradients(ctx, grads[0], (x8, x_factor), (copy, w_factor)), None, None


def _gradients(
    ctx: Any, grad: Tensor, x: Narrowed, weight: tuple[Tensor | None, Tensor]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of x and weight, from both in fp8 and transposed; of weight where x has one."""
    return _products_of(ctx, cast_fp8(grad, dtype=BACKWARD, by="tensor", transposed=ctx.needs_input_grad[1]), x, weight)


def _products_of(
    ctx: Any, g8: Fp8, x: Narrowed, weight: tuple[Tensor | None, Tensor]
) -> tuple[Tensor | None, Tensor | None]:
    grad_x = grad_weight = None
    if ctx.needs_input_grad[0]:
        assert weight[0] is not None
        grad_x = _product((g8.values, g8.scale), (weight[0].t(), weight[1]), ctx.dtypes[0], fast=False)
    if ctx.needs_input_grad[1]:
        assert g8.transposed is not None
        grad_weight = _product((g8.transposed, g8.scale), (x[0].t(), x[1]), ctx.dtypes[1], fast=False)
    return grad_x, grad_weight


class _Delayed(torch.autograd.Function):
    """As `_Tensorwise`, with factors that were known before."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, largest: Tensor, *seen: Tensor | None) -> Tensor:
        x8 = _by_past(x, FORWARD, ctx.needs_input_grad[1], largest[0], seen[0])
        w8 = _by_past(weight, FORWARD, ctx.needs_input_grad[0], largest[1], seen[1])
        ctx.save_for_backward(x8.transposed, x8.scale, w8.transposed, w8.scale, largest)
        ctx.dtypes, ctx.seen = (x.dtype, weight.dtype), seen[2]
        return _product((x8.values, x8.scale), (w8.values.t(), w8.scale), x.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x8, x_factor, w8, w_factor, largest = ctx.saved_tensors
        g8 = _by_past(grads[0], BACKWARD, ctx.needs_input_grad[1], largest[2], ctx.seen)
        return *_products_of(ctx, g8, (x8, x_factor), (w8, w_factor)), None, None, None, None


def _by_past(x: Tensor, dtype: torch.dtype, transposed: bool, past: Tensor, seen: Tensor | None) -> Fp8:
    """Return x in fp8 by the largest magnitude of the past, by its own where that is 0, and note its own in `seen`."""
    own = torch.linalg.vector_norm(x, torch.inf).float()
    if seen is not None:
        seen.copy_(torch.maximum(seen, own))
    # An infinity has to stay one, for the step to be skipped, and would saturate.
    size = torch.where((past > 0) & own.isfinite(), past, own)
    return cast_fp8(x, dtype=dtype, by="tensor", transposed=transposed, largest=size)


class _Rowwise(torch.autograd.Function):
    """The same with a factor for each row of x and of weight; see the module's text for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        weight = weight.to(x.dtype)
        ctx.save_for_backward(x, weight)
        x8, w8 = cast_fp8(x, dtype=FORWARD), cast_fp8(weight, dtype=FORWARD)
        return _product((x8.values, x8.scale), (w8.values.t(), w8.scale.t()), x.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            g8, w8 = cast_fp8(grads[0], dtype=FORWARD), cast_fp8(weight, dtype=FORWARD, transposed=True)
            assert w8.transposed is not None
            assert w8.transposed_scale is not None
            columns = w8.transposed.t(), w8.transposed_scale.t()
            grad_x = _product((g8.values, g8.scale), columns, x.dtype, fast=False)
        if ctx.needs_input_grad[1]:
            grad_weight = grads[0].t() @ x
        return grad_x, grad_weight
