"""Validation on a fixed set of sequences, shared by the ranks."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from train.loss import linear_cross_entropy
from train.setup import Setup


def evaluate(setup: Setup, interrupted: Callable[[], bool]) -> float | None:
    """Return the mean loss over the validation set [nats per token], or None when interrupted.

    `interrupted` is asked before every micro-batch and must answer the same on every rank.
    """
    world, rows, device = setup.world, setup.validation, setup.device
    share = world.share(len(rows))
    most = -(-len(rows) // world.size)
    total = torch.zeros((), dtype=torch.float64, device=device)
    with torch.no_grad():
        for first in range(0, most, setup.micro):
            if interrupted():
                return None
            part = rows[share.start + first : min(share.stop, share.start + first + setup.micro)].to(device)
            if len(part):
                with setup.autocast:
                    hidden = setup.model(part[:, :-1]).flatten(0, 1)
                    total += linear_cross_entropy(hidden, setup.model.head, part[:, 1:].reshape(-1))
    tokens = len(rows) * (rows.shape[1] - 1)
    return float(world.sum_(total)) / tokens


def bits_per_byte(nats_per_token: float, bytes_per_token: float) -> float:
    """Return a loss as bits per byte of text, comparable between tokenizers."""
    return nats_per_token / math.log(2) / bytes_per_token
