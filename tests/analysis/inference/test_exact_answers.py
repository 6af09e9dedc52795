"""What a fit answers of verdicts that are given, and what its parts do at the ends of what they are asked."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.estimation import level_ground, observations
from analysis.inference import (
    error_draws,
    findings,
    flat,
    identifiability,
    intervals,
    law_result,
    nested_errors,
    refusals,
    schemes,
    selection,
)
from analysis.inference.fit_law import fit_law
from analysis.inference.law_result import LawFit
from analysis.inference.nested_errors import Levels
from analysis.inference.prediction import Prediction
from analysis.inference.resampling import Plan
from analysis.inference.scatter import Scatter
from analysis.laws.registry import FORMS
from analysis.laws.sum_of_powers import SURFACE
from analysis.values.blocks import Check, Identified
from tests.analysis import studies


@cache
def law() -> LawFit:
    return fit_law(studies.isoflop(5, noise=0.001), loss="squared", resamples=0)


@cache
def judged() -> LawFit:
    """Return a fit of which E has an upper limit, A none, B is identified, alpha has a lower and beta an upper one."""
    other = replace(law())
    other.__dict__["identified"] = {
        "E": Identified(False, "flat", "upper", 1.5), "A": Identified(False, "flat"), "B": Identified(True),
        "alpha": Identified(False, "flat", "lower", 0.2), "beta": Identified(False, "flat", "upper", 0.9),
        "a": Identified(True), "b": Identified(True),
    }  # fmt: skip
    return other


def test_what_is_not_identified_has_a_limit_on_one_side_or_none() -> None:
    ends = {str(name): tuple(pair) for name, pair in zip(*_rows(judged().conf_int()), strict=True)}
    assert (ends["E"], ends["alpha"], ends["beta"]) == ((0.0, 1.5), (0.2, math.inf), (-math.inf, 0.9))
    assert np.isnan(ends["A"]).all()
    assert np.isfinite(ends["B"]).all()
    errors = judged().bse
    assert np.isnan(errors[["E", "A", "alpha", "beta"]]).all()
    assert errors["B"] == pytest.approx(law().bse["B"])
    assert 0.0 < errors["B"] < math.inf


def _rows(table: pd.DataFrame) -> tuple[list[Any], Any]:
    return table.index.tolist(), table.to_numpy(dtype=float)


def test_a_block_has_intervals_of_what_is_identified_alone() -> None:
    intervals = judged().block().intervals
    assert [intervals[name] for name in ("E", "A", "alpha", "beta")] == [None] * 4
    assert intervals["B"] == pytest.approx(tuple(judged().conf_int().loc["B"]))


def test_tab_lists_what_people_use_and_a_notebook_shows_the_summary() -> None:
    assert dir(judged()) == sorted(law_result.SHOWN)
    assert "<table" in judged()._repr_html_()
    assert str(judged().summary()) == judged().summary().as_text()
    assert law_result._figures() is sys.modules["analysis.report.figures.laws"]


def test_draws_that_are_no_numbers_are_a_share_of_all() -> None:
    fit = replace(law(), thetas=np.zeros((4, 5)))
    fit.__dict__["draws"] = pd.DataFrame({"E": [1.0, np.nan, np.inf, 2.0], "A": [1.0] * 4, "B": [np.nan] * 4})
    assert fit.undefined == {"E": 0.5, "A": 0.0, "B": 1.0}


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        (2, "Prediction(3.000 (2.000 to 4.000), 3.000 (2.000 to 4.000); 90 % intervals of the mean)"),
        (3, "Prediction(3.000 (2.000 to 4.000), 3.000 (2.000 to 4.000), 3.000 (2.000 to 4.000); 90 % intervals of the "
            "mean)"),
        (4, "Prediction(3.000 (2.000 to 4.000), 3.000 (2.000 to 4.000), 3.000 (2.000 to 4.000), ...; 90 % intervals of "
            "the mean)"),
    ],
    ids=["two", "three", "four"],
)  # fmt: skip
def test_three_rows_of_a_prediction_are_shown(rows: int, shown: str) -> None:
    draws = np.repeat([[2.0]] * 50 + [[4.0]] * 50, rows, axis=1)
    assert repr(Prediction(np.full(rows, 3.0), (draws,), (draws,), {}, 0.9)) == shown


def test_sizes_and_runs_are_groups() -> None:
    plans = [Plan(by, "") for by in schemes.SCHEMES]
    assert [plan.by for plan in plans] == ["sizes", "runs", "rows", "seeds", "residuals"]
    assert [intervals._clusters(plan) for plan in plans] == ["sizes", "runs", "sizes", "sizes", "sizes"]
    assert [intervals.METHODS["bootstrap"].groups(plan) for plan in plans] == [True, True, False, False, False]
    assert intervals.METHODS["bootstrap"].groups(Plan("residuals", "", shared="runs"))


def test_a_count_of_no_unique_tokens_is_not_known() -> None:
    table = {"params": [1e6, 2e6, 4e6], "tokens": [2e7, 4e7, 8e7], "loss": [3.0, 2.5, 2.0]}
    for unique in ([0.0] * 3, [np.nan, 0.0, 8e7]):
        refusals.refuse(SURFACE, observations.read({**table, "unique_tokens": unique}, SURFACE))
    with pytest.raises(ValueError, match=r"1 of 3 runs trained on more tokens than are unique \(up to 2 epochs\)"):
        refusals.refuse(SURFACE, observations.read({**table, "unique_tokens": [0.0, 2e7, 8e7]}, SURFACE))


def test_errors_alone_are_not_followed_beyond_four_models() -> None:
    """A critical batch of the loss has a few losses to go by as well, and may be asked beyond them."""
    four = [3.0, 2.9, 2.8, 2.7]
    below = np.array([[2.5]])
    error = observations.read({"loss": four, "error": [0.6, 0.5, 0.45, 0.4]}, FORMS["downstream"])
    with pytest.raises(ValueError, match=r"rests on 4 models; outside their losses, 2\.7 to 3, it is not extrapolated"):
        refusals.refuse_far(FORMS["downstream"], error, below)
    batch = observations.read({"loss": four, "critical_batch": [1e5, 2e5, 3e5, 4e5]}, FORMS["critical_batch_of_loss"])
    refusals.refuse_far(FORMS["critical_batch_of_loss"], batch, below)


@pytest.mark.parametrize(("other", "swept"), [(1.0000002e-3, False), (1.00001e-3, True)])
def test_rates_that_differ_by_rounding_are_no_sweep(*, other: float, swept: bool) -> None:
    columns = {"params": np.full(2, 1e8), "tokens": np.full(2, 2e9), "lr": np.array([1e-3, other])}
    assert [check.code for check in findings._swept(columns)] == ["swept_settings"] * swept


def test_a_law_of_one_power_is_never_without_it() -> None:
    """Losses that do not fall with compute: without its one power no law would be left."""
    losses = 3.0 + 0.01 * np.array([1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0, -1.0])
    fit = fit_law({"flops": np.geomspace(1e15, 1e18, 8), "loss": losses}, "compute", loss="squared", resamples=0)
    assert identifiability._needless(fit) == {}


def test_small_slopes_are_followed_as_large_ones_are() -> None:
    slopes = np.array([[1.0, 0.0, 0.0], [1.0, 1e-12, 0.0], [1.0, -1e-12, 0.0]])
    basis = error_draws.followed(slopes)
    assert basis.shape == (3, 2)
    np.testing.assert_allclose(basis @ basis.T, [[1.0 / 3, 1.0 / 3, 1.0 / 3], [1.0 / 3, 5.0 / 6, -1.0 / 6],
                                                 [1.0 / 3, -1.0 / 6, 5.0 / 6]], atol=1e-12)  # fmt: skip


def test_rows_own_errors_are_those_beside_what_their_runs_share(monkeypatch: pytest.MonkeyPatch) -> None:
    size, run, asked = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 1, 2, 2, 3]), []

    def of_rows(_: Any, groups: Any) -> Any:
        asked.append(groups.tolist())
        return np.zeros(6)

    monkeypatch.setattr(error_draws, "of_rows", of_rows)
    around: Any = SimpleNamespace(order=np.arange(6), generator=np.random.default_rng)
    nested_errors.drawn(around, Levels((size, run), np.ones(3), np.eye(3), np.ones(3)), 4)
    assert asked == [run.tolist()]


def test_degrees_of_freedom_do_not_depend_on_the_unit() -> None:
    x, noise = np.log([1e15, 1e16, 1e17, 1e18]), np.array([1.0, 4.0, 9.0, 16.0])
    for unit in (1.0, 1e-4):
        assert Scatter(x, 0.5 * x, unit * noise).df == pytest.approx(1.630864, rel=1e-6)
    assert Scatter(x, 0.5 * x, noise)._freedom(np.zeros(4)) == 2.0
    assert Scatter(x[:3], 0.5 * x[:3], noise[:3])._freedom(np.zeros(3)) == 1.0


def test_laws_compared_explain_each_finding_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "chinchilla": (Check("one", "first", "do"), Check("note", "all is well", "", "note")),
        "kaplan": (Check("one", "second", "do"), Check("two", "third", "do")),
    }
    monkeypatch.setattr(LawFit, "check", lambda fit: said[fit.form.name])
    monkeypatch.setattr(selection, "held_out_error", lambda _: 0.01)
    table = selection.compare([law(), fit_law(studies.isoflop(5, noise=0.001), "kaplan", resamples=0)])
    assert table.attrs["findings"] == {"one": Check("one", "first", "do"), "two": Check("two", "third", "do")}
    assert table["warning"].to_dict() == {"chinchilla": "one", "kaplan": "one two"}


def compute(flops: Any, losses: Any) -> LawFit:
    return fit_law({"flops": flops, "loss": losses}, "compute", loss="squared", resamples=0)


def test_a_law_of_three_constants_is_tested_on_the_fifth_row_and_not_on_the_fourth() -> None:
    flops, losses = np.geomspace(1e15, 1e18, 5), np.array([3.5, 3.0, 2.7, 2.49, 2.38])
    assert math.isnan(selection.held_out_error(compute(flops[:4], losses[:4])))
    assert 0.0 < selection.held_out_error(compute(flops, losses)) < 0.05


def test_runs_that_are_as_large_but_for_rounding_are_all_held_out() -> None:
    """Three of ten runs at the largest budget, one of them less by a last digit: all three are predicted."""
    flops = np.append(np.geomspace(1e15, 1e18, 8), [1e18, 1e18])
    losses = 2.0 + 1.5 * (flops / 1e15) ** -0.2 + 0.01 * np.array([0, 1, -1, 1, 0, -1, 0, 3, 0, -1])
    off = flops * np.where(np.arange(10) == 7, 1.0 - 1e-12, 1.0)
    equal = selection.held_out_error(compute(flops, losses))
    assert selection.held_out_error(compute(off, losses)) == pytest.approx(equal, rel=1e-4)


def test_level_ground_is_that_of_the_ray_along_which_the_law_moves_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ellipse that is level to 0.02 along the first constant and to 0.5 along the second, whose axis comes first."""
    axes = np.array([[0.0, 1.0], [1.0, 0.0]])
    monkeypatch.setattr(level_ground, "axes", lambda _p, _z: (np.ones(2), axes, np.ones(2)))
    monkeypatch.setattr(flat, "_value", lambda _p, z: (z[:, 0] / 0.02) ** 2 + (z[:, 1] / 0.5) ** 2)
    monkeypatch.setattr(flat, "_level", lambda _p, _point: 1.0)
    monkeypatch.setattr(flat, "_between", lambda _p, first, last, moved: (first, last, moved))
    p: Any = SimpleNamespace(constraint=SimpleNamespace(reduce=lambda theta: theta), expanded=lambda z: z)
    point: Any = SimpleNamespace(theta=np.zeros(2))
    found: Any = flat._around(p, point)
    np.testing.assert_allclose(found[0], [0.0, -0.5], rtol=2e-3)
    np.testing.assert_allclose(found[1], [0.0, 0.5], rtol=2e-3)
    assert found[2] == pytest.approx(1.0, rel=2e-3)


def test_a_coefficient_that_falls_below_every_number_is_the_direction() -> None:
    centres = np.zeros(2)
    p: Any = SimpleNamespace(form=SURFACE, centres=centres)
    first = SURFACE.internal(np.array([studies.LAW]), centres)[0]
    last = first.copy()
    last[1] = -800.0
    found = flat._between(p, first, last, 0.1)
    assert found.low["A"] == 0.0
    assert found.high["A"] == pytest.approx(60.0)
    assert found.direction == pytest.approx({"ln E": 0.0, "ln A": 1.0, "ln B": 0.0, "alpha": 0.0, "beta": 0.0})
