"""A weight as the arithmetic of this process sees it."""

from __future__ import annotations

from torch import Tensor


def local(weight: Tensor) -> Tensor:
    """Return this rank's part of a weight that is cut over tensor-parallel ranks, any other weight as it is.

    Gradients flow back into the part that they belong to (see train.parallel.tensor for weights that all ranks share).
    """
    part = getattr(weight, "to_local", None)
    return weight if part is None else part()
