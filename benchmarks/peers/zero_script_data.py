"""What both scripts train: a plain model, and batches that depend on step and rank alone."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.peers.plain import plain_model
from benchmarks.peers.rows import SHAPES
from benchmarks.peers.script import Transformer, initialise

SEQUENCES = 2
SHAPE = SHAPES["tiny"]


def model() -> Transformer:
    """Return the model with its first weights."""
    torch.manual_seed(0)
    net = plain_model(SHAPE)
    initialise(net, 0.02)
    return net


def batch(step: int, rank: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return tokens and targets, (sequences, length) int64: every second token is a function of the one before."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    rows = torch.randint(SHAPE.vocabulary, (SEQUENCES, SHAPE.length + 2), generator=generator)
    rows[:, 1::2] = (rows[:, ::2] * 7 + 3) % SHAPE.vocabulary
    rows = rows[:, : SHAPE.length + 1].to(device)
    return rows[:, :-1], rows[:, 1:].contiguous()
