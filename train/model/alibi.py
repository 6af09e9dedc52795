"""Attention with linear biases (Press et al. 2022): scores fall with distance, faster in some heads than in others."""

from __future__ import annotations

import torch
from torch import Tensor


def slopes(heads: int, first: int, count: int, device: torch.device) -> Tensor:
    """Return how much scores fall per position in heads first to first + count of `heads`: (count,) fp32.

    For a power of two n they are 2^(-8/n), 2^(-16/n), …; for others those of the power below, then every other one of
    the power above, as in the authors' code. Made on the device, without a copy from the CPU.
    """
    number = torch.arange(first, first + count, dtype=torch.float32, device=device)
    below = 1 << (heads.bit_length() - 1)
    exponent = torch.where(number < below, 8 * (number + 1) / below, 4 * (2 * (number - below) + 1) / below)
    return torch.exp2(-exponent)
