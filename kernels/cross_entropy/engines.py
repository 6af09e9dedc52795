"""Which engine computes softmax and its gradient; Triton is imported here, when it is first asked for."""

from __future__ import annotations

from kernels.cross_entropy.math import Engine, Reference


def engine_of(triton: bool) -> Engine:
    """Return the engine in Triton or the one in plain torch."""
    if not triton:
        return Reference()
    from kernels.cross_entropy.triton import Kernels

    return Kernels()
