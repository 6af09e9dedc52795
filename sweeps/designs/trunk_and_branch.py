"""Trunk and branch: one run at constant learning rate serves every token budget of a size by a cooldown of its own.

With a warm-up-stable-decay schedule, runs of different budgets are the same run until their cooldown begins. So the
stable phase is trained once, the trunk, and each budget is a short branch from it (Hägele et al. 2024, "Scaling Laws
and Compute-Optimal Training Beyond Fixed Training Durations").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A run from `begin` to `end` [tokens] that goes on from `parent`, the number of a part of the trunk (None: none).

    The trunk is a chain of such parts, cut where branches begin: then each of them ends with the checkpoint that its
    branches and the next part need, and a larger budget that is wanted later goes on from the last one.
    """

    begin: int
    end: int
    parent: int | None
    cooldown: bool = False


def trunk_and_branch(budgets: Sequence[int], decay_fraction: float, batch: int, warmup: int) -> list[Part]:
    """Return the parts of the trunk in order, then one cooldown for each token budget, smallest first.

    budgets: [tokens]. decay_fraction: the cooldown's share of each. batch: tokens of a step: branches begin at the
    end of one. warmup: [tokens]. ValueError where a cooldown would begin in the warm-up.
    """
    ends = sorted(set(budgets))
    if not ends:
        raise ValueError("search=trunk_and_branch needs token budgets: give search.tokens, search.ratios or budgets")
    if not 0 < decay_fraction < 1:
        raise ValueError(
            f"schedule.decay_fraction={decay_fraction} is not allowed here: a cooldown is a share of each budget "
            "above 0 and below 1"
        )
    begins = [math.floor(end * (1 - decay_fraction) / batch + 1e-9) * batch for end in ends]
    if begins[0] < max(warmup, batch):
        raise ValueError(
            f"a budget of {ends[0]:,} tokens with batch.tokens={batch:,} begins its cooldown at {begins[0]:,} tokens, "
            f"before the warmup of {warmup:,} is over: give larger budgets, a smaller batch.tokens or a smaller "
            "schedule.warmup_fraction"
        )
    cuts = sorted(set(begins))
    trunk = [
        Part(begin, end, n - 1 if n else None) for n, (begin, end) in enumerate(zip([0, *cuts], cuts, strict=False))
    ]
    number = {part.end: n for n, part in enumerate(trunk)}
    return [*trunk, *(Part(begin, end, number[begin], True) for begin, end in zip(begins, ends, strict=True))]


def saved(parts: Sequence[Part]) -> tuple[int, int]:
    """Return the tokens that the parts train on, and those that separate runs of the same budgets would [tokens]."""
    return sum(part.end - part.begin for part in parts), sum(part.end for part in parts if part.cooldown)
