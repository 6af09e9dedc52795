"""Whether a law may be advised by its own fit: converged, every constant identified and off its bounds, tested."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from analysis.text import numbers

if TYPE_CHECKING:
    from analysis.inference.law_result import LawFit
    from analysis.inputs.dataset import Rows
    from analysis.values.study_result import Cut

TESTED = 2.0
"""The farthest a backtest has to reach beyond its fit to say anything of an extrapolation."""


def lacking(fit: LawFit, rows: Rows, cuts: Iterable[Cut] | None = None) -> str:
    """Return why this law is not advised; empty where it may be. `cuts` are its backtests, where they are made."""
    if not fit.optimizer.converged:
        return "its fit did not converge"
    for name in fit.form.names:
        verdict = fit.identified.get(name)
        if verdict is not None and not verdict.identified:
            return f"{name} is not identified: {verdict.reason}"
    for name, verdict in fit.identified.items():
        if name in ("a", "b") and not verdict.identified:
            return f"{name} is not identified: {verdict.reason}"
    far = reach(backtests(fit, rows) if cuts is None else cuts)
    if far < TESTED:
        reached = f"reach {numbers.factor(far)}" if far else "are none"
        return f"no backtest shows how it extrapolates: cuts of compute {reached}"
    return ""


def backtests(fit: LawFit, rows: Rows) -> tuple[Cut, ...]:
    """Return the backtests of this law over cuts of compute, with the constants held that it holds."""
    from analysis.diagnostics import backtest

    fixed = {name: float(value) for name, value in fit.constraints.items() if not isinstance(value, str)}
    tied = {name: value for name, value in fit.constraints.items() if isinstance(value, str)}
    return tuple(backtest.rolling(rows, fit.problem.loss, form=fit.form.name, fix=fixed, tie=tied))


def reach(cuts: Iterable[Cut]) -> float:
    """Return by how much the largest run lies beyond the smallest fit of these backtests; 0 without any."""
    return max((float(np.max([c for c, _ in cut.runs])) / cut.flops for cut in cuts), default=0.0)
