"""Next runs on public sets: the forecast of the largest runs by a tenth of the budget, chosen, against all runs.

Every set is split into a target (its largest runs by compute, or the set's own test split) and a pool. Runs are chosen
from the pool one batch after another, their losses seen only once chosen, until a tenth of the pool's FLOPs is spent;
then the same law is fitted to them and to the whole pool. Random choices of the same cost stand beside it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis import design, engine
from analysis.forms import FORMS
from analysis.losses import Huber

Array = NDArray[np.float64]
DATA = Path(__file__).parents[2] / "shared" / "data" / "scaling"
SHARE = 0.1
NOT = (
    ("nanochat", "four optima a way of counting, no runs: nothing to choose from"),
    (
        "lr_schedule_curves",
        "nine schedules of three sizes and a law of one size: the choice is of schedules, not of N, D",
    ),
    ("lr_batch", "needs a law of loss over N, D, lr and batch; the laws here are of its optima"),
)


@dataclass(frozen=True)
class Task:
    """A set: the law, its inputs (k, n), losses (n,), FLOPs (n,), which rows are the target."""

    name: str
    form: str
    columns: tuple[Array, ...]
    loss: Array
    flops: Array
    target: NDArray[np.bool_]


def tasks() -> Iterator[Task]:
    """Yield the public sets as tasks."""
    table = pd.read_csv(DATA / "chinchilla_epoch" / "runs.csv").query("in_reference_fit")
    yield _surface("chinchilla", table, table["flops"] >= table["flops"].quantile(0.85))
    points = pd.read_csv(DATA / "porian2024" / "isoflop_points.csv").query("param_count == 'standard'")
    for dataset in ("rw", "owt2"):
        table = points.query(f"dataset == '{dataset}' and hparams == 'tuned'").groupby(["flops", "params"]).first()
        table = table.reset_index()
        yield _surface(f"porian {dataset} tuned", table, table["flops"] > 0.6 * table["flops"].max())
    models = pd.read_csv(DATA / "gadre2024" / "models.csv")
    models = models.assign(loss=models["loss_c4_val"], flops=6.0 * models["params"] * models["tokens"])
    for name in ("c4_original", "rpj", "rw_original"):
        table = models[models["train_dataset"] == name]
        task = _surface(f"gadre {name}", table, table["flops"] >= table["flops"].quantile(0.85))
        # The four dearest runs of the pool cost more than the whole budget each: no choice can hold them.
        yield replace(task, form="overtraining", columns=(*task.columns, task.flops))
    table = pd.read_csv(DATA / "muennighoff2023" / "runs.csv").query("scalebench_split.notna()")
    table = table.assign(flops=6.0 * table["params"] * table["tokens"])
    columns = tuple(table[name].to_numpy(float) for name in ("params", "tokens", "unique_tokens"))
    test = (table["scalebench_split"] == "test").to_numpy()
    yield Task("muennighoff", "repeats", columns, *_numbers(table), test)


def _surface(name: str, table: pd.DataFrame, target: pd.Series) -> Task:
    columns = tuple(table[c].to_numpy(float) for c in ("params", "tokens"))
    return Task(name, "chinchilla", columns, *_numbers(table), target.to_numpy(bool))


def _numbers(table: pd.DataFrame) -> tuple[Array, Array]:
    return table["loss"].to_numpy(float), table["flops"].to_numpy(float)


def error(task: Task, rows: NDArray[np.int64]) -> float:
    """Return the mean absolute error of ln loss at the target by the law through these rows."""
    problem = _problem(task, rows)
    x = np.log(np.stack([c[task.target] for c in task.columns])) - problem.centres[:, None]
    said = problem.form.log_value(engine.fit_point(problem).theta[None], x)[0]
    return float(np.abs(said - np.log(task.loss[task.target])).mean())


def chosen(task: Task, budget: float) -> NDArray[np.int64]:
    """Return the rows chosen within the budget: a spread of the cheapest first, then batches of a fifth of the rows."""
    pool = np.flatnonzero(~task.target)
    order = pool[np.argsort(task.flops[pool], kind="stable")]
    count = len(order)
    first = order[:0]
    while count:
        first = order[np.unique(np.linspace(0, count - 1, 8).round().astype(int))]
        if task.flops[first].sum() <= 0.15 * budget:
            break
        count -= 1
    rows = [int(i) for i in first]
    while True:
        problem = _problem(task, np.array(rows))
        found = design.posterior(problem)
        left = budget - float(task.flops[rows].sum())
        seen = set(rows)
        rest = np.array([i for i in pool if i not in seen and task.flops[i] <= left], dtype=np.int64)
        if not len(rest):
            return np.array(rows)
        places, goal = (found.place([c[index] for c in task.columns]) for index in (rest, np.flatnonzero(task.target)))
        batch = design.batch(
            found, places, goal, task.flops[rest], budget=left, count=max(1, len(rows) // 5), power=None
        )  # fmt: skip
        if not batch:
            return np.array(rows)
        rows += [int(rest[c.index]) for c in batch]


def random(task: Task, budget: float, seed: int) -> NDArray[np.int64]:
    """Return rows in random order as long as they fit into the budget."""
    pool = np.random.default_rng(seed).permutation(np.flatnonzero(~task.target))
    rows, spent = [], 0.0
    for row in pool:
        if spent + task.flops[row] <= budget:
            rows.append(int(row))
            spent += float(task.flops[row])
    return np.array(rows)


def _problem(task: Task, rows: NDArray[np.int64]) -> engine.Problem:
    return engine.problem(FORMS[task.form], [c[rows] for c in task.columns], task.loss[rows], Huber())


def main() -> int:
    """Print one line a set; return 0."""
    print("mean |error| of ln loss at the target [%], the law fitted to\n")
    print(f"{'set':<18} {'all runs':>9} {'chosen':>8} {'random':>8}  {'runs':>9} {'FLOPs':>7} {'seconds':>8}")
    for task in tasks():
        began = time.perf_counter()
        budget = SHARE * float(task.flops[~task.target].sum())
        rows = chosen(task, budget)
        every, ours = error(task, np.flatnonzero(~task.target)), error(task, rows)
        others = float(np.median([error(task, random(task, budget, seed)) for seed in range(5)]))
        share = task.flops[rows].sum() / task.flops[~task.target].sum()
        mark = "as good" if ours <= every else ""
        spent = f"{len(rows):>4}/{int((~task.target).sum()):<4} {100 * share:>5.1f} %"
        print(
            f"{task.name:<18} {100 * every:>9.2f} {100 * ours:>8.2f} {100 * others:>8.2f}  "
            f"{spent} {time.perf_counter() - began:>8.1f} {mark}",
            flush=True,
        )
    print()
    for name, why in NOT:
        print(f"{name}: not a design: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
