"""Validation on a fixed set of sequences, shared by the ranks."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from train.batch import Batch
from train.setup import Setup


def evaluate(setup: Setup, interrupted: Callable[[], bool]) -> float | None:
    """Return the mean loss over the validation set [nats per token], or None when interrupted.

    `interrupted` is asked before every micro-batch and must answer the same on every rank.
    """
    mesh, rows = setup.mesh, setup.validation
    share, most = mesh.share(len(rows)), mesh.most(len(rows))
    batch = Batch.of(rows[share.start : share.stop]).padded(most)
    total = torch.zeros((), dtype=torch.float64, device=setup.device)
    (stage,) = setup.stages
    with torch.no_grad():
        for first in range(0, most, setup.micro):
            if interrupted():
                return None
            part = batch.part(first, first + setup.micro).to(setup.device)
            with setup.autocast:
                total += stage.call(part.inputs, part.targets, part.positions)
    tokens = len(rows) * (rows.shape[1] - 1)
    return float(mesh.sum_losses_(total)) / tokens


def bits_per_byte(nats_per_token: float, bytes_per_token: float) -> float:
    """Return a loss as bits per byte of text, comparable between tokenizers."""
    return nats_per_token / math.log(2) / bytes_per_token
