"""What a run reached, as `outcome.json`: written once, when the budget is reached or the loss has diverged."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from train.metrics.validation import bits_per_byte
from train.runtime.files import write_atomic
from train.runtime.gpu_share import GPU_SECONDS
from train.spec.config import RunConfig
from train.spec.counts import FLOP_RULE, flops_per_token, params
from train.spec.gpu_share import share
from train.state import TrainState

FORMAT = 1


def write(
    folder: Path,
    config: RunConfig,
    reached: TrainState,
    state: str,
    *,
    health: Mapping[str, int],
    bytes_per_token: float,
    epochs: float | None = None,
    device: torch.device,
    world_size: int,
) -> None:
    """Write the outcome of a run, in one rename, that ended `completed` or `diverged` (then without losses).

    health: counts of what happened on the way (train.health.monitor). bytes_per_token: of the validation set.
    epochs: how often the training text was read.
    """
    counts = params(config.model, config.data.vocab_size)
    per_token = flops_per_token(config.model, config.data.vocab_size, config.data.sequence_length)
    validation = reached.validation_loss if state == "completed" else None
    bits = None if validation is None else bits_per_byte(validation, bytes_per_token)
    described = {
        "format": FORMAT,
        "state": state,
        "step": reached.step,
        "tokens": reached.tokens,
        "flops": per_token * reached.tokens,
        "flops_own": per_token * (reached.tokens - reached.inherited),
        "flop_rule": FLOP_RULE,
        "epochs": None if epochs is None else round(epochs, 4),
        "params": {
            "total": counts.total,
            "embedding": counts.embedding,
            "non_embedding": counts.non_embedding,
            "matmul": counts.matmul,
            "active": counts.active,
        },
        "loss": {
            "validation_nats_per_token": validation,
            "validation_bits_per_byte": bits,
            "train_nats_per_token": reached.train_loss if state == "completed" else None,
            "lowest_validation_nats_per_token": reached.lowest_loss if state == "completed" else None,
            "lowest_validation_tokens": reached.lowest_at if state == "completed" else None,
        },
        "health": dict(health),
        "schedule_complete": state == "completed" and reached.tokens == config.budget.tokens,
        "seconds": {kind: round(value, 3) for kind, value in reached.seconds.items()},
        "torch": torch.__version__,
        "device": device.type,
        "world_size": world_size,
    }
    if device.type == "cuda" and torch.cuda.is_available():
        described["device_name"] = torch.cuda.get_device_name(device)
    part = _share(reached) if device.type == "cuda" else 1.0
    if part < 1:
        described["gpu_share"] = round(part, 4)
    write_atomic(folder / "outcome.json", json.dumps(described, indent=1, allow_nan=False) + "\n")


def _share(reached: TrainState) -> float:
    """Return the part of its GPU's time that a run had while it trained, on average."""
    whole, trained = reached.seconds.get(GPU_SECONDS), reached.seconds["train"]
    return share(os.environ) if whole is None or trained <= 0 else whole / trained
