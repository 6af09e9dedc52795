"""Schedulers on recorded curves: ours and Optuna's own pruners in one replay, and the time that decisions take.

`python -m benchmarks replay_schedulers` looks for the tables in `--curves` (default ../shared/data/curves).
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import numpy as np

from sweeps.events import Ended, Reported, Started
from sweeps.replay.__main__ import Options, Outcome, replayed
from sweeps.replay.table import read_table
from sweeps.schedulers.asha_promotion import AshaPromotion

PUBLISHED = (
    "Published for the same replay, 10R: Ray 2.60 .0331, Optuna 5.0 .0271, Syne Tune 0.16 .0530, Algorithm 2 .0184"
)
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
    parser = argparse.ArgumentParser(description=__doc__)
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
    print()


def _mean(outcome: Outcome, budget: float) -> str:
    regrets = outcome.regrets[budget]
    return f"{np.mean(regrets):.4f} ({np.std(regrets) / len(regrets) ** 0.5:.4f})"


def _guard(folder: Path) -> None:
    """Print the guard at 32R against random search, and against plain ASHA from the same first rung."""
    print("asha_guarded at 32R, 30 seeds: regret over that of random search and over promotion ASHA (r=3; r=1)")
    for name in ("digits_mlp_1000x81", "algoperf_wmt", "algoperf_imagenet_vit", "algoperf_fastmri"):
        table = read_table(folder / f"{name}.npz")

        def at_32(scheduler: str, r: int, path: Path = folder / f"{name}.npz") -> float:
            options = Options(path, seeds=30, r=r, budgets=(32.0,))
            return float(np.mean(replayed(scheduler, read_table(path), options).regrets[32.0]))

        guarded = at_32("asha_guarded", 1)
        plain = at_32("asha_promotion", 3), at_32("asha_promotion", 1)
        print(
            f"  {name:22} best {table.best:.4f}  guarded {guarded:.5f}  "
            f"{guarded / at_32('random', 1):.2f}x random  {guarded / plain[0]:.2f}x; {guarded / plain[1]:.2f}x ASHA"
        )
    print()


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
