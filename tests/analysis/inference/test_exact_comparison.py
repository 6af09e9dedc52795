"""Forms compared: criteria and their weights, how large runs are, and what the largest are predicted as."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.inference import akaike, selection
from analysis.inference.fit_law import fit_law
from analysis.inference.law_result import LawFit
from analysis.inputs.dataset import Rows
from tests.analysis import studies


def test_criteria_are_weighed() -> None:
    np.testing.assert_allclose(akaike.behind([3.0, 1.0, np.inf]), [2.0, 0.0, np.inf])
    np.testing.assert_array_equal(akaike.behind([np.inf, np.inf]), [0.0, 0.0])
    expected = np.exp([-1.0, 0.0, -2.0])
    np.testing.assert_allclose(akaike.weights([3.0, 1.0, 5.0]), expected / expected.sum())
    np.testing.assert_allclose(akaike.weights([np.inf, np.inf]), [0.5, 0.5])
    np.testing.assert_allclose(akaike.weights([np.inf, 4.0]), [0.0, 1.0])


def sized(names: tuple[str, ...], inputs: Any, **extra: Any) -> Any:
    columns = {**dict(zip(names, inputs, strict=True)), **extra}
    data = Rows({name: np.array(values, dtype=float) for name, values in columns.items()}, np.arange(2))
    return SimpleNamespace(form=SimpleNamespace(inputs=names), data=data)


def test_how_large_runs_are() -> None:
    size = selection.size_of
    np.testing.assert_array_equal(size(sized(("params",), [[1, 2]], flops=[7.0, 8.0])), [7, 8])
    np.testing.assert_array_equal(size(sized(("params", "tokens"), [[1, 2], [3, 4]])), [3, 8])
    np.testing.assert_array_equal(size(sized(("lr",), [[9, 9]], params_active=[2.0, 3.0], tokens=[5.0, 7.0])), [10, 21])
    np.testing.assert_array_equal(size(sized(("params", "lr"), [[1, 2], [9, 9]])), [1, 2])
    np.testing.assert_array_equal(size(sized(("tokens", "lr"), [[1, 2], [9, 9]])), [1, 2])
    np.testing.assert_array_equal(size(sized(("loss",), [[2.0, 4.0]])), [0.5, 0.25])
    np.testing.assert_array_equal(size(sized(("lr", "batch"), [[1, 2], [3, 4]])), [3, 8])
    both = sized(("lr",), [[9, 9]], params=[2.0, 3.0], params_active=[1.0, 1.0])
    np.testing.assert_array_equal(size(both), [2, 3])


def test_the_largest_fifth_is_predicted_from_the_others() -> None:
    table = studies.isoflop(0, noise=0.004)
    fit = fit_law(table, loss="squared", resamples=0, starts=2, tie={"beta": "alpha"})
    error = selection.held_out_error(fit)
    largest = table["flops"] >= np.quantile(table["flops"], 0.8) * (1 - 1e-9)
    others = fit_law(table[~largest], loss="squared", resamples=0, tie={"beta": "alpha"})
    value = others.predict(table[largest])
    assert error == pytest.approx(float(np.abs(value / table["loss"][largest] - 1).mean()), rel=1e-6)
    half = selection.held_out_error(fit, 0.5)
    lower = table["flops"] < np.quantile(table["flops"], 0.5) * (1 - 1e-9)
    others = fit_law(table[lower], loss="squared", resamples=0, tie={"beta": "alpha"})
    assert half == pytest.approx(
        float(np.abs(others.predict(table[~lower]) / table["loss"][~lower] - 1).mean()), rel=1e-6
    )
    few = fit_law(table.iloc[[0, 3, 6, 9, 12, 18]], loss="squared", resamples=0)
    assert np.isnan(selection.held_out_error(few))  # five rows are left for five constants
    held = fit_law(table, loss="squared", resamples=0, fix={"E": 1.9}, plain=True)
    others = fit_law(table[~largest], loss="squared", resamples=0, fix={"E": 1.9}, plain=True)
    value = others.predict(table[largest])
    expected = float(np.abs(value / table["loss"][largest] - 1).mean())
    assert selection.held_out_error(held) == pytest.approx(expected, rel=1e-6)


def test_the_default_is_a_fifth() -> None:
    table = studies.isoflop(0, noise=0.02)
    spread = table.assign(flops=table["flops"] * np.exp(np.linspace(0, 0.3, 20)))
    fit = fit_law(spread, "frontier_no_floor", loss="squared", resamples=0)
    answers = [selection.held_out_error(fit, share) for share in (0.2, 0.0, 0.3)]
    assert selection.held_out_error(fit) == answers[0]
    assert len(set(answers)) == 3


def test_forms_are_ranked_by_their_small_sample_criterion(monkeypatch: pytest.MonkeyPatch) -> None:
    table = studies.isoflop(0, noise=0.004)
    fits = [fit_law(table, form, loss="squared", resamples=0) for form in ("frontier_no_floor", "compute")]
    for fit in fits:
        fit.__dict__["identified"] = dict.fromkeys(fit.names, SimpleNamespace(identified=True, limit=None, side=None))
    said = [("low_df", "warning"), ("edge", "note"), ("off", "error"), ("low_df", "warning")]
    checks = tuple(SimpleNamespace(code=code, level=level) for code, level in said)
    monkeypatch.setattr(LawFit, "check", lambda _: checks)
    found = selection.compare(fits)
    assert list(found["warning"]) == ["low_df off"] * 2
    assert list(found.columns) == [
        "rank", "aicc", "delta_aicc", "weight", "aic", "bic", "k", "nobs", "objective", "error", "warning",
    ]  # fmt: skip
    order = sorted(fits, key=lambda fit: fit.aicc)
    assert list(found.index) == [fit.form.name for fit in order]
    np.testing.assert_array_equal(found["rank"], [0, 1])
    np.testing.assert_allclose(found["delta_aicc"], [0.0, order[1].aicc - order[0].aicc])
    np.testing.assert_allclose(found["weight"], akaike.weights([fit.aicc for fit in order]))
    np.testing.assert_array_equal(found["k"], [fit.free for fit in order])
    np.testing.assert_array_equal(found["nobs"], [20, 20])
    np.testing.assert_allclose(found["objective"], [fit.objective for fit in order])
    with pytest.raises(ValueError, match="needs a list of fits"):
        selection.compare([])
    with pytest.raises(ValueError, match="was fitted to 19 rows"):
        selection.compare([fits[0], fit_law(table.iloc[:19], "compute", loss="squared", resamples=0)])
    other = replace(fits[1], data=fits[1].data.replaced(loss=fits[1].observed * 1.01))
    with pytest.raises(ValueError, match="to others"):
        selection.compare([fits[0], other])
    with pytest.raises(ValueError, match="differ in whether residuals are logs"):
        selection.compare([fits[0], fit_law(table, "compute", loss="squared", resamples=0, plain=True)])


def test_laws_with_as_many_constants_as_runs_allow_are_not_weighed() -> None:
    """AICc counts the variance, too: of four constants and six runs there is none, nor a weight by it."""
    size = np.geomspace(2e7, 1e9, 6)
    value = studies.loss((1.8, 480.0, 2100.0, 0.35, 0.37), size, 20 * size)
    ladder = pd.DataFrame({"params": size, "tokens": 20 * size, "flops": 120 * size**2, "loss": value})
    four = [fit_law(ladder, name, loss="squared", resamples=0) for name in ("kaplan", "chinchilla_tied")]
    found = selection.compare(four)
    assert found[["delta_aicc", "weight"]].isna().all(axis=None)
    three = fit_law(ladder, "compute", loss="squared", resamples=0)
    assert selection.compare([*four, three])["weight"].tolist() == [1.0, 0.0, 0.0]
