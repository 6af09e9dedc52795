"""Cross-entropy on logits: the losses and, where they are wanted, the gradients in the same pass over a row.

With N tokens, V columns and b bytes a number, forward and gradient read 2 N V b (the second time a row is read it is
mostly in the cache) and write N V b. "none" cannot know the gradients of its losses in the forward pass: it reads the
logits once in each direction.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from kernels.core.dispatch import use_triton
from kernels.core.registration import define, fake
from kernels.cross_entropy.math import Options, Rows, check_targets, exact, gathered, losses, shard_of
from kernels.cross_entropy.plan import SCHEMA, Plan
from kernels.scale.api import scale_


class Details(NamedTuple):
    """What `details=True` returns: the loss and, without gradients, the cross-entropy and log-sum-exp of each token.

    The cross-entropy is without the z-loss and label smoothing that the loss may have.
    """

    loss: Tensor
    cross_entropy: Tensor
    lse: Tensor


def cross_entropy(
    logits: Tensor,
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
    in_place: bool = False,
    details: bool = False,
) -> Tensor | Details:
    """Return the cross-entropy of logits (…, vocabulary) against int64 target (…), in nats.

    "mean" (over the tokens not ignored; 0 if there are none) and "sum" are fp64 scalars, "none" is (…) fp32 with 0
    where ignored. Options: see kernels.cross_entropy.math. With `group` each rank gives its columns, in order of
    ranks, and all get the same loss; `vocabulary` is (the first column's number, columns of all ranks), by default of
    equal shards. `in_place` overwrites the logits with their gradient; whoever needs them later gets an error from
    autograd. On a GPU "mean" and "sum" hand their gradient over in backward, which therefore runs once; a second call
    raises RuntimeError. Raises ValueError for shapes, dtypes or options that do not fit.
    """
    options = Options(ignore_index, z_loss, label_smoothing, softcap or 0.0, logit_scale)
    if reduction not in {"mean", "sum", "none"}:
        raise ValueError(f"reduction={reduction!r}: must be mean, sum or none")
    if logits.dim() < 1 or target.shape != logits.shape[:-1] or target.dtype != torch.int64:
        raise ValueError(
            f"target {tuple(target.shape)} of {target.dtype}: must be int64 of logits' shape without its last axis, "
            f"{tuple(logits.shape[:-1])}"
        )
    if target.device != logits.device:
        raise ValueError(f"target on {target.device}: must be on logits' device, {logits.device}")
    shard = shard_of(logits.shape[-1], group, vocabulary)
    triton = use_triton("cross_entropy", logits, refusal="" if logits.shape[-1] else "an empty vocabulary")
    flat, flat_target = logits.reshape(-1, logits.shape[-1]), target.reshape(-1)
    if in_place and flat.data_ptr() != logits.data_ptr():
        raise ValueError("in_place=True: needs logits that can be seen as (tokens, vocabulary) without a copy")
    total, token_losses, lse, plain = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        flat, flat_target, Plan(options, shard, triton), reduction, in_place
    )
    loss: Tensor = token_losses.view(target.shape) if reduction == "none" else total
    if details:
        plain = plain if options.penalised else token_losses.detach()
        return Details(loss, plain.view(target.shape), lse.view(target.shape))
    return loss


class _CrossEntropy(torch.autograd.Function):
    """(total loss, losses of tokens, lse, `Rows.plain`); keeps the gradient of the logits, or for "none" the logits."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, plan: Plan, reduction: str, in_place: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wants = ctx.needs_input_grad[0]
        scale = None
        if reduction == "mean":
            scale = (target != plan.options.ignore_index).sum().clamp(min=1).double().reciprocal()
        now = wants and reduction != "none"
        factor = None if scale is None else scale.to(exact(logits.dtype))
        values = plan.values()
        if now and in_place:
            token_losses, largest, log_sum, plain = _forward_in_place(logits, target, factor, *values)
            torch.autograd.graph.increment_version(logits)
            gradient = logits.detach()
        else:
            token_losses, largest, log_sum, plain, gradient = _forward(logits, target, factor, now, *values)
        total = token_losses.sum(dtype=torch.float64)
        total = total if scale is None else total * scale
        ctx.plan, ctx.in_place, ctx.reduction = plan, in_place, reduction
        if now and plan.triton:
            ctx.gradient = gradient  # not a saved tensor: backward gives it away, so that nobody has to copy it
        elif now:
            ctx.save_for_backward(gradient)
        elif wants:
            ctx.save_for_backward(logits, target, largest, log_sum)
        lse = largest + log_sum
        ctx.mark_non_differentiable(lse, plain, total if reduction == "none" else token_losses)
        ctx.set_materialize_grads(False)
        return total, token_losses, lse, plain

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        grad = grads[1] if ctx.reduction == "none" else grads[0]
        rest = (None,) * 4
        if grad is None:
            return (None, *rest)
        if ctx.reduction == "none":
            logits, target, largest, log_sum = ctx.saved_tensors
            factors = grad.to(largest.dtype).contiguous()
            arguments = (logits, target, largest, log_sum, factors, *ctx.plan.values())
            if not ctx.in_place:
                return (_backward(*arguments), *rest)
            _backward_in_place(*arguments)
            torch.autograd.graph.increment_version(logits)
            return (logits.detach(), *rest)
        if not ctx.plan.triton:
            (gradient,) = ctx.saved_tensors
            return (gradient * grad.to(gradient.dtype), *rest)
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:
            raise RuntimeError(
                "a second backward pass through kernels.cross_entropy: the first gave its gradient away; "
                "use reduction='none' and reduce the losses yourself, or call it twice"
            )
        scale_(gradient, grad.to(torch.float32))
        return (gradient, *rest)


def _rows(logits: Tensor, target: Tensor, factor: Tensor | None, out: Tensor | None, plan: Plan) -> Rows:
    """Return the losses; write the gradient of their sum times factor to `out` if given, which may be `logits`."""
    options, shard, engine = plan.options, plan.shard, plan.engine()
    check_targets(target, options, shard.vocabulary)
    if not shard.group:
        return engine.fused(logits, target, options, out, factor)
    statistics = gathered(engine.statistics(logits, target, options, shard), shard, options.label_smoothing > 0)
    rows = losses(statistics, target, options, shard.vocabulary)
    if out is not None:
        spread = None if factor is None else factor.expand(len(target)).contiguous()
        engine.gradient(logits, target, rows, spread, options, shard, out)
    return rows


@define(
    f"cross_entropy(Tensor logits, Tensor target, Tensor? factor, bool gradients, {SCHEMA})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def _forward(
    logits: Tensor, target: Tensor, factor: Tensor | None, gradients: bool, *values: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    out = logits.new_empty(logits.shape) if gradients else None
    rows = _rows(logits, target, factor, out, Plan.of(*values))
    return *rows, logits.new_empty(0) if out is None else out


@fake(_forward)
def _(
    logits: Tensor, target: Tensor, factor: Tensor | None, gradients: bool, *values: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows = Rows.room(target, exact(logits.dtype), Plan.of(*values).options)
    return *rows, logits.new_empty(logits.shape if gradients else (0,))


@define(
    f"cross_entropy_(Tensor(a!) logits, Tensor target, Tensor? factor, {SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor)"
)
def _forward_in_place(
    logits: Tensor, target: Tensor, factor: Tensor | None, *values: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _rows(logits, target, factor, logits, Plan.of(*values))


@fake(_forward_in_place)
def _(logits: Tensor, target: Tensor, factor: Tensor | None, *values: Any) -> tuple[Tensor, ...]:
    return Rows.room(target, exact(logits.dtype), Plan.of(*values).options)


def _gradient(logits: Tensor, target: Tensor, rows: Rows, factors: Tensor, out: Tensor, plan: Plan) -> None:
    plan.engine().gradient(logits, target, rows, factors, plan.options, plan.shard, out)


@define(
    "cross_entropy_gradient(Tensor logits, Tensor target, Tensor largest, Tensor log_sum, Tensor factors,"
    f" {SCHEMA}) -> Tensor"
)
def _backward(
    logits: Tensor, target: Tensor, largest: Tensor, log_sum: Tensor, factors: Tensor, *values: Any
) -> Tensor:
    out = logits.new_empty(logits.shape)
    _gradient(logits, target, Rows(largest, largest, log_sum, largest), factors, out, Plan.of(*values))
    return out


@fake(_backward)
def _(logits: Tensor, *_: Any) -> Tensor:
    return logits.new_empty(logits.shape)


@define(
    "cross_entropy_gradient_(Tensor(a!) logits, Tensor target, Tensor largest, Tensor log_sum, Tensor factors,"
    f" {SCHEMA}) -> ()"
)
def _backward_in_place(
    logits: Tensor, target: Tensor, largest: Tensor, log_sum: Tensor, factors: Tensor, *values: Any
) -> None:
    _gradient(logits, target, Rows(largest, largest, log_sum, largest), factors, logits, Plan.of(*values))


@fake(_backward_in_place)
def _(*_: Any) -> None:
    return None
