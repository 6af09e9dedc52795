"""Laws of learning curves: tables read as curves, scores and findings by hand, schedules and changes by loops."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.approaches import curves
from analysis.approaches.curves import Curve, CurveLaws
from analysis.estimation import objectives
from analysis.inference import fit_law as law
from analysis.laws.base import Array
from analysis.laws.multi_power import MultiPower, Schedules, _changes

STEPS = np.arange(40, 401, 20)
LAW = {"L_0": 3.0, "A": 0.5, "alpha": 0.5, "B": 350.0, "C": 2.0, "beta": 0.6, "gamma": 0.6}


def rates(kind: int) -> Array:
    """Return one of four schedules as its observations tell it: straight between them, and up from 0 to the first."""
    t = STEPS - 40
    after = (
        3e-5 + 1.35e-4 * (1 + np.cos(np.pi * t / 370)), np.where(t < 200, 3e-4, 9e-5), np.full(len(t), 3e-4),
        np.where(t < 100, 3e-4, np.where(t < 250, 1.5e-4, 5e-5)),
    )[kind]  # fmt: skip
    return np.asarray(np.interp(np.arange(401), [0, *STEPS], [0.0, *after]))


def exact(schedule: Array, scale: float = 1.0) -> Array:
    form = MultiPower(Schedules.of([(schedule, STEPS)]))
    given = np.array([[LAW[name] * (scale if name == "L_0" else 1.0) for name in form.names]])
    theta = form.internal(given, np.zeros(1))
    return np.asarray(np.exp(form.log_value(theta, np.log(np.arange(len(STEPS)) + 1.0)[None]))[0])


@cache
def table() -> pd.DataFrame:
    parts = []
    for size, scale in (("small", 1.0), ("large", 0.9)):
        for kind in range(3):
            schedule = rates(kind)
            part = {"run": f"run{kind}", "size_group": size, "step": STEPS, "lr": schedule[STEPS],
                    "loss": exact(schedule, scale)}  # fmt: skip
            parts.append(pd.DataFrame(part))
    return pd.concat(parts, ignore_index=True)


def test_rates_go_straight_between_observations_and_up_from_zero() -> None:
    rows = pd.DataFrame({"step": [6, 2, 4], "lr": [0.1, 0.4, 0.2], "loss": [1.0, 3.0, 2.0], "run": "one"})
    other = pd.DataFrame({"step": [0, 2], "lr": [0.3, 0.1], "loss": [5.0, 4.0], "run": "two"})
    one, two = curves.curves(pd.concat([rows, other], ignore_index=True))
    assert (one.run, one.size, two.run) == ("one", "", "two")
    np.testing.assert_array_equal(one.steps, [2, 4, 6])
    np.testing.assert_array_equal(one.loss, [3.0, 2.0, 1.0])
    np.testing.assert_allclose(one.rates, [0.0, 0.2, 0.4, 0.3, 0.2, 0.15, 0.1])
    np.testing.assert_allclose(two.rates, [0.3, 0.2, 0.1])
    first = pd.DataFrame({"step": [1, 3], "lr": [0.4, 0.2], "loss": [3.0, 2.0]})
    np.testing.assert_allclose(curves.curves(first)[0].rates, [0.0, 0.4, 0.3, 0.2])
    later = pd.concat([other.assign(run="z"), rows.assign(run="a")], ignore_index=True)
    assert [curve.run for curve in curves.curves(later)] == ["z", "a"]


def test_tables_that_hold_no_curves_are_refused() -> None:
    rows = pd.DataFrame({"step": [1, 2, 2], "lr": 0.1, "loss": [3.0, 2.0, 1.0]})
    with pytest.raises(ValueError, match="has two losses at step 2"):
        curves.curves(rows)
    for name in ("step", "lr", "loss"):
        for bad in (rows.drop(columns=name), rows.assign(**{name: np.nan})):
            with pytest.raises(ValueError, match=f"there is no column '{name}'"):
                curves.curves(bad)


def test_what_names_a_curve_and_a_size() -> None:
    rows = pd.DataFrame({"params": [1.2e6, 3.4e9], "key": ["k1", "k2"]})
    assert curves.labels(rows) == (["1.2M", "3.4B"], ["", ""])
    assert curves.labels(rows.assign(run=["a", "b"]))[1] == ["a", "b"]
    assert curves.labels(rows.assign(schedule=["c", "d"]))[1] == ["c", "d"]
    assert curves.labels(rows.assign(schedule=["c", ""]))[1] == ["k1", "k2"]
    assert curves.labels(rows.assign(schedule=["", ""]))[1] == ["", ""]
    assert curves.labels(rows.assign(run=["a", "b"], schedule=["c", "d"]))[1] == ["a", "b"]
    assert curves.labels(rows.assign(size_group=["s", "m"]))[0] == ["s", "m"]
    assert curves.labels(rows.assign(size_group=pd.Series(["s", np.nan], dtype=object)))[0] == ["1.2M", "3.4B"]
    assert curves.labels(rows.assign(size_group=["s", ""]))[0] == ["1.2M", "3.4B"]
    assert curves.labels(pd.DataFrame({"step": [1, 2]})) == (["", ""], ["", ""])


def curve(count: int, run: str = "one", size: str = "") -> Curve:
    steps = np.arange(count) * 3 + 2
    return Curve(run, size, steps, np.linspace(3, 2, count), np.full(int(steps[-1]) + 1, 1e-3))


def test_curves_are_thinned_to_sixty_points_with_both_ends() -> None:
    np.testing.assert_array_equal(curves._thin(curve(60)), np.arange(60))
    np.testing.assert_array_equal(curves._thin(curve(7)), np.arange(7))
    picks = curves._thin(curve(237))
    np.testing.assert_array_equal(picks, np.round(np.arange(60) * 4))
    assert (picks[0], picks[-1], len(picks)) == (0, 236, 60)


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Fit the known law instead of searching for it; return what was asked."""
    asked: list[dict[str, Any]] = []
    kept = law.fit_law

    def fit_law(table: Any, form: Any, **options: Any) -> Any:
        asked.append({"table": table, "law": form, **options})
        quick = {**options, "resamples": 0, "loss": objectives.Squared(), "starts": 1}
        return kept(table, form, fix={name: LAW[name] for name in LAW if name != "L_0"}, **quick)

    monkeypatch.setattr(curves, "fit_law", fit_law)
    return asked


def test_a_law_a_size_is_fitted_on_some_and_scored_on_all(fitted: list[dict[str, Any]]) -> None:
    loss = objectives.Huber(0.5)
    found = curves.fit(table(), ["run0", "run2"], loss=loss, resamples=7, seed=3)
    assert list(found.fits) == ["small", "large"]
    assert [(s.size, s.run, s.fitted) for s in found.scores] == [
        (size, f"run{k}", k != 1) for size in ("small", "large") for k in range(3)
    ]
    for score in found.scores:
        assert score.points == len(STEPS)
        assert score.r2 == pytest.approx(1.0, abs=1e-9)
        assert score.worst_relative < 1e-6
    first = fitted[0]
    assert {k: first[k] for k in ("loss", "resamples", "seed", "starts")} == {
        "loss": loss, "resamples": 0, "seed": 3, "starts": 8,
    }  # fmt: skip
    np.testing.assert_array_equal(first["table"]["observation"], np.arange(2 * len(STEPS)) + 1.0)
    np.testing.assert_array_equal(first["table"]["run"], np.repeat([0, 1], len(STEPS)))
    small = table()[table()["size_group"] == "small"]
    np.testing.assert_array_equal(first["table"]["loss"], small[small["run"] != "run1"]["loss"])
    assert len(found.curves) == 6
    assert [float(f.params["L_0"]) for f in found.fits.values()] == pytest.approx([3.0, 2.7], rel=1e-6)
    whole = curves.fit(table())
    assert all(score.fitted for score in whole.scores)
    assert (fitted[-1]["seed"], fitted[-1]["resamples"], fitted[-1]["loss"]) == (0, 0, objectives.Huber())
    assert [check.code for check in whole.checks][:2] == ["few_curves", "no_held_out_curve"]
    assert "no_held_out_curve" not in [check.code for check in found.checks]
    for train, message in ((["run9"], "train=run9: there is no such run; there are run0, run1, run2"),):
        with pytest.raises(ValueError, match=message):
            curves.fit(table(), train)
    lone = table()[(table()["size_group"] == "small") | (table()["run"] != "run0")]
    with pytest.raises(ValueError, match="train=run0: size large has none of these runs"):
        curves.fit(lone, ["run0"])


def test_what_is_fitted_does_not_depend_on_the_order_of_the_rows(fitted: list[dict[str, Any]]) -> None:
    small = table()[table()["size_group"] == "small"].reset_index(drop=True)
    turned = curves.fit(small.iloc[::-1].reset_index(drop=True), resamples=9)
    assert [score.run for score in turned.scores] == ["run2", "run1", "run0"]
    assert all(score.worst_relative < 1e-6 for score in turned.scores)
    curves.fit(small, resamples=9)
    first, second = fitted
    for name in ("observation", "loss", "run"):
        np.testing.assert_array_equal(first["table"][name], second["table"][name])
    at, constants = np.log(first["table"]["observation"])[None], np.array([[LAW[name] for name in first["law"].names]])
    values = [each["law"].log_value(each["law"].internal(constants, np.zeros(1)), at) for each in fitted]
    np.testing.assert_array_equal(*values)


def test_resamples_are_over_four_curves_or_more(fitted: list[dict[str, Any]]) -> None:
    more = table()[table()["size_group"] == "small"]
    for count, draws in ((3, 0), (4, 9), (5, 9)):
        extra = [more[more["run"] == "run1"].assign(run=f"more{k}") for k in range(count - 3)]
        found = curves.fit(pd.concat([more, *extra], ignore_index=True), resamples=9)
        assert fitted[-1]["resamples"] == draws
        assert ("few_curves" in [check.code for check in found.checks]) == (count < 4)


def test_scores_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    one = replace(curve(4), loss=np.array([4.0, 2.0, 2.5, 2.0]))
    monkeypatch.setattr(curves, "predicted", lambda *_: np.array([4.2, 1.9, 2.5, 2.1]))
    anything: Any = None
    score = curves._score(one, anything, anything, True)
    mean = 10.5 / 4
    spread = sum((v - mean) ** 2 for v in (4.0, 2.0, 2.5, 2.0))
    assert score.r2 == pytest.approx(1 - (0.04 + 0.01 + 0.01) / spread)
    assert score.mae == pytest.approx(0.1)
    assert score.mean_relative == pytest.approx((0.05 + 0.05 + 0 + 0.05) / 4)
    assert score.worst_relative == pytest.approx(0.05)
    assert score.final_relative == pytest.approx(0.05)
    assert (score.points, score.fitted, score.run) == (4, True, "one")
    flat = replace(one, loss=np.full(4, 2.0))
    assert curves._score(flat, anything, anything, False).r2 < -1e100


def test_predictions_are_of_the_curves_own_steps(fitted: list[dict[str, Any]]) -> None:
    del fitted
    found = curves.fit(table(), ["run0"])
    other = Curve("new", "small", STEPS, exact(rates(3)), rates(3))
    form = MultiPower(Schedules.of([(rates(0), STEPS)]))
    np.testing.assert_allclose(curves.predicted(other, form, found.fits["small"]), exact(rates(3)), rtol=1e-6)


def test_one_block_of_one_size_or_of_several(fitted: list[dict[str, Any]]) -> None:
    del fitted
    found = curves.fit(table())
    block = found.block()
    assert list(block.params)[:2] == ["L_0 (small)", "A (small)"]
    assert len(block.params) == len(block.intervals) == 14
    assert set(block.intervals.values()) == {None}
    assert block.objective == pytest.approx(sum(f.objective for f in found.fits.values()))
    assert block.rows_used == 6 * len(STEPS)
    assert block.approach == "curves"
    assert block.optimizer is max((f.optimizer for f in found.fits.values()), key=lambda o: o.gradient_norm)
    one = CurveLaws({"small": found.fits["small"]}, found.scores, found.checks, found.curves).block()
    assert list(one.params) == list(LAW)
    drawn = replace(found.fits["small"], thetas=np.repeat(found.fits["small"].point.theta[None], 9, axis=0))
    ends = curves._intervals(drawn)
    assert ends["L_0"] == pytest.approx((float(drawn.params["L_0"]),) * 2)
    assert list(ends) == list(LAW)


def test_findings(fitted: list[dict[str, Any]]) -> None:
    del fitted
    every = curves.curves(table())
    fits = curves.fit(table()).fits

    def codes(train: list[str], fits: Any = fits, every: Any = every) -> list[str]:
        return [check.code for check in curves._findings(fits, every, train)]

    assert codes(["run0", "run1", "run2"]) == ["few_curves", "no_held_out_curve"]
    assert codes(["run0"]) == ["few_curves"]
    assert codes([]) == ["few_curves", "no_held_out_curve"]
    evidence = replace(fits["small"].point.evidence, converged=False, gradient_norm=0.004)
    stuck = replace(fits["small"], point=replace(fits["small"].point, evidence=evidence))
    found = curves._findings({"small": stuck}, every, ["run0"])
    assert found[-1].code == "ridge"
    assert found[-1].message == "the law of size small stopped at a relative gradient of 0.004"
    unnamed = [replace(c, size="") for c in every]
    assert curves._findings({"": stuck}, unnamed, ["run0"])[-1].message.startswith("the law stopped")
    constant = [replace(c, rates=np.where(np.arange(len(c.rates)) < c.steps[0], c.rates, 3e-4)) for c in every]
    assert codes(["run0"], every=constant).count("constant_schedules") == 2
    mixed = [*constant[:-1], every[-2]]
    assert codes(["run0"], every=mixed).count("constant_schedules") == 1
    text = curves._findings({"": fits["small"]}, [replace(c, size="") for c in constant], ["run0"])[-1].message
    assert text == "no learning rate changes in the curves"
    count = curves._findings(fits, every, ["run0"])[0].message
    assert count.startswith("3 curves of a size are fitted: intervals of the constants need 4")


def test_changes_of_a_rate_are_jumps_or_bins() -> None:
    """Falls above a twentieth of the largest rate stand alone, at their step; the rest in bins of so many steps."""
    schedule = np.array([0.0, 1.0, 1.0, 0.99, 0.98, 0.9, 0.89, 0.89, 0.5, 0.5, 0.49])
    total = np.cumsum(schedule)
    change, rate, start = _changes(schedule, total, 4)
    expected = [(-1.0, 1), (0.01, 3), (0.02, 6), (0.08, 5), (0.39, 8), (0.01, 10)]
    found = {
        (round(float(c), 9), round(float(r), 9), round(float(s), 9))
        for c, r, s in zip(change, rate, start, strict=True)
    }
    # Bins of steps // 4: step 3 alone; 4 and 6 together, at the later one of the two; 10 alone.
    wanted = {(round(c, 9), float(schedule[k]), round(float(total[k] - schedule[k]), 9)) for c, k in expected}
    assert found == wanted
    # What is a jump does not depend on the unit of rates.
    small = _changes(1e-3 * schedule, 1e-3 * total, 4)
    np.testing.assert_allclose(small, 1e-3 * np.stack((change, rate, start)))
    steady, _, _ = _changes(np.full(5, 0.3), np.cumsum(np.full(5, 0.3)), 4)
    assert steady.shape == (0,)
    ended, rate, _ = _changes(np.array([1.0, 1.0, 0.0]), np.array([1.0, 2.0, 2.0]), 4)
    assert len(ended) == 0  # nothing is learnt at a rate of zero
    tiny, _, _ = _changes(np.array([1.0, 1.0 - 1e-16, 1.0 - 2e-15]), np.arange(3.0), 1)
    assert len(tiny) == 1


def test_schedules_pair_observations_with_earlier_changes() -> None:
    """Each has a change of nothing first; one that begins at the observation itself has had no time to count."""
    schedule = np.array([0.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25])
    other = np.array([2.0, 2.0, 1.0])
    found = Schedules.of([(schedule, np.array([2, 4, 6])), (other, np.array([1, 2]))], 1)
    np.testing.assert_allclose(np.exp(found.log_sum), [2.0, 3.0, 3.5, 4.0, 5.0])
    np.testing.assert_array_equal(found.first, [0, 3, 7, 11, 13])
    np.testing.assert_allclose(found.change, [0, -1, 0.5, 0, -1, 0.5, 0.25, 0, -1, 0.5, 0.25, 0, 1, 0, 1])
    np.testing.assert_allclose(np.exp(found.log_rate), [1, 1, 0.5, 1, 1, 0.5, 0.25, 1, 1, 0.5, 0.25, 1, 1, 1, 1])
    np.testing.assert_allclose(found.since, [0, 2, 0, 0, 3, 1, 0, 0, 3.5, 1.5, 0.5, 0, 0, 0, 1])
    start = Schedules.of([(other, np.array([0, 1]))])
    np.testing.assert_allclose(np.exp(start.log_sum), [2.0, 4.0])
    for step in (7, -1):
        with pytest.raises(ValueError, match=f"step {step} lies outside its schedule of 7 steps"):
            Schedules.of([(schedule, np.array([step]))])


def test_observations_before_any_change_have_no_fall() -> None:
    """Without a warm-up a constant rate leaves L_0 + A S^-alpha, whatever curve comes next, and also as the last."""
    flat, drop, seen = np.full(50, 3e-4), np.where(np.arange(50) < 20, 3e-4, 1e-4), np.array([10, 30])
    smooth = 3.0 + 0.5 * (3e-4 * (seen + 1)) ** -0.5
    for every, rows in (([flat, drop], (0, 1, 2)), ([drop, flat], (0, 2, 3)), ([flat], (0, 1))):
        form = MultiPower(Schedules.of([(schedule, seen) for schedule in every], 1))
        theta = form.internal(np.array([[LAW[name] for name in form.names]]), np.zeros(1))
        x = np.log(np.arange(2.0 * len(every)) + 1.0)[None]
        expected = [smooth[row % 2] for row in rows]
        np.testing.assert_allclose(np.exp(form.log_value(theta, x))[0, list(rows)], expected, rtol=1e-12)
        assert np.isfinite(form.jacobian(theta, x)).all()


def test_observations_are_taken_by_their_numbers() -> None:
    form = MultiPower(Schedules.of([(rates(1), np.array([100, 300]))]))
    theta = form.internal(np.array([[LAW[name] for name in form.names]]), np.zeros(1))
    both = form.log_value(theta, np.log([[1.0, 2.0]]))[0]
    np.testing.assert_array_equal(form.log_value(theta, np.log([[2.0, 1.0, 2.0]]))[0], both[[1, 0, 1]])
    np.testing.assert_array_equal(form.log_value(theta, np.log([[2.0]]))[0], both[[1]])
