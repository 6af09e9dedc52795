"""Rotary position embedding (Su et al. 2021): neighbouring channel pairs turned by position times frequency."""

from __future__ import annotations

import torch
from torch import Tensor

from train.model.frequencies import frequencies
from train.spec.config import ModelConfig


def rotations(config: ModelConfig, length: int) -> Tensor | None:
    """Return the complex numbers e^(i·position·frequency), shape (length, head_dim / 2), complex64.

    Of length 1, or above where rope_scaling sharpens scores. Angles are made in float64 on the CPU, so that every
    device turns by the same numbers. None where the model does not turn (see model.position).
    """
    if config.position != "rope":
        return None
    speeds, size = frequencies(config)
    angles = torch.arange(length, dtype=torch.float64, device="cpu")[:, None] * speeds
    return torch.polar(torch.full_like(angles, size), angles).to(torch.complex64)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Return x (batch, length, ..., head_dim), fp32, with its channel pairs (2i, 2i+1) turned by position.

    turns is (length, head_dim / 2), or (batch, length, head_dim / 2) where rows differ in their positions. Pairs are
    read as complex numbers: one multiplication each way, where halves would need slices and a join. With turns as real
    numbers, (…, 2), the arithmetic is real, too: compilers fuse it with what is around it, complex numbers they do not.
    """
    heads = [1] * (x.dim() - 3)
    if not turns.is_complex():
        cos, sin = turns.view(*turns.shape[:-2], *heads, *turns.shape[-2:]).unbind(-1)
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns.view(*turns.shape[:-1], *heads, -1)).flatten(-2)
