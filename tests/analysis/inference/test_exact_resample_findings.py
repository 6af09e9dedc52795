"""Findings about resamples: each condition on both sides of its limit, word for word."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.inference import error_draws, nested_errors, resample_findings
from analysis.inference.resampling import Plan
from analysis.values.blocks import Check, Identified

BARE, SHARED, SEEDS = Plan("residuals", ""), Plan("residuals", "", "sizes"), Plan("seeds", "")


@pytest.fixture(autouse=True)
def _no_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resample_findings, "drift_of", lambda _: None)


def fit(**changed: Any) -> Any:
    """Return what findings read of a fit of 24 rows of as many models, without noise to speak of."""
    rows = changed.pop("rows", 24)
    own = np.arange(rows)
    data = {"size": own, "run_numbers": own, **changed.pop("data", {})}
    given: dict[str, Any] = {
        "cells": own, "observed": np.full(rows, 2.0),
        "nobs": rows, "interval": "bootstrap", "plan": BARE, "data": SimpleNamespace(**data), "undefined": {},
        "thetas": np.zeros((9, 2)), "resid": np.zeros(rows), "noise": 0.01, "confidence": 0.95, "held": {},
        "problem": SimpleNamespace(plain=False), "point": None, "params": pd.Series({"E": 2.0, "A": 9.0}),
        "derived": pd.Series({"a": 0.5}), "draws": pd.DataFrame(dict.fromkeys("EAa", np.linspace(0.0, 10.0, 41))),
        "identified": dict.fromkeys("EAa", Identified(True)),
    }  # fmt: skip
    return SimpleNamespace(**{**given, **changed})


def said(**changed: Any) -> list[Check]:
    return [check for each in resample_findings.OF_RESAMPLES for check in each(fit(**changed))]


def words(found: list[Check]) -> list[tuple[str, str, str, str]]:
    return [(check.code, check.level, check.message, check.advice) for check in found]


def test_a_sound_fit_has_no_finding() -> None:
    assert said() == []


UNKNOWN = "24 rows are of {}, and the intervals treat every row as independent"
LOWER = "; until then intervals are lower bounds"
WIDE = "intervals allow for it and are wide, or lower bounds where errors are one-sided: add {}"
DF = "24 rows are of only {}: the variance between {}s is estimated with {} degrees of freedom"


@pytest.mark.parametrize(
    ("count", "interval", "plan", "df", "code", "message", "advice"),
    [
        (6, "delta", BARE, 5.0, "clustered_rows", UNKNOWN.format("6 model sizes"),
         f"use resamples=1000 with cluster=auto, or interval=sandwich{LOWER}"),
        (6, "bootstrap", BARE, 5.0, "clustered_rows", UNKNOWN.format("6 model sizes"),
         f"use resamples=1000 with cluster=auto, or interval=sandwich{LOWER}"),
        (6, "bootstrap", SHARED, 0.0, "clustered_rows", UNKNOWN.format("6 model sizes"),
         f"too few to estimate the variance between them: add sizes{LOWER}"),
        (6, "bootstrap", SHARED, 1.0, "few_sizes", DF.format("6 model sizes", "model size", "1"), WIDE.format("sizes")),
        (11, "bootstrap", SHARED, 6.28, "few_sizes", DF.format("11 model sizes", "model size", "6.3"),
         WIDE.format("sizes")),
        (12, "bootstrap", SHARED, 6.28, "shared_errors",
         "24 rows are of 12 model sizes: intervals include a random effect of the model size, "
         "its variance estimated with 6.3 degrees of freedom",
         "if there is no such effect, they are wider than necessary; more sizes narrow them"),
        (6, "sandwich", SHARED, 0.0, "few_sizes", "24 rows are of only 6 model sizes", WIDE.format("sizes")),
        (12, "sandwich", SHARED, 0.0, "", "", ""),
        (12, "bootstrap", Plan("sizes", ""), 0.0, "", "", ""),
        (8, "bootstrap", Plan("sizes", ""), 0.0, "few_sizes", "24 rows are of only 8 model sizes",
         WIDE.format("sizes")),
        (24, "delta", BARE, 0.0, "", "", ""), (18, "delta", BARE, 0.0, "", "", ""),
    ],
)  # fmt: skip
def test_rows_of_few_sizes(
    *, count: int, interval: str, plan: Plan, df: float, code: str, message: str, advice: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(resample_findings, "between_df", lambda _: df)
    found = said(data={"size": np.arange(24) % count}, interval=interval, plan=plan)
    level = "note" if code == "shared_errors" else "warning"
    assert words(found) == ([(code, level, message, advice)] if code else [])


def test_rows_of_few_curves_and_of_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resample_findings, "between_df", lambda _: 3.0)
    curves = {"size": np.arange(24) // 4, "run_numbers": np.arange(24) // 4}
    (found,) = said(data=curves, plan=Plan("residuals", "", "runs"))
    assert (found.code, found.message) == ("few_clusters", DF.format("6 runs", "run", "3"))
    assert found.advice == WIDE.format("runs")
    many = {"size": np.arange(80) // 2, "run_numbers": np.arange(80)}
    (found,) = said(rows=80, data=many, interval="delta")
    assert found.message == "80 rows are of 40 model sizes, and the intervals treat every row as independent"
    assert said(rows=80, data=many, plan=Plan("sizes", "")) == []
    assert said(rows=120, interval="delta") == [], "independent runs are no groups"


NESTED = Plan("residuals", "", "sizes", "runs")


@pytest.mark.parametrize(
    ("plan", "interval", "dfs", "sizes", "code", "message", "advice"),
    [
        (NESTED, "bootstrap", (6.28, 1.5), 3, "few_sizes", DF.format("3 model sizes", "model size", "6.3"),
         WIDE.format("sizes")),
        (NESTED, "bootstrap", (0.0, 1.5), 3, "clustered_rows",
         "24 rows are of 3 model sizes, and the intervals treat every run as independent",
         f"too few to estimate the variance between them: add sizes{LOWER}"),
        (NESTED, "bootstrap", (0.0, 0.0), 3, "clustered_rows", UNKNOWN.format("3 model sizes"),
         f"too few to estimate the variance between them: add sizes{LOWER}"),
        (Plan("runs", ""), "bootstrap", (6.28, 1.5), 3, "clustered_rows",
         "24 rows are of 3 model sizes, and the intervals treat every run as independent", f"use cluster=auto{LOWER}"),
        (Plan("runs", ""), "sandwich", (6.28, 1.5), 3, "clustered_rows",
         "24 rows are of 3 model sizes, and the intervals treat every run as independent", f"use cluster=auto{LOWER}"),
        (Plan("runs", ""), "profile", (6.28, 1.5), 3, "clustered_rows", UNKNOWN.format("3 model sizes"),
         f"use resamples=1000 with cluster=auto, or interval=sandwich{LOWER}"),
        (NESTED, "sandwich", (0.0, 0.0), 3, "few_sizes", "24 rows are of only 3 model sizes", WIDE.format("sizes")),
    ],
)  # fmt: skip
def test_checkpoints_of_several_runs_a_size(
    *, plan: Plan, interval: str, dfs: tuple[float, float], sizes: int, code: str, message: str, advice: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(resample_findings, "nested_df", lambda _: dfs)
    data = {"size": np.arange(24) * sizes // 24, "run_numbers": np.arange(24) // 2}
    assert words(said(data=data, interval=interval, plan=plan)) == [(code, "warning", message, advice)]


def test_effects_of_sizes_and_of_runs_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resample_findings, "nested_df", lambda _: (6.28, 981.4))
    data = {"size": np.arange(96) // 8, "run_numbers": np.arange(96) // 2}
    (found,) = said(rows=96, data=data, plan=NESTED)
    assert (found.code, found.level) == ("shared_errors", "note")
    effect = "96 rows are of 12 model sizes: intervals include a random effect of the model size, its variance"
    assert found.message == f"{effect} estimated with 6.3 degrees of freedom, and one of the run, with 981"


@pytest.mark.parametrize(
    ("seen", "df", "expected"),
    [(True, [5.0, 9.0, 70.0], (5.0, 9.0)), (True, [9.0, 70.0], (0.0, 9.0)), (False, [9.0, 70.0], (0.0, 0.0))],
)
def test_what_is_known_of_sizes_and_of_their_runs(
    *, seen: bool, df: list[float], expected: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def levels(_: Any, size: Any, run: Any) -> Any:
        asked.extend((size.tolist(), run.tolist()))
        return SimpleNamespace(seen=seen, df=np.array(df))

    monkeypatch.setattr(error_draws, "Around", lambda *given: given)
    monkeypatch.setattr(nested_errors, "levels", levels)
    data = {"size": np.array([7, 7, 2, 2]), "run_numbers": np.array([3, 3, 9, 4])}
    assert resample_findings.nested_df(fit(rows=4, data=data)) == expected
    assert asked == [[0, 0, 1, 1], [0, 0, 1, 2]]


@pytest.mark.parametrize(("between", "df"), [(0.5, 4.0), (0.49, 0.0), (7.0, 4.0)])
def test_what_groups_share_is_known_where_the_constants_leave_some_of_it(
    between: float, df: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = SimpleNamespace(between_df=4.0, between_v=between)
    monkeypatch.setattr(error_draws, "Around", lambda *given: given)
    monkeypatch.setattr(error_draws, "parts", lambda around, groups: parts)
    assert resample_findings.between_df(fit(plan=SHARED)) == df


def residuals(count: int, size: float, rows: int = 24, shift: float = 0.0) -> Any:
    return shift + np.where(np.arange(rows) < count, size, 0.0)


@pytest.mark.parametrize(
    ("chance", "changed", "share", "ending"),
    [
        (0.05, {"plan": Plan("residuals", "", drift=True)}, "5.0 %", "intervals allow for it"),
        (0.002, {}, "0.20 %", "these intervals do not allow for it: use resamples=1000 with cluster=auto"),
        (1e-9, {"plan": Plan("residuals", "", drift=True), "interval": "sandwich"}, "less than 0.10 %",
         "these intervals do not allow for it: use resamples=1000 with cluster=auto"),
        (0.0501, {}, "", ""),
    ],
)  # fmt: skip
def test_best_sizes_that_drift(
    monkeypatch: pytest.MonkeyPatch, chance: float, changed: dict[str, Any], share: str, ending: str
) -> None:
    drift = SimpleNamespace(count=4, chance=chance, spread=np.log(1.2))
    monkeypatch.setattr(resample_findings, "drift_of", lambda _: drift)
    message = (
        "the residuals of 4 budgets show best sizes that differ from the law's by 1.2× (one standard deviation); "
        f"independent errors would show as much in {share} of studies"
    )
    advice = f"look for tuning or schedules that change with the budget; {ending}"
    assert words(said(**changed)) == ([("budget_drift", "warning", message, advice)] if share else [])


@pytest.mark.parametrize(
    ("changed", "rows"),
    [
        ({"resid": residuals(1, 0.051)}, 1), ({"resid": residuals(1, -0.051)}, 1), ({"resid": residuals(1, 0.05)}, 0),
        ({"resid": residuals(3, 0.2, shift=0.1)}, 3), ({"resid": residuals(3, 0.04, shift=0.1)}, 0),
        ({"resid": residuals(6, 0.2)}, 6), ({"resid": residuals(7, 0.2)}, 0),
        ({"resid": residuals(1, 0.2, 10), "rows": 10}, 1), ({"resid": residuals(1, 0.2, 9), "rows": 9}, 0),
        ({"resid": residuals(1, 0.2), "interval": "delta"}, 0),
        ({"resid": residuals(1, 0.2), "thetas": np.zeros((0, 2))}, 0),
        ({"resid": residuals(1, 5.1e-4), "noise": 0.0}, 1), ({"resid": residuals(1, 4.9e-4), "noise": 0.0}, 0),
        ({"resid": residuals(1, 1.1e-3), "noise": 0.0, "problem": SimpleNamespace(plain=True)}, 1),
        ({"resid": residuals(1, 0.9e-3), "noise": 0.0, "problem": SimpleNamespace(plain=True)}, 0),
    ],
)  # fmt: skip
def test_wild_rows(changed: dict[str, Any], rows: int) -> None:
    found = said(**changed)
    assert [check.code for check in found] == ["wild_rows"] * bool(rows)
    if rows:
        text = f"{rows} row{'s' * (rows > 1)} of {changed.get('rows', 24)} lie more than 5 robust deviations from the"
        assert found[0].message == f"{text} law"
        assert found[0].level == "note"


@pytest.mark.parametrize(
    ("cells", "changed", "repeats"),
    [
        (np.arange(24) // 2, {}, None), (np.arange(16) // 2, {}, None), (np.arange(14) // 2, {}, 7),
        (np.array([0, 0, 0, 5, 5, 7]), {}, 3), (np.arange(9), {}, 0), (np.array([0, 0, 1]), {}, 1),
        (np.array([0, 0, 1]), {"interval": "sandwich"}, None), (np.array([0, 0, 1]), {"plan": BARE}, None),
    ],
)  # fmt: skip
def test_few_repeats(cells: Any, changed: dict[str, Any], repeats: int | None) -> None:
    found = said(**{"plan": SEEDS, "rows": len(cells), "cells": cells, **changed})
    count = f"{repeats} repeat{'s' * (repeats != 1)}"
    text = f"intervals rest on {count} of settings, and include the effect of seeds only"
    wanted = [("few_repeats", "warning", text, "repeat more settings, or cluster=auto")]
    assert words(found) == ([] if repeats is None else wanted)


def test_draws_without_a_value() -> None:
    assert said(undefined={"E": 0.01, "a": 0.0}) == []
    (found,) = said(undefined={"E": 0.011, "A": 0.005, "a": 0.25})
    assert (found.code, found.message) == ("undefined_draws", "resamples without a value: 1.1 % for E, 25 % for a")


def test_estimates_beyond_their_own_resamples() -> None:
    far = pd.Series({"E": 11.0, "A": -1.0})
    (found,) = said(params=far)
    assert (found.code, found.level) == ("biased_resamples", "warning")
    assert found.message == "the estimate of E, A lies beyond the middle 95 % of its own resamples"
    (found,) = said(params=far, derived=pd.Series({"a": 10.5}), held={"E": 11.0}, confidence=0.9,
                    identified={"E": Identified(True), "A": Identified(False), "a": Identified(True)})  # fmt: skip
    assert found.message == "the estimate of a lies beyond the middle 90 % of its own resamples"
    assert said(params=far, interval="profile") == []
    assert said(params=far, thetas=np.zeros((0, 2))) == []
