"""Learning rate and batch size over a run: pure functions of tokens seen. Their horizon is the token budget.

A cooldown from a checkpoint is a run of its own: `schedule.parent` names the checkpoint, the budget is the tokens at
which the cooldown ends, and a wsd schedule is at its peak where the checkpoint was taken (`branch_decay_fraction`).
"""

from __future__ import annotations

import math

from train.spec.config import BatchConfig, RunConfig, ScheduleConfig


def factor(schedule: ScheduleConfig, tokens: int, horizon: int) -> float:
    """Return the share of the peak learning rate for the step that ends at `tokens` of a budget of `horizon` tokens.

    Warm-up is linear from 0 to 1 over `warmup_fraction`. Then: cosine and linear fall to `final_lr_fraction` at the
    horizon; wsd (Hu et al. 2024, "MiniCPM") stays at 1 and falls over the last `decay_fraction`, linearly or as
    1 - sqrt (Hägele et al. 2024); constant stays at 1. Past the horizon the last value holds.
    """
    progress = min(1.0, tokens / horizon)
    warmup, final = schedule.warmup_fraction, schedule.final_lr_fraction
    if progress < warmup:
        return progress / warmup
    if schedule.name in ("cosine", "linear"):
        share = (progress - warmup) / (1.0 - warmup) if warmup < 1.0 else 0.0
        left = 0.5 * (1.0 + math.cos(math.pi * share)) if schedule.name == "cosine" else 1.0 - share
        return final + (1.0 - final) * left
    if schedule.name == "wsd":
        start = 1.0 - schedule.decay_fraction
        if progress <= start:
            return 1.0
        share = min(1.0, (progress - start) / schedule.decay_fraction)  # rounding may go past 1, to rates below 0
        return 1.0 - (1.0 - final) * (share if schedule.decay_shape == "linear" else math.sqrt(share))
    if schedule.name != "constant":
        raise NotImplementedError(f"schedule.name={schedule.name} has no branch in train.spec.schedule.factor: add one")
    return 1.0


def learning_rate(config: RunConfig, tokens: int) -> float:
    """Return the learning rate of the step that ends at `tokens`."""
    assert config.optim.lr is not None and config.budget.tokens is not None, "the config is resolved"
    return config.optim.lr * factor(config.schedule, tokens, config.budget.tokens)


def batch_tokens(batch: BatchConfig, budget: int, tokens: int) -> int:
    """Return the global batch of the step that begins after `tokens` [tokens].

    With `ramp_from` the batch is 1, 2, 3 … times that, in equal stretches of tokens, and `batch.tokens` from
    `ramp_fraction` of the budget on. A function of tokens alone, so that a resumed run takes the same steps.
    """
    assert batch.tokens is not None, "the config is resolved"
    if batch.ramp_from is None:
        return batch.tokens
    sizes, length = batch.tokens // batch.ramp_from, batch.ramp_fraction * budget
    if tokens >= length:
        return batch.tokens
    return batch.ramp_from * min(sizes, 1 + int(sizes * tokens / length))


def batch_sequences(batch: BatchConfig, budget: int, tokens: int, sequence_length: int) -> int:
    """Return how many sequences the step after `tokens` takes: the batch, or what is left of the budget."""
    return min(batch_tokens(batch, budget, tokens), budget - tokens) // sequence_length


def check_branch(schedule: ScheduleConfig, tokens: int, horizon: int) -> None:
    """Raise ValueError where a run cannot branch from a checkpoint taken at `tokens`: it must leave room to decay."""
    if tokens >= horizon:
        raise ValueError(
            f"budget.tokens={horizon} but schedule.parent={schedule.parent} was taken at {tokens}: "
            "the budget counts the parent's tokens, give more"
        )
    if schedule.name == "wsd" and tokens > (1.0 - schedule.decay_fraction) * horizon + 1e-6 * horizon:
        raise ValueError(
            f"schedule.decay_fraction={schedule.decay_fraction} begins the cooldown before {tokens} tokens, where "
            f"schedule.parent={schedule.parent} was taken: at most {branch_decay_fraction(tokens, horizon)}"
        )


def branch_decay_fraction(tokens: int, horizon: int) -> float:
    """Return the `decay_fraction` of a wsd schedule whose cooldown begins at `tokens`."""
    return (horizon - tokens) / horizon
