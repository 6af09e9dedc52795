"""`fit_law`: one law through runs, with its intervals, diagnostics and predictions.

>>> import numpy as np
>>> from analysis import fit_law
>>> flops, ratio = (a.ravel() for a in np.meshgrid([1e18, 1e19, 1e20, 1e21], [5, 10, 20, 40, 80]))
>>> params = np.sqrt(flops / (6 * ratio))
>>> tokens = flops / (6 * params)
>>> runs = {"params": params, "tokens": tokens, "loss": 1.69 + 406.4 / params**0.34 + 410.7 / tokens**0.28}
>>> fit = fit_law(runs, resamples=0)
>>> fit.params.round(3).to_dict()
{'E': 1.69, 'A': 406.4, 'B': 410.7, 'alpha': 0.34, 'beta': 0.28}
>>> round(float(fit.derived["a"]), 4)
0.4516

Objective and intervals: Hoffmann et al. 2022, arXiv 2203.15556; Besiroglu et al. 2024, arXiv 2404.10102.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.estimation import fit_problem, multistart, objectives, observations
from analysis.inference import budget_drift, error_draws, nested_errors, refusals, resampling
from analysis.inference.intervals import METHODS
from analysis.inference.law_result import LawFit
from analysis.inputs.dataset import Array, Index, Rows
from analysis.laws.base import Form
from analysis.laws.registry import named
from train.spec import calls


@dataclass(frozen=True)
class Uncertainty:
    """How the intervals of a fit are made.

    `interval` is the method of `conf_int` and `bse`, one of `intervals.METHODS`; without resamples it is "delta".
    `cluster` is what the bootstrap draws, one of `schemes.SCHEMES`; "auto" chooses as `resampling.choose` says. No
    number depends on `workers`, the threads.
    """

    interval: str
    cluster: str
    resamples: int
    seed: int
    confidence: float
    workers: int

    def plan(self, data: Rows, form: Form) -> resampling.Plan:
        """Return what is resampled of these rows; ValueError where they do not hold it."""
        how = resampling.choose(data.size, data.run_numbers, self.cluster)
        if how.by == "seeds" and self.resamples:
            refusals.refuse_alone(observations.cells(data, form), data.columns[form.target], form.target)
        return how

    @property
    def method(self) -> str:
        """The method of the intervals: a bootstrap needs resamples."""
        return self.interval if self.resamples or self.interval != "bootstrap" else "delta"


@calls.answered(
    resamples=calls.resamples,
    seed=calls.whole(),
    workers=calls.whole(),
    starts=calls.whole(1),
    delta=calls.positive,
    fix=calls.numbers,
    tie=calls.texts,
    kinds=calls.texts,
    interval=calls.one_of(*METHODS),
    confidence=calls.share,
)
def fit_law(
    runs: Any,
    form: str | Form = "chinchilla",
    *,
    loss: str | objectives.Loss = "huber",
    delta: float = 1e-3,
    fix: Mapping[str, float] | None = None,
    tie: Mapping[str, str] | None = None,
    cluster: str = "auto",
    interval: str = "bootstrap",
    resamples: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
    starts: int = multistart.STARTS,
    workers: int = 1,
    kinds: Mapping[str, str] | None = None,
    plain: bool = False,
) -> LawFit:
    """Fit a law to runs by the least summed loss of residuals; the result is frozen and has statsmodels' names.

    Parameters
    ----------
    runs : DataFrame, mapping of columns, or analysis.inputs.dataset.Rows
        One's own table, or what `load` returned (of which rows that no fit uses are left out).
        The form's inputs and its target, in counts and in the target's own unit (loss: nats per token, or what `kinds`
        says). Used where there: `size_group`, `run` (rows of one run are its checkpoints), `flops`, `unique_tokens`.
    form : a name in `analysis.laws.registry.FORMS`, or a form of one's own
    loss, delta : a name in `losses.LOSSES`, or a Loss, of ln predicted - ln observed; Huber's delta
        A delta of 0.001 is 0.1 %. "linear", like `plain`, is of predicted - observed: E, A and B are then linear.
    fix, tie : constants held at values, and at others: ``fix={"E": 1.7}``, ``tie={"beta": "alpha"}``
    cluster, interval, confidence, resamples, seed, workers : see :class:`Uncertainty`
    starts : how many starts are polished; the share that agrees is reported
    kinds : what the columns mean (params, flops, loss, tokenizer ...): kept with the result

    Raises
    ------
    ValueError
        A column is missing or holds what is not positive, there are fewer rows than constants, a constraint makes no
        sense, or tokens are repeated and the form knows of no repeats.

    Examples
    --------
    >>> import analysis as sa
    >>> law = sa.fit_law(sa.load("docs/example-runs.csv"), resamples=0)
    >>> law
    LawFit(chinchilla: E 1.80, A 527, B 1910, alpha 0.356, beta 0.365; 25 rows)
    >>> law.predict({"params": [1e9], "tokens": [2e10]}).round(3).tolist()
    [2.464]
    """
    law = named(form)
    data = observations.read(observations.table(runs), law)
    refusals.refuse(law, data)
    criterion = objectives.named(loss, delta)
    p = fit_problem.problem(
        law, list(observations.inputs(data, law)), data.columns[law.target], criterion, fix=fix, tie=tie, plain=plain
    )
    refusals.refuse_few(p)
    asked = Uncertainty(interval, cluster, resamples, seed, confidence, workers)
    point = multistart.fit_point(p, starts)
    how = asked.plan(data, law)
    if resamples and cluster == "auto":
        how = budget_drift.allowing(how, error_draws.Around(p, point, observations.order(data, law)), data)
    thetas = resampled(p, point, data, how, resamples=resamples, seed=seed, workers=workers)
    held = {**(fix or {}), **(tie or {})}
    return LawFit(law, data, p, point, how, thetas, asked.method, confidence, seed, dict(kinds or {}), held)


def resampled(
    p: fit_problem.Problem,
    point: multistart.PointFit,
    data: Rows,
    how: resampling.Plan,
    *,
    resamples: int,
    seed: int,
    workers: int = 1,
) -> Array:
    """Return theta (resamples, p) of the bootstrap that `how` names.

    Draws are made for the rows in the order of their values and for residuals in theirs: the order in which a file
    holds its rows changes no number.
    """
    if resamples == 0:
        return np.empty((0, len(point.theta)))
    around = error_draws.Around(p, point, observations.order(data, p.form), seed, workers)
    size, run = (observations.by_first(numbers[around.order]) for numbers in (data.size, data.run_numbers))
    if how.by == "residuals":
        errors = _residual_errors(around, how, size, run, resamples)
        drift = budget_drift.find(around, data) if how.drift else None
        return around.solved(around.targets(errors if drift is None else budget_drift.added(errors, drift, around)))
    if how.by == "seeds":
        cells = observations.cells(data, p.form)[around.order]
        return around.solved(around.targets(error_draws.repeats(around, cells, resamples)))
    weights = resampling.cluster_weights(resampling.groups(how, size, run), resamples, seed)
    back = np.argsort(around.order, kind="stable")
    return multistart.fit_many(p, point, weights=weights[:, back], workers=workers).theta


def _residual_errors(
    around: error_draws.Around, how: resampling.Plan, size: Index, run: Index, resamples: int
) -> Array:
    """Return errors (resamples, n) with what groups share, where any of it is left to see beside the constants."""
    if how.within:
        found = nested_errors.levels(around, size, run)
        if found.seen:
            return nested_errors.drawn(around, found, resamples)
        return error_draws.independent(around, resamples)
    groups = resampling.groups(how, size, run)
    if how.shared and error_draws.parts(around, groups).between_v >= error_draws.LEAST_BETWEEN:
        return error_draws.shared(around, groups, resamples)
    return error_draws.independent(around, resamples)
