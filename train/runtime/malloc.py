"""Memory on a CPU: what the allocator does with a freed tensor."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP = 1 << 30


def keep_freed_memory() -> bool:
    """Ask glibc to keep blocks below 1 GiB for the next tensor instead of returning them to the system.

    A step frees and allocates the same tensors again; fresh pages cost a fault each, up to 7 % of a step on a CPU.
    Returns whether the C library took it; others than glibc are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _KEEP)) and bool(mallopt(_M_MMAP_THRESHOLD, _KEEP))
