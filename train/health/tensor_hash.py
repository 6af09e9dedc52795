"""A 64-bit fingerprint of a tensor's bits, computed where it lies."""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FACTOR = -7046029254386353131  # 2^64 / golden ratio, odd, as a signed number
_CHUNK = 1 << 22


def fingerprint(tensor: Tensor) -> Tensor:
    """Return a fingerprint of the bits of a tensor, an int64 scalar on its device.

    The sum, modulo 2^64, of every element's bits times an odd factor of its position. Whatever happens to one element
    changes it, always; other changes go unseen once in about 2^64. The order of the sum does not matter.
    """
    flat = tensor.detach().contiguous().view(-1)
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for start in range(0, len(flat), _CHUNK):
        bits = flat[start : start + _CHUNK].view(_BITS[flat.element_size()]).to(torch.int64)
        place = torch.arange(start, start + len(bits), dtype=torch.int64, device=flat.device)
        total += (bits * (place.mul_(2).add_(1).mul_(_FACTOR))).sum()
    return total
