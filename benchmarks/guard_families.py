"""The guard on simulated families of curves with set rank correlations at each rung, and on such as mislead.

`python -m benchmarks.guard_families --draws 500 --processes 32`. Each draw is a table of its own: 400 configurations,
81 epochs. Given is the mean regret of promotion ASHA and of the guard over that of random search at 10 and 32 full
trainings on 8 workers, its standard error, and the share of promotion's gain that the guard keeps.
"""

from __future__ import annotations

import argparse
import math
import zlib
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeps.correlation import mean_ranks
from sweeps.replay.simulate import Cluster, replay
from sweeps.schedulers.asha_guarded import AshaGuarded
from sweeps.schedulers.asha_promotion import AshaPromotion
from sweeps.schedulers.full import FullRuns
from sweeps.schedulers.scheduler import Scheduler

Floats = NDArray[np.float64]
R, CONFIGURATIONS = 81, 400
RUNGS = (1, 3, 9, 27, 54)
BUDGETS = (10, 32)
QUALITIES = ("uniform", "light", "heavy", "few")


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


def regrets(name: str, quality: str, seed: int, workers: int, stake: float) -> list[list[float]]:
    """Return the regrets of random search, promotion and the guard at each of the budgets, of one draw."""
    random = np.random.default_rng([seed, zlib.crc32(f"{name} {quality}".encode())])
    table = curves(FAMILIES[name], quality, random)
    schedulers: tuple[Scheduler, ...] = (
        FullRuns(R, limit=CONFIGURATIONS),
        AshaPromotion(1, R, limit=CONFIGURATIONS),
        AshaGuarded(1, R, limit=CONFIGURATIONS, stake=stake),
    )
    found = []
    for one in schedulers:
        run = replay(one, table, lambda trial: trial, max(BUDGETS) * R / workers, cluster=Cluster(workers))
        found.append([run.best_seen(table, budget * R / workers) - float(table.min()) for budget in BUDGETS])
    return found


def _row(name: str, quality: str, draws: int, workers: int, stake: float) -> str:
    found = np.array([regrets(name, quality, seed, workers, stake) for seed in range(draws)])
    cells = [f"{quality:8} {name:22}"]
    for k in range(len(BUDGETS)):
        random, promotion, guard = (found[:, scheduler, k] for scheduler in range(3))
        ratio = guard.mean() / random.mean()
        error = np.std(guard - ratio * random) / random.mean() / math.sqrt(draws)
        gain = random.mean() - promotion.mean()
        kept = f"{(random.mean() - guard.mean()) / gain:5.2f}" if gain > 0.1 * random.mean() else "    -"
        cells.append(f"{promotion.mean() / random.mean():9.2f} {f'{ratio:.2f} ({error:.2f})':>12} {kept}")
    return "  ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument(
        "--stake", type=float, default=0.2, help="what a probe earns selection before anything is known"
    )
    parser.add_argument("--families", nargs="*", choices=FAMILIES, default=list(FAMILIES))
    options = parser.parse_args()
    print(
        f"mean regret over random search's, {options.draws} draws, {options.workers} workers, stake {options.stake:g}"
    )
    head = "".join(f"  {f'ASHA {b}R':>9} {f'guard {b}R':>12}  kept" for b in BUDGETS)
    print(f"{'quality':8} {'correlation':22}{head}")
    names = [(name, quality) for quality in QUALITIES for name in options.families]
    with ProcessPoolExecutor(options.processes) as pool:
        rest = [pool.submit(_row, *name, options.draws, options.workers, options.stake) for name in names]
        for row in rest:
            print(row.result(), flush=True)


if __name__ == "__main__":
    main()
