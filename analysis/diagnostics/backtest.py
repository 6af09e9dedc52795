"""Fit on all budgets but the largest, predict the largest: the honest size of an extrapolation's error."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analysis.approaches import compute_optimal, frontier, valleys
from analysis.approaches.cost import cost
from analysis.approaches.valley_options import Choices
from analysis.diagnostics import exponent
from analysis.estimation import fit_problem, multistart, objectives, ties
from analysis.inputs.dataset import Array, Rows
from analysis.laws.base import Form
from analysis.laws.registry import FORMS
from analysis.values.study_result import Backtest, BacktestOptimum, BacktestRun, Cut

FEWEST_BUDGETS = 3
FEWEST_RUNS, FEWEST_SIZES = 8, 3
STEP = 1.5
"""A test that lies less than this factor beyond its fit is none: it foresees nothing."""
REACHED = 0.8
"""A test covers a recommendation whose factor it reaches to this share."""
FEWEST_SIDED = 5
"""Held-out runs that have to miss on one side before that is said."""


def backtest(
    rows: Rows,
    loss: objectives.Loss,
    form: str = "chinchilla",
    *,
    factor: float | None = None,
    fix: Mapping[str, float] | None = None,
    tie: Mapping[str, str] | None = None,
    choices: Choices = valleys.DEFAULT,
) -> Backtest | None:
    """Return the prediction of the largest budget with at least two runs from budgets far enough below it.

    `factor` is by how much the recommendation lies beyond the runs: of the budgets that hold a fit those are taken
    that lie as far below the test, else the farthest; without it the nearest. None with fewer than three budgets, and
    where all lie within STEP of the largest. Another `form` than the surface takes its place, and constants fixed
    (`fix`) or tied (`tie`) stay so: what is recommended by a law is judged by that law. `choices` are the valleys'.
    """
    counts = np.bincount(rows.budget, minlength=len(rows.labels))
    budgets = np.flatnonzero(counts >= 2)
    if len(budgets) < FEWEST_BUDGETS:
        return None
    test = rows.take(rows.budget == int(budgets[-1]))
    held = _observed(test, choices)
    trains = [rows.take(rows.budget <= cut) for cut in budgets[1:-1]]
    trains = [train for train in trains if held[1] / float(train.flops.max()) >= STEP]
    ordered = sorted(trains, key=lambda train: _order(held[1] / float(train.flops.max()), factor, len(train)))
    law = _Law(FORMS[form], loss, dict(fix or {}), dict(tie or {}))
    made = (_tested(train, test, held, law, choices) for train in ordered)
    found = next((one for one in made if one is not None), None)
    if found is None or factor is None:
        return found
    covers = found.extrapolation_factor >= REACHED * factor
    return dataclasses.replace(found, recommended_factor=factor, covers=covers)


def _order(far: float, factor: float | None, runs: int) -> tuple[bool, bool, float]:
    """Return what sorts tests, the best first: enough runs, reaches the factor, and no farther than that."""
    if factor is None:
        return (runs < FEWEST_RUNS, False, far)
    reaches = far >= REACHED * factor
    return (runs < FEWEST_RUNS, not reaches, far if reaches else -far)


@dataclass(frozen=True)
class _Law:
    """What is fitted to the smaller runs: a form, its loss function, constants fixed and tied."""

    form: Form
    loss: objectives.Loss
    fix: Mapping[str, float]
    tie: Mapping[str, str]

    def fitted(self, rows: Rows) -> tuple[fit_problem.Problem, multistart.PointFit] | None:
        """Return the problem and its fit; None where the rows are too few for the constants that are free."""
        columns = [rows.column(name) for name in self.form.inputs]
        target = rows.column(self.form.target)
        problem = fit_problem.problem(self.form, columns, target, self.loss, fix=self.fix, tie=self.tie)
        matrix = problem.constraint.matrix
        free = len(self.form.names) if matrix is None else matrix.shape[1]
        return (problem, multistart.fit_point(problem)) if len(rows) > free else None

    def predicted(self, problem: fit_problem.Problem, point: multistart.PointFit, rows: Rows) -> Array:
        """Return the target (n,) of a fit at other rows."""
        x = np.log(np.stack([rows.column(name) for name in self.form.inputs])) - problem.centres[:, None]
        return np.asarray(np.exp(self.form.log_value(point.theta[None], x)[0]))


def _tested(
    train: Rows, test: Rows, held: tuple[float, float], law_of: _Law, choices: Choices = valleys.DEFAULT
) -> Backtest | None:
    """Return the test of one fit; None where neither the law nor the frontier can be fitted to its runs."""
    observed, flops = held
    found: dict[str, BacktestOptimum] = {}
    law = frontier.fit(train, valleys.fit(train, resamples=0, seed=0, choices=choices))
    if isinstance(law, frontier.FrontierFit):
        found["valleys"] = _optimum(law.predict(flops)[0], observed)
    of = "surface" if law_of.form.name == "chinchilla" else "law"
    predicted, lowest = (_by_surface if of == "surface" else _by_law)(law_of, train, test, flops)
    if lowest is not None and np.isfinite(lowest):
        found[of] = _optimum(lowest, observed)
    if not found:
        return None
    runs = () if predicted is None else _runs(predicted, test)
    errors = np.array([run.relative_error for run in runs])
    # The recommendation's loss is the surface's where there is one: so is the error that goes with it.
    name = of if of in found else "valleys"
    return Backtest(
        held_out_budget=float(test.labels[0]),
        train_budgets=tuple(float(c) for c in train.labels),
        extrapolation_factor=flops / float(train.flops.max()),
        approach=name,
        predicted=found[name].predicted,
        observed=observed,
        relative_error=found[name].relative_error,
        by_approach=found,
        runs=runs,
        mean_abs_relative_error=float(np.abs(errors).mean()) if runs else None,
        mean_relative_error=float(errors.mean()) if runs else None,
        one_sided=len(errors) >= FEWEST_SIDED and bool((errors > 0).all() or (errors < 0).all()),
    )


def _by_surface(law: _Law, train: Rows, test: Rows, flops: float) -> tuple[Array | None, float | None]:
    """Return the surface's losses of the held-out runs and its lowest loss at their budget; None with too few runs."""
    found = law.fitted(train) if len(np.unique(train.size)) >= FEWEST_SIZES else None
    if found is None:
        return None, None
    sizes = (float(min(train.params.min(), test.params.min())), float(max(train.params.max(), test.params.max())))
    lowest = float(compute_optimal.optimum(found[1].constants[None], cost(train), flops, sizes)[2][0])
    return law.predicted(*found, test), lowest


def _by_law(law: _Law, train: Rows, test: Rows, _: float) -> tuple[Array | None, float | None]:
    """Return another law's losses of the held-out runs, and that of the best of them; None with too few runs."""
    found = law.fitted(train)
    if found is None:
        return None, None
    predicted = law.predicted(*found, test)
    return predicted, float(predicted[ties.lowest(test.loss, test.params)])


def _observed(test: Rows, choices: Choices = valleys.DEFAULT) -> tuple[float, float]:
    """Return the loss at the held-out valley's minimum (else its lowest loss) and its exact FLOPs."""
    held = valleys.fit(test, resamples=0, seed=0, choices=choices)
    if len(held.loss) == 1:
        return float(held.loss[0]), float(held.flops[0])
    best = ties.lowest(test.loss, test.params)
    return float(test.loss[best]), float(test.flops[best])


def _optimum(predicted: float, observed: float) -> BacktestOptimum:
    return BacktestOptimum(predicted, observed, predicted / observed - 1.0)


def _runs(predicted: Array, test: Rows) -> tuple[BacktestRun, ...]:
    """Return every held-out run beside its prediction."""
    columns = zip(test.keys, test.params, test.tokens, test.flops, predicted, test.loss, strict=True)
    return tuple(BacktestRun(k, *(float(v) for v in (n, d, c, p, o, p / o - 1.0))) for k, n, d, c, p, o in columns)


def rolling(
    rows: Rows,
    loss: objectives.Loss,
    most: int = 8,
    form: str = "chinchilla",
    *,
    fix: Mapping[str, float] | None = None,
    tie: Mapping[str, str] | None = None,
) -> tuple[Cut, ...]:
    """Return laws fitted up to rising cuts of compute, each judged on the runs above it.

    The cuts are the budgets but the largest, at most `most` of them, evenly spaced; where runs form no budgets they are
    quantiles of compute. A drift of the exponent a with the cut says that it is not a constant, whatever its interval;
    it is None where a cut's runs do not identify it.

    Examples
    --------
    >>> from pathlib import Path
    >>> from analysis import frame
    >>> from analysis.estimation.objectives import Huber
    >>> found = rolling(frame.used(frame.from_csv(Path("docs/example-runs.csv"))), Huber())
    >>> [(f"{cut.flops:.2g}", cut.rows) for cut in found]
    [('3e+18', 10), ('1e+19', 15), ('3e+19', 20)]
    """
    return tuple(cut for cut, _ in judged(rows, loss, most, form, fix=fix, tie=tie))


def judged(
    rows: Rows,
    loss: objectives.Loss,
    most: int = 8,
    form: str = "chinchilla",
    *,
    fix: Mapping[str, float] | None = None,
    tie: Mapping[str, str] | None = None,
) -> tuple[tuple[Cut, str], ...]:
    """Return what `rolling` returns, each with why its runs do not identify the exponent a (empty: they do)."""
    law = _Law(FORMS[form], loss, dict(fix or {}), dict(tie or {}))
    levels = np.unique(rows.labels[np.bincount(rows.budget, minlength=len(rows.labels)) >= 3])
    if len(levels) < FEWEST_BUDGETS:
        levels = np.unique(np.quantile(rows.flops, np.linspace(0.3, 1.0, most + 1)))
    ends = np.array([rows.flops[rows.flops <= level * 1.01].max(initial=0.0) for level in levels[:-1]])
    ends = np.unique(ends[ends > 0])
    if len(ends) > most:
        ends = ends[np.unique(np.linspace(0, len(ends) - 1, most).round().astype(int))]
    cuts = [_cut(rows, float(end), law) for end in ends]
    return tuple(cut for cut in cuts if cut is not None)


def _cut(rows: Rows, end: float, law: _Law) -> tuple[Cut, str] | None:
    """Return the law of the runs up to `end` FLOPs, its errors above, and why it has no exponent.

    None with too few runs, or none far above.
    """
    inside = rows.flops <= end
    below, above = rows.take(inside), rows.take(~inside)
    if not len(above) or float(above.flops.max()) < STEP * end:
        return None
    fewest = max(FEWEST_RUNS, len(law.form.names) + 2)
    found = law.fitted(below) if len(below) >= fewest and len(np.unique(below.size)) >= FEWEST_SIZES else None
    if found is None:
        return None
    error = law.predicted(*found, above) / above.column(law.form.target) - 1.0
    order = np.argsort(above.flops, kind="stable")
    value = law.form.derived(found[1].constants).get("a")
    why = "" if value is None else exponent.unidentified(*found, below)
    known = None if value is None or why else float(value)
    runs = tuple((float(above.flops[i]), float(error[i])) for i in order)
    return Cut(end, len(below), known, float(np.abs(error).mean()), runs), why
