"""A weight as the arithmetic of this process sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from kernels.core.dtensor import local

Product: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""How a layer applies a weight: x (..., columns) and weight (rows, columns) to (..., rows)."""


def shaped(weight: Tensor, *shape: int) -> Tensor:
    """Return what arithmetic here has of a weight, in its own shape; -1: as many as there are, as in Tensor.view.

    Sharding may store its numbers in rows of another length (train.spec.shard_shapes).
    """
    part = local(weight)
    same = part.dim() == len(shape) and all(want in (-1, size) for want, size in zip(shape, part.shape, strict=True))
    return part if same else part.view(shape)
