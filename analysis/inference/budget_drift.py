"""Best sizes that drift from one FLOP budget to the next, as the residuals of a law of the loss show them.

Tuning or schedules that suit some budgets better than others move the best size of each by a factor of its own. A law
of the loss takes part of that for its shape, and intervals from independent errors are too short by as much. What it
cannot follow is left in the residuals: those of a budget then rise or fall along its sizes, as the loss does where N
moves at constant N D. Its variance is estimated from them, and drawn anew, as what groups share is (`error_draws`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from analysis.inference import distributions, error_draws, resampling
from analysis.inference.error_draws import LEAST_BETWEEN, Around, Parts
from analysis.inputs.dataset import SAME_BUDGET, Array, Index, Rows, clusters
from analysis.text import numbers

SEEN = 0.2
"""Drift is allowed for where independent errors would show as much with this probability or less.

Always allowing for it makes intervals of studies of four budgets that have none twice as wide as need be; asking for
RARE leaves those of studies that have it too short (benchmarks/results/analysis_intervals.txt).
"""
RARE = 0.05
"""Drift that independent errors would show with this probability or less is a finding.

Studies of so many runs or sizes that these are drawn as wholes need no more to see the drift that there is.
"""
FEWEST_BUDGETS, FEWEST_SIZES = 3, 3
LEAST_SHARE = 2 / 3
"""Where fewer of the rows belong to budgets than this share, a few runs cost as much as others by chance."""
STEP = 1e-4
"""Of ln N at constant N D, in the difference that says how a loss changes with it."""


@dataclass(frozen=True, eq=False)
class Drift:
    """How the best sizes of budgets drift: `budget` (n,) numbers rows' budgets, `slope` (n,) is of ln loss by ln N.

    Both are in the order of the fit's `Around`. The slope is at constant N D, and 0 for a row of no budget. `parts` are
    what the residuals say of a shift of ln N that each budget has, and of the rows' own errors.
    """

    budget: Index
    slope: Array
    parts: Parts

    @property
    def count(self) -> int:
        """The number of budgets."""
        return len(np.unique(self.budget[self.slope != 0.0]))

    @property
    def chance(self) -> float:
        """The probability that independent errors show as much drift (F test)."""
        p = self.parts
        if p.between_v < LEAST_BETWEEN or p.within_v <= 0.0 or p.within <= 0.0:
            return 1.0
        ratio = (p.between / p.between_v) / (p.within / p.within_v)
        return distributions.f_tail(ratio, p.between_df, p.within_df)

    @property
    def spread(self) -> float:
        """The standard deviation of ln of budgets' best sizes that the residuals show beyond the rows' own errors."""
        return float(np.sqrt(variances(self.parts, np.array([self.parts.between]), np.array([self.parts.within]))[0]))


def variances(parts: Parts, between: Array, within: Array) -> Array:
    """Return the variances (R,) of budgets' shifts, none below 0, that give these sums of squares (R,)."""
    determinant = parts.between_u * parts.within_v - parts.between_v * parts.within_u
    return np.asarray(np.maximum((between * parts.within_v - within * parts.between_v) / determinant, 0.0))


def find(around: Around, data: Rows) -> Drift | None:
    """Return how best sizes drift over the budgets of these rows; None where they do not form budgets."""
    names = around.problem.form.inputs
    if not {"params", "tokens"} <= set(names):
        return None
    budget = _budgets(data)[around.order]
    size = clusters(data.columns["params"], 1e-9)[around.order]
    known = _wide(budget, size)[budget]
    if len(np.unique(budget[known])) < FEWEST_BUDGETS or known.mean() < LEAST_SHARE:
        return None
    number = np.unique(budget, return_inverse=True)[1]
    slope = np.where(known, _slopes(around, names.index("params"), names.index("tokens")), 0.0)
    return Drift(number, slope, error_draws.split(around.slopes, error_draws.clipped(around.residual), number, slope))


def allowing(how: resampling.Plan, around: Around, data: Rows) -> resampling.Plan:
    """Return a default plan that draws the drift of best sizes as well, where the residuals show some.

    Resamples of whole runs or sizes would leave budgets as they are: errors are drawn around the fit instead.
    """
    single = len(np.unique(data.run_numbers)) == len(data)
    found = find(around, data) if single else None
    if found is None or found.chance > (SEEN if how.by == "residuals" else RARE):
        return how
    shared = "sizes" if "sizes" in (how.by, how.shared) else ""
    base = resampling.residuals(data.size, data.run_numbers, shared)
    shifts = f"a random shift of the best size of each of {numbers.counted(found.count, 'budget')}"
    return dataclasses.replace(base, text=f"{base.text}{' and' if shared else ', with'} {shifts}", drift=True)


def added(errors: Array, found: Drift, around: Around) -> Array:
    """Return errors (R, n), the second half the first one mirrored, with shifts of budgets' best sizes added.

    What they are without is scaled down to what the shifts leave of the residuals.
    """
    p, generator, half = found.parts, around.generator(8), -(-len(errors) // 2)
    between, within = (
        square / error_draws.scales(df, half, generator)
        for square, df in ((p.between, p.between_df), (p.within, p.within_df))
    )
    spread = np.sqrt(variances(p, between, within))
    own = np.sqrt((p.within / p.within_v) / ((p.between + p.within) / (p.between_v + p.within_v)))
    shifts = generator.normal(size=(half, int(found.budget.max()) + 1)) * spread[:, None]
    out = errors[:half] * min(own, 1.0) + shifts[:, found.budget] * found.slope
    return np.concatenate((out, -out))[: len(errors)]


def _budgets(data: Rows) -> Index:
    """Return the numbers (n,) of the rows' budgets; those of a table without FLOPs by N D."""
    if len(data.budget):
        return data.budget
    cost = data.columns.get("flops")
    known = cost is not None and bool((np.isfinite(cost) & (cost > 0)).all())
    return clusters(cost if cost is not None and known else data.params * data.tokens, SAME_BUDGET)


def _wide(budget: Index, size: Index) -> Array:
    """Return for each budget, by number, whether it has enough sizes for a shift of the best one to be seen."""
    pairs = np.unique(np.stack((budget, size)), axis=1)
    return np.asarray(np.bincount(pairs[0], minlength=int(budget.max()) + 1) >= FEWEST_SIZES)


def _slopes(around: Around, params: int, tokens: int) -> Array:
    """Return how residuals (n,), in the order of `around`, change with ln N at constant N D."""
    p = around.problem
    step = np.zeros((len(p.x), 1))
    step[params], step[tokens] = STEP, -STEP
    theta = around.point.theta[None]
    above, below = (p.form.log_value(theta, p.x + sign * step)[0] for sign in (1.0, -1.0))
    found = (above - below) / (2.0 * STEP)
    return np.asarray((found * np.exp(around.fitted) if p.plain else found)[around.order])
