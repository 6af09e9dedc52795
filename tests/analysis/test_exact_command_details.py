"""What commands and functions hand on and say in single cases, by hand."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pandas as pd
import pytest

import analysis as sa
from analysis.inputs import large
from analysis.planning import next_runs as planning
from analysis.results import as_fitted, load
from analysis.text import numbers
from analysis.values.study_result import Cut

backtest, following, plan, score = (import_module(f"analysis.{name}") for name in ("backtest", "next", "plan", "score"))


def test_a_cut_says_the_error_of_its_largest_run() -> None:
    cut = Cut(flops=1e12, rows=10, a=None, runs=((2e12, 0.01), (4e12, -0.0321)), mean_abs_relative_error=0.021)
    row = backtest._row(cut, "one budget")
    assert (row["factor"], row["largest_run_error"], row["no_a"]) == (4.0, -0.0321, "one budget")


@pytest.mark.parametrize(("thin", "every"), [(None, 1), (3, 3)])
def test_next_runs_are_refused_of_rows_that_stand_for_several(
    thin: int | None, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(frame: Any, thinned: int) -> None:
        raise ValueError(f"{frame}, every {thinned}")

    monkeypatch.setattr(load, "load", lambda options: "the rows")
    monkeypatch.setattr(large, "refuse_weighed", refused)
    with pytest.raises(ValueError, match=rf"^the rows, every {every}$"):
        following.act({"thin": thin})


def test_what_a_forecast_leaves_out_of_a_fit_is_said_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(as_fitted, "asked", lambda runs, form: {"form": "chinchilla"})
    monkeypatch.setattr(as_fitted, "told", lambda asked: "loss=squared")
    monkeypatch.setattr(load, "tidy", lambda runs: runs)
    monkeypatch.setattr(planning, "next_runs", lambda runs, **asked: asked["form"])
    with pytest.warns(UserWarning, match=r"^the forecast is without loss=squared of the fit that is given$") as told:
        assert sa.next_runs("runs") == "chinchilla"  # type: ignore[comparison-overlap]
    assert [one.filename for one in told] == [__file__]


@pytest.mark.parametrize(
    ("beside", "named"),
    [
        (None, ()),
        ((), ()),
        ("kaplan_floor", ("kaplan_floor",)),
        (["chinchilla_tied", "kaplan"], ("chinchilla_tied", "kaplan")),
    ],
)
def test_a_plan_compares_with_the_laws_that_are_named(
    beside: Any, named: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(frame: Any, **given: Any) -> Any:
        raise ValueError(f"beside {given['beside']}")

    monkeypatch.setattr(load, "tidy", lambda runs: runs)
    monkeypatch.setattr(plan, "from_frame", asked)
    with pytest.raises(ValueError) as raised:
        sa.plan("runs", 1e20, beside=beside)
    assert str(raised.value) == f"beside {named}"


def corpora(*names: str, unit: str = "nats per token") -> pd.DataFrame:
    return pd.DataFrame({"tokenizer": names, "loss_unit": unit})


def test_other_corpora_are_those_that_the_fit_has_not() -> None:
    said = ("tokenizer is web in the fit and code, web here",)
    assert score._other_corpora(corpora("web", "web"), corpora("web", "code")) == said
    assert score._other_corpora(corpora("web", "code"), corpora("web")) == ()
    assert score._other_corpora(corpora("", ""), corpora("web")) == (), "of the fit's nothing is known"
    assert score._other_corpora(corpora("web"), corpora("code", unit="bits per byte")) == ()


def test_a_power_of_ten_has_two_digits() -> None:
    assert numbers.power(3.456e12) == "3.5×10¹²"


def test_a_budget_of_nothing_is_no_budget() -> None:
    with pytest.raises(ValueError, match=r"^budget=0: a positive number is needed$"):
        plan.Asked(0.0)
    with pytest.raises(ValueError, match=r"^overtrain=-1: a positive number is needed$"):
        plan.Asked(1e20, overtrain=-1.0)
