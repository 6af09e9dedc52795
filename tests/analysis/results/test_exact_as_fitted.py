"""Functions that are given a fit go on with the law it was asked for, unless they are told another one."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import analysis as sa
from analysis.notebook import StudyFit
from analysis.results import as_fitted
from tests.analysis import studies

PLAIN: dict[str, Any] = {"form": "chinchilla", "loss": "huber", "delta": 1e-3, "fix": {}, "tie": {}}


def asked_for(**options: Any) -> Any:
    return SimpleNamespace(frame=None, options={"seed": 3, **PLAIN, "delta": "0.001", **options})


@pytest.mark.parametrize(
    ("options", "given", "found"),
    [
        ({}, {}, {"delta": "0.001"}),
        ({"loss": "l1", "fix": {"E": 1.6}}, {}, {"loss": "l1", "fix": {"E": 1.6}, "delta": "0.001"}),
        ({"delta": "squared"}, {}, {"delta": "squared"}),
        ({"form": "kaplan_floor"}, {}, {"form": "kaplan_floor", "delta": "0.001"}),
        # what is given wins
        ({"fix": {"E": 1.6}}, {"fix": {}}, {"delta": "0.001"}),
        ({"fix": {"E": 1}}, {"tie": {"beta": "alpha"}}, {"fix": {"E": 1}, "tie": {"beta": "alpha"}, "delta": "0.001"}),
        ({"loss": "l1"}, {"delta": 0.01}, {"delta": 0.01}),
        ({"loss": "l1"}, {"delta": "squared"}, {"delta": "squared"}),
        ({"delta": "0.01"}, {"loss": "huber"}, {"delta": "0.01"}),
        ({"delta": "squared"}, {"loss": "student_t"}, {"loss": "student_t"}),
        # constants are held by the names of one form
        ({"fix": {"E": 1.6}, "loss": "l1"}, {"form": "Hoffmann"}, {"fix": {"E": 1.6}, "loss": "l1", "delta": "0.001"}),
        ({"fix": {"E": 1.6}, "loss": "l1"}, {"form": "kaplan"}, {"form": "kaplan", "loss": "l1", "delta": "0.001"}),
        ({"fix": {"E": 1}}, {"form": "kaplan", "fix": {"G": 2}}, {"form": "kaplan", "fix": {"G": 2}, "delta": "0.001"}),
    ],
)  # fmt: skip
def test_what_a_fit_was_asked_for(options: dict[str, Any], given: dict[str, Any], found: dict[str, Any]) -> None:
    assert as_fitted.asked(asked_for(**options), **{"form": None, **given}) == {**PLAIN, **found}


def test_runs_that_are_no_fit_have_the_usual_options() -> None:
    for runs in (
        "runs/isoflop",
        pd.DataFrame({"options": [1]}),
        {"E": 1.7},
        SimpleNamespace(options={"form": "kaplan"}),
    ):
        assert as_fitted.options_of(runs) == {}
        assert as_fitted.asked(runs) == PLAIN
    assert as_fitted.asked("runs/isoflop", form="kaplan", delta=None)["form"] == "kaplan"


def test_options_in_words() -> None:
    assert as_fitted.told(PLAIN) == as_fitted.told(asked_for().options) == ""
    options = asked_for(loss="squared", delta="1e-2", fix={"E": 1.6}, tie={"beta": "alpha"}).options
    assert as_fitted.told(options) == "loss=squared, delta=1e-2, fix=E:1.6, tie=beta:alpha"
    assert as_fitted.told({**PLAIN, "delta": "squared"}) == "delta=squared"


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Runs on which losses and constants held give other laws: a little noise on five budgets."""
    runs = studies.isoflop(5, noise=0.0)
    return runs.assign(loss=runs["loss"] * np.exp(0.002 * np.random.default_rng(3).normal(size=len(runs))))


def fit(table: pd.DataFrame, **options: Any) -> StudyFit:
    return sa.fit(table, resamples=0, sensitivity=False, **options)


@pytest.mark.parametrize(
    "options",
    [{"fix": {"E": 1.7}, "loss": "squared"}, {"tie": {"beta": "alpha"}, "loss": "student_t"}, {"delta": 0.05},
     {"form": "kaplan_floor"}, {"valley_window": 3.0, "approach": "2,3"}],
    ids="-".join,
)  # fmt: skip
def test_a_fit_s_backtest_and_plan_are_of_its_own_law(table: pd.DataFrame, options: dict[str, Any]) -> None:
    found = fit(table, **options)
    rolled = sa.backtest(found)
    cuts = found.result.rolling
    assert len(cuts) >= 2
    assert rolled["mean_abs_error"].tolist() == [cut.mean_abs_relative_error for cut in cuts]
    np.testing.assert_array_equal(rolled["a"], [np.nan if cut.a is None else cut.a for cut in cuts])
    planned, best = sa.plan(found, 1e15, resamples=0, beside=()).options[0], found.optimum(1e15)
    assert (planned.params, planned.tokens) == (best.params, best.tokens)
    if "valley_window" not in options:
        free = sa.backtest(table)
        assert rolled["mean_abs_error"].tolist() != free["mean_abs_error"].tolist(), "the law is another one"
        form = options.get("form")
        assert sa.backtest(found, form="chinchilla", loss="huber", delta=1e-3, fix={}, tie={}).equals(free)
        assert sa.backtest(table, **{**options, "form": form}).equals(rolled)


def test_a_form_that_is_given_is_planned_with(table: pd.DataFrame) -> None:
    found = fit(table, form="kaplan_floor")
    one, other = (sa.plan(runs, 1e15, form="chinchilla", resamples=0, beside=()).options[0] for runs in (found, table))
    assert one == other


def test_a_plan_says_that_it_follows_a_law_where_valleys_were_asked_for(table: pd.DataFrame) -> None:
    found = fit(table, approach="2")
    note = "the fit that is given was asked for approach=2, and this plan follows a law (approach 3)"
    assert note in str(sa.plan(found, 1e15, resamples=0, beside=()))
    assert note not in str(sa.plan(found, 1e15, resamples=0, beside=(), form="chinchilla"))
    assert note not in str(sa.plan(table, 1e15, resamples=0, beside=()))


def test_a_forecast_says_what_of_a_fit_it_leaves_out(table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analysis.planning.next_runs.next_runs", lambda _, form, **__: form)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found: list[Any] = [
            sa.next_runs(table),
            sa.next_runs(fit(table)),
            sa.next_runs(fit(table, form="chinchilla_tied")),
        ]
        assert found == ["chinchilla", "chinchilla", "chinchilla_tied"]
    with pytest.warns(UserWarning, match="the forecast is without loss=squared, fix=E:1.7 of the fit") as told:
        sa.next_runs(fit(table, loss="squared", fix={"E": 1.7}))
    assert told[0].filename == __file__
    other = fit(table, form="kaplan_floor")
    with pytest.raises(ValueError, match=r"form=kaplan_floor, and forecasts are made with chinchilla, .*give form="):
        sa.next_runs(other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [sa.next_runs(other, form="chinchilla")]
        assert found == ["chinchilla"]
