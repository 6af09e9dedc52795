"""Whether a plan may rest on a law: converged, every constant identified and off its bounds, its forecasts tested."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis.text import numbers

if TYPE_CHECKING:
    from analysis.inference.law_result import LawFit
    from analysis.inputs.dataset import Rows

TESTED = 2.0
"""The farthest a backtest has to reach beyond its fit to say anything of an extrapolation."""


def lacking(fit: LawFit, rows: Rows) -> str:
    """Return why a plan does not rest on this law; empty where it may."""
    if not fit.optimizer.converged:
        return "its fit did not converge"
    for name in fit.form.names:
        verdict = fit.identified.get(name)
        if verdict is not None and not verdict.identified:
            return f"{name} is not identified: {verdict.reason}"
    for name, verdict in fit.identified.items():
        if name in ("a", "b") and not verdict.identified:
            return f"{name} is not identified: {verdict.reason}"
    far = tested(fit, rows)
    if far < TESTED:
        reach = f"reach {numbers.factor(far)}" if far else "are none"
        return f"no backtest shows how it extrapolates: cuts of compute {reach}"
    return ""


def tested(fit: LawFit, rows: Rows) -> float:
    """Return by how much a backtest of this law goes beyond its fit at most; 0 where the runs hold none."""
    from analysis.diagnostics import backtest

    cuts = backtest.rolling(rows, fit.problem.loss, form=fit.form.name)
    return max((float(np.max([c for c, _ in cut.runs])) / cut.flops for cut in cuts), default=0.0)
