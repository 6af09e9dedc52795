"""L(C) = L_inf + a * (C / reference)^-alpha along the compute-optimal frontier: the minima of the valleys."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from analysis.approaches.valleys import ValleyFit
from analysis.estimation import fit_problem, multistart, objectives, ties
from analysis.inference import error_draws, resampling, scatter
from analysis.inputs.dataset import Array, Rows
from analysis.laws.sum_of_powers import FRONTIER, FRONTIER_NO_FLOOR, SumOfPowers
from analysis.text import numbers
from analysis.values.blocks import Frontier, FrontierPoint, Identified

FEWEST = 2
"""Valleys with a minimum, with fewer of which the law goes through the lowest run of each budget."""


@dataclass(frozen=True)
class FrontierFit:
    """The fitted frontier: draws (R, 3) of L_inf, a, alpha; L_inf is 0 where the law has no floor."""

    block: Frontier
    constants: Array
    draws: Array

    def predict(self, flops: float) -> tuple[float, Array]:
        """Return the loss that this budget buys, and its draws (R,)."""
        assert self.block.reference_flops is not None
        ratio = np.log(flops / self.block.reference_flops)
        both = np.vstack((self.constants[None], self.draws))
        loss = both[:, 0] + both[:, 1] * np.exp(-both[:, 2] * ratio)
        return float(loss[0]), loss[1:]


def fit(rows: Rows, found: ValleyFit) -> FrontierFit | Frontier:
    """Return the law through the valleys' minima, or through the lowest run of each budget where those are few.

    Three constants need four points; with two or three points the law has no floor L_inf.
    """
    flops, loss, drawn, what = found.flops, found.loss, found.draw_loss, "minima of the valleys"
    if len(flops) < FEWEST:
        lowest = [np.flatnonzero(rows.budget == g) for g in range(len(rows.labels))]
        best = [group[ties.lowest(rows.loss[group], rows.params[group])] for group in lowest if len(group) >= 2]
        flops, loss = rows.flops[best], rows.loss[best]
        drawn, what = np.empty((0, len(flops))), "lowest loss of each budget"
    points = tuple(FrontierPoint(float(c), float(v)) for c, v in zip(flops, loss, strict=True))
    if len(points) < 2:
        return Frontier(
            form=FRONTIER.text,
            approach="frontier",
            loss_function=objectives.Squared().text,
            status="not possible",
            reason=(
                f"{numbers.counted(len(points), 'budget')} with at least two runs; a law needs two, with a floor four"
            ),
            points=points,
            points_are=what,
        )
    form = FRONTIER if len(points) >= 4 else FRONTIER_NO_FLOOR
    reference = float(np.exp(np.log(flops).mean()))
    problem = fit_problem.problem(form, (flops / reference,), loss, objectives.Squared())
    point = multistart.fit_point(problem)
    draws = _padded(form, _draws(problem, point, _scattered(problem, point, drawn)))
    constants = _padded(form, point.constants[None])[0]
    block = Frontier(
        form=form.text,
        approach="frontier",
        loss_function=objectives.Squared().text,
        objective=point.objective,
        params={name: float(v) for name, v in zip(form.names, point.constants, strict=True)},
        intervals={},
        rows_used=len(points),
        optimizer=point.evidence,
        reference_flops=reference,
        points=points,
        points_are=what,
    )
    judged = _judged(block, draws, float(loss.min()), df=len(points) - len(form.names))
    return FrontierFit(judged, constants, draws)


def _scattered(problem: fit_problem.Problem, point: multistart.PointFit, drawn: Array) -> Array:
    """Return draws (R, m) of the minima's loss with what they scatter around the frontier by beyond their noise."""
    rest = fit_problem.residuals(problem, point.theta[None])[0]
    df = len(rest) - len(point.theta)
    if df < 1 or not len(drawn):
        return drawn
    generator = np.random.default_rng(np.random.SeedSequence([0, 9]))
    whole = float((rest**2).sum()) / df / error_draws.scales(df, len(drawn), generator)
    with np.errstate(invalid="ignore", divide="ignore"):
        within = float(scatter.middle_variances(np.log(np.where(drawn > 0, drawn, np.nan))).mean())
    return np.asarray(
        drawn * np.exp(generator.normal(size=drawn.shape) * np.sqrt(np.maximum(whole - within, 0))[:, None])
    )


def _draws(problem: fit_problem.Problem, point: multistart.PointFit, drawn: Array) -> Array:
    """Return the constants (R, p) for drawn minima (R, m); a minimum that a draw lacks has no weight there."""
    if not len(drawn):
        return np.empty((0, len(point.theta)))
    there = np.isfinite(drawn) & (drawn > 0)
    y = np.where(there, np.log(np.where(there, drawn, 1.0)), problem.y)
    found = multistart.fit_many(problem, point, weights=there.astype(np.float64), y=y)
    out = problem.form.natural(found.theta, problem.centres)
    out[there.sum(axis=1) < len(point.theta)] = np.nan
    return out


def _padded(form: SumOfPowers, constants: Array) -> Array:
    """Return L_inf, a, alpha, with L_inf = 0 for the law without a floor."""
    return constants if form.floor else np.concatenate((np.zeros((len(constants), 1)), constants), axis=1)


def _judged(block: Frontier, draws: Array, lowest: float, *, df: int) -> Frontier:
    """Return the block with intervals and verdicts: L_inf needs a floor that resamples keep above 0.

    Without a degree of freedom (`df`) nothing checks the law, and no constant of it is known.
    """
    if df < 1:
        unchecked = Identified(False, "two points fix any law of two constants")
        return replace(block, intervals=dict.fromkeys(block.params), identified=dict.fromkeys(block.params, unchecked))
    intervals = {
        n: resampling.interval(draws[:, i], block.params[n], logs=True)
        for i, n in enumerate(FRONTIER.names)
        if n in block.params
    }
    none = "no degrees of freedom for an interval" if len(draws) else "its points have no resamples"
    identified = {
        name: Identified(interval is not None, "" if interval else none) for name, interval in intervals.items()
    }
    floor = intervals.get("L_inf")
    if floor is not None and floor[0] < 1e-3 * lowest:
        high = float(np.nanquantile(draws[:, 0], resampling.CONFIDENCE))
        # Draws that all lie on the bound say that the law has no floor to show, not that the floor is that low.
        limit = ("upper", max(high, block.params["L_inf"])) if high >= 1e-3 * lowest else (None, None)
        reason = "resamples put L_inf on its bound 0"
        for name in block.params:
            identified[name] = Identified(False, reason if name == "L_inf" else f"it trades with L_inf: {reason}")
        identified["L_inf"] = Identified(False, reason, *limit)
        intervals = dict.fromkeys(intervals)
    return replace(block, intervals=intervals, identified=identified)
