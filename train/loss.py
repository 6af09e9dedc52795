"""Output head and cross-entropy in one, a few hundred tokens at a time.

Logits are the largest tensor of a small model: 8,192 tokens times a vocabulary of 4,096 are 128 MiB of fp32, read and
written several times by the usual chain of head, log-softmax and their backward passes. Here a chunk of tokens goes
through head, softmax, its gradient and both gradient products while its logits are still in the cache, in one buffer
(the idea of Hsu et al. 2024, "Liger Kernel"). The gradients are made in the forward pass and only scaled in backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

IGNORED = -100
"""Target of a position that is not trained on: no loss, no gradient."""

CHUNK_BYTES = {"cpu": 8 << 20, "cuda": 512 << 20}
"""Size of one chunk of fp32 logits by device type [bytes]."""


def linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, group: Any = None) -> Tensor:
    """Return the summed cross-entropy of `hidden @ weight.T` against `targets`, in nats, as an fp64 scalar.

    hidden (tokens, width) and weight (vocabulary, width), targets (tokens,) int64, where `IGNORED` ones do not count.
    Under autocast the products run in its format and the softmax in fp32. With a process `group` over which the
    vocabulary is cut, weight holds this rank's rows of it (equal parts in the order of ranks), the loss is that over
    all of it on every rank, and the gradient of hidden is this rank's share, which the caller has to sum.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    result: Tensor = _LinearCrossEntropy.apply(hidden, weight, targets, group, dtype)  # type: ignore[no-untyped-call]
    return result


def chunk_rows(vocab_size: int, device: str) -> int:
    """Return how many tokens' logits are computed at once: a multiple of 64, at least 64."""
    return max(64, CHUNK_BYTES.get(device, 8 << 20) // (4 * vocab_size) // 64 * 64)


class _LinearCrossEntropy(torch.autograd.Function):
    """Summed cross-entropy of a linear head; keeps the gradients, not the logits."""

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes arguments by position
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, group: Any, dtype: torch.dtype
    ) -> Tensor:
        exact = torch.promote_types(hidden.dtype, torch.float32)
        wants = any(ctx.needs_input_grad[:2])
        head = weight.to(dtype)
        inputs = hidden.to(dtype)
        grad_hidden = torch.empty_like(inputs) if wants else None
        # Transposed: (width, vocabulary). Adding x.T @ dlogits keeps the wide axis contiguous, which is up to a third
        # faster on a CPU at small widths than adding dlogits.T @ x.
        grad_weight = torch.zeros(weight.shape[::-1], dtype=exact, device=weight.device) if wants else None
        loss = torch.zeros((), dtype=torch.float64, device=hidden.device)
        rows = chunk_rows(weight.shape[0], hidden.device.type)
        keep, targets = _kept(targets)
        buffer = torch.empty((min(rows, len(inputs)), weight.shape[0]), dtype=exact, device=hidden.device)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(inputs), rows):
                x, target = inputs[start : start + rows], targets[start : start + rows]
                logits = buffer[: len(x)]
                _product(x, head.t(), out=logits)
                losses = _losses_and_softmax(logits, target) if group is None else _across(logits, target, group)
                counted = None if keep is None else keep[start : start + rows]
                loss += (losses if counted is None else losses * counted).sum(dtype=torch.float64)
                if grad_hidden is None or grad_weight is None:
                    continue
                if group is None:
                    logits.scatter_add_(1, target[:, None], logits.new_full((len(x), 1), -1.0))
                if counted is not None:
                    logits.mul_(counted[:, None])
                errors = logits.to(dtype)
                torch.mm(errors, head, out=grad_hidden[start : start + rows])
                _add_product(grad_weight, x.t(), errors)
        if grad_hidden is not None and grad_weight is not None:
            ctx.save_for_backward(grad_hidden, grad_weight)
            ctx.dtype = hidden.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        factor = grads[0].to(grad_weight.dtype)
        return (grad_hidden.to(ctx.dtype) * factor, (grad_weight * factor).t(), None, None, None)


def _losses_and_softmax(logits: Tensor, targets: Tensor) -> Tensor:
    """Turn logits (tokens, vocabulary) into probabilities in place; return each token's loss [nats].

    The largest probability is 1 / sum(exp(logit - largest logit)), so its logarithm gives the normaliser without a
    second pass of exponentials and without the underflow of log(probability of the target).
    """
    wanted = logits.gather(1, targets[:, None]).squeeze(1)
    largest = logits.amax(1)
    torch.softmax(logits, dim=1, out=logits)
    return largest - logits.amax(1).log() - wanted


def _across(logits: Tensor, targets: Tensor, group: Any) -> Tensor:
    """Do what `_losses_and_softmax` does where each rank has the logits of its part of the vocabulary.

    The probability of the target, on the rank that has it, is made less by 1 as well: the gradient of the logits.
    """
    import torch.distributed as dist

    mine = targets - dist.get_rank(group) * logits.shape[1]
    here = (mine >= 0) & (mine < logits.shape[1])
    mine = torch.where(here, mine, 0)[:, None]
    wanted = logits.gather(1, mine).squeeze(1) * here
    largest = logits.amax(1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    torch.exp(logits.sub_(largest[:, None]), out=logits)
    sums = torch.stack((logits.sum(1), wanted))
    dist.all_reduce(sums, group=group)
    logits.div_(sums[0, :, None]).scatter_add_(1, mine, -here.to(logits.dtype)[:, None])
    return largest + sums[0].log() - sums[1]


def _kept(targets: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return which targets count (None: all, which a CPU finds out at once) and targets that can be looked up."""
    keep = targets != IGNORED
    if targets.device.type == "cpu" and bool(keep.all()):
        return None, targets
    return keep, torch.where(keep, targets, 0)


def _product(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Write a @ b into `out`, also where a and b are of a shorter format."""
    if a.dtype == out.dtype:
        torch.mm(a, b, out=out)
    else:
        out.copy_(a @ b)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to `total`, also where a and b are of a shorter format."""
    if a.dtype == total.dtype:
        torch.addmm(total, a, b, out=total)
    else:
        total.add_(a @ b)
