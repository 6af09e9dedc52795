"""A weight as the arithmetic of this process sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from kernels.vocabulary import is_dtensor

Product: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""How a layer applies a weight: x (..., columns) and weight (rows, columns) to (..., rows)."""


def local(weight: Tensor) -> Tensor:
    """Return this rank's part of a weight that is cut over tensor-parallel ranks, any other weight as it is.

    Gradients flow back into the part that they belong to (see train.parallel.tensor for weights that all ranks share).
    """
    if not is_dtensor(weight):
        return weight
    part: Tensor = weight.to_local()
    return part
