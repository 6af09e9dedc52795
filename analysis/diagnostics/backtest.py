"""Fit on all budgets but the largest, predict the largest: the honest size of an extrapolation's error."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from analysis.approaches import frontier, valleys
from analysis.approaches.valley_options import Choices
from analysis.diagnostics import exponent
from analysis.estimation import fit_problem, multistart, objectives, ties
from analysis.inference import covariance, distributions
from analysis.inputs.dataset import Array, Rows
from analysis.laws.base import Form
from analysis.laws.registry import FORMS
from analysis.laws.sum_of_powers import FRONTIER
from analysis.values.study_result import Backtest, BacktestOptimum, BacktestRun, Cut

FEWEST_BUDGETS = 3
FEWEST_RUNS, FEWEST_SIZES = 8, 3
STEP = 1.5
"""A test that lies less than this factor beyond its fit is none: it foresees nothing."""
REACHED = 0.8
"""A test covers a recommendation whose factor it reaches to this share."""
FEWEST_SIDED = 5
"""Held-out runs that have to miss on one side before that is said."""
TESTS = {"frontier": "valleys"}
"""Where the test of what says a recommendation's loss (`loss_from`) has another name than that."""


def backtest(
    rows: Rows,
    loss: objectives.Loss,
    form: str = "chinchilla",
    *,
    factor: float | None = None,
    of: str | None = None,
    fix: Mapping[str, float] | None = None,
    tie: Mapping[str, str] | None = None,
    choices: Choices = valleys.DEFAULT,
) -> Backtest | None:
    """Return the prediction of the largest budget with at least two runs from budgets far enough below it.

    `of` is what the recommendation's loss is from, surface, law or frontier, and the error is that one's; nothing ("")
    where it says no loss, and then there is no error to state. None, where nothing is recommended, takes the law that
    is fitted, else the frontier.

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
    held = _Held.of(test, choices)
    trains = [rows.take(rows.budget <= cut) for cut in budgets[1:-1]]
    trains = [train for train in trains if held.flops / float(train.flops.max()) >= STEP]
    ordered = sorted(trains, key=lambda train: _order(held.flops / float(train.flops.max()), factor, len(train)))
    law = _Law(FORMS[form], loss, dict(fix or {}), dict(tie or {}))
    found = _first((_tested(train, held, law, of) for train in ordered), of)
    if found is None or factor is None:
        return found
    covers = found.extrapolation_factor >= REACHED * factor
    return dataclasses.replace(found, recommended_factor=factor, covers=covers)


def _first(made: Iterable[Backtest | None], of: str | None) -> Backtest | None:
    """Return the first test of what is asked for, else the first that says why there is none."""
    without = None
    for one in made:
        if one is not None and (one.approach or not of):
            return one
        without = without or one
    return without


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
        return (problem, multistart.fit_point(problem)) if len(rows) > problem.free else None

    def foreseen(self, train: Rows, test: Rows) -> tuple[Array, float | None] | None:
        """Return the target (n,) at the rows `test` of the law fitted to others, and how far it may be off.

        None where these are too few.
        """
        few = self.form.name == "chinchilla" and len(np.unique(train.size)) < FEWEST_SIZES
        found = None if few else self.fitted(train)
        return None if found is None else (self.predicted(*found, test), self.reach(*found, test))

    def reach(self, problem: fit_problem.Problem, point: multistart.PointFit, test: Rows) -> float | None:
        """Return by what a right law's error of the lowest of other rows stays below in 99 of 100 cases.

        A share of the target: of what the constants are off by (delta method), and of the row's own noise.
        """
        df = problem.y.size - problem.free
        if df < 1:
            return None
        best = [ties.lowest(test.column(self.form.target), test.params)]
        x = np.log(np.stack([test.column(name)[best] for name in self.form.inputs])) - problem.centres[:, None]
        slope = self.form.jacobian(point.theta[None], x)[0, 0]
        residual = self.form.log_value(point.theta[None], problem.x)[0] - problem.y
        noise = float((residual**2).sum()) / df
        variance = float(slope @ covariance.delta(problem, point) @ slope) + noise
        found = float(np.expm1(distributions.t_quantile(0.995, df) * np.sqrt(max(variance, 0.0))))
        return found if np.isfinite(found) else None

    def predicted(self, problem: fit_problem.Problem, point: multistart.PointFit, rows: Rows) -> Array:
        """Return the target (n,) of a fit at other rows."""
        x = np.log(np.stack([rows.column(name) for name in self.form.inputs])) - problem.centres[:, None]
        return np.asarray(np.exp(self.form.log_value(point.theta[None], x)[0]))


@dataclass(frozen=True)
class _Held:
    """The budget that is held out: its lowest loss, that of its valley's minimum where it has one, and its FLOPs."""

    test: Rows
    choices: Choices
    loss: float
    flops: float
    valley: bool

    @classmethod
    def of(cls, test: Rows, choices: Choices = valleys.DEFAULT) -> _Held:
        """Return what is held out of the runs of one budget."""
        found = valleys.fit(test, resamples=0, seed=0, choices=choices)
        if len(found.loss) == 1:
            return cls(test, choices, float(found.loss[0]), float(found.flops[0]), True)
        best = ties.lowest(test.loss, test.params)
        return cls(test, choices, float(test.loss[best]), float(test.flops[best]), False)

    def by_law(self, predicted: Array, *, sizes: bool) -> BacktestOptimum:
        """Return the lowest loss by a law of these losses (n,): its own valley's minimum, else that of the lowest run.

        What is compared is alike: a law that is right has no error, whatever was run. Other laws than those of the
        sizes alone (`sizes`) know more of a run than a valley does.
        """
        if sizes and self.valley and np.isfinite(predicted).all():
            told = valleys.fit(self.test.replaced(loss=predicted), resamples=0, seed=0, choices=self.choices)
            if len(told.loss) == 1:
                return _optimum(float(told.loss[0]), self.loss)
        best = ties.lowest(self.test.loss, self.test.params)
        return _optimum(float(predicted[best]), float(self.test.loss[best]))

    def by_frontier(self, train: Rows, *, floor: bool) -> BacktestOptimum | None:
        """Return the lowest loss by the law of the smaller budgets' lowest losses; None without one that is alike.

        A law of minima is held against a minimum: a run need not have the lowest loss that its budget could have
        bought. What has a `floor` is not tested by a law without, which is too low far out.
        """
        minima = valleys.fit(train, resamples=0, seed=0, choices=self.choices)
        law = frontier.fit(train, minima)
        if not isinstance(law, frontier.FrontierFit) or (floor and law.block.form != FRONTIER.text):
            return None
        if len(minima.flops) >= frontier.FEWEST:
            return _optimum(law.predict(self.flops)[0], self.loss) if self.valley else None
        best = ties.lowest(self.test.loss, self.test.params)
        return _optimum(law.predict(float(self.test.flops[best]))[0], float(self.test.loss[best]))


def _tested(train: Rows, held: _Held, law: _Law, of: str | None) -> Backtest | None:
    """Return the test of one fit; None where neither the law nor the frontier can be fitted to its runs."""
    name = "surface" if law.form.name == "chinchilla" else "law"
    predicted, reach = law.foreseen(train, held.test) or (None, None)
    front = held.by_frontier(train, floor=of == "frontier")
    own_law = None if predicted is None else held.by_law(predicted, sizes=name == "surface")
    made = {"valleys": front, name: own_law}
    found = {key: one for key, one in made.items() if one is not None and np.isfinite(one.relative_error)}
    if not found and of is None:
        return None
    wanted = (name if name in found else "valleys") if of is None else TESTS.get(of, of)
    own = found.get(wanted)
    runs = _runs(predicted, held.test) if predicted is not None and own is not None and wanted == name else ()
    errors = np.array([run.relative_error for run in runs])
    return Backtest(
        held_out_budget=float(held.test.labels[0]),
        train_budgets=tuple(float(c) for c in train.labels),
        extrapolation_factor=held.flops / float(train.flops.max()),
        approach=wanted if own else "",
        predicted=own.predicted if own else None,
        observed=own.observed if own else held.loss,
        relative_error=own.relative_error if own else None,
        by_approach=found,
        runs=runs,
        mean_abs_relative_error=float(np.abs(errors).mean()) if runs else None,
        mean_relative_error=float(errors.mean()) if runs else None,
        one_sided=len(errors) >= FEWEST_SIDED and bool((errors > 0).all() or (errors < 0).all()),
        reason="" if own else _untested(wanted),
        reach=reach if own and wanted == name else None,
    )


def _untested(name: str) -> str:
    """Return why what the recommendation's loss is from has no test."""
    if name == "valleys":
        return "that of the frontier needs a minimum at the largest budget and four at budgets far enough below it"
    if name:
        return f"the budgets far enough below the largest have too few runs for the {name}"
    return "the recommendation is of sizes and says no loss"


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
