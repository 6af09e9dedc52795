"""How far a run is: the part of its state that is plain numbers, and the marks at which it is evaluated."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Progress:
    """Where a run stands after `step` optimiser steps.

    sequences: training sequences consumed by all ranks, which is the whole state of the data. evaluated: tokens at the
    latest validation. inherited, inherited_steps, inherited_sequences: what the parent had seen when this run branched
    off. Losses are in nats per token; train_loss is the latest that is finite. seconds: time spent, by kind, summed
    over attempts.
    """

    step: int = 0
    tokens: int = 0
    sequences: int = 0
    evaluated: int = 0
    inherited: int = 0
    inherited_steps: int = 0
    inherited_sequences: int = 0
    validation_loss: float | None = None
    train_loss: float | None = None
    seconds: dict[str, float] = field(
        default_factory=lambda: {"train": 0.0, "validation": 0.0, "checkpoint": 0.0, "total": 0.0}
    )


def evaluation_due(before: int, after: int, budget: int, count: int) -> bool:
    """Say whether one of `count` evenly spaced marks (the last is the budget) lies in (before, after] [tokens]."""
    return after * count // budget > before * count // budget


def parts(count: int, most: int) -> list[int]:
    """Return `count` sequences cut into the fewest micro-batches of at most `most`, as equal as can be."""
    passes = -(-count // most)
    return [count * (i + 1) // passes - count * i // passes for i in range(passes)]


def batch_sequences(batch_tokens: int, budget: int, tokens: int, sequence_length: int) -> int:
    """Return how many sequences the step after `tokens` takes: the batch, or what is left of the budget."""
    return min(batch_tokens, budget - tokens) // sequence_length
