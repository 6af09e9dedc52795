"""Levels and slopes: the coordinates, their derivatives, and valleys that are short in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.estimation import fit_problem, levels, multistart, optimizer
from analysis.estimation.objectives import Huber
from analysis.estimation.optimizer import Array, Evaluate, Index, Minimum
from analysis.inputs.rows import from_csv
from analysis.laws.registry import FORMS
from analysis.laws.sum_of_powers import COMPUTE, SURFACE, TIED, SumOfPowers

TUTORIAL = Path("docs/tutorial/runs.csv")


def test_the_forms_that_have_levels() -> None:
    assert {name for name, form in FORMS.items() if levels.has_levels(form)} == {
        "chinchilla", "chinchilla_tied", "compute", "frontier"
    }  # fmt: skip


def test_a_level_is_the_sum_at_the_centre_and_a_slope_its_derivative() -> None:
    theta = np.log(np.array([[1.7, 0.4, 0.3, np.exp(0.35), np.exp(0.25)]]))
    found = levels.levels(SURFACE, theta)[0][0]
    np.testing.assert_allclose(np.exp(found[:3]), [2.4, 0.4 * 0.35, 0.3 * 0.25])
    np.testing.assert_array_equal(found[3:], theta[0, 3:])


@pytest.mark.parametrize("form", [SURFACE, TIED, COMPUTE], ids=lambda form: form.name)
def test_back_from_levels_with_the_derivatives(form: SumOfPowers) -> None:
    generator = np.random.default_rng(0)
    theta = generator.uniform(0.1, 0.9, size=(6, len(form.names)))
    points, back = levels.levels(form, theta)
    again, slopes = levels.of_levels(form, points)
    np.testing.assert_allclose(back, np.linalg.inv(slopes), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(again, theta, rtol=1e-12)
    for k, step in enumerate(1e-6 * np.eye(len(form.names))):
        ends = [levels.of_levels(form, points + side * step)[0] for side in (1.0, -1.0)]
        np.testing.assert_allclose(slopes[:, :, k], (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-7)


def test_no_floor_is_left_where_slopes_are_steep_and_exponents_small() -> None:
    theta = levels.of_levels(COMPUTE, np.array([[0.0, np.log(0.2), 0.3], [0.0, np.log(0.4), 0.3]]))[0]
    assert theta[0, 0] == pytest.approx(np.log(1.0 - 0.2 / 0.3))
    assert np.isnan(theta[1, 0])
    value, gradient = levels._by_levels(COMPUTE, lambda x: (x.sum(axis=1), np.ones_like(x)))(
        np.array([[0.0, np.log(0.4), 0.3], [0.0, np.log(0.2), 0.3]])
    )
    assert np.isinf(value[0])
    assert np.isfinite(value[1])
    np.testing.assert_array_equal(gradient[0], 0.0)


def test_rows_without_slopes_or_that_do_not_arrive_lower_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function's minimum is at theta = (0, -1, 0.5); the third row is there, the second has no exponent."""
    centre = np.array([0.0, -1.0, 0.5])

    def restrict(_: Index) -> Evaluate:
        return lambda x: (((x - centre) ** 2).sum(axis=1), 2 * (x - centre))

    theta = np.array([[0.2, -0.8, 0.4], [0.2, -0.8, 0.0], centre, [0.2, -0.8, 0.4]])
    value, gradient = restrict(np.arange(4))(theta)
    found = Minimum(theta, value, np.abs(gradient).max(axis=1), np.tile(7 * np.eye(3), (4, 1, 1)), 100)
    before, limit = theta.copy(), np.array([1e-9, 1e-9, 1e-9, 5.0])  # the fourth has arrived

    def metric(rows: Index) -> Array:
        return np.tile(0.5 * np.eye(3), (len(rows), 1, 1))

    ended = levels.search(COMPUTE, restrict, found, metric, limit)
    np.testing.assert_allclose(ended.theta[0], centre, atol=1e-8)
    assert ended.value[0] < 1e-15
    assert ended.gradient[0] < 1e-7
    np.testing.assert_allclose(ended.metric[0], 0.5 * np.eye(3), atol=0.05)
    np.testing.assert_array_equal(ended.theta[1:], before[1:])
    np.testing.assert_array_equal(ended.metric[1:], found.metric[1:])
    np.testing.assert_array_equal(found.theta, before)
    assert ended.rounds > 100
    none = levels.search(COMPUTE, restrict, found, metric, np.full(4, 5.0))
    assert none is found
    monkeypatch.setattr(levels, "ROUNDS", 1)
    never = levels.search(COMPUTE, restrict, found, metric, limit)
    np.testing.assert_array_equal(never.theta, before)
    assert never.rounds > 100


def eight_runs() -> fit_problem.Problem:
    """Return the problem of the tutorial's eight smallest runs: long valleys along E, A and alpha."""
    table = from_csv(TUTORIAL, params_kind="total", flop_rule="6ND").sort_values("flops", kind="stable").head(8)
    columns = [table[name].to_numpy(dtype=float) for name in ("params", "tokens")]
    return fit_problem.decided(fit_problem.problem(SURFACE, columns, table["loss"].to_numpy(dtype=float), Huber()))


def test_bent_valleys_are_short_by_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    p = eight_runs()
    starts = multistart.starts_of(p)
    ours = multistart.solve(p, starts)
    monkeypatch.setattr(levels, "has_levels", lambda form: False)
    theirs = multistart.solve(p, starts)
    np.testing.assert_allclose(ours.value, ours.value.min(), rtol=1e-7)
    assert ours.value.min() <= theirs.value.min() * (1 + 1e-9)
    assert theirs.value.max() > 1.001 * ours.value.max()
    assert ours.rounds <= levels.BEFORE + levels.ROUNDS < theirs.rounds


def test_rows_that_have_not_arrived_go_on() -> None:
    """Steps of at most 2: from 11 two rounds lead to 7, and four more to 0."""

    def restrict(_: Index) -> Evaluate:
        return lambda x: (0.5 * (x**2).sum(axis=1), x)

    start = np.array([[11.0], [0.0], [9.0]])
    found = optimizer.minimise(restrict, start, np.eye(1), np.full(3, 1e-9), rounds=2)
    np.testing.assert_array_equal(found.theta, [[7.0], [0.0], [5.0]])
    ended = optimizer.resumed(restrict, found, np.array([1e-9, 1e-9, 6.0]), rounds=100)
    np.testing.assert_allclose(ended.theta, [[0.0], [0.0], [5.0]], atol=1e-9)
    assert ended.rounds == 2 + 4
    np.testing.assert_array_equal(found.theta, [[7.0], [0.0], [5.0]])
    assert optimizer.resumed(restrict, ended, np.full(3, 9.0), rounds=100) is ended
