"""Learning-rate schedule: a pure function from tokens seen to a factor on the peak. Its horizon is the token budget."""

from __future__ import annotations

import math

from train.spec.config import ScheduleConfig


def factor(schedule: ScheduleConfig, tokens: int, horizon: int) -> float:
    """Return the share of the peak learning rate for the step that ends at `tokens` of a budget of `horizon` tokens.

    Warm-up is linear from 0 to 1 over `warmup_fraction`. Then: cosine falls to `final_lr_fraction` at the horizon;
    wsd stays at 1 and falls linearly over the last `decay_fraction`; constant stays at 1. Past the horizon the last
    value holds.
    """
    progress = min(1.0, tokens / horizon)
    warmup, final = schedule.warmup_fraction, schedule.final_lr_fraction
    if progress < warmup:
        return progress / warmup
    if schedule.name == "cosine":
        share = (progress - warmup) / (1.0 - warmup) if warmup < 1.0 else 0.0
        return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * share))
    if schedule.name == "wsd":
        start = 1.0 - schedule.decay_fraction
        if progress <= start:
            return 1.0
        return 1.0 - (1.0 - final) * (progress - start) / schedule.decay_fraction
    return 1.0
