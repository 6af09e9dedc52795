"""Flat optima: the ends of level ground by hand, and laws at both ends that fit the runs alike."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.estimation import fit_problem, level_ground, multistart
from analysis.estimation.objectives import Huber, Squared
from analysis.inference import flat
from analysis.inference.flat import Flat
from analysis.laws.sum_of_powers import SURFACE
from tests.analysis import studies


def test_a_direction_in_words() -> None:
    """The largest component first, those below 0.02 left out, logs by their constants' names."""
    found = Flat(
        {"E": 0.019, "ln A": -0.8, "ln B": 0.02, "alpha": 0.6, "beta": 0.0},
        {"E": 1.0, "A": 2.0, "B": 3.0, "alpha": 0.25, "beta": 0.5},
        {"E": 1.5, "A": 20.0, "B": 3.5, "alpha": 0.75, "beta": 0.5},
        0.1,
    )
    ends = "A 2.000 to 20.00, alpha 0.2500 to 0.7500, B 3.000 to 3.500"
    assert found.text == f"along (ln A -0.80, alpha +0.60, ln B +0.02), from {ends}"


def problem(table: Any, loss: Any = None) -> Any:
    held = studies.as_rows(table)
    return fit_problem.problem(SURFACE, (held.params, held.tokens), held.loss, loss or Squared())


def test_the_way_between_two_laws_is_of_the_logs_of_coefficients() -> None:
    p = problem(studies.isoflop(3, noise=0.0))
    one, two = (1.9, 60.0, 110.0, 0.33, 0.30), (1.6, 90.0, 110.0, 0.37, 0.30)
    first, second = (SURFACE.internal(np.array([law]), p.centres)[0] for law in (one, two))
    found = flat._between(p, first, second, 0.25)
    gap = np.array([math.log(1.6 / 1.9), math.log(1.5), 0.0, 0.04, 0.0])
    gap /= math.sqrt(math.log(1.6 / 1.9) ** 2 + math.log(1.5) ** 2 + 0.04**2)
    assert list(found.direction) == ["ln E", "ln A", "ln B", "alpha", "beta"]
    np.testing.assert_allclose(list(found.direction.values()), gap, atol=1e-12)
    np.testing.assert_allclose(list(found.low.values()), one)
    np.testing.assert_allclose(list(found.high.values()), two)
    assert (list(found.low), found.moved) == (["E", "A", "B", "alpha", "beta"], 0.25)
    back = flat._between(p, second, first, 0.25)
    assert back.direction == pytest.approx(found.direction, abs=1e-12), "the largest component is positive"
    assert back.low == pytest.approx(found.low)


def test_level_ground_ends_where_the_objective_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bowl x² + 0 y² around (1, 1), level up to 9: 3 along x; along y as far as anything is followed."""
    monkeypatch.setattr(flat, "_value", lambda _p, z: (z[:, 0] - 1.0) ** 2)
    rays = np.array([[0.01, 0.0], [-0.5, 0.0], [0.0, 2.0], [1.0, 1.0], [-0.01, 0.0]])
    near = np.array([True, True, True, True, False])
    none: Any = None
    ends = flat._ends(none, np.ones(2), rays, near, 9.0)
    np.testing.assert_allclose(ends[:4], [[4.0, 1.0], [-2.0, 1.0], [1.0, 21.0], [4.0, 4.0]], rtol=2e-3)
    assert ends[4].tolist() == [1.0, 1.0]
    assert (ends[[0, 3], 0] <= 4.0).all() and ends[1, 0] >= -2.0, "ends are level themselves"


def test_equal_is_within_rounding_of_the_objective_or_of_exact_rows() -> None:
    table = studies.isoflop(3, noise=0.0)
    p = problem(table)
    for objective in (0.0, 2.0):
        point: Any = SimpleNamespace(objective=objective)
        exact = 0.5 * len(table) * 1e-16
        assert flat._level(p, point) - objective == pytest.approx(objective * 1e-10 + exact, rel=1e-5, abs=1e-18)


def test_values_are_those_of_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem(studies.isoflop(3, noise=0.01))
    z = SURFACE.internal(np.array([studies.LAW]), p.centres) + np.linspace(0.0, 0.1, 7)[:, None]
    whole = flat._value(p, z)
    np.testing.assert_allclose(whole, fit_problem.evaluate(p, z)[0])
    assert flat._value(p, z[:0]).shape == (0,)
    for cells in (1, 3 * p.y.size):
        monkeypatch.setattr(multistart, "CELLS", cells)
        np.testing.assert_allclose(flat._value(p, z), whole)


def test_another_minimum_as_good_that_predicts_otherwise_is_a_way() -> None:
    p = problem(studies.isoflop(3, noise=0.0))
    theta = SURFACE.internal(np.array([studies.LAW]), p.centres)[0]
    near, far = theta + np.array([1e-6, 0, 0, 0, 0]), theta + np.array([0, 0.05, 0, 0, 0])

    def found(*minima: tuple[Any, float]) -> Flat | None:
        kept = SimpleNamespace(theta=np.stack([one for one, _ in minima]), value=np.array([v for _, v in minima]))
        point: Any = SimpleNamespace(theta=theta, objective=1.0, minima=kept)
        return flat._other(p, point)

    other = found((theta, 1.0), (near, 1.0), (far, 1.0))
    gap = np.abs(np.diff(SURFACE.log_value(np.stack((theta, far)), p.x), axis=0)).max()
    assert other is not None and other.moved == pytest.approx(gap)
    assert other.direction == pytest.approx({"ln E": 0, "ln A": 1, "ln B": 0, "alpha": 0, "beta": 0}, abs=1e-9)
    assert found((theta, 1.0), (near, 1.0)) is None, "it predicts the same"
    assert found((far, 1.001)) is None, "it fits worse"
    assert found((far, math.inf)) is None
    alone: Any = SimpleNamespace(theta=theta, objective=1.0, minima=None)
    assert flat._other(p, alone) is None


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_an_identified_law_is_not_flat(noise: float) -> None:
    table = studies.isoflop(3, noise=noise)
    assert flat.flat(problem(table), studies.surface_point(table, Squared())) is None


@pytest.mark.parametrize("loss", [Squared(), Huber(0.01)])
def test_runs_of_one_size_leave_its_loss_to_either_term(loss: Any) -> None:
    """E + A / N^alpha is all that they show: both ends say the same of it, and of tokens, and differ in E."""
    generator = np.random.default_rng(3)
    tokens = np.geomspace(1e8, 1e10, 12)
    values = studies.loss(studies.LAW, 1e7, tokens) * np.exp(0.003 * generator.normal(size=12))
    table = pd.DataFrame({"params": 1e7, "tokens": tokens, "flops": 6e7 * tokens, "loss": values})
    p, point = problem(table, loss), studies.surface_point(table, loss)
    found = flat.flat(p, point)
    assert found is not None and found.moved > flat.MOVED
    laws = [tuple(end[name] for name in SURFACE.names) for end in (found.low, found.high)]
    predicted = [studies.loss(law, 1e7, tokens) for law in laws]
    np.testing.assert_allclose(predicted[0], predicted[1], rtol=2e-4)
    shared = [law[0] + law[1] / 1e7 ** law[3] for law in laws]
    assert shared[0] == pytest.approx(shared[1], rel=2e-4)
    terms = [abs(laws[1][0] - laws[0][0]), abs(laws[1][1] / 1e7 ** laws[1][3] - laws[0][1] / 1e7 ** laws[0][3])]
    assert max(terms) / values.min() > 0.05, "one takes what the other gives"
    assert math.hypot(*found.direction.values()) == pytest.approx(1.0)


class Valley:
    """A valley whose profile is given: what `along` says of ln A held at 12 steps on either side of the best."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, noise: float = 0.01, objective: float = 1.0) -> None:
        self.p = problem(studies.isoflop(3, noise=noise))
        self.theta = SURFACE.internal(np.array([studies.LAW]), self.p.centres)[0]
        self.point: Any = SimpleNamespace(theta=self.theta, objective=objective)
        self.at = np.empty(0)
        self.values = np.full(25, math.inf)
        monkeypatch.setattr(flat, "along", self.along)

    def along(self, p: Any, point: Any, name: str, at: Any, middle: int) -> Any:
        """Return laws that differ in the constant alone, with the objectives that are given."""
        assert (p, point, middle) == (self.p, self.point, 12)
        self.at = np.asarray(at)
        theta = np.repeat(self.theta[None], len(at), axis=0)
        theta[:, SURFACE.names.index(name)] += self.at - self.at[12]
        return theta, self.values

    def found(self, axis: tuple[float, ...] = (0.0, -0.5, 0.2, 0.0, 0.0)) -> Flat | None:
        """Return the valley along an axis whose leading constant is A."""
        return flat._valley(self.p, self.point, np.array(axis))


def test_a_valley_is_followed_as_far_as_it_is_level(monkeypatch: pytest.MonkeyPatch) -> None:
    valley = Valley(monkeypatch)
    steps = np.geomspace(1e-3, 3.0, 12)
    close = 1.0 * (1 + 0.9e-6)
    valley.values[[0, 9, 10, 11, 12, 13, 14, 16, 24]] = close
    found = valley.found()
    np.testing.assert_allclose(valley.at[12:] - valley.at[12], np.concatenate(([0.0], steps)))
    np.testing.assert_allclose(valley.at[12] - valley.at[:12][::-1], steps)
    assert found is not None
    # Three steps down and two up; what is level beyond a slope is another place.
    assert found.moved == pytest.approx((steps[2] + steps[1]) / 0.5)
    assert math.log(found.high["A"] / found.low["A"]) == pytest.approx(steps[2] + steps[1])
    assert math.log(studies.LAW[1] / found.low["A"]) == pytest.approx(steps[2])
    assert found.direction["ln A"] == pytest.approx(1.0)
    valley.values[:] = close
    whole = valley.found()
    assert whole is not None and whole.moved == pytest.approx(2 * 3.0 / 0.5)


def test_a_valley_is_level_up_to_a_millionth_of_its_lowest_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    valley = Valley(monkeypatch)
    valley.values[12:] = 1.0 * (1 + 1.1e-6)
    assert valley.found() is None, "the best alone is as good"
    valley.values[12:] = 0.5
    found = valley.found()
    assert found is not None and found.moved == pytest.approx(3.0 / 0.5), "a lower one there is the level"
    valley.values[13:] = math.inf
    assert valley.found() is None, "no wider than a step"


def test_a_valley_of_an_exponent_is_followed_by_half_or_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    valley = Valley(monkeypatch)
    valley.found((0.0, 0.1, 0.0, 1.0, 0.0))
    assert valley.at[24] - valley.at[12] == pytest.approx(0.5)
    valley.found((1.0, 0.1, 0.0, 0.5, 0.0))
    assert valley.at[24] - valley.at[12] == pytest.approx(3.0 if SURFACE.logs[0] else 0.5)


def test_a_valley_of_runs_without_noise_is_level_within_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The objective is 0 then, of which no share is anything: as level are rows that are off by 1e-8 each."""
    rows = len(studies.isoflop(3, noise=0.0))
    for share, level in ((0.9e-8, True), (1.1e-8, False)):
        valley = Valley(monkeypatch, noise=0.0, objective=0.0)
        valley.values[12:] = 0.5 * rows * share**2
        valley.values[12] = 0.0
        found = valley.found()
        assert (found is not None) is level
        assert found is None or found.moved == pytest.approx(3.0 / 0.5)


def test_a_constant_that_the_law_does_not_hold_has_no_valley(monkeypatch: pytest.MonkeyPatch) -> None:
    valley = Valley(monkeypatch)

    def refuses(*given: Any) -> Any:
        raise ValueError("A is not held")

    monkeypatch.setattr(flat, "along", refuses)
    assert valley.found() is None


def test_axes_are_measured_by_what_their_terms_differ_by() -> None:
    p = problem(studies.isoflop(3, noise=0.01))
    z = SURFACE.internal(np.array([studies.LAW]), p.centres)[0]
    values, axes, reach = level_ground.axes(p, z)
    slopes = SURFACE.jacobian(z[None], p.x)[0]
    np.testing.assert_allclose(reach, np.abs(slopes).max(axis=0))
    assert (np.diff(values) >= 0).all() and axes.shape == (5, 5)
    np.testing.assert_allclose(np.linalg.norm(axes * reach, axis=1), 1.0)
    np.testing.assert_allclose((axes * reach) @ (axes * reach).T, np.eye(5), atol=1e-9)
    bend = fit_problem.hessian(fit_problem.decided(p), z[None])[0]
    np.testing.assert_allclose(np.einsum("ai,ij,aj->a", axes, bend, axes), values, rtol=1e-6, atol=1e-9 * values[-1])


def test_a_term_that_is_not_there_is_no_direction() -> None:
    p = problem(studies.isoflop(3, noise=0.01))
    z = SURFACE.internal(np.array([studies.LAW]), p.centres)[0]
    z[2] -= 30.0  # B is e^-30 of itself, so that neither it nor beta moves anything
    values, axes, reach = level_ground.axes(p, z)
    assert axes.shape == (3, 5) and len(values) == 3
    assert (axes[:, [2, 4]] == 0.0).all() and (reach[[2, 4]] < 1e-9).all()
