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

CHUNK_BYTES = {"cpu": 8 << 20, "cuda": 512 << 20}
"""Size of one chunk of fp32 logits by device type [bytes]."""


def linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, scale: float = 1.0) -> Tensor:
    """Return scale times the summed cross-entropy of `hidden @ weight.T` against `targets`, in nats, as an fp64 scalar.

    hidden (tokens, width) and weight (vocabulary, width), targets (tokens,) int64. Under autocast the products
    run in its format and the softmax in fp32. With scale = 1 / (global tokens of the step) the gradients of all
    micro-batches and ranks simply add up to those of the mean loss.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    result: Tensor = _LinearCrossEntropy.apply(hidden, weight, targets, scale, dtype)  # type: ignore[no-untyped-call]
    return result


def chunk_rows(vocab_size: int, device: str) -> int:
    """Return how many tokens' logits are computed at once: a multiple of 64, at least 64."""
    return max(64, CHUNK_BYTES.get(device, 8 << 20) // (4 * vocab_size) // 64 * 64)


class _LinearCrossEntropy(torch.autograd.Function):
    """Summed cross-entropy of a linear head; keeps the gradients, not the logits."""

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes arguments by position
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, scale: float, dtype: torch.dtype
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
        buffer = torch.empty((min(rows, len(inputs)), weight.shape[0]), dtype=exact, device=hidden.device)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(inputs), rows):
                x, target = inputs[start : start + rows], targets[start : start + rows]
                logits = buffer[: len(x)]
                _product(x, head.t(), out=logits)
                loss += _losses_and_softmax(logits, target).sum(dtype=torch.float64)
                if grad_hidden is None or grad_weight is None:
                    continue
                logits.scatter_add_(1, target[:, None], logits.new_full((len(x), 1), -1.0))
                errors = logits.to(dtype)
                torch.mm(errors, head, out=grad_hidden[start : start + rows])
                _add_product(grad_weight, x.t(), errors)
        if grad_hidden is not None and grad_weight is not None:
            ctx.save_for_backward(grad_hidden, grad_weight)
            ctx.scale, ctx.dtype = scale, hidden.dtype
        return loss * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        factor = (grads[0] * ctx.scale).to(grad_weight.dtype)
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
