"""AdamW (Loshchilov and Hutter 2019) over a bucket of tensors in one pass, the clipping of gradients folded in.

    m ← β1 m + (1 - β1) s g,  v ← β2 v + (1 - β2) (s g)²,  s the scale that clips
    w ← (1 - lr · decay) w - lr / (1 - β1^t) · m / (√v / √(1 - β2^t) + ε)
bf16 weights either have an fp32 master copy or are rounded stochastically: up with the probability of what rounding
down would cut off, so that updates far below a weight's last digit still count on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernels.core.dispatch import use_triton
from kernels.core.dtensor import local
from kernels.core.registration import define, fake


def adamw_step(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    *,
    lr: float | Tensor,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    step: int | Tensor,
    grad_scale: Tensor | None = None,
    skip: Tensor | None = None,
    masters: Sequence[Tensor] | None = None,
    seed: int | None = None,
) -> None:
    """Update weights, means (first moments) and squares (second moments) in place; gradients are only read.

    Lists of equal lengths, tensors of one place of the same shape and layout; floats, masters fp32. `step` counts from
    1 and includes this one; lr and step may be tensors () on the device, for CUDA graphs. grad_scale () multiplies the
    gradients; skip () other than 0 leaves everything as it is, found out on the device. `seed` rounds bf16 weights and
    moments stochastically: give each step its own. Of DTensors the local parts are updated. Raises ValueError for
    lists or tensors that do not fit.
    """
    columns = [weights, gradients, means, squares] + ([] if masters is None else [masters])
    arrays = [[local(x) for x in column] for column in columns]
    _check(arrays, step)
    scalars = _scalars(lr, betas, step, arrays)
    beta1, beta2 = betas
    host_lr = 0.0 if isinstance(lr, Tensor) else float(lr)
    host_step = 1 if isinstance(step, Tensor) else step
    numbers = [host_lr, weight_decay, beta1, beta2, eps, 1 - beta1**host_step, (1 - beta2**host_step) ** 0.5]
    for i, group in enumerate(_groups(arrays)):
        if use_triton("adamw_step", *(x for column in group for x in column[:1])):
            own = None if seed is None else (seed + i * 0x9E3779B1) & 0x7FFFFFFF
            _step(*group[:4], group[4] if masters is not None else [], grad_scale, skip, scalars, numbers, own)
        else:
            _reference(group, grad_scale, skip, scalars, numbers, seed)


def _check(arrays: list[list[Tensor]], step: int | Tensor) -> None:
    names = ("weights", "gradients", "means", "squares", "masters")
    for name, column in zip(names, arrays, strict=False):
        if len(column) != len(arrays[0]):
            raise ValueError(f"{name}: {len(column)} tensors, weights has {len(arrays[0])}")
        for i, (x, weight) in enumerate(zip(column, arrays[0], strict=True)):
            if x.shape != weight.shape or x.stride() != weight.stride() or x.device != weight.device:
                raise ValueError(
                    f"{name}[{i}] {tuple(x.shape)}, strides {x.stride()} on {x.device}: must be as weights[{i}], "
                    f"{tuple(weight.shape)}, strides {weight.stride()} on {weight.device}"
                )
            if not torch.ops.aten.is_non_overlapping_and_dense(x):
                raise ValueError(f"{name}[{i}]: strides {x.stride()} leave gaps; must be dense")
            if name == "masters" and x.dtype != torch.float32:
                raise ValueError(f"masters[{i}] of {x.dtype}: must be float32")
    if not isinstance(step, Tensor) and step < 1:
        raise ValueError(f"step={step}: counts from 1")


def _scalars(
    lr: float | Tensor, betas: tuple[float, float], step: int | Tensor, arrays: list[list[Tensor]]
) -> Tensor | None:
    """Return (lr, 1 - β1^t, √(1 - β2^t)) on the device, (3,) fp32, if lr or step is there; else None."""
    if not arrays[0] or not (isinstance(lr, Tensor) or isinstance(step, Tensor)):
        return None
    device = arrays[0][0].device
    at, rate = (
        x.to(device, torch.float64) if isinstance(x, Tensor) else torch.full((), x, dtype=torch.float64, device=device)
        for x in (step, lr)
    )
    return torch.stack([rate, 1 - betas[0] ** at, (1 - betas[1] ** at).sqrt()]).float()


def _groups(arrays: list[list[Tensor]]) -> list[list[list[Tensor]]]:
    """Return the arrays' columns sorted into groups of equal dtypes and device, without empty tensors."""
    groups: dict[Any, list[list[Tensor]]] = {}
    for row in zip(*arrays, strict=True):
        if row[0].numel():
            key = (row[0].device, *(x.dtype for x in row))
            for column, x in zip(groups.setdefault(key, [[] for _ in row]), row, strict=True):
                column.append(x)
    return list(groups.values())


@torch.no_grad()
def _reference(
    group: list[list[Tensor]],
    grad_scale: Tensor | None,
    skip: Tensor | None,
    scalars: Tensor | None,
    numbers: list[float],
    seed: int | None,
) -> None:
    lr, decay, beta1, beta2, eps, bias1, bias2 = numbers if scalars is None else [*numbers[:5], 0.0, 0.0]
    rate: Any = lr
    first: Any = bias1
    second: Any = bias2
    if scalars is not None:
        rate, first, second = scalars.unbind()
    generator = None
    if seed is not None:
        generator = torch.Generator(group[0][0].device).manual_seed(seed)
    for weight, gradient, mean, square, *rest in zip(*group, strict=True):
        master = rest[0] if rest else weight
        exact = torch.promote_types(master.dtype, torch.float32)
        g = gradient.to(exact)
        if grad_scale is not None:
            g = g * grad_scale
        m = beta1 * mean.to(exact) + (1 - beta1) * g
        v = beta2 * square.to(exact) + (1 - beta2) * g * g
        p = master.to(exact) * (1 - rate * decay) - (rate / first) * (m / (v.sqrt() / second + eps))
        for goal, value in ((mean, m), (square, v), (weight, p), *([(master, p)] if rest else [])):
            rounded = _rounded(value, goal.dtype, generator)
            goal.copy_(rounded if skip is None else torch.where(skip == 0, rounded, goal))


def _rounded(value: Tensor, dtype: torch.dtype, generator: torch.Generator | None) -> Tensor:
    if generator is None or dtype != torch.bfloat16:
        return value.to(dtype)
    bits = value.view(torch.int32)
    noise = torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32, device=bits.device, generator=generator)
    return torch.where(value.isfinite(), (bits + noise) & -65536, bits).view(torch.float32).to(dtype)


@define(
    "adamw_step(Tensor(a!)[] weights, Tensor[] gradients, Tensor(b!)[] means, Tensor(c!)[] squares,"
    " Tensor(d!)[] masters, Tensor? grad_scale, Tensor? skip, Tensor? scalars, float[] numbers, int? seed) -> ()"
)
def _step(
    weights: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    masters: list[Tensor],
    grad_scale: Tensor | None,
    skip: Tensor | None,
    scalars: Tensor | None,
    numbers: list[float],
    seed: int | None,
) -> None:
    from kernels.adamw.triton import adamw

    arrays = [weights, gradients, means, squares] + ([masters] if masters else [])
    adamw(arrays, grad_scale, skip, scalars, tuple(numbers), seed)


@fake(_step)
def _(*_: Any) -> None:
    return None
