"""loss=linear: least squares on plain losses, held against a variable projection of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize, nnls

from analysis.estimation import objectives
from analysis.fit import fit as fit_frame
from analysis.fit import parse
from analysis.inference.fit_law import fit_law
from analysis.inputs import frame
from analysis.inputs.rows import from_csv
from tests.analysis import studies


def projected(table: pd.DataFrame) -> tuple[float, Any]:
    """Return the least half sum of squares and E, A, B, alpha, beta: for given exponents the others are linear."""
    n, d, loss = (table[name].to_numpy() for name in ("params", "tokens", "loss"))

    def linear(exponents: Any) -> tuple[float, Any]:
        columns = np.stack((np.ones_like(n), n ** -exponents[0], d ** -exponents[1]), axis=1)
        size = columns.max(axis=0)
        found, rest = nnls(columns / size, loss)
        return 0.5 * rest**2, found / size

    starts = [np.array([a, b]) for a in (0.2, 0.4) for b in (0.2, 0.4)]
    options: Any = {"xatol": 1e-9, "fatol": 1e-16, "maxiter": 4000}
    search: Any = minimize
    runs = [search(lambda e: linear(e)[0], start, method="Nelder-Mead", options=options) for start in starts]
    best = min(runs, key=lambda run: float(run.fun))
    value, (e, a, b) = linear(best.x)
    return value, np.array([e, a, b, *best.x])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_linear_is_the_variable_projection_of_plain_losses(seed: int) -> None:
    table = studies.isoflop(seed, noise=0.004)
    found = fit_law(table, loss="linear", resamples=0)
    value, constants = projected(table)
    assert found.objective <= value * (1 + 1e-9)
    np.testing.assert_allclose(found.params.to_numpy(), constants, rtol=2e-4)
    assert found.loss_function == "squared(residual)"
    np.testing.assert_allclose(found.resid, table["loss"] - found.fittedvalues, atol=1e-12)
    plain = fit_law(table, loss="squared", plain=True, resamples=0)
    np.testing.assert_allclose(found.params.to_numpy(), plain.params.to_numpy(), rtol=1e-9)
    assert abs(float(fit_law(table, loss="squared", resamples=0).params["E"]) - float(found.params["E"])) > 1e-5


def test_the_command_fits_backtests_and_compares_by_the_loss_asked_for(tmp_path: Path) -> None:
    table = studies.isoflop(3, noise=0.003)
    table.to_csv(tmp_path / "a.csv", index=False)
    rows = from_csv(tmp_path / "a.csv")
    found = fit_frame(rows, parse([f"runs={tmp_path / 'a.csv'}", "loss=linear", "resamples=40", "sensitivity=no"]))
    law = fit_law(frame.used(rows), loss="linear", resamples=0)
    assert found.loss_function == "squared(residual)"
    assert found.params == pytest.approx(law.params.to_dict(), rel=1e-6)
    assert found.backtest is not None
    default = fit_frame(rows, resamples=0, sensitivity=False)
    assert default.backtest is not None
    assert found.backtest.predicted != pytest.approx(default.backtest.predicted, rel=1e-7)
    ends = found.intervals["a"]
    assert ends is not None and ends[0] <= found.derived["a"] <= ends[1]


def test_rates_and_batches_are_fitted_on_logs(tmp_path: Path) -> None:
    sizes = [1e6, 4e6, 1.6e7, 6.4e7]
    table = pd.DataFrame({"params": sizes, "tokens": [1e8, 3e8, 4e8, 9e8], "lr": [4e-3, 3e-3, 2e-3, 1e-3], "loss": 3.0})
    table.assign(flops=6 * table["params"] * table["tokens"]).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(ValueError, match="loss=linear is for laws of the loss"):
        fit_frame(from_csv(tmp_path / "a.csv"), form="learning_rate", loss="linear")


def test_linear_is_a_loss_by_name() -> None:
    assert objectives.named("linear") == objectives.Linear()
    with pytest.raises(ValueError, match="use one of huber, student_t, l1, squared, linear"):
        objectives.named("least squares")
