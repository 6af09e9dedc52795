"""How each kernel is launched by size of its rows, measured on H100-class GPUs; nothing is tuned while training runs.

`with override("rms_norm", Launch(...)):` tries another configuration; `benchmarks.kernels_tuning` measures some.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True)
class Launch:
    """Block of columns or elements (0: a whole row), warps a program, stages of its loop, programs a multiprocessor."""

    block: int = 0
    warps: int = 4
    stages: int = 1
    programs: int = 0


LARGEST = 1 << 62
TABLE: dict[str, tuple[tuple[int, Launch], ...]] = {
    "cross_entropy": (
        (1024, Launch(block=1024, warps=4)),
        (8192, Launch(block=4096, warps=8)),
        (LARGEST, Launch(block=16384, warps=32)),
    ),
    "scaled": ((LARGEST, Launch(block=4096, warps=4)),),
}
"""(largest size, launch) in ascending order, by kernel."""


class _Overrides:
    """The configurations that `override` has put in front of the table."""

    launches: dict[str, Launch] = {}  # noqa: RUF012 - changed by override alone


def launch_of(kernel: str, size: int) -> Launch:
    """Return how `kernel` is launched for rows or arrays of `size` elements."""
    forced = _Overrides.launches.get(kernel)
    if forced is not None:
        return forced
    return next(launch for limit, launch in TABLE[kernel] if size <= limit)


@contextmanager
def override(kernel: str, launch: Launch) -> Iterator[None]:
    """Launch `kernel` this way inside the with block; raises ValueError for a kernel that does not exist."""
    if kernel not in TABLE:
        raise ValueError(f"kernel={kernel!r}: must be one of {', '.join(sorted(TABLE))}")
    before = dict(_Overrides.launches)
    _Overrides.launches[kernel] = launch
    try:
        yield
    finally:
        _Overrides.launches = before


@lru_cache(maxsize=64)
def multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors a GPU has; 4 where kernels are interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
