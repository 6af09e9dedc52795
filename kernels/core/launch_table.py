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
    """The shape of a program and how many there are."""

    block: int = 0  # columns or elements at once; 0: a whole row
    rows: int = 1  # rows at once
    warps: int = 4
    stages: int = 1  # of the loop's software pipeline
    programs: int = 0  # a multiprocessor, each walking over many blocks; 0: one program a block


LARGEST = 1 << 62
TABLE: dict[str, tuple[tuple[int, Launch], ...]] = {
    "cross_entropy": (
        (512, Launch(block=512, warps=2)),
        (1024, Launch(block=1024, warps=4)),
        (8192, Launch(block=2048, warps=4)),
        (LARGEST, Launch(block=8192, warps=8)),
    ),
    "cross_entropy_options": (
        (512, Launch(block=512, warps=2)),
        (1024, Launch(block=1024, warps=4)),
        (8192, Launch(block=4096, warps=8)),
        (LARGEST, Launch(block=4096, warps=8)),
    ),
    "rms_norm": (
        (256, Launch(rows=16, warps=4)),
        (1024, Launch(rows=4, warps=4)),
        (4096, Launch(warps=4)),
        (8192, Launch(warps=8)),
        (LARGEST, Launch(warps=16)),
    ),
    "rms_norm_backward": (
        (128, Launch(rows=16, warps=4, programs=4)),
        (512, Launch(rows=4, warps=4, programs=4, stages=3)),
        (1024, Launch(rows=4, warps=4, programs=4)),
        (4096, Launch(warps=8, programs=2, stages=3)),
        (8192, Launch(warps=16, programs=1, stages=2)),
        (LARGEST, Launch(warps=32, programs=1)),
    ),
    "rope": ((LARGEST, Launch(rows=16, warps=8)),),
    "heads": (
        (512, Launch(rows=16, warps=1)),
        (1024, Launch(rows=16, warps=4)),
        (LARGEST, Launch(rows=16, warps=8)),
    ),
    "heads_backward": (
        (512, Launch(rows=16, warps=1, programs=16)),
        (1024, Launch(rows=16, warps=4, programs=8)),
        (LARGEST, Launch(rows=16, warps=8, programs=4)),
    ),
    "column_sums": ((LARGEST, Launch(block=8, rows=128, warps=4)),),
    "swiglu": ((512, Launch(block=512, rows=4, warps=4)), (LARGEST, Launch(block=1024, warps=4))),
    "gated_mlp_backward": ((LARGEST, Launch(block=64, rows=128, warps=8, stages=3)),),
    "adamw": ((LARGEST, Launch(block=2048, warps=2)),),
    "gradient_norm": ((LARGEST, Launch(block=8192, warps=8)),),
    "fp8_rowwise": (
        (512, Launch(warps=1)),
        (4096, Launch(warps=4)),
        (8192, Launch(warps=8)),
        (LARGEST, Launch(warps=16)),
    ),
    "fp8_tiles": ((LARGEST, Launch(block=64, rows=128, warps=4)),),
    "fp8_rows": ((LARGEST, Launch(block=1024, rows=4, warps=4)),),
    "scaled": ((LARGEST, Launch(block=4096, warps=4, programs=32)),),
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
