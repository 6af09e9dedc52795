"""Output head and cross-entropy in one, a chunk of tokens at a time, never holding all logits.

A chunk's logits go through head, softmax, its gradient (in their place) and both gradient products while they are
near; the gradients are made in the forward pass and only scaled in backward (the idea of Hsu et al. 2024, "Liger
Kernel"). Matrix products are torch's own. With N tokens, width D, V rows of the head and b bytes a number:
    operations  6 N D V, with `recompute` 8 N D V
    bytes       besides the products' 3 N V b for the softmax pass (2 if the second read hits the cache), and
                8 V D for each chunk after the first, whose product is added to the fp32 weight gradient
    memory      chunk · V · b + 4 V D, with `recompute` chunk · V · b + 12 N in forward
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from kernels.core.dispatch import use_triton
from kernels.core.flop_counts import flops, tell_counters
from kernels.core.registration import define, fake
from kernels.cross_entropy.logits import Details
from kernels.cross_entropy.math import (
    Engine,
    Options,
    Rows,
    check_targets,
    exact,
    gather_into,
    gathered,
    group_named,
    losses,
    scatter_sum_into,
    shard_of,
)
from kernels.cross_entropy.plan import SCHEMA, Plan
from kernels.scale.api import scaled

CHUNK_BYTES = {"cpu": 8 << 20, "cuda": 512 << 20}
"""Size of one chunk of fp32 logits of the reference by device type [bytes]: on a CPU what its cache holds."""
TRITON_CHUNK_BYTES = 2 << 30
"""The same for Triton: of logits in the dtype of the products [bytes]."""

HiddenGradient = Literal["all_reduce", "reduce_scatter", "partial"]


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    reduction: Literal["mean", "sum", "none"] = "mean",
    ignore_index: int = -100,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    group: dist.ProcessGroup | None = None,
    vocabulary: tuple[int, int] | None = None,
    hidden_gradient: HiddenGradient = "all_reduce",
    recompute: bool = False,
    details: bool = False,
) -> Tensor | Details:
    """Return the cross-entropy of logits `hidden @ weight.T` against `target`, in nats.

    hidden (…, width) and weight (vocabulary, width) fp32, bf16, fp16 or fp64; under autocast the products run in its
    format; the softmax is fp32 at least. target (…) int64. "mean" (over the tokens not ignored; 0 if there are none)
    and "sum" are fp64 scalars, "none" is (…) fp32 with 0 where ignored. Options: see kernels.cross_entropy.math.

    Vocabulary-parallel: each rank of `group` gives its rows of the weight, in order of ranks; all get the same loss.
    `vocabulary` is (the first row's number, rows of all ranks); by default shards are of one size. `hidden_gradient`
    says what hidden is: "all_reduce": the same on every rank, its gradient is summed here; "partial": the same, but
    the caller sums; "reduce_scatter": this rank's part of the tokens, all of them gathered here, target of all tokens.

    `recompute` makes the logits again in backward: a third more operations, a few bytes a token kept; implied by
    "none". Raises ValueError for shapes, dtypes or options that do not fit.
    """
    tell_counters()
    extra = Options(ignore_index, z_loss, label_smoothing, softcap or 0.0, logit_scale)
    shard = shard_of(len(weight), group, vocabulary)
    scatter = hidden_gradient == "reduce_scatter" and bool(shard.group)
    ranks = group.size() if scatter and group is not None else 1
    _check(hidden, weight, target, reduction, hidden_gradient, ranks)
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    triton = use_triton("linear_cross_entropy", hidden, weight, refusal="" if len(weight) else "an empty vocabulary")
    plan = Plan(extra, shard, triton)
    mode = "none" if reduction == "none" else ("recompute" if recompute else "forward")
    flat, flat_target = hidden.reshape(-1, hidden.shape[-1]), target.reshape(-1)
    total, token_losses, lse, plain = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        flat, weight, flat_target, plan, hidden_gradient if shard.group else "partial", dtype, mode, reduction == "mean"
    )
    loss = token_losses.view(target.shape) if reduction == "none" else total
    if details:
        plain = plain if extra.penalised else token_losses.detach()
        return Details(loss, plain.view(target.shape), lse.view(target.shape))
    result: Tensor = loss
    return result


def chunk_rows(columns: int, device: str, dtype: torch.dtype = torch.float32, limit: int = 0) -> int:
    """Return how many tokens' logits are computed at once, a multiple of 64, in `limit` [bytes] or the default."""
    size = max(exact(dtype).itemsize if not limit else dtype.itemsize, 2)
    return max(64, (limit or CHUNK_BYTES.get(device, 8 << 20)) // (size * max(columns, 1)) // 64 * 64)


def _check(hidden: Tensor, weight: Tensor, target: Tensor, reduction: str, hidden_gradient: str, ranks: int) -> None:
    if reduction not in {"mean", "sum", "none"}:
        raise ValueError(f"reduction={reduction!r}: must be mean, sum or none")
    if hidden_gradient not in {"all_reduce", "reduce_scatter", "partial"}:
        raise ValueError(f"hidden_gradient={hidden_gradient!r}: must be all_reduce, reduce_scatter or partial")
    if weight.dim() != 2 or hidden.dim() < 1 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"hidden {tuple(hidden.shape)} and weight {tuple(weight.shape)}: must be (…, width) and (vocabulary, width)"
        )
    if target.numel() * hidden.shape[-1] != hidden.numel() * ranks:
        raise ValueError(
            f"target {tuple(target.shape)}: must have one number for each token of hidden {tuple(hidden.shape)}"
            + (f" of all {ranks} ranks" if ranks > 1 else "")
        )
    if target.dtype != torch.int64:
        raise ValueError(f"target of {target.dtype}: must be int64")
    if not hidden.device == weight.device == target.device:
        raise ValueError(
            f"hidden on {hidden.device}, weight on {weight.device}, target on {target.device}: must be on one device"
        )


class _LinearCrossEntropy(torch.autograd.Function):
    """(total loss, losses of tokens, lse, `Rows.plain`); keeps gradients or, in modes that recompute, the inputs."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        target: Tensor,
        plan: Plan,
        hidden_gradient: str,
        dtype: torch.dtype,
        mode: str,
        mean: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wants = any(ctx.needs_input_grad[:2])
        x, head = hidden.to(dtype), weight.to(dtype)
        token_losses, largest, log_sum, plain, grad_hidden, grad_weight = _forward(
            x, head, target, wants and mode == "forward", hidden_gradient, *plan.values()
        )
        total = token_losses.sum(dtype=torch.float64)
        scale = None
        if mean:
            scale = (target != plan.options.ignore_index).sum().clamp(min=1).double().reciprocal()
            total = total * scale
        if wants:
            if mode == "forward":
                ctx.save_for_backward(scale, grad_hidden, grad_weight)
            else:
                ctx.save_for_backward(scale, x, head, target, largest, log_sum)
            ctx.plan, ctx.hidden_gradient, ctx.mode = plan, hidden_gradient, mode
            ctx.dtypes = hidden.dtype, weight.dtype
        lse = largest + log_sum
        ctx.mark_non_differentiable(lse, plain, *([token_losses] if mode != "none" else [total]))
        ctx.set_materialize_grads(False)
        return total, token_losses, lse, plain

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        grad = grads[1] if ctx.mode == "none" else grads[0]
        if grad is None:
            return (None,) * 8
        scale, *saved = ctx.saved_tensors
        factor = grad if scale is None else grad * scale
        if ctx.mode == "forward":
            grad_hidden, grad_weight = (
                _scaled(tensor, factor, dtype, ctx.plan.triton) for tensor, dtype in zip(saved, ctx.dtypes, strict=True)
            )
        else:
            x, head, target, largest, log_sum = saved
            factors = factor.to(largest.dtype).expand(len(target)).contiguous()
            grad_hidden, grad_weight = _backward(
                x, head, target, largest, log_sum, factors, ctx.hidden_gradient, *ctx.plan.values()
            )
            grad_hidden, grad_weight = grad_hidden.to(ctx.dtypes[0]), grad_weight.to(ctx.dtypes[1])
        return grad_hidden, grad_weight, *(None,) * 6


def _scaled(tensor: Tensor, factor: Tensor, dtype: torch.dtype, triton: bool) -> Tensor:
    """Return tensor * factor in dtype, in one pass; factor () of any float dtype."""
    if triton:
        result: Tensor = scaled(tensor, factor.to(torch.float32), dtype)
        return result
    return tensor.to(dtype) * factor.to(dtype) if dtype.itemsize > tensor.dtype.itemsize else (
        tensor * factor.to(tensor.dtype)
    ).to(dtype)  # fmt: skip


def _empty_gradients(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return room for both gradients: that of hidden in its dtype, that of the weight in fp32 at least.

    On a CPU the weight's lies transposed: adding x.T @ errors keeps the wide axis contiguous, which is up to a third
    faster there at small widths than adding errors.T @ x.
    """
    dtype = exact(weight.dtype)
    rows, width = weight.shape
    if weight.device.type == "cpu":
        return hidden.new_empty(hidden.shape), weight.new_empty((width, rows), dtype=dtype).t()
    return hidden.new_empty(hidden.shape), weight.new_empty((rows, width), dtype=dtype)


def _add_product(total: Tensor, errors: Tensor, x: Tensor, first: bool) -> None:
    """Add errors.T @ x to `total`, or write it if `first`, also where the factors are of a shorter format."""
    if total.device.type == "cpu":
        total, a, b = total.t(), x.t(), errors
    else:
        a, b = errors.t(), x
    if a.dtype == total.dtype:
        torch.addmm(total, a, b, beta=0.0 if first else 1.0, out=total)
    elif total.device.type == "cuda":
        torch.ops.aten.addmm.dtype_out(total, a, b, total.dtype, beta=0.0 if first else 1.0, alpha=1.0, out=total)
    elif first:
        total.copy_(a @ b)
    else:
        total.add_(a @ b)


class _Chunks:
    """Walks the tokens chunk by chunk: logits into one buffer, their gradient in place, both products."""

    def __init__(
        self, hidden: Tensor, head: Tensor, plan: Plan, hidden_gradient: str, keep: tuple[Tensor, Tensor] | None
    ) -> None:
        self.hidden, self.head, self.keep, self.plan = hidden, head, keep, plan
        self.hidden_gradient = hidden_gradient
        dtype = hidden.dtype if plan.triton else exact(hidden.dtype)
        limit = TRITON_CHUNK_BYTES if plan.triton else 0
        rows = chunk_rows(len(head), hidden.device.type, dtype, limit)
        parts = max(1, -(-len(hidden) // rows))
        self.rows = max(1, -(-len(hidden) // parts) if plan.triton else rows)
        self.buffer = hidden.new_empty((min(self.rows, len(hidden)), len(head)), dtype=dtype)
        self.pending: list[dist.Work] = []

    def __iter__(self) -> Any:
        """Yield (the chunk's slice, its logits); read or change the logits before going on."""
        for start in range(0, len(self.hidden), self.rows):
            part = slice(start, min(start + self.rows, len(self.hidden)))
            logits = self.buffer[: part.stop - part.start]
            x = self.hidden[part]
            if logits.dtype == x.dtype:
                torch.mm(x, self.head.t(), out=logits)
            else:
                logits.copy_(x @ self.head.t())
            yield part, logits
            if self.keep is not None:
                self._products(part, logits.to(x.dtype), *self.keep)

    def _products(self, part: slice, errors: Tensor, grad_hidden: Tensor, grad_weight: Tensor) -> None:
        torch.mm(errors, self.head, out=grad_hidden[part])
        if self.hidden_gradient == "all_reduce":  # while the next product runs
            group = group_named(self.plan.shard.group)
            work = dist.all_reduce(grad_hidden[part], group=group, async_op=True)
            assert work is not None
            self.pending.append(work)
        _add_product(grad_weight, errors, self.hidden[part], first=part.start == 0)

    def finish(self) -> Tensor | None:
        """Return the gradient of hidden, summed over the ranks as the plan asks."""
        for work in self.pending:
            work.wait()
        if self.keep is None:
            return None
        if not len(self.hidden):
            self.keep[1].zero_()
        if self.hidden_gradient != "reduce_scatter":
            return self.keep[0]
        group = group_named(self.plan.shard.group)
        mine = self.keep[0].new_empty((len(self.hidden) // group.size(), self.hidden.shape[1]))
        scatter_sum_into(mine, self.keep[0], group=group)
        return mine


def _all_hidden(hidden: Tensor, plan: Plan, hidden_gradient: str) -> Tensor:
    if hidden_gradient != "reduce_scatter":
        return hidden
    group = group_named(plan.shard.group)
    everyone = hidden.new_empty((group.size() * len(hidden), hidden.shape[1]))
    gather_into(everyone, hidden.contiguous(), group=group)
    return everyone


def _rows_of(engine: Engine, logits: Tensor, target: Tensor, plan: Plan, gradient: bool) -> Rows:
    """Return one chunk's losses and, if asked, leave its gradient in the place of the logits."""
    options, shard = plan.options, plan.shard
    if not shard.group:
        return engine.fused(logits, target, options, logits if gradient else None, None)
    mine = engine.statistics(logits, target, options, shard)
    rows = losses(gathered(mine, shard, options.label_smoothing > 0), target, options, shard.vocabulary)
    if gradient:
        engine.gradient(logits, target, rows, None, options, shard, logits)
    return rows


@define(
    "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor target, bool gradients, str hidden_gradient,"
    f" {SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def _forward(
    hidden: Tensor, weight: Tensor, target: Tensor, gradients: bool, hidden_gradient: str, *values: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    plan = Plan.of(*values)
    engine = plan.engine()
    check_targets(target, plan.options, plan.shard.vocabulary)
    with torch.autocast(hidden.device.type, enabled=False):
        x = _all_hidden(hidden, plan, hidden_gradient)
        keep = _empty_gradients(x, weight) if gradients else None
        kept = Rows.room(target, exact(hidden.dtype), plan.options)
        chunks = _Chunks(x, weight, plan, hidden_gradient, keep)
        for part, logits in chunks:
            for whole_column, column in zip(kept, _rows_of(engine, logits, target[part], plan, gradients), strict=True):
                whole_column[part] = column  # empty columns stay empty
        grad_hidden = chunks.finish()
    if keep is None or grad_hidden is None:
        return *kept, hidden.new_empty(0), hidden.new_empty(0)
    return *kept, grad_hidden, keep[1]


@fake(_forward)
def _(
    hidden: Tensor, weight: Tensor, target: Tensor, gradients: bool, hidden_gradient: str, *values: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    kept = Rows.room(target, exact(hidden.dtype), Plan.of(*values).options)
    grads = _empty_gradients(hidden, weight) if gradients else (hidden.new_empty(0), hidden.new_empty(0))
    return *kept, *grads


@define(
    "linear_cross_entropy_backward(Tensor hidden, Tensor weight, Tensor target, Tensor largest, Tensor log_sum,"
    f" Tensor factors, str hidden_gradient, {SCHEMA}) -> (Tensor, Tensor)"
)
def _backward(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    largest: Tensor,
    log_sum: Tensor,
    factors: Tensor,
    hidden_gradient: str,
    *values: Any,
) -> tuple[Tensor, Tensor]:
    plan = Plan.of(*values)
    engine = plan.engine()
    with torch.autocast(hidden.device.type, enabled=False):
        x = _all_hidden(hidden, plan, hidden_gradient)
        keep = _empty_gradients(x, weight)
        chunks = _Chunks(x, weight, plan, hidden_gradient, keep)
        for part, logits in chunks:
            rows = Rows(largest[part], largest[part], log_sum[part], largest[part])
            engine.gradient(logits, target[part], rows, factors[part], plan.options, plan.shard, logits)
        grad_hidden = chunks.finish()
    assert grad_hidden is not None
    return grad_hidden, keep[1]


@fake(_backward)
def _(hidden: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _empty_gradients(hidden, weight)


@flops(_forward)
def _forward_flops(hidden: Any, weight: Any, target: Any, gradients: bool, *_: Any, **__: Any) -> int:
    return int((6 if gradients else 2) * target[0] * weight[0] * weight[1])


@flops(_backward)
def _backward_flops(hidden: Any, weight: Any, target: Any, *_: Any, **__: Any) -> int:
    return int(6 * target[0] * weight[0] * weight[1])
