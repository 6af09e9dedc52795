"""Profiles: held constants by refitting, limits in closed form, verdicts by literal cases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.estimation import fit_problem, multistart, objectives
from analysis.estimation.constraints import constraint
from analysis.inference import profile_likelihood
from analysis.inference.profile_likelihood import Profile, _Path
from analysis.laws.registry import FORMS
from analysis.laws.sum_of_powers import SURFACE
from analysis.values.blocks import Identified
from tests.analysis import studies

ROOT = Path(__file__).resolve().parents[3]
TABLE = studies.isoflop(2, noise=0.002, budgets=(1e12, 1e13, 1e14, 1e15))


def fitted(form: str = "chinchilla", **options: Any) -> tuple[fit_problem.Problem, multistart.PointFit]:
    law: Any = FORMS[form]
    columns = [TABLE[name].to_numpy() for name in law.inputs]
    p = fit_problem.problem(law, columns, TABLE["loss"].to_numpy(), objectives.Squared(), **options)
    return p, multistart.fit_point(p)


P, POINT = fitted()


def held(name: str, value: float) -> multistart.PointFit:
    return multistart.fit_point(replace(P, constraint=constraint(SURFACE, P.centres, fix={name: value})))


def literal(closed_low: bool, closed_high: bool) -> Profile:
    return Profile("x", np.arange(3.0), np.arange(3.0), 3.8, 1.0, 2.0, closed_low, closed_high)


def test_verdicts_by_the_sides_that_close() -> None:
    assert literal(True, True).identified == Identified(True)
    assert literal(False, False).identified == Identified(False, "the law fits as well with any x")
    assert literal(False, True).identified == Identified(
        False, "the profile of x is flat down to the search's limit", "upper", 2.0
    )
    assert literal(True, False).identified == Identified(
        False, "the profile of x is flat up to the search's limit", "lower", 1.0
    )


@pytest.mark.parametrize("name", ["alpha", "A", "E"])
def test_a_profile_is_the_best_fit_with_the_constant_held(name: str) -> None:
    found = profile_likelihood.profile(P, POINT, name)
    free = P.y.size - 5
    cut = 20 * np.log1p(stats.f.ppf(0.95, 1, free) / free)
    assert found.cut == pytest.approx(cut)
    assert found.name == name
    assert (np.diff(found.values) > 0).all()
    for side, end in ((1.0, found.high), (-1.0, found.low)):
        refit = held(name, end)
        assert 20 * np.log(refit.objective / POINT.objective) == pytest.approx(cut, rel=0.02), side
    inner = np.flatnonzero((found.deviance < cut) & (found.deviance > 0.05 * cut))[::4]
    for i in inner:
        refit = held(name, float(found.values[i]))
        assert found.deviance[i] == pytest.approx(20 * np.log(refit.objective / POINT.objective), rel=2e-3, abs=1e-3)
    assert found.closed_low
    assert found.closed_high
    best = float(POINT.constants[SURFACE.names.index(name)])
    assert found.low < best < found.high
    assert found.deviance[np.argmin(np.abs(found.values - best))] == pytest.approx(0.0, abs=1e-6)
    wide = profile_likelihood.profile(P, POINT, name, alpha=0.5)
    assert found.low < wide.low < wide.high < found.high


def test_a_derived_quantity_is_held_by_its_equation() -> None:
    found = profile_likelihood.profile(P, POINT, "a")
    assert found.values.min() >= 1e-3
    assert found.values.max() <= 1 - 1e-3
    for end in (found.low, found.high):
        refit = multistart.fit_point(replace(P, constraint=constraint(SURFACE, P.centres, derived={"a": end})))
        assert 20 * np.log(refit.objective / POINT.objective) == pytest.approx(found.cut, rel=0.02)
    with pytest.raises(ValueError, match="c of chinchilla has no profile: it is not linear in the constants"):
        profile_likelihood._holding(P, "c", np.array([0.3]))


def test_held_values_are_held_beside_what_is_fixed_already() -> None:
    tied, point = fitted(fix={"E": 1.9}, tie={"beta": "alpha"})
    at = np.array([0.2, 0.3])
    rows = profile_likelihood._holding(tied, "alpha", at)
    z = np.random.default_rng(0).normal(size=(2, len(rows.free)))
    constants = SURFACE.natural(rows.expand(z), tied.centres)
    np.testing.assert_allclose(constants[:, 3], at)
    np.testing.assert_allclose(constants[:, 4], at)
    np.testing.assert_allclose(constants[:, 0], 1.9)
    logs = profile_likelihood._holding(tied, "A", np.log([50.0, 70.0]))
    z = np.random.default_rng(0).normal(size=(2, len(logs.free)))
    np.testing.assert_allclose(SURFACE.natural(logs.expand(z), tied.centres)[:, 1], [50.0, 70.0])
    derived = profile_likelihood._holding(P, "a", np.array([0.4, 0.6]))
    constants = SURFACE.natural(derived.expand(np.ones((2, 4))), P.centres)
    np.testing.assert_allclose(constants[:, 4] / (constants[:, 3] + constants[:, 4]), [0.4, 0.6])
    fixed, _ = fitted(fix={"alpha": 0.3})
    beside = profile_likelihood._holding(fixed, "a", np.array([0.4]))
    constants = SURFACE.natural(beside.expand(np.ones((1, 3))), fixed.centres)
    assert constants[0, 3:] == pytest.approx([0.3, 0.2])
    theta, value = profile_likelihood.along(P, POINT, "alpha", np.array([0.3, float(POINT.constants[3]), 0.36]), 1)
    assert value[1] == pytest.approx(POINT.objective, rel=1e-6)
    np.testing.assert_allclose(value[[0, 2]], [held("alpha", v).objective for v in (0.3, 0.36)], rtol=1e-5)
    assert theta.shape == (3, 5)
    with pytest.raises(ValueError, match="contradict"):
        profile_likelihood._holding(tied, "E", np.array([0.5]))
    del point


def test_an_offset_of_the_link_is_taken_off() -> None:
    class Shifted:
        name, names, logs = "shifted", ("p", "q"), (False, False)

        def link(self, centres: Any) -> Any:
            return np.array([[1.0, 2.0], [0.0, 1.0]]), np.array([10.0, 20.0])

        def equation(self, name: str, value: float) -> Any:
            return ({"p": 3.0, "q": 1.0}, value) if name == "s" else None

    p: Any = replace(P, form=Shifted())  # type: ignore[arg-type]
    matrix, offset = Shifted().link(None)
    for name, pick in (("p", np.array([1.0, 0.0])), ("s", np.array([3.0, 1.0]))):
        rows = profile_likelihood._holding(p, name, np.array([4.0, 5.0]))
        theta = rows.expand(np.array([[0.3], [0.7]]))
        np.testing.assert_allclose((theta @ matrix.T + offset) @ pick, [4.0, 5.0])
    with pytest.raises(ValueError, match="t of shifted has no profile: it is not linear in the constants"):
        profile_likelihood._holding(p, "t", np.array([1.0]))


def test_values_of_constants_and_of_what_follows() -> None:
    theta = POINT.theta[None]
    E, A, _, alpha, beta = POINT.constants
    assert profile_likelihood.quantity(P, theta, "E")[0] == pytest.approx(np.log(E))
    small = SURFACE.internal(np.array([[0.5, 60.0, 110.0, 0.3, 0.3]]), P.centres)
    assert profile_likelihood.quantity(P, small, "E")[0] == pytest.approx(np.log(0.5))
    assert profile_likelihood.quantity(P, theta, "A")[0] == pytest.approx(np.log(A))
    assert profile_likelihood.quantity(P, theta, "alpha")[0] == pytest.approx(alpha)
    assert profile_likelihood.quantity(P, theta, "a")[0] == pytest.approx(beta / (alpha + beta))
    steep = theta + np.array([0.0, 0.0, 0.0, 0.0, 1000.0])  # B is beyond any number, its log is not
    centre = P.centres[SURFACE.inputs.index("tokens")]
    assert profile_likelihood.quantity(P, steep, "B")[0] == pytest.approx(theta[0, 2] + steep[0, 4] * centre)


@pytest.mark.parametrize(
    ("positive", "constant", "best", "spread", "ends"),
    [
        (True, True, 3.0, None, (17e-3, 17.0)),
        (True, True, -3.0, 0.1, (0.04, 17.0)),
        (True, True, -3.0, 100.0, (0.85, 17.0)),
        (True, True, -3.0, 1e-9, (17e-6, 17.0)),
        (False, True, 0.3, None, (3e-3, 3.0)),
        (False, True, -2.0, 0.05, (0.02, 6.0)),
        (False, True, 2.0, np.nan, (6e-3, 6.0)),
        (False, True, 2.0, 0.0, (6e-3, 6.0)),
        (False, False, 0.5, 0.01, (0.004, 1.0)),
        (False, False, 0.5, None, (1e-3, 1.0)),
        (False, False, 0.5, np.inf, (1e-3, 1.0)),
    ],
)
def test_steps_from_a_share_of_the_standard_error_to_the_end(
    positive: bool, constant: bool, best: float, spread: float | None, ends: tuple[float, float]
) -> None:
    np.testing.assert_allclose(profile_likelihood._offsets(positive, constant, best, spread), np.geomspace(*ends, 16))


def path(value: Any, best: float = 3.0) -> _Path:
    value = np.asarray(value, dtype=float)
    return _Path(np.arange(len(value), dtype=float), np.zeros((len(value), 5)), value, best)


def test_edges_and_crossings_by_hand() -> None:
    one = path([9, 5, 2, 1, 2, 4, 9])
    assert one.middle == 3
    assert (one.edge(3.0, 1), one.edge(3.0, -1)) == (4, 2)
    assert profile_likelihood._crossing(one, 3.0, 1) == (4.5, True)
    assert profile_likelihood._crossing(one, 3.0, -1) == pytest.approx((2 - 1 / 3, True))
    assert (one.edge(4.0, 1), one.edge(5.0, -1)) == (5, 1), "a value on the level is accepted"
    assert profile_likelihood._crossing(one, 20.0, 1) == (6.0, False)
    assert profile_likelihood._crossing(one, 20.0, -1) == (0.0, False)
    assert profile_likelihood._crossing(one, 9.0, 1) == (6.0, False)
    assert profile_likelihood._crossing(path([9, 2, 2, 1, 9, 9, 9]), 3.0, -1) == pytest.approx((1 - 1 / 7, True))
    second = path([9, 9, 9, 1, 9, 2, 9])
    assert second.edge(3.0, 1) == 5, "a second basin counts as well"
    second = path([9, 2, 9, 1, 9, 9, 9])
    assert second.edge(3.0, -1) == 1
    none = path([9, 9, 9, 5, 9, 9, 9])
    assert (none.edge(3.0, 1), none.edge(3.0, -1)) == (3, 3)
    assert profile_likelihood._crossing(none, 3.0, 1) == (3.0, True), "not below the best"
    infinite = path([np.inf, 9, 9, 1, np.inf, 9, 9])
    assert profile_likelihood._crossing(infinite, 3.0, 1) == (3.0, True)


def test_levels_in_closed_form() -> None:
    """For squares the deviance is n ln(objective / lowest)."""
    cut = profile_likelihood._cut(P, 0.05)
    most = P.loss.llf_of(POINT.objective, 20)
    assert profile_likelihood._deviance(P, most, POINT.objective * 1.3) == pytest.approx(20 * np.log(1.3))
    assert profile_likelihood._deviance(P, most, POINT.objective * 0.7) == 0.0
    assert profile_likelihood._deviance(P, P.loss.llf_of(1.2, 20), 1.5) == pytest.approx(20 * np.log(1.25))
    assert profile_likelihood._level(P, POINT, 0.05) == pytest.approx(POINT.objective * np.exp(cut / 20), rel=1e-9)
    assert profile_likelihood._level(P, POINT, 0.05, 0.5) == pytest.approx(0.5 * np.exp(cut / 20), rel=1e-9)
    far = replace(P, y=P.y[:6], x=P.x[:, :6])
    assert profile_likelihood._cut(far, 0.05) == pytest.approx(6 * np.log1p(stats.f.ppf(0.95, 1, 1)))
    assert profile_likelihood._level(far, POINT, 0.05, 1.0) == pytest.approx(1 + stats.f.ppf(0.95, 1, 1), rel=1e-9)
    five = replace(P, y=P.y[:5], x=P.x[:, :5])
    assert profile_likelihood._cut(five, 0.05) == pytest.approx(5 * np.log1p(stats.f.ppf(0.95, 1, 1)))
    tied, _ = fitted(tie={"beta": "alpha"})
    assert profile_likelihood._cut(tied, 0.1) == pytest.approx(20 * np.log1p(stats.f.ppf(0.9, 1, 16) / 16))
    assert 0.0 <= profile_likelihood._level(P, POINT, 0.05, 0.0) < 1e-20, "an exact fit accepts nothing worse"


class Solver:
    """In place of the engine: it keeps what it starts from, and gives back objectives one list after another."""

    def __init__(self, *values: Any) -> None:
        self.values, self.starts, self.tolerances = list(values), [], []  # type: ignore[var-annotated]

    def __call__(self, p: Any, theta: Any, *, held: Any, tolerance: float) -> Any:
        self.starts.append(np.array(theta)[:, 0].tolist())
        self.tolerances.append(tolerance)
        number = len(self.starts)
        value = np.array(self.values[min(number, len(self.values)) - 1], dtype=float)
        return SimpleNamespace(theta=np.arange(float(len(theta)))[:, None] + 10 * number + np.zeros(5), value=value)


@pytest.mark.parametrize(
    ("middle", "inner", "again"), [(2, [1, 2, 1, 2, 3], [0, 2]), (0, [0, 0, 1, 2, 3], [2]), (4, [1, 2, 3, 4, 3], [0])]
)
def test_each_value_starts_again_from_its_inner_neighbour(
    middle: int, inner: list[int], again: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[list[int]] = []
    held: Any = SimpleNamespace(take=lambda rows: taken.append(rows.tolist()))
    best = float(POINT.theta[0])
    for values, calls in (
        (([5, 5, 5, 5, 5], [5, 5, 5, 5, 5]), 2),  # no better: it ends
        (([5, 5, 5, 5, 5], [5, 4, 6, 5, 5], [3] * len(again), [0] * 5), 3),  # twice at most
    ):
        solver = Solver(*values)
        monkeypatch.setattr(multistart, "solve", solver)
        theta, value = profile_likelihood._followed(P, POINT, held, profile_likelihood._inner([5], [middle]))
        assert len(solver.starts) == calls
        assert solver.tolerances == [1e-7] * calls
        assert solver.starts[0] == [best] * 5
        assert solver.starts[1] == [10.0 + i for i in inner]
    # Of the others the inner neighbour is where it was.
    assert taken[1:] == [[0, 1, 2, 3, 4], again]
    assert solver.starts[2] == [21.0] * len(again)
    assert value.tolist() == [3 if i in again else 4 if i == 1 else 5 for i in range(5)]
    assert theta[again, 0].tolist() == [30.0 + i for i in range(len(again))]


@pytest.mark.parametrize(
    ("values", "found", "starts", "at", "value"),
    [
        # The rejected value stays rejected; a better fit of it is kept.
        ([1, 1, 9, 9], ([1] * 8, [7]), [[1] * 8, [17]], 8, [*[1] * 10, 7, 9]),
        # Of the eight, the last accepted one is where the rejected value starts again.
        ([1, 1, 9], ([1, 1, 1, 8, 8, 8, 8, 8], [9]), [[1] * 8, [12]], 8, [*[1] * 5, *[8] * 5, 9]),
        # It is accepted: the path goes on from it, up to the end.
        ([1, 1, 9, 9], ([1] * 8, [2], [2] * 8, [1.5]), [[1] * 8, [17], [20] * 8, [37]], 16,
         [*[1] * 10, *[2] * 9, 1.5]),
        ([1, 1, 1], (), [], 0, [1, 1, 1]),
    ],
)  # fmt: skip
def test_a_rejected_value_is_fitted_again_from_its_new_neighbour(
    *, values: list[float], found: Any, starts: Any, at: int, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = Solver(*found)
    monkeypatch.setattr(multistart, "solve", solver)
    monkeypatch.setattr(profile_likelihood, "_holding", lambda p, name, at: at)
    monkeypatch.setattr(profile_likelihood, "joined", np.concatenate)
    numbers = np.arange(float(len(values)))
    one = _Path(numbers, numbers[:, None] * np.ones(5), np.array(values, dtype=float), 0.0)
    made = profile_likelihood._refined(P, {"x": one}, 2.0)["x"]
    assert (solver.starts, solver.tolerances) == (starts, [1e-7] * len(starts))
    new = [1 + np.arange(1, 9) / 9, 2 + np.arange(1, 9) / 9][: at // 8]
    np.testing.assert_allclose(made.at, np.sort(np.concatenate((numbers, *new))))
    assert made.value.tolist() == value
    assert made.best == 0.0


@pytest.mark.parametrize("spread", [None, 0.5, 10.0])
def test_a_profile_that_nothing_bounds_is_followed_to_both_ends(spread: float | None) -> None:
    """The smallest budget of the tutorial: far-out fits end too early, where depends on the BLAS kernel."""
    table = pd.read_csv(ROOT / "docs" / "tutorial" / "runs.csv").query("flops < 1e19")
    columns = [table[name].to_numpy() for name in FORMS["chinchilla"].inputs]
    p = fit_problem.problem(FORMS["chinchilla"], columns, table["loss"].to_numpy(), objectives.Huber(1e-3))
    found = profile_likelihood.profiles(p, multistart.fit_point(p), {"A": spread, "B": spread}, 0.05)
    for one in found.values():
        assert one.identified == Identified(False, f"the law fits as well with any {one.name}")
        assert one.deviance[[0, -1]].max() < one.cut


def test_a_coefficient_beyond_any_number_is_not_identified() -> None:
    """Two losses of each size of one budget, and Huber's loss between them: any alpha that is large enough will do."""
    one = TABLE[TABLE["flops"] == 1e12]
    columns = [np.repeat(one[name].to_numpy(), 2) for name in FORMS["chinchilla"].inputs]
    losses = np.repeat(one["loss"].to_numpy(), 2) * (1 + 1e-3 * np.tile([1, -1], len(one)))
    p = fit_problem.problem(FORMS["chinchilla"], columns, losses, objectives.Huber(1e-3))
    point = multistart.fit_point(p)
    assert np.isinf(point.constants[1])
    found = profile_likelihood.profile(p, point, "A")
    assert not found.closed_high
    assert not found.identified.identified


def test_eight_more_values_between_the_last_accepted_and_the_first_rejected() -> None:
    best = float(POINT.constants[3])
    at = best + np.array([-0.3, -0.2, -0.001, 0.0, 0.001, 0.2, 0.3])
    theta, value = profile_likelihood._followed(
        P, POINT, profile_likelihood._holding(P, "alpha", at), profile_likelihood._inner([7], [3])
    )
    level = profile_likelihood._level(P, POINT, 0.05)
    found = profile_likelihood._refined(P, {"alpha": _Path(at, theta, value, best)}, level)["alpha"]
    new = np.setdiff1d(found.at, at)
    want = np.concatenate((np.linspace(at[1], at[2], 10)[1:-1], np.linspace(at[4], at[5], 10)[1:-1]))
    np.testing.assert_allclose(new, want)
    assert (np.diff(found.at) > 0).all()
    for i in (3, len(found.at) - 4):
        refit = held("alpha", float(found.at[i]))
        assert found.value[i] == pytest.approx(refit.objective, rel=1e-5)
        assert SURFACE.natural(found.theta[[i]], P.centres)[0, 3] == pytest.approx(found.at[i])
    one = profile_likelihood._refined(P, {"alpha": _Path(at[2:], theta[2:], value[2:], best)}, level)["alpha"]
    assert len(one.at) == len(at[2:]) + 8
    closed = _Path(at[2:5], theta[2:5], value[2:5], best)
    assert profile_likelihood._refined(P, {"alpha": closed}, level)["alpha"] is closed


def test_profiles_that_are_followed_together_are_those_followed_alone() -> None:
    together = profile_likelihood.profiles(P, POINT, {"E": 0.1, "alpha": None}, 0.05)
    assert list(together) == ["E", "alpha"]
    for name, spread in (("E", 0.1), ("alpha", None)):
        alone = profile_likelihood.profile(P, POINT, name, 0.05, spread)
        for ours, theirs in zip(vars(together[name]).values(), vars(alone).values(), strict=True):
            if isinstance(ours, str):
                assert ours == theirs
            else:
                np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    assert profile_likelihood._inner([3, 4], [1, 0]).tolist() == [1, 0, 1, 3, 3, 4, 5]


def test_a_constant_that_is_fixed_has_no_profile() -> None:
    fixed, point = fitted(fix={"alpha": 0.33})
    with pytest.raises(ValueError, match="contradict or repeat"):
        profile_likelihood.profile(fixed, point, "alpha")
    assert not profile_likelihood.has_profile(fixed, "alpha")
    assert profile_likelihood.has_profile(fixed, "beta")


def test_a_constant_without_a_bound_says_so() -> None:
    """A loss that does not depend on the tokens has any B down to none."""
    table = TABLE.assign(loss=(1.9 + 60 / TABLE["params"] ** 0.33) * np.exp(0.002 * np.sin(np.arange(20))))
    p = fit_problem.problem(
        SURFACE,
        (TABLE["params"].to_numpy(), TABLE["tokens"].to_numpy()),
        table["loss"].to_numpy(),
        objectives.Squared(),
    )
    found = profile_likelihood.profile(p, multistart.fit_point(p), "B")
    assert not found.closed_low
    assert not found.identified.identified
