"""What the kernels are held against: the same in float64, and plain torch in the same dtype for the size of errors."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import kernels
from tests.kernels import interpreted

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    interpreted.hasten()
DEVICE = "cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def error(x: Tensor, exact: Tensor) -> float:
    """Relative L2 error; NaN never passes for a number."""
    x, exact = x.double().cpu(), exact.double().cpu()
    assert x.shape == exact.shape
    same = (x == exact) | (x.isnan() & exact.isnan())
    difference = torch.where(same, 0.0, x - exact)
    return float(difference.norm() / torch.where(exact.isfinite(), exact, 0.0).norm().clamp(min=1e-300))


def check(  # noqa: PLR0917
    ours: Tensor, theirs: Tensor, exact: Tensor, ulps: float = 4.0, factor: float = 1.5, unit: float = 0.0
) -> None:
    """Assert that ours is as close to exact as theirs, and within `ulps` units in the last place of the largest value.

    `unit` is the epsilon of the inputs' format, where that is shorter than the result's.

    Torch may hit by luck: an error below one rounding's (a quarter of the format's epsilon, of fp32's, in which sums
    are kept, half of it) is always allowed.
    Under the interpreter stores in bf16 cut off instead of rounding: twice the bounds.
    """
    epsilon = max(torch.finfo(ours.dtype).eps, torch.finfo(torch.float32).eps)
    slack = 2.0 if INTERPRETED and ours.dtype == torch.bfloat16 else 1.0
    lucky = epsilon / (2 if ours.dtype.itemsize >= 4 else 4)
    bound = slack * factor * max(error(theirs, exact), lucky)
    found = error(ours, exact)
    assert found <= bound, f"relative error {found:.3g}, torch's {error(theirs, exact):.3g} in {ours.dtype}"
    finite = exact.isfinite().cpu()
    if finite.any():
        largest = float(exact.cpu()[finite].abs().max())
        most = float((ours.double().cpu() - exact.double().cpu())[finite].abs().max())
        unit = max(unit, epsilon)
        assert most <= slack * ulps * unit * max(largest, 1e-30), f"{most / (unit * largest):.3g} ULP of the largest"


def digest(tensors: Sequence[Tensor]) -> str:
    """A fingerprint of the tensors' bits."""
    seen = hashlib.sha256()
    for x in tensors:
        seen.update(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return seen.hexdigest()


def gradients(outputs: Sequence[Tensor], inputs: Sequence[Tensor], upstream: Sequence[Tensor]) -> tuple[Tensor, ...]:
    grads = [u.to(o.dtype).to(o.device) for u, o in zip(upstream, outputs, strict=True)]
    return torch.autograd.grad(outputs, inputs, grads)


def compare(  # noqa: PLR0917
    ours: Callable[..., Any], theirs: Callable[..., Any], inputs: Sequence[Tensor], ulps: float = 4.0,
    factor: float = 1.5, rest: Sequence[Any] = (), seed: int = 0,
) -> None:  # fmt: skip
    """Run ours on `inputs` and hold outputs and gradients against float64 on the CPU and against theirs.

    On a GPU two runs must agree to the last bit. The inputs stay as they are, and a gradient that is not the same
    number everywhere comes from above.
    """

    def leaves(convert: Callable[[Tensor], Tensor]) -> list[Tensor]:
        return [convert(x.detach()).requires_grad_() for x in inputs]

    def run(function: Callable[..., Any], given: list[Tensor], extra: Sequence[Any]) -> list[Tensor]:
        result = function(*given, *extra)
        outputs = [result] if isinstance(result, Tensor) else list(result)
        generator = torch.Generator().manual_seed(seed)
        upstream = [torch.randn(o.shape, generator=generator, dtype=torch.float64) for o in outputs]
        return [o.detach() for o in outputs] + list(gradients(outputs, given, upstream))

    def on(device: str) -> list[Any]:
        return [x.to(device) if isinstance(x, Tensor) else x for x in rest]

    mine = leaves(lambda x: x.to(DEVICE))
    before = digest(mine)
    first = run(ours, mine, on(DEVICE))
    if not INTERPRETED:  # which takes one program after the other, in the same order every time
        assert digest(first) == digest(run(ours, mine, on(DEVICE))), "two runs differ"
    assert digest(mine) == before, "inputs were changed"
    with kernels.use("reference"):
        plain = run(theirs, leaves(lambda x: x.to(DEVICE)), on(DEVICE))
        exact = run(theirs, leaves(lambda x: x.cpu().double()), on("cpu"))
    for a, b, c in zip(first, plain, exact, strict=True):
        check(a, b, c, ulps, factor, torch.finfo(inputs[0].dtype).eps)


def cross_entropy(logits: Tensor, target: Tensor, *, reduction: str = "mean", ignore_index: int = -100,
                  z_loss: float = 0.0, label_smoothing: float = 0.0, softcap: float | None = None,
                  logit_scale: float = 1.0) -> Tensor:  # fmt: skip
    """The losses of kernels.cross_entropy in plain torch, in the logits' dtype until the softmax."""
    t = logits * logit_scale if logit_scale != 1 else logits
    t = softcap * torch.tanh(t / softcap) if softcap else t
    t = t if t.dtype == torch.float64 else t.float()
    keep = target != ignore_index
    loss = F.cross_entropy(t, target, reduction="none", ignore_index=ignore_index, label_smoothing=label_smoothing)
    loss = torch.where(keep, loss + (z_loss * t.logsumexp(-1).square() if z_loss else 0.0), 0.0)
    if reduction == "none":
        return loss
    return loss.double().sum() / (keep.sum().clamp(min=1) if reduction == "mean" else 1)


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"z_loss": 1e-2},
    {"label_smoothing": 0.1},
    {"softcap": 5.0},
    {"logit_scale": 0.3},
    {"z_loss": 1e-3, "label_smoothing": 0.1, "softcap": 20.0, "logit_scale": 0.7},
)
