"""Next runs on public sets: the forecast of the largest runs by a tenth of the budget, chosen, against all runs.

Every set is split into a target (its largest runs by compute, or the set's own test split) and a pool. Runs are chosen
from the pool one batch after another, their losses seen only once chosen, until a tenth of the pool's FLOPs is spent;
then the same law, with the same wide prior, is fitted to them and to the whole pool. Random choices of the same cost
stand beside it, and pools whose sizes are drawn anew: how much of the whole pool's error is luck.

`python -m benchmarks.analysis_next [--studies 20]`; below stands how often it is said of simulated studies that chosen
runs tell as much as a grid, and wrongly so (`benchmarks._next_claims`).
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

from analysis.estimation import fit_problem
from analysis.estimation.objectives import Huber
from analysis.laws.registry import FORMS
from analysis.planning import posterior
from benchmarks._next_claims import SCATTER, lines
from train.spec.command_line import Parser

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
    """Return the mean absolute error of ln loss at the target by the forecast through these rows."""
    return float(misses(task, rows).mean())


def misses(task: Task, rows: NDArray[np.int64]) -> Array:
    """Return the absolute errors of ln loss (t,) at the target."""
    found = posterior.posterior(_problem(task, rows))
    said = posterior.forecast(found, found.to_logs([c[task.target] for c in task.columns]))[0]
    return np.asarray(np.abs(said - np.log(task.loss[task.target])))


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
        found = posterior.posterior(problem)
        left = budget - float(task.flops[rows].sum())
        seen = set(rows)
        rest = np.array([i for i in pool if i not in seen and task.flops[i] <= left], dtype=np.int64)
        if not len(rest):
            return np.array(rows)
        places, goal = (
            found.to_logs([c[index] for c in task.columns]) for index in (rest, np.flatnonzero(task.target))
        )
        batch = posterior.batch(
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


def _problem(task: Task, rows: NDArray[np.int64]) -> fit_problem.Problem:
    return fit_problem.problem(FORMS[task.form], [c[rows] for c in task.columns], task.loss[rows], Huber())


@dataclass(frozen=True)
class Found:
    """Errors [share of the loss] by all runs, by the chosen ones and by random ones of the same cost, and their spread.

    `low`, `high`: 90 % of the errors of whole pools drawn anew (a bootstrap of sizes); `apart` and `spread`: the chosen
    runs' error less all runs', and its standard error over the target's runs; `lucky`: share of the random choices that
    are at least as good as all runs; `missed`: runs of the pool that cost more than the budget each.
    """

    name: str
    every: float
    low: float
    high: float
    chosen: float
    random: float
    lucky: float
    apart: float
    spread: float
    runs: int
    pool: int
    targets: int
    share: float
    missed: int

    @property
    def good(self) -> bool:
        """Whether the chosen runs forecast at least as well as all."""
        return self.chosen <= self.every

    @property
    def why(self) -> str:
        """Return, for a set where they do not, what the numbers say of the reason."""
        text = (
            f"{self.name}: {100 * self.apart:+.2f} points, with a standard error of {100 * self.spread:.2f} over the "
            f"{self.targets} runs of the target; whole pools drawn anew err by {100 * self.low:.2f} to "
            f"{100 * self.high:.2f} % (90 %); {self.lucky:.0%} of random choices of this cost are as good as all runs. "
        )
        if self.missed:
            text += (
                f"{self.missed} runs of the pool cost more than the whole budget each: the design does not allow them. "
            )
        if self.chosen > self.random:
            return text + (
                "Random choices do better: the law misses this target by far more than seeds do, from all runs too, so "
                "what its posterior expects of a run is wrong"
            )
        if self.apart <= 2 * self.spread:
            return text + "The target's runs cannot tell the difference from none"
        return text + "A real difference on this target, though within the luck of which sizes the pool has"


def judged(task: Task, repeats: int = 40) -> Found:
    """Return how the choice fares on a set, and how much of that is luck."""
    pool = np.flatnonzero(~task.target)
    total = float(task.flops[pool].sum())
    rows = chosen(task, SHARE * total)
    every, ours = misses(task, pool), misses(task, rows)
    others = np.array([error(task, random(task, SHARE * total, seed)) for seed in range(repeats)])
    generator = np.random.default_rng(0)
    sizes = np.unique(task.columns[0][pool])
    again = []
    for _ in range(repeats):
        drawn = generator.choice(sizes, len(sizes))
        again.append(error(task, np.concatenate([pool[task.columns[0][pool] == size] for size in drawn])))
    low, high = np.quantile(again, (0.05, 0.95))
    gap = ours - every
    return Found(
        task.name, float(every.mean()), float(low), float(high), float(ours.mean()), float(np.median(others)),
        float((others <= every.mean()).mean()), float(gap.mean()), float(gap.std(ddof=1) / np.sqrt(len(gap))),
        len(rows), len(pool), len(gap),
        float(task.flops[rows].sum()) / total, int((task.flops[pool] > SHARE * total).sum()),
    )  # fmt: skip


def main() -> int:
    """Print one line a set, the reason where the goal is missed, and the claims about grids; return 0."""
    parser = Parser(prog="python -m benchmarks.analysis_next", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--studies", type=int, default=20, help="simulated studies of each design; 0: none")
    count = parser.parse_args().studies
    print("mean |error| of ln loss at the target [%] by the forecast from\n")
    head = f"{'set':<18} {'all runs':>9} {'(90 %, drawn anew)':>19} {'chosen':>7} {'random':>7}"
    print(f"{head} {'runs':>9} {'FLOPs':>7} {'seconds':>8}")
    made = []
    for task in tasks():
        began = time.process_time()
        one = judged(task)
        made.append(one)
        spent = f"{one.runs:>5}/{one.pool:<4} {100 * one.share:>5.1f} %"
        drawn = f"({100 * one.low:.2f} to {100 * one.high:.2f})"
        print(
            f"{one.name:<18} {100 * one.every:>9.2f} {drawn:>19} {100 * one.chosen:>7.2f} {100 * one.random:>7.2f} "
            f"{spent} {time.process_time() - began:>8.1f} {'as good' if one.good else ''}",
            flush=True,
        )
    allowed = [one for one in made if not one.missed]
    good, kept = sum(one.good for one in made), sum(one.good for one in allowed)
    print(
        f"\n{good} of {len(made)} as good as all runs, {kept} of the "
        f"{len(allowed)} whose pool has no run dearer than the budget; why the others are not:"
    )
    for one in made:
        if not one.good:
            print(f"- {one.why}")
    print()
    for name, why in NOT:
        print(f"{name}: not a design: {why}")
    if count:
        print(f"\nsimulated studies that scatter by {SCATTER:.1%}: are chosen runs said to tell as much as a grid?\n")
        for line in lines(count):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
