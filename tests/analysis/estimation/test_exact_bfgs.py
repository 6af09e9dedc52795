"""BFGS: its update, line search and stopping, each by hand; and functions whose minima are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.estimation import optimizer
from analysis.estimation.optimizer import Array, Evaluate, Index, _State, minimise


def state(count: int = 1, width: int = 2, **given: Any) -> _State:
    """Return rows at 0 with value 1, gradient (1, ...), an identity metric and a step of 1 against the gradient."""
    ones = np.ones((count, width))
    held: dict[str, Any] = {
        "index": np.arange(count), "theta": np.zeros((count, width)), "value": np.ones(count), "gradient": ones.copy(),
        "metric": np.tile(np.eye(width), (count, 1, 1)), "direction": -ones, "slope": np.full(count, -float(width)),
        "step": np.ones(count), "low": np.zeros(count), "high": np.full(count, np.inf),
        "trials": np.zeros(count, dtype=np.int64), "resets": np.zeros(count, dtype=np.int64),
    }  # fmt: skip
    return _State(**{**held, **{name: np.array(value) for name, value in given.items()}})


def test_a_line_search_begins_against_the_gradient_by_the_metric() -> None:
    metric = np.array([[[1.0, 0.25], [0.25, 0.5]]] * 4)
    gradient = np.array([[1.0, 2.0], [0.0, 2.0], [8.0, 0.0], [-1.0, 4.0]])
    at = state(4, metric=metric, gradient=gradient, step=[9.0] * 4, low=[9.0] * 4, high=[9.0] * 4, trials=[9] * 4)
    optimizer._turn(at, np.array([0, 1, 2]))
    # An entry whose gradient is zero does not move; the third row's 8 is cut to 2.
    np.testing.assert_allclose(at.direction[:3], [[-1.5, -1.25], [0.0, -1.0], [-2.0, 0.0]])
    np.testing.assert_allclose(at.slope[:3], [-4.0, -2.0, -16.0])
    np.testing.assert_array_equal(at.direction[3], [-1.0, -1.0])
    np.testing.assert_array_equal(at.step, [1.0, 1.0, 1.0, 9.0])
    np.testing.assert_array_equal(at.low, [0.0, 0.0, 0.0, 9.0])
    np.testing.assert_array_equal(at.high, [np.inf, np.inf, np.inf, 9.0])
    np.testing.assert_array_equal(at.trials, [0, 0, 0, 9])


def test_cutting_keeps_the_direction() -> None:
    at = state(2, gradient=np.array([[3.0, -1.5], [1.9, 0.3]]))
    optimizer._turn(at, np.arange(2))
    np.testing.assert_allclose(at.direction, [[-2.0, 1.0], [-1.9, -0.3]])
    np.testing.assert_allclose(at.slope, [-7.5, -3.7])


def advanced(at: _State, value: Any, gradient: Any) -> tuple[_State, list[Array]]:
    seen: list[Array] = []

    def evaluate(theta: Array) -> tuple[Array, Array]:
        seen.append(theta.copy())
        return np.array(value, dtype=float), np.array(gradient, dtype=float)

    optimizer._advance(at, evaluate)
    return at, seen


def test_a_step_is_accepted_where_the_value_falls_by_enough() -> None:
    """At half a step down a slope of -2, 1e-4 of it is 1e-4: a value of 1 - 1e-4 is enough, and 1 - 0.5e-4 is not."""
    limit = 1.0 + 1e-4 * 0.5 * -2.0
    values = [limit, np.nextafter(limit, 2.0), 0.99995, 0.5, np.nan, np.inf]
    flat = np.zeros((6, 2))
    at, seen = advanced(state(6, step=[0.5] * 6), values, flat)
    np.testing.assert_array_equal(seen[0], np.full((6, 2), -0.5))
    accepted = np.array([True, False, False, True, False, False])
    np.testing.assert_array_equal(at.theta[:, 0] == -0.5, accepted)
    np.testing.assert_array_equal(at.value, np.where(accepted, values, 1.0))
    np.testing.assert_array_equal(at.gradient, np.where(accepted[:, None], flat, 1.0))
    # Those refused are halved towards the last that was low enough.
    np.testing.assert_array_equal(at.step[~accepted], 0.25)
    np.testing.assert_array_equal(at.high[~accepted], 0.5)
    np.testing.assert_array_equal(at.trials, np.where(accepted, 0, 1))


def test_a_step_is_accepted_by_its_slope_where_the_value_is_the_same_to_rounding() -> None:
    """Slope -2: what rises by 1e-12 of the value of 1 is level, and accepted unless the slope rises by 0.9998 of it."""
    values = [1.0 + 0.9e-12, 1.0 + 1.1e-12, 1.0 - 0.9e-12, 1.0 + 0.9e-12, 1.0 + 0.9e-12]
    gradient = [[-0.5, -0.5]] * 3 + [[-0.9997, -0.9997], [-0.9999, -0.9999]]
    at, _ = advanced(state(5), values, gradient)
    np.testing.assert_array_equal(at.theta[:, 0] == -1.0, [True, False, True, True, False])


def test_a_step_is_lengthened_where_the_way_is_still_steep() -> None:
    """Slope -2 along (-1, -1): a gradient of (0.9, 0.9) has 0.9 of it, which is flat enough; more is steep."""
    gradient = [[0.9, 0.9], [0.95, 0.95], [0.95, 0.95], [0.95, 0.95], [0.5, 0.5]]
    start = state(5, step=[1.0, 1.0, 1.0, 3.0, 1.0], high=[np.inf, np.inf, 4.0, np.inf, np.inf],
                  low=[0.0, 0.0, 0.5, 2.0, 0.0])  # fmt: skip
    at, _ = advanced(start, [0.0] * 5, gradient)
    np.testing.assert_array_equal(at.trials, [0, 1, 1, 1, 0])
    np.testing.assert_array_equal(at.step[1:4], [2.0, 2.5, 6.0])
    np.testing.assert_array_equal(at.low[1:4], [1.0, 1.0, 3.0])
    np.testing.assert_array_equal(at.theta[1:4], np.zeros((3, 2)))
    np.testing.assert_array_equal(at.theta[[0, 4]], [[-1.0, -1.0]] * 2)


def test_the_thirteenth_trial_takes_what_is_low_enough() -> None:
    at, _ = advanced(state(2, trials=[11, 12]), [0.0, 0.0], [[0.95, 0.95]] * 2)
    np.testing.assert_array_equal(at.theta[:, 0], [0.0, -1.0])
    np.testing.assert_array_equal(at.trials, [12, 0])
    high, _ = advanced(state(1, trials=[30]), [1.5], [[0.1, 0.1]])
    assert (high.theta[0, 0], high.trials[0], high.step[0]) == (0.0, 31, 0.5)


def test_an_accepted_step_updates_the_metric_and_turns() -> None:
    at, _ = advanced(state(1), [0.2], [[0.5, -0.25]])
    metric = updated(np.eye(2), np.array([-1.0, -1.0]), np.array([-0.5, -1.25]))
    np.testing.assert_allclose(at.metric[0], metric, rtol=1e-12)
    np.testing.assert_allclose(at.direction[0], -metric @ [0.5, -0.25], rtol=1e-12)
    np.testing.assert_allclose(at.gradient[0], [0.5, -0.25])


def updated(metric: Array, s: Array, y: Array) -> Array:
    """Return (I - s y'/y's) H (I - y s'/y's) + s s'/y's: Nocedal and Wright 2006, eq. 6.17."""
    r = 1.0 / (y @ s)
    left = np.eye(len(s)) - r * np.outer(s, y)
    return np.asarray(left @ metric @ left.T + r * np.outer(s, s))


def test_the_update_is_the_textbooks() -> None:
    generator = np.random.default_rng(0)
    s, y = generator.normal(size=(4, 3)), generator.normal(size=(4, 3))
    y[:3] = s[:3] * generator.uniform(0.5, 2, size=(3, 3))
    y[3] = -s[3]
    start = np.array([m @ m.T for m in generator.normal(size=(5, 3, 3))])
    at = state(5, 3, metric=start.copy())
    optimizer._update(at, np.array([4, 0, 2, 3]), s, y)
    for row, k in ((4, 0), (0, 1), (2, 2)):
        np.testing.assert_allclose(at.metric[row], updated(start[row], s[k], y[k]), rtol=1e-9)
    np.testing.assert_array_equal(at.metric[[1, 3]], start[[1, 3]])  # not asked for; curved downwards


def test_steps_that_meet_no_curvature_change_nothing() -> None:
    """|s| = 10, |y| = 1000: what is below 1e-10 is rounding."""
    s = np.array([[10.0, 0.0]] * 3)
    y = np.array([[5e-12, 1000.0], [2e-11, 1000.0], [0.0, 0.0]])
    at = state(3)
    optimizer._update(at, np.arange(3), s, y)
    np.testing.assert_array_equal(at.metric[[0, 2]], [np.eye(2)] * 2)
    assert np.abs(at.metric[1]).max() > 1e10


def test_all_rows_at_once_are_updated_as_each_by_its_number() -> None:
    generator = np.random.default_rng(0)
    s, y = generator.normal(size=(2, 6, 5))
    y += 3.0 * s
    y[4] = -s[4]
    whole, numbered = state(6, 5), state(6, 5)
    optimizer._update(whole, optimizer.WHOLE, s, y)
    optimizer._update(numbered, np.arange(6), s, y)
    np.testing.assert_array_equal(whole.metric, numbered.metric)
    np.testing.assert_array_equal(whole.metric[4], np.eye(5))
    assert (whole.metric[[0, 1, 2, 3, 5]] != np.eye(5)).any(axis=(1, 2)).all()


def test_in_what_order_gradients_lie_in_memory_changes_no_bit() -> None:
    """Rows that lie in pieces would be summed in another order."""
    start = np.random.default_rng(1).normal(size=(40, 7))

    def found(order: Any) -> optimizer.Minimum:
        def restrict(index: Index) -> Evaluate:
            return lambda x: (
                np.cosh(x).sum(axis=1) + 0.1 * (x.sum(axis=1) - 1.0) ** 2,
                np.array(np.sinh(x) + 0.2 * (x.sum(axis=1) - 1.0)[:, None], order=order),
            )

        return minimise(restrict, start, np.eye(7), np.full(40, 1e-9))

    one, other = found("C"), found("F")
    for name in ("theta", "value", "metric"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_a_gradient_whose_square_is_no_number_changes_nothing() -> None:
    at = state(1)
    optimizer._update(at, np.arange(1), np.array([[10.0, 0.0]]), np.array([[1.0, 1e200]]))
    np.testing.assert_array_equal(at.metric, [np.eye(2)])


def test_rows_are_done_where_the_gradient_is_within_its_tolerance() -> None:
    at = state(4, gradient=[[0.5, -0.1], [0.5, -0.1], [-0.3, 0.1], [-0.3, 0.1]])
    done = optimizer._finished(at, np.array([0.5, 0.49, 0.3, 0.29]))
    np.testing.assert_array_equal(done, [True, False, True, False])
    np.testing.assert_array_equal(at.resets, 0)


def test_rows_are_done_where_a_step_would_gain_no_more_than_rounding() -> None:
    """A slope of 2e-15 of the value of 8, and a gradient of at most a thousand tolerances."""
    slope = -2e-15 * 8.0
    at = state(4, value=[8.0] * 4, slope=[slope, 2 * slope, slope, slope], gradient=[[1e-3, 0.0]] * 4)
    tolerance = np.array([1e-6, 1e-6, 0.9995e-6, 1.5e-6])
    at.gradient[0, 0] = 1e3 * 1e-6
    np.testing.assert_array_equal(optimizer._finished(at, tolerance), [True, False, False, True])


def test_stuck_rows_try_twice_along_the_plain_gradient() -> None:
    trials, resets = [40, 41, 41, 41, 0, 0], [0, 0, 1, 2, 0, 2]
    slope = [-1.0, -1.0, -1.0, -1.0, 0.0, 0.0]
    gradient = np.array([[4.0, -2.0]] * 6)
    at = state(6, trials=trials, resets=resets, slope=slope, gradient=gradient, metric=[np.full((2, 2), 7.0)] * 6)
    np.testing.assert_array_equal(optimizer._finished(at, np.full(6, 1e-9)), [False, False, False, True, False, True])
    np.testing.assert_array_equal(at.resets, [0, 1, 2, 2, 1, 2])
    np.testing.assert_array_equal(at.trials, [40, 0, 0, 41, 0, 0])
    for row in (1, 2, 4):
        np.testing.assert_allclose(at.metric[row], 0.025 * np.eye(2))  # a first step of a tenth
        np.testing.assert_allclose(at.direction[row], [-0.1, 0.05])
    np.testing.assert_array_equal(at.metric[0], np.full((2, 2), 7.0))


def quadratic(centre: Array, bend: Array, calls: list[int] | None = None) -> Any:
    def restrict(index: Index) -> Evaluate:
        def evaluate(x: Array) -> tuple[Array, Array]:
            if calls is not None:
                calls.append(len(x))
            away = x - centre[index]
            return 0.5 * (bend * away**2).sum(axis=1) + index, bend * away

        return evaluate

    return restrict


def test_rows_end_at_their_own_minima_at_their_own_pace() -> None:
    centre = np.array([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [5.0, 1.0, -7.0]])
    bend = np.array([2.0, 30.0, 0.7])
    calls: list[int] = []
    start = np.zeros((3, 3))
    kept = start.copy()
    found = minimise(quadratic(centre, bend, calls), start, np.diag(1 / bend), np.array([1e-10, 1e-10, 1e-4]))
    np.testing.assert_allclose(found.theta, centre, atol=1e-3)
    np.testing.assert_allclose(found.theta[:2], centre[:2], atol=1e-10)
    np.testing.assert_allclose(found.value, [0.0, 1.0, 2.0], atol=1e-6)
    assert (found.gradient <= [1e-10, 1e-10, 1e-4]).all()
    assert calls[:2] == [3, 2]  # the second begins at its minimum
    assert found.rounds == len(calls) - 1 == 4  # steps of at most 2
    np.testing.assert_array_equal(start, kept)


def test_a_search_without_an_end_is_ended() -> None:
    def endless(_: Index) -> Evaluate:
        return lambda x: (-x[:, 0], np.full_like(x, -1.0))

    found = minimise(endless, np.zeros((1, 1)), np.eye(1), np.array([1e-9]), rounds=26)
    assert found.rounds == 26
    assert found.theta[0, 0] == 2.0 * 2.0**12  # two searches of thirteen trials, each twice as long: 4096 + 4096
    assert found.gradient[0] == 1.0
    assert minimise(endless, np.zeros((1, 1)), np.eye(1), np.array([1e-9])).rounds == 500


def test_a_curved_valley() -> None:
    """Rosenbrock's function from its usual start, and a kink that bisection has to settle on."""

    def rosenbrock(_: Index) -> Evaluate:
        def evaluate(x: Array) -> tuple[Array, Array]:
            a, b = x.T
            value = (1 - a) ** 2 + 100 * (b - a**2) ** 2
            return value, np.stack((-2 * (1 - a) - 400 * a * (b - a**2), 200 * (b - a**2)), axis=1)

        return evaluate

    found = minimise(rosenbrock, np.array([[-1.2, 1.0], [2.0, -3.0]]), np.eye(2) * 0.01, np.full(2, 1e-9))
    np.testing.assert_allclose(found.theta, 1.0, atol=1e-8)
    assert found.rounds < 100

    def kink(_: Index) -> Evaluate:
        return lambda x: (np.abs(x - 0.3).sum(axis=1), np.sign(x - 0.3))

    ended = minimise(kink, np.zeros((1, 1)), np.eye(1), np.array([1e-9]))
    assert ended.theta[0, 0] == pytest.approx(0.3, abs=1e-6)


def test_nothing_that_is_free_is_a_minimum() -> None:
    def constant(_: Index) -> Evaluate:
        return lambda x: (np.full(len(x), 3.0), np.zeros_like(x))

    found = minimise(constant, np.zeros((2, 0)), np.zeros((2, 0, 0)), np.full(2, 1e-9))
    np.testing.assert_array_equal(found.value, 3.0)
    np.testing.assert_array_equal(found.gradient, 0.0)
    assert found.rounds == 0
