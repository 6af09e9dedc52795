"""What a run reached, as `outcome.json`: written once, when the budget is reached or the loss has diverged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from train.evaluate import bits_per_byte
from train.progress import Progress
from train.runtime.files import write_atomic
from train.setup import Setup
from train.spec.counts import FLOP_RULE, flops_per_token, params

FORMAT = 1


def describe(setup: Setup, progress: Progress, state: str, health: Mapping[str, int]) -> dict[str, Any]:
    """Return the outcome of a run that ended `completed` or `diverged` (then without losses).

    health: counts of what happened on the way (train.health.monitor).
    """
    config = setup.config
    counts = params(config.model, config.data.vocab_size)
    per_token = flops_per_token(config.model, config.data.vocab_size, config.data.sequence_length)
    validation = progress.validation_loss if state == "completed" else None
    bits = None if validation is None else bits_per_byte(validation, setup.validation.bytes_per_token)
    return {
        "format": FORMAT,
        "state": state,
        "step": progress.step,
        "tokens": progress.tokens,
        "flops": per_token * progress.tokens,
        "flops_own": per_token * (progress.tokens - progress.inherited),
        "flop_rule": FLOP_RULE,
        "params": {
            "total": counts.total,
            "embedding": counts.embedding,
            "non_embedding": counts.non_embedding,
            "matmul": counts.matmul,
        },
        "loss": {
            "validation_nats_per_token": validation,
            "validation_bits_per_byte": bits,
            "train_nats_per_token": progress.train_loss if state == "completed" else None,
        },
        "health": dict(health),
        "schedule_complete": state == "completed" and progress.tokens == config.budget.tokens,
        "seconds": {kind: round(value, 3) for kind, value in progress.seconds.items()},
        "torch": torch.__version__,
        "device": setup.device.type,
        "world_size": setup.world.size,
    }


def write(path: Path, outcome: dict[str, Any]) -> None:
    """Write the outcome in one rename."""
    write_atomic(path, json.dumps(outcome, indent=1, allow_nan=False) + "\n")
