"""Schedulers on recorded curves: ours and the peers' own in one replay, and the time that decisions take.

`python -m benchmarks replay_schedulers` looks for the tables in `--curves` (default ../shared/data/curves). Optuna's
pruners are always among them, Ray Tune and Syne Tune where they are installed (`pip install scaling-study[bench]`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks._replay_peers import installed
from sweeps.history import Ended, Reported, Started
from sweeps.replay.__main__ import Options, Outcome, replayed
from sweeps.replay.curves import Table, read_table
from sweeps.replay.simulate import Cluster, replay
from sweeps.schedulers.asha_guarded import AshaGuarded
from sweeps.schedulers.asha_promotion import AshaPromotion
from sweeps.schedulers.base import Scheduler, SchedulerOptions
from sweeps.schedulers.random import FullRuns
from train.spec.command_line import Parser

PUBLISHED = (
    "Published for the same replay, 10R: Ray 2.60 .0331, Optuna 5.0 .0271, Syne Tune 0.16 .0530, Algorithm 2 .0184"
)
TABLES = ("digits_mlp_1000x81", "algoperf_wmt", "algoperf_imagenet_vit", "algoperf_fastmri")
GUARDS: tuple[Mapping[str, float], ...] = ({"stake": 0.0625}, {"stake": 0.25}, {"stake": 0.5})
NAMES = (
    "random",
    "asha_promotion",
    "asha_stopping",
    "optuna_halving",
    "asha_density",
    "hyperband",
    "optuna_hyperband",
    "asha_guarded",
)


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--curves", type=Path, default=Path(__file__).parents[2] / "shared" / "data" / "curves")
    folder = parser.parse_args().curves
    print("mean regret over the orders of the configurations; a budget is a multiple of one full training\n")
    digits = Options(folder / "digits_mlp_1000x81.npz", seeds=50, budgets=(5, 10, 20, 40))
    _table("digits, r=1, 50 seeds", NAMES, digits)
    print(f"{PUBLISHED}\n")
    for name in ("algoperf_wmt", "algoperf_imagenet_vit", "algoperf_fastmri"):
        first = Options(folder / f"{name}.npz", seeds=30, r=3, budgets=(8, 16, 32))
        _table(f"{name}, r=3, 30 seeds (the guard: r=1)", [n for n in NAMES if n != "asha_density"], first)
    _guard(folder)
    _decisions()


def _table(title: str, names: list[str] | tuple[str, ...], options: Options) -> None:
    table = read_table(options.curves)
    print(title)
    print(f"{'':18}" + "".join(f"{f'{b:g}R':>18}" for b in options.budgets))
    for name in names:
        first = 1 if name == "asha_guarded" else options.r
        outcome = replayed(name, table, Options(options.curves, seeds=options.seeds, r=first, budgets=options.budgets))
        print(f"{name:18}" + "".join(f"{_mean(outcome, b):>18}" for b in options.budgets))
    for name, make in installed().items():
        outcome = _by(lambda s, make=make: make(s.r, s.R, s.eta, s.trials), table, options)  # type: ignore[misc]
        print(f"{name:18}" + "".join(f"{_mean(outcome, b):>18}" for b in options.budgets))
    print()


def _by(make: Callable[[SchedulerOptions], Scheduler], table: Table, options: Options) -> Outcome:
    """Return the regrets of a scheduler that has no name in the replay's command line; orders as there."""
    configurations, R = table.losses.shape
    outcome = Outcome({budget: [] for budget in options.budgets})
    for seed in range(options.seeds):
        pool = list(range(configurations))
        random.Random(seed).shuffle(pool)
        scheduler = make(SchedulerOptions(options.r, R, options.eta, trials=configurations, seed=seed))
        end = max(options.budgets) * R / options.workers
        cluster = Cluster(options.workers)
        run = replay(scheduler, table.losses, pool.__getitem__, end, cluster=cluster)
        for budget, regrets in outcome.regrets.items():
            regrets.append(run.best_seen(table.losses, budget * R / options.workers) - table.best)
    return outcome


def _mean(outcome: Outcome, budget: float) -> str:
    regrets = outcome.regrets[budget]
    return f"{np.mean(regrets):.4f} ({np.std(regrets) / len(regrets) ** 0.5:.4f})"


def _guard(folder: Path) -> None:
    """Print the guard at 32R by its settings: against random search, and against plain ASHA from two first rungs."""
    seeds = 300
    print(
        f"asha_guarded at 32R, {seeds} seeds: regret over that of random search; of promotion ASHA, r=3; the same, r=1"
    )
    tables = {name: read_table(folder / f"{name}.npz") for name in TABLES}
    options = {name: Options(folder / f"{name}.npz", seeds=seeds, r=1, budgets=(32.0,)) for name in TABLES}

    def regrets(make: Callable[[SchedulerOptions], Scheduler], name: str) -> NDArray[np.float64]:
        return np.array(_by(make, tables[name], options[name]).regrets[32.0])

    apart = {n: regrets(_full, n) for n in TABLES}
    plain = {
        r: {n: regrets(lambda s, r=r: AshaPromotion(r, s.R, s.eta, limit=s.trials), n) for n in TABLES}  # type: ignore[misc]
        for r in (3, 1)
    }
    print(f"{'':32}" + "".join(f"{name.split('_')[0 if name.startswith('digits') else -1]:>20}" for name in TABLES))

    def as_it_is(s: SchedulerOptions) -> Scheduler:
        return AshaGuarded(s.r, s.R, s.eta, limit=s.trials)

    def row(said: str, make: Callable[[SchedulerOptions], Scheduler]) -> None:
        found = {n: regrets(make, n) for n in TABLES}
        cells = (
            "; ".join(f"{found[n].mean() / of[n].mean():.2f}" for of in (apart, plain[3], plain[1])) for n in TABLES
        )
        print(f"  {said:30}" + "".join(f"{cell:>20}" for cell in cells))

    row("as it is", as_it_is)
    for given in GUARDS:

        def guarded(s: SchedulerOptions, given: Mapping[str, float] = given) -> Scheduler:
            return AshaGuarded(s.r, s.R, s.eta, limit=s.trials, **given)

        row(" ".join(f"{name}={value:g}" for name, value in given.items()), guarded)
    print()


def _full(setting: SchedulerOptions) -> Scheduler:
    return FullRuns(setting.R, limit=setting.trials)


def _decisions() -> None:
    """Print the scheduler's own time for 1,000 trials over 9 rungs."""
    scheduler = AshaPromotion(1, 256, 2, limit=1000)
    values = random.Random(0)
    units, spent = 0, 0.0
    while True:
        began = time.perf_counter()
        unit = scheduler.decide()
        spent += time.perf_counter() - began
        if unit is None:
            break
        value = values.random()
        began = time.perf_counter()
        for event in (Started(unit), Reported(unit.trial, unit.until, value), Ended(unit.trial, "reached")):
            scheduler.apply(event)
        spent += time.perf_counter() - began
        units += 1
    print(f"1,000 trials x 9 rungs: {units} units decided in {spent:.3f} s of scheduler time (goal 1 s)")


if __name__ == "__main__":
    main()
