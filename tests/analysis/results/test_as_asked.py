"""What stands beside a fit is fitted as the fit was asked for: loss function, delta, constants held and tied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.diagnostics import backtest
from analysis.estimation.objectives import Huber
from analysis.fit import fit as fit_frame
from analysis.inputs.rows import from_csv
from tests.analysis import studies

ROOT = Path(__file__).parents[3]


def tutorial() -> Any:
    return from_csv(ROOT / "docs/tutorial/runs.csv", params_kind="total", flop_rule="6ND")


@pytest.mark.parametrize(
    "asked",
    [{"loss": "squared"}, {"delta": "0.01"}, {"loss": "squared", "fix": {"E": 1.7}}, {"tie": {"beta": "alpha"}}],
)
def test_rows_as_fitted_are_the_fit(asked: dict[str, Any]) -> None:
    fit = fit_frame(tutorial(), resamples=0, **asked)
    assert fit.sensitivity[0].option == "as fitted"
    assert fit.sensitivity[0].value == pytest.approx(fit.derived["a"], rel=1e-6)
    third = next(row for row in fit.record["approaches"] if row["approach"].startswith("3"))
    assert third["a"] == pytest.approx(fit.derived["a"], rel=1e-6)
    interval = fit.fits.surface.intervals["a"]
    assert interval is not None
    assert (fit.sensitivity[0].low, fit.sensitivity[0].high) == interval


def test_a_backtest_keeps_the_constants_that_were_held() -> None:
    rows = studies.as_rows(studies.isoflop(0, noise=0.004, budgets=(1e12, 1e13, 1e14, 1e15)))
    found = {
        name: backtest.backtest(rows, Huber(), form, **held)
        for name, form, held in (
            ("free", "chinchilla", {}),
            ("fixed", "chinchilla", {"fix": {"E": 2.2}}),
            ("tied", "chinchilla", {"tie": {"beta": "alpha"}}),
            ("form", "chinchilla_tied", {}),
        )
    }
    predicted = {name: one.runs[0].predicted for name, one in found.items() if one is not None}
    assert abs(predicted["fixed"] / predicted["free"] - 1) > 1e-3
    assert predicted["tied"] == pytest.approx(predicted["form"], rel=1e-6)
    assert abs(predicted["tied"] / predicted["free"] - 1) > 1e-6
    cuts = backtest.rolling(rows, Huber(), tie={"beta": "alpha"})
    assert all(cut.a == pytest.approx(0.5) for cut in cuts)
    assert cuts
