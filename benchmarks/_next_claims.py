"""How often `analysis.next` says of fewer FLOPs than a grid's that they tell as much, and is wrong.

Studies are simulated, and what is said of each is judged by 1,000 others: a claim is false where the chosen runs
forecast more widely than the grid by more than a tenth. Three ways of saying it are compared: as `analysis.next` does,
with 100 simulated studies and with 1,000, and as it did before, with 100.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from analysis.inputs.dataset import Array, Index
from analysis.inputs.frame import used
from analysis.planning import grid_share, next_runs
from analysis.planning.grid_share import Designs
from analysis.results import load
from benchmarks.analysis_intervals import wilson
from benchmarks.prior_conflict import DESIGNS, FARTHER, SCATTERS, law_of
from tests.analysis import studies

JUDGED, ANEW = 1000, 1_000_003
"""Simulated studies that judge a claim, and their seed."""
WIDER, TINY = 1.1, 0.01
"""Spread over the grid's from which on a claim is false; a share of its FLOPs that is tiny."""
WAYS = {"now, 100": 100, "now, 1000": 1000, "before, 100": 100}
"""Now: all designs on the same studies, as narrow in 95 % of their resamples. Before: each on its own, as they come."""
SCATTER = SCATTERS[1]


@dataclass(frozen=True)
class Claim:
    """A share of the grid's FLOPs that is said to tell as much, and the spread of that forecast over the grid's."""

    share: float
    wider: float

    @property
    def false(self) -> bool:
        """Whether the chosen runs forecast more widely."""
        return self.wider > WIDER


@dataclass(frozen=True)
class Asked:
    """What is said of a study: the claim of each way (None where there is none), and whether the grid tells anything.

    `reached` is whether as many chosen runs as the grid's FLOPs allow do forecast as narrowly.
    """

    claims: dict[str, Claim | None]
    tells: bool
    reached: bool


def asked(design: str, seed: int) -> Asked:
    """Return what is said of a simulated study whose form holds, by all ways, and what many studies say of that."""
    budgets, ratios = DESIGNS[design]
    law = law_of(None, budgets[-1], np.random.default_rng([seed, len(budgets)]))
    table = studies.isoflop(seed, noise=SCATTER, law=law, budgets=budgets, ratios=ratios)
    frame = load.tidy(table)
    rows, top = used(frame), budgets[-1]
    setting = next_runs._setting(frame, rows, "chinchilla", FARTHER * top, top, ratios=None)
    each = grid_share.designs(setting, rows)
    counts = {}
    for way, many in WAYS.items():
        said = grid_share.simulated(setting, rows, many, seed)
        counts[way] = former(setting, each, many, seed) if "before" in way else said.runs * (said.share is not None)
    judges = grid_share.simulate(setting, each.columns, JUDGED, ANEW)
    now, whole = (float(grid_share.spread(judges.errors(index))) for index in (each.now(), each.whole()))
    total = float(setting.grid.flops.sum())
    wider = {k: float(grid_share.spread(judges.errors(each.first(k)))) / whole for k in {*counts.values()} if k}
    claims = {way: Claim(float(each.costs[:k].sum()) / total, wider[k]) if k else None for way, k in counts.items()}
    every = float(grid_share.spread(judges.errors(each.first(len(each.costs)))))
    return Asked(claims, whole < next_runs.TELLS * now, every <= whole)


def former(setting: next_runs.Setting, each: Designs, many: int, seed: int) -> int:
    """Return how many chosen runs the rule before took for as good as the grid: two readings at or below the grid's.

    0: none.
    """

    def spread(index: Index) -> float:
        columns: tuple[Array, Array] = (each.columns[0][index], each.columns[1][index])
        return float(grid_share.spread(grid_share.simulate(setting, columns, many, seed).errors(np.arange(len(index)))))

    whole, found = spread(each.whole()), 0
    for k in grid_share._steps(len(each.costs)) if whole < next_runs.TELLS * spread(each.now()) else ():
        reached = spread(each.first(k)) <= whole
        if found and reached:
            break
        found = k if reached else 0
    return found


def lines(count: int) -> Iterator[str]:
    """Yield the table of so many studies of each design."""
    yield f"{'':<10}{'':<13}{'claims':>7}{'false':>7}{'(95 %)':>16}{'tiny, false':>13}{'least share':>13}{'widest':>8}"
    for design in ("9 runs", "20 runs"):
        found = [asked(design, seed) for seed in range(count)]
        for way in WAYS:
            claims = [one.claims[way] for one in found]
            yield f"{design:<10}{way:<13}{_row([c for c in claims if c], count)}"
        tells, reached = (sum(getattr(one, name) for one in found) for name in ("tells", "reached"))
        yield f"{'':<10}of {count} studies the grid tells something in {tells}; chosen runs tell as much in {reached}"


def _row(claims: list[Claim], count: int) -> str:
    false = [claim for claim in claims if claim.false]
    low, high = wilson(len(false) / count, count)
    tiny = sum(claim.share < TINY for claim in false)
    least = f"{min(claim.share for claim in claims):.2%}" if claims else "-"
    widest = f"{max(claim.wider for claim in claims):.2f}" if claims else "-"
    between = f"{low:.1%} to {high:.1%}"
    return f"{len(claims):>7}{len(false) / count:>7.1%}{between:>16}{tiny:>13}{least:>13}{widest:>8}"
