"""The guard on simulated families of curves with set rank correlations at each rung, and on such as mislead.

`python -m benchmarks.guard_families --draws 500 --processes 32`. Each draw is a table of its own: 400 configurations,
81 epochs. Given is the mean regret of promotion ASHA and of the guard over that of random search at 10 and 32 full
trainings, its standard error, and the share of promotion's gain that the guard keeps. The families of this file were
there while the guard was made; those of `_guard_held_out` were written down after it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks._guard_held_out import CONFIGURATIONS, HELD_OUT, R
from sweeps.rank_correlation import mean_ranks
from sweeps.replay.simulate import Cluster, replay
from sweeps.schedulers import STAKE
from sweeps.schedulers.asha_guarded import AshaGuarded
from sweeps.schedulers.asha_promotion import AshaPromotion
from sweeps.schedulers.base import Scheduler
from sweeps.schedulers.random import FullRuns
from train.spec.command_line import Parser

Floats = NDArray[np.float64]
Workload = Callable[[np.random.Generator], Floats]
RUNGS = (1, 3, 9, 27, 54)
PART = 25
"""Draws of one task."""
QUALITIES = ("uniform", "light", "heavy", "few")


@dataclass(frozen=True)
class Setting:
    """What is compared: on how many workers, from which first rung on [epochs], at which budgets [full trainings]."""

    workers: int
    stake: float
    first_rung: int
    budgets: tuple[int, ...]


@dataclass(frozen=True)
class Family:
    """Correlations of latent normal scores at 1, 3, 9, 27 and 54 of 81 epochs with the final one.

    best: share of the configurations, best at the end, whose early order is instead as `order` says: "random" or
    "reversed" among themselves, or "last": behind most others; ties: early scores are rounded; early_trials: after so
    many the early scores are noise.
    """

    correlations: tuple[float, ...]
    best: float = 0.0
    order: str = ""
    ties: bool = False
    early_trials: int = CONFIGURATIONS


FAMILIES: Mapping[str, Family] = {
    "none": Family((0, 0, 0, 0, 0)),
    "none before 54": Family((0, 0, 0, 0, 0.9)),
    "0.3": Family((0.3, 0.3, 0.3, 0.4, 0.7)),
    "0.6 throughout": Family((0.6,) * 5),
    "0.6 rising": Family((0.6, 0.65, 0.7, 0.8, 0.9)),
    "0.6 rising, ties": Family((0.6, 0.65, 0.7, 0.8, 0.9), ties=True),
    "0.8 rising": Family((0.8, 0.85, 0.9, 0.95, 0.98)),
    "perfect": Family((1, 1, 1, 1, 1)),
    "-0.3": Family((-0.3, -0.3, -0.3, -0.3, 0)),
    "-0.8": Family((-0.8,) * 5),
    "crossing": Family((-0.6, -0.3, 0.3, 0.8, 0.9)),
    "lost on the way": Family((0.6, 0.4, 0, -0.3, -0.3)),
    "lost at 54": Family((0.6, 0.6, 0.6, 0.6, 0)),
    "best 30 % random": Family((0.95,) * 5, best=0.3, order="random"),
    "best 30 % reversed": Family((0.95,) * 5, best=0.3, order="reversed"),
    "best 5 % bloom late": Family((0.95,) * 5, best=0.05, order="last"),
    "first 30 trials only": Family((0.8, 0.85, 0.9, 0.95, 0.98), early_trials=30),
}


def curves(family: Family, quality: str, random: np.random.Generator) -> Floats:
    """Return a table of losses (configurations, R), falling as a power law and by a line onto the final ones."""
    final = random.standard_normal(CONFIGURATIONS)
    noise = random.standard_normal(CONFIGURATIONS)
    scores = []
    for correlation in family.correlations:
        scores.append(_misled(correlation * final + math.sqrt(1 - correlation**2) * noise, final, family, random))
        noise = 0.8 * noise + 0.6 * random.standard_normal(CONFIGURATIONS)
    epochs = np.arange(1, R + 1)
    knots, table = np.log([*RUNGS, R]), np.array([*scores, final])
    way = np.stack([np.interp(np.log(epochs), knots, column) for column in table.T])
    places = np.stack([(mean_ranks(column) + 0.5) / CONFIGURATIONS for column in way.T], axis=1)
    losses = _quality(quality, places)
    span = float(np.quantile(losses[:, -1], 0.9) - losses[:, -1].min())
    fall: Floats = 2 * (1 - epochs / R) + 3 * (epochs**-0.5 - R**-0.5)
    return losses + span * fall


def _misled(scores: Floats, final: Floats, family: Family, random: np.random.Generator) -> Floats:
    scores = scores.copy()
    best = np.argsort(final)[: round(family.best * CONFIGURATIONS)]
    if family.order == "last":
        scores[best] = 0.8 + 0.5 * random.standard_normal(len(best))
    elif family.order:
        held = np.sort(scores[best])
        scores[best] = held[::-1] if family.order == "reversed" else random.permutation(held)
    later = slice(family.early_trials, None)
    scores[later] = random.standard_normal(len(scores[later]))
    return np.round(scores) if family.ties else scores


def _quality(name: str, places: Floats) -> Floats:
    """Return losses by their places between 0 and 1: how much better the best are than the good ones."""
    match name:
        case "uniform":
            return places
        case "light":
            return -np.log1p(-places)
        case "heavy":
            return (1 / (1 - places) - 1) ** 0.7
    return np.where(places < 0.02, places, 1 + 0.2 * places)


def workloads(names: Sequence[str]) -> Mapping[str, Workload]:
    """Return the families in each quality and the held-out workloads, those whose names have one of `names` in them."""
    families = {
        f"{quality:8} {name}": partial(curves, family, quality)
        for quality in QUALITIES
        for name, family in FAMILIES.items()
    }
    every: Mapping[str, Workload] = {**families, **{f"held out {name}": table for name, table in HELD_OUT.items()}}
    return {name: table for name, table in every.items() if not names or any(part in name for part in names)}


def regrets(name: str, seeds: range, setting: Setting) -> Floats:
    """Return the regrets (draws, 3, budgets) of random search, promotion and the guard."""
    return np.array([_regrets(name, seed, setting) for seed in seeds])


def _regrets(name: str, seed: int, setting: Setting) -> list[list[float]]:
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    table = workloads([name])[name](random)
    best, limit = float(np.nanmin(table)), len(table)
    schedulers: tuple[Scheduler, ...] = (
        FullRuns(R, limit=limit),
        AshaPromotion(setting.first_rung, R, limit=limit),
        AshaGuarded(setting.first_rung, R, limit=limit, stake=setting.stake),
    )
    found = []
    for one in schedulers:
        end = max(setting.budgets) * R / setting.workers
        run = replay(one, table, lambda trial: trial, end, cluster=Cluster(setting.workers))
        found.append([run.best_seen(table, budget * R / setting.workers) - best for budget in setting.budgets])
    return found


def _row(name: str, found: Floats, budgets: Sequence[int]) -> str:
    cells = [f"{name:36}"]
    for k in range(len(budgets)):
        random, promotion, _ = (found[:, scheduler, k] for scheduler in range(3))
        ratio, error = _ratio(found, k)
        kept = _kept(found, k)
        said = "    -" if math.isnan(kept) else f"{kept:5.2f}"
        cells.append(f"{promotion.mean() / random.mean():9.2f} {f'{ratio:.2f} ({error:.2f})':>12} {said}")
    return "  ".join(cells)


def _ratio(found: Floats, k: int) -> tuple[float, float]:
    """Return the guard's mean regret over random search's at a budget, and its standard error."""
    random, _, guard = (found[:, scheduler, k] for scheduler in range(3))
    ratio = float(guard.mean() / random.mean())
    return ratio, float(np.std(guard - ratio * random) / random.mean() / math.sqrt(len(found)))


def _kept(found: Floats, k: int) -> float:
    """Return the share of promotion's gain over random search that the guard has; NaN where that is below a tenth."""
    random, promotion, guard = (float(found[:, scheduler, k].mean()) for scheduler in range(3))
    return (random - guard) / (random - promotion) if random - promotion > 0.1 * random else math.nan


def _summary(rows: Mapping[str, Floats], budgets: Sequence[int]) -> str:
    lines = []
    for k, budget in enumerate(budgets):
        ratios = {name: _ratio(found, k) for name, found in rows.items()}
        over = sorted(
            (name for name, (ratio, error) in ratios.items() if ratio - 2 * error > 1.2), key=ratios.__getitem__
        )
        told = "; ".join(f"{' '.join(name.split())} {ratios[name][0]:.2f}" for name in reversed(over))
        within = sum(ratio <= 1.2 for ratio, _ in ratios.values())
        lines.append(
            f"{budget} trainings: {within} of {len(rows)} at most 1.2, {len(over)} above it by more than two standard "
            f"errors{': ' if over else ''}{told}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--workers", type=int, nargs="*", default=[8])
    parser.add_argument("--budgets", type=int, nargs="*", default=[10, 32], help="[full trainings]")
    parser.add_argument("--stake", type=float, default=STAKE, help="share of the resource that selects")
    parser.add_argument("--first-rung", type=int, default=R // 81, help=f"[epochs] of {R}: asha_guarded's is R/81")
    parser.add_argument("--names", nargs="*", default=[], help="parts of the names of workloads; none: all")
    options = parser.parse_args()
    budgets = tuple(options.budgets)
    parts = [range(first, min(first + PART, options.draws)) for first in range(0, options.draws, PART)]
    with ProcessPoolExecutor(options.processes) as pool:
        for workers in options.workers:
            setting = Setting(workers, options.stake, options.first_rung, budgets)
            print(
                f"mean regret over random search's, {options.draws} draws, {workers} workers, stake {options.stake:g}, "
                f"first rung {options.first_rung} of {R} epochs\n"
                f"{'workload':36}" + "".join(f"  {f'ASHA {b}R':>9} {f'guard {b}R':>12}  kept" for b in budgets)
            )
            names = workloads(options.names)
            waited = {name: [pool.submit(regrets, name, part, setting) for part in parts] for name in names}
            rows = {}
            for name, pending in waited.items():
                rows[name] = np.concatenate([part.result() for part in pending])
                print(_row(name, rows[name], budgets), flush=True)
            print(_summary(rows, budgets) + "\n", flush=True)


if __name__ == "__main__":
    main()
