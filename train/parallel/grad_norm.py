"""The gradient norm of the whole model, however its gradients are sharded, and clipping by it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kernels.adamw.gradient_norm import gradient_norm
from kernels.core.dtensor import local
from train.parallel.mesh import Mesh


def total_norm(weights: Sequence[nn.Parameter], mesh: Mesh) -> Tensor:
    """Return the Euclidean norm of all gradients of the model, a scalar on the device, the same on every rank.

    Each rank adds up the squares of its parts, those of which n ranks hold the same divided by n, and one sum over all
    ranks does the rest: no matter along which axes a weight is cut, padded or copied.
    """
    held = [w for w in weights if w.grad is not None]
    if mesh.world.size == 1:
        return gradient_norm([local_gradient(w) for w in held]) if held else torch.zeros(())
    alike: dict[int, list[Tensor]] = {}
    for weight in held:
        alike.setdefault(copies_of(weight, mesh), []).append(local_gradient(weight))
    squares = [gradient_norm(grads).double().square_() / copies for copies, grads in alike.items()]
    total = torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)
    dist.all_reduce(total)
    return total.sqrt_().float()


def clip_factor(norm: Tensor, most: float) -> Tensor:
    """Return what gradients of this norm are multiplied by to have at most `most`; the same on every rank."""
    return torch.clamp(most / (norm + 1e-6), max=1.0)


def copies_of(weight: nn.Parameter, mesh: Mesh) -> int:
    """Return how many times the mesh holds the same part of this weight."""
    cut = mesh.axes.pp * int(getattr(weight, "flat_over", 1))  # a stage's weights are on its ranks only
    placements = getattr(weight, "placements", ())
    for dim, placement in enumerate(placements):
        if not placement.is_replicate():
            cut *= weight.device_mesh.size(dim)  # type: ignore[attr-defined]
    copies: int = getattr(weight, "in_stages", 1)  # a tied embedding is in the first stage and in the last
    return copies * mesh.world.size // cut


def local_gradient(weight: nn.Parameter) -> Tensor:
    """Return the gradient of this rank's part of a weight, without a copy."""
    grad = weight.grad
    assert grad is not None
    return local(grad)
