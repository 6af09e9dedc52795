"""The part of a GPU that a process has, where several runs have one GPU together.

Whoever starts them side by side says in STUDY_GPU_SHARE, as a number of at most 1, what part of the memory each may
take; and in the file that STUDY_GPU_SHARED_BY names how many of them run now, among which its time is divided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

VARIABLE = "STUDY_GPU_SHARE"
SHARED_BY = "STUDY_GPU_SHARED_BY"
BESIDE = 1 << 30
"""What a process holds on a GPU beside its tensors: CUDA's context, kernels, graphs [bytes]."""


def share(environment: Mapping[str, str]) -> float:
    """Return the part of its GPU that a process may take by its environment; 1.0: all. ValueError for no such part."""
    said = environment.get(VARIABLE, "1")
    try:
        found = float(said)
    except ValueError:
        found = math.nan
    if not 0 < found <= 1:
        raise ValueError(f"{VARIABLE}={said!r} is not allowed: a number above 0, at most 1, or leave it unset")
    return found


def part(total: int, of_it: float) -> int:
    """Return what the tensors of a process may take of `total` [bytes], where it has this share of the GPU."""
    return total if of_it == 1 else max(0, int(total * of_it) - BESIDE)
