"""Fit on all budgets but the largest, predict the largest: the honest size of an extrapolation's error."""

from __future__ import annotations

import numpy as np

from analysis import engine, frontier, recommend, surface, valleys
from analysis.results import Backtest, BacktestOptimum, BacktestRun, Cut
from analysis.rows import Array, Rows

FEWEST_BUDGETS = 3
FEWEST_RUNS = 8


def backtest(rows: Rows, loss: engine.Loss) -> Backtest | None:
    """Return the prediction of the largest budget with at least two runs; None with fewer than three budgets."""
    counts = np.bincount(rows.budget, minlength=len(rows.labels))
    budgets = np.flatnonzero(counts >= 2)
    if len(budgets) < FEWEST_BUDGETS:
        return None
    last = int(budgets[-1])
    train, test = rows.take(rows.budget < last), rows.take(rows.budget == last)
    observed, flops = _observed(test)
    found: dict[str, BacktestOptimum] = {}
    valley_fit = valleys.fit(train, resamples=0, seed=0)
    law = frontier.fit(train, valley_fit)
    if isinstance(law, frontier.FrontierFit):
        found["valleys"] = _optimum(law.predict(flops)[0], observed)
    point = surface.point_fit(train, loss)
    runs: tuple[BacktestRun, ...] = ()
    if point is not None:
        runs = _runs(point.constants, test)
        sizes = (float(rows.params.min()), float(rows.params.max()))
        lowest = float(recommend.optimum(point.constants[None], recommend.cost(train), flops, sizes)[2][0])
        if np.isfinite(lowest):
            found["surface"] = _optimum(lowest, observed)
    if not found:
        return None
    # The recommendation's loss is the surface's where there is one: so is the error that goes with it.
    name = "surface" if "surface" in found else "valleys"
    return Backtest(
        held_out_budget=float(rows.labels[last]),
        train_budgets=tuple(float(c) for c in train.labels),
        extrapolation_factor=flops / float(train.flops.max()),
        approach=name,
        predicted=found[name].predicted,
        observed=observed,
        relative_error=found[name].relative_error,
        by_approach=found,
        runs=runs,
        mean_abs_relative_error=float(np.mean([abs(r.relative_error) for r in runs])) if runs else None,
    )


def _observed(test: Rows) -> tuple[float, float]:
    """Return the loss at the held-out valley's minimum (else its lowest loss) and its exact FLOPs."""
    held = valleys.fit(test, resamples=0, seed=0)
    if len(held.loss) == 1:
        return float(held.loss[0]), float(held.flops[0])
    best = int(np.argmin(test.loss))
    return float(test.loss[best]), float(test.flops[best])


def _optimum(predicted: float, observed: float) -> BacktestOptimum:
    return BacktestOptimum(predicted, observed, predicted / observed - 1.0)


def _runs(constants: Array, test: Rows) -> tuple[BacktestRun, ...]:
    """Return every held-out run beside the surface's prediction."""
    predicted = surface.predict(constants, test.params, test.tokens)
    columns = zip(test.keys, test.params, test.tokens, test.flops, predicted, test.loss, strict=True)
    return tuple(BacktestRun(k, *(float(v) for v in (n, d, c, p, o, p / o - 1.0))) for k, n, d, c, p, o in columns)


def rolling(rows: Rows, loss: engine.Loss, most: int = 8) -> tuple[Cut, ...]:
    """Return surfaces fitted up to rising cuts of compute, each judged on the runs above it.

    The cuts are the budgets but the largest, at most `most` of them, evenly spaced; where runs form no budgets they are
    quantiles of compute. A drift of the exponent with the cut says that it is not a constant, whatever its interval.
    """
    levels = np.unique(rows.labels[np.bincount(rows.budget, minlength=len(rows.labels)) >= 3])
    if len(levels) < FEWEST_BUDGETS:
        levels = np.unique(np.quantile(rows.flops, np.linspace(0.3, 1.0, most + 1)))
    ends = np.array([rows.flops[rows.flops <= level * 1.01].max(initial=0.0) for level in levels[:-1]])
    ends = np.unique(ends[ends > 0])
    ends = (
        ends[np.unique(np.linspace(0, len(ends) - 1, min(len(ends), most)).round().astype(int))] if len(ends) else ends
    )
    found = []
    for end in ends:
        inside = rows.flops <= end
        point = surface.point_fit(rows.take(inside), loss)
        above = rows.take(~inside)
        if point is None or not len(above) or int(inside.sum()) < FEWEST_RUNS:
            continue
        error = surface.predict(point.constants, above.params, above.tokens) / above.loss - 1.0
        order = np.argsort(above.flops, kind="stable")
        exponent = float(surface.exponents(point.constants)["a"])
        runs = tuple((float(above.flops[i]), float(error[i])) for i in order)
        known = exponent if np.isfinite(exponent) else None
        found.append(Cut(float(end), int(inside.sum()), known, float(np.abs(error).mean()), runs))
    return tuple(found)
