"""How far a run is: the part of its state that is plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class TrainState:
    """Where a run stands after `step` optimiser steps.

    sequences: training sequences consumed by all ranks, which is the whole state of the data. evaluated: tokens at the
    latest validation. lowest_loss, lowest_at: the lowest validation loss of this run, and its tokens then. inherited,
    inherited_steps, inherited_sequences: what the parent had seen when this run branched off. Losses are in nats per
    token; train_loss is the latest that is finite. seconds: time spent, by kind, summed over attempts.
    """

    step: int = 0
    tokens: int = 0
    sequences: int = 0
    evaluated: int = 0
    inherited: int = 0
    inherited_steps: int = 0
    inherited_sequences: int = 0
    validation_loss: float | None = None
    lowest_loss: float | None = None
    lowest_at: int = 0
    train_loss: float | None = None
    seconds: dict[str, float] = field(
        default_factory=lambda: {"train": 0.0, "validation": 0.0, "checkpoint": 0.0, "total": 0.0}
    )

    def validated(self, loss: float) -> None:
        """Take in what a validation gave here [nats/token]; one that is not finite is no lowest loss."""
        self.validation_loss, self.evaluated = loss, self.tokens
        if math.isfinite(loss) and (self.lowest_loss is None or loss < self.lowest_loss):
            self.lowest_loss, self.lowest_at = loss, self.tokens

    def evaluation_due(self, until: int, budget: int, count: int) -> bool:
        """Say whether a validation is due here: at one of `count` marks, or where the run stops at `until` tokens.

        Where a search pauses a run, it compares losses: they are measured there.
        """
        paused = self.evaluated < self.tokens >= until
        return paused or evaluation_due(self.evaluated, self.tokens, budget, count)

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers as a checkpoint keeps them."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand where `state` says; what an earlier version did not keep is as at the start."""
        vars(self).update(vars(TrainState(**state)))


def evaluation_due(before: int, after: int, budget: int, count: int) -> bool:
    """Say whether one of `count` evenly spaced marks (the last is the budget) lies in (before, after] [tokens]."""
    return after * count // budget > before * count // budget
