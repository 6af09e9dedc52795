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
