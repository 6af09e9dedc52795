"""How much of an isoFLOP grid's compute chosen runs need to forecast as narrowly, over simulated studies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analysis.estimation import fit_problem, multistart
from analysis.inputs.dataset import Array, Index, Rows
from analysis.planning import posterior
from analysis.planning.next_runs import TELLS, Share

if TYPE_CHECKING:
    from analysis.planning.next_runs import Setting

SURE = 0.95
"""Chosen runs forecast as narrowly as the grid where they do so in this share of the resamples of the studies."""
RESAMPLES = 500
"""How often the simulated studies are resampled."""


@dataclass(frozen=True)
class Designs:
    """Runs done, then those of a grid, then chosen ones, in the order of choice: `columns`, parameters and tokens (n,).

    `costs` (k,) are the FLOPs of the chosen ones.
    """

    columns: tuple[Array, Array]
    done: int
    grid: int
    costs: Array

    def now(self) -> Index:
        """Return the numbers of the runs done."""
        return np.arange(self.done)

    def whole(self) -> Index:
        """Return the numbers of the runs done and of the grid's."""
        return np.arange(self.done + self.grid)

    def first(self, count: int) -> Index:
        """Return the numbers of the runs done and of the first so many that were chosen."""
        begin = self.done + self.grid
        return np.concatenate((np.arange(self.done), np.arange(begin, begin + count)))


def designs(setting: Setting, rows: Rows) -> Designs:
    """Return the runs done, the grid, and as many chosen runs as its FLOPs allow."""
    found, pool, grid = setting.posterior, setting.candidates, setting.grid
    places, budget = found.to_logs((pool.params, pool.tokens)), float(grid.flops.sum())
    order = posterior.batch(found, places, setting.aims, pool.flops, budget=budget, count=40, power=None)
    picks = [c.index for c in order]
    columns = ((rows.params, grid.params, pool.params[picks]), (rows.tokens, grid.tokens, pool.tokens[picks]))
    params, tokens = (np.concatenate(each) for each in columns)
    return Designs((params, tokens), len(rows.params), len(grid), pool.flops[picks])


def simulated(setting: Setting, rows: Rows, studies: int, seed: int) -> Share:
    """Return how much of the grid's budget the choice needs for the grid's interval, over simulated studies.

    Truth is the best basin's law with the form's smooth error on top of it. All designs are answered on the same
    studies, and the smallest counts that is as narrow as the grid in SURE of their resamples.
    """
    each, total = designs(setting, rows), float(setting.grid.flops.sum())
    made = simulate(setting, each.columns, studies, seed)
    now, whole = made.errors(each.now()), made.errors(each.whole())
    generator = np.random.default_rng(np.random.SeedSequence([seed, 11]))
    share, runs, reached = None, len(each.costs), now
    for k in _steps(runs) if spread(whole) < TELLS * spread(now) else ():
        reached = made.errors(each.first(k))
        if as_narrow(reached, whole, generator):
            share, runs = float(each.costs[:k].sum()) / total, k
            break
    sd_now, sd_grid, sd_chosen = (float(spread(errors)) for errors in (now, whole, reached))
    return Share(share, runs, each.grid, total, sd_now, sd_grid, sd_chosen, studies)


def _steps(count: int) -> list[int]:
    return sorted({k for k in (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40) if k <= count} | {count})


@dataclass(frozen=True)
class Studies:
    """Simulated studies: `seen` (studies, n) ln losses of runs at `x` (columns, n), `target` (studies,) the true ones.

    A design has some of these runs. Designs that are compared share the studies, and differ by their runs alone.
    """

    setting: Setting
    x: Array
    seen: Array
    target: Array

    def errors(self, chosen: Index) -> Array:
        """Return the errors (studies,) of the forecast of ln loss at the target by fits to the runs numbered so."""
        setting, found = self.setting, self.setting.posterior
        seen = self.seen[:, chosen]
        problem = fit_problem.Problem(found.form, self.x[:, chosen], found.centres, seen[0], setting.problem.loss)
        start = multistart.fit_point(problem, 4)
        fits = multistart.fit_many(problem, start, y=seen)
        aim = found.form.log_value(problem.expanded(fits.theta), setting.aims[:, :1])[:, 0]
        return np.asarray(aim - self.target)


def simulate(setting: Setting, columns: tuple[Array, Array], studies: int, seed: int) -> Studies:
    """Return simulated studies of these runs: parameters and tokens (n,).

    Runs and target share the form's smooth error, as the posterior has it; runs scatter by their seeds besides.
    """
    found = setting.posterior
    theta = found.basins[0].theta
    x = found.to_logs(columns)
    both = np.concatenate([x, setting.aims[:, :1]], axis=1)
    truth = found.form.log_value(theta[None], both)[0]
    root = np.linalg.cholesky(posterior.alike(found, both, both) + 1e-12 * np.eye(len(truth)))
    generator = np.random.default_rng(np.random.SeedSequence([seed, len(truth)]))
    truth = truth + generator.normal(size=(studies, len(truth))) @ root.T
    seen = truth[:, :-1] + found.noise * generator.normal(size=(studies, x.shape[1]))
    return Studies(setting, x, seen, truth[:, -1])


def spread(errors: Array) -> Array:
    """Return the robust standard deviations (...,) of errors (..., n) by their median absolute deviation."""
    middle = np.median(errors, axis=-1, keepdims=True)
    return np.asarray(1.4826 * np.median(np.abs(errors - middle), axis=-1))


def as_narrow(errors: Array, than: Array, generator: np.random.Generator) -> bool:
    """Return whether errors (n,) spread no further than others of the same studies, in SURE of their resamples."""
    again = generator.integers(len(errors), size=(RESAMPLES, len(errors)))
    return bool((spread(errors[again]) <= spread(than[again])).mean() >= SURE)
