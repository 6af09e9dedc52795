"""Rotary position embedding (Su et al. 2021): neighbouring channel pairs turned by position times frequency."""

from __future__ import annotations

import torch
from torch import Tensor


def rotations(length: int, head_dim: int, theta: float) -> Tensor:
    """Return the unit complex numbers e^(i·position·frequency), shape (length, head_dim / 2), complex64.

    Angles are made in float64 on the CPU, so that every device turns by the same numbers.
    """
    frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / head_dim)
    angles = torch.arange(length, dtype=torch.float64, device="cpu")[:, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Return x (batch, length, ..., head_dim), fp32, with its channel pairs (2i, 2i+1) turned by position.

    turns is (length, head_dim / 2), or (batch, length, head_dim / 2) where rows differ in their positions. Pairs are
    read as complex numbers: one multiplication each way, where halves would need slices and a join.
    """
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
    heads = [1] * (x.dim() - 3)
    return torch.view_as_real(pairs * turns.view(*turns.shape[:-1], *heads, -1)).flatten(-2)
