"""The engine's pieces: objective, gradient and curvature beside differences; what is chosen, polished and kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis.estimation import fit_problem, multistart, optimizer, settled
from analysis.estimation.constraints import FREE, constraint
from analysis.estimation.fit_problem import Problem
from analysis.estimation.multistart import PointFit
from analysis.estimation.objectives import Absolute, Huber, Loss, Squared, StudentT
from analysis.estimation.optimizer import Array, Minimum
from analysis.laws.base import Candidates
from analysis.laws.registry import FORMS
from analysis.laws.sum_of_powers import SURFACE
from analysis.values.blocks import Basin, Optimizer
from tests.analysis import studies

LOSSES: tuple[Loss, ...] = (Huber(0.02), Squared(), Absolute(0.005), StudentT())


def made(loss: Loss, plain: bool = False, seed: int = 0, **held: Any) -> tuple[Problem, Array]:
    """Return a problem of 20 noisy rows, and four laws near its best."""
    table = studies.isoflop(seed, noise=0.03)
    p = fit_problem.problem(
        SURFACE, (table["params"].to_numpy(), table["tokens"].to_numpy()), table["loss"].to_numpy(), loss, plain=plain,
        **held,
    )  # fmt: skip
    theta = SURFACE.internal(np.array([studies.LAW]), p.centres)
    return p, theta + 0.1 * np.random.default_rng(1).normal(size=(4, 5))


def objective(p: Problem, theta: Array, y: Array, weights: Array) -> float:
    """Return the objective of one law, written out."""
    natural = SURFACE.natural(theta[None], p.centres)[0]
    n, d = np.exp(p.x + p.centres[:, None])
    value = natural[0] + natural[1] * n ** -natural[3] + natural[2] * d ** -natural[4]
    r = value - np.exp(y) if p.plain else np.log(value) - y
    if isinstance(p.loss, StudentT):
        total = float(p.loss.summed(r[None], weights[None])[0][0])
    elif isinstance(p.loss, Huber):
        inside = np.abs(r) <= p.loss.delta
        total = float((weights * np.where(inside, r * r / 2, p.loss.delta * (np.abs(r) - p.loss.delta / 2))).sum())
    elif isinstance(p.loss, Absolute):
        total = float((weights * (np.hypot(r, p.loss.corner) - p.loss.corner)).sum())
    else:
        total = float((weights * r * r).sum() / 2)
    return total + 0.5 * p.tie * float((weights * r * r).sum())


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.text)
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("tie", [0.0, 3.0])
def test_objective_gradient_and_hessian(loss: Loss, plain: bool, tie: float) -> None:
    p, theta = made(loss, plain)
    p = replace(p, tie=tie)
    generator = np.random.default_rng(2)
    weights = generator.integers(0, 4, size=(4, 20)).astype(float)
    other = p.y + 0.05 * generator.normal(size=(4, 20))
    for w, y in ((None, None), (weights, None), (None, other), (weights, other)):
        value, gradient = fit_problem.evaluate(p, theta, w, y)
        bends = fit_problem.hessian(p, theta, w, y)
        for row in range(4):
            target = p.y if y is None else y[row]
            own = np.ones(20) if w is None else w[row]
            assert float(value[row]) == pytest.approx(objective(p, theta[row], target, own), rel=1e-9)
            step = 1e-6 * np.eye(5)
            slopes = [
                (objective(p, theta[row] + s, target, own) - objective(p, theta[row] - s, target, own)) / 2e-6
                for s in step
            ]
            np.testing.assert_allclose(gradient[row], slopes, rtol=2e-5, atol=2e-6 * np.abs(slopes).max())

        def gradients(at: Array, w: Array | None = w, y: Array | None = y) -> Array:
            return fit_problem.evaluate(p, at, w, y)[1]

        second = np.stack([(gradients(theta + s) - gradients(theta - s)) / 2e-7 for s in 1e-7 * np.eye(5)], axis=2)
        np.testing.assert_allclose(bends, second, rtol=2e-3, atol=1e-5 * np.abs(second).max())


@pytest.mark.parametrize("name", FORMS)
def test_every_law_bends_as_its_gradient_differs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly, where the law knows its second derivatives; differences are the same in any number of parts."""
    form, generator = FORMS[name], np.random.default_rng(4)
    columns = generator.uniform(2.0, 30.0, size=(len(form.inputs), 12))
    p = fit_problem.problem(form, list(columns), generator.uniform(1.0, 3.0, size=12), Squared())
    theta = form.candidates(p.x, p.y).theta[:1] + 0.05 * generator.normal(size=(3, len(form.names)))
    psi = generator.normal(size=(3, 12))
    found = fit_problem._bend(p, theta, psi)
    expected = np.empty_like(found)
    for k, step in enumerate(1e-5 * np.eye(len(form.names))):
        ends = [form.log_value_and_pull(theta + side * step, p.x)[1](psi) for side in (1.0, -1.0)]
        expected[:, :, k] = (ends[0] - ends[1]) / 2e-5
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max() + 1e-9)
    monkeypatch.setattr(fit_problem, "CACHED", 1)
    np.testing.assert_allclose(fit_problem._bend(p, theta, psi), found, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("loss", [Squared(), StudentT()], ids=lambda loss: loss.text)
def test_constraints_reach_gradient_hessian_and_curvature(loss: Loss) -> None:
    p, theta = made(loss, fix={"E": 1.8}, tie={"beta": "alpha"})
    z = p.constraint.reduce(theta)
    assert z.shape == (4, 3)
    np.testing.assert_array_equal(p.expanded(z), p.constraint.expand(z))
    free = replace(p, constraint=FREE)
    matrix = p.constraint.matrix
    assert matrix is not None
    whole = fit_problem.evaluate(free, p.expanded(z))
    held = fit_problem.evaluate(p, z)
    np.testing.assert_allclose(held[0], whole[0])
    np.testing.assert_allclose(held[1], whole[1] @ matrix)
    np.testing.assert_allclose(
        fit_problem.hessian(p, z),
        np.einsum("ka,rkl,lb->rab", matrix, fit_problem.hessian(free, p.expanded(z)), matrix),
        rtol=1e-5, atol=1e-5,
    )  # fmt: skip
    other = constraint(SURFACE, p.centres, {"E": 1.7, "A": 50.0})
    np.testing.assert_allclose(
        fit_problem.evaluate(p, other.reduce(theta), held=other)[0],
        fit_problem.evaluate(free, other.expand(other.reduce(theta)))[0],
    )
    found = np.linalg.inv(fit_problem.curvature(p, other.reduce(theta), held=other))
    assert other.matrix is not None
    expected = gauss_newton(free, other.expand(other.reduce(theta)), None, None)
    np.testing.assert_allclose(found, np.einsum("ka,rkl,lb->rab", other.matrix, expected, other.matrix), rtol=1e-2,
                               atol=1e-5 * np.abs(expected).max())  # fmt: skip


def gauss_newton(p: Problem, theta: Array, w: Array | None, y: Array | None) -> Array:
    """Return sum_i k_i s_i s_i' with k_i = |psi_i / (ln f_i - ln y_i)|, of at least a thousandth of the largest."""
    slopes, log_value = p.form.jacobian(theta, p.x), p.form.log_value(theta, p.x)
    target = p.y if y is None else y
    value = np.exp(log_value)
    residual = value - np.exp(target) if p.plain else log_value - target
    _, psi = p.loss.summed(residual, w)
    psi = psi + p.tie * residual * (1.0 if w is None else w)
    pull = np.abs((psi * value if p.plain else psi) / (log_value - target))
    pull = np.maximum(pull, 1e-3 * pull.max(axis=1, keepdims=True))
    return np.asarray(
        [sum(k * np.outer(s, s) for k, s in zip(*row, strict=True)) for row in zip(pull, slopes, strict=True)]
    )


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.text)
@pytest.mark.parametrize("plain", [False, True])
def test_the_first_metric_is_the_gauss_newton_inverse(loss: Loss, plain: bool) -> None:
    p, theta = made(loss, plain)
    generator = np.random.default_rng(2)
    weights = generator.integers(0, 4, size=(4, 20)).astype(float)
    for w, y in ((None, None), (weights, None), (weights, p.y + 0.05 * generator.normal(size=(4, 20)))):
        expected = gauss_newton(p, theta, w, y)
        size = np.sqrt(np.einsum("rpp->rp", expected))
        size = np.maximum(size, 1e-4 * size.max(axis=1, keepdims=True))
        scale = size[:, :, None] * size[:, None, :]
        found = fit_problem.curvature(p, theta, w, y)
        np.testing.assert_allclose(found * scale, np.linalg.inv(expected / scale + 1e-6 * np.eye(5)), rtol=1e-6)


class Line:
    """ln target = theta_0 + theta_1 x, or what a test says instead."""

    names, inputs, logs, target, name = ("c", "p"), ("x",), (True, False), "loss", "line"

    def __init__(self, **instead: Any) -> None:
        for key, value in instead.items():
            setattr(self, key, value)
        self.asked: list[Array] = []

    def log_value(self, theta: Array, x: Array) -> Array:
        return np.asarray(theta[:, :1] + theta[:, 1:] * x[0])

    def jacobian(self, theta: Array, x: Array) -> Array:
        return np.tile(np.stack((np.ones_like(x[0]), x[0]), axis=1), (len(theta), 1, 1))

    def log_value_and_pull(self, theta: Array, x: Array) -> tuple[Array, Any]:
        rows = np.stack((np.ones_like(x[0]), x[0]))
        return self.log_value(theta, x), lambda w: w @ rows.T

    def candidates(self, x: Array, y: Array) -> Candidates:
        self.asked.append(x[0])
        return self.found  # type: ignore[attr-defined, no-any-return]

    def natural(self, theta: Array, centres: Array) -> Array:
        return theta


def line(x: Array, y: Array, loss: Loss | None = None, form: Any = None) -> Problem:
    own: Any = form or Line()
    return Problem(own, x[None], np.zeros(1), y, loss or Squared())


def test_the_metric_of_rows_that_are_met_exactly_and_of_constants_that_do_nothing() -> None:
    x = np.array([-1.0, 0.0, 1.0, 2.0])
    p = line(x, 0.5 * x)
    theta = np.array([[0.0, 0.5], [0.1, 0.5]])
    for w in (None, np.ones((2, 4))):
        found = fit_problem.curvature(p, theta, w)
        # Met exactly there is no pull, so no curvature: the smallest size of 1e-15 stands for both constants.
        np.testing.assert_allclose(found[0], np.diag([1e36, 1e36]), rtol=1e-6)
        expected = np.array([[4.0, 2.0], [2.0, 6.0]])
        size = np.sqrt(np.diag(expected))
        scaled = expected / np.outer(size, size) + 1e-6 * np.eye(2)
        np.testing.assert_allclose(found[1], np.linalg.inv(scaled) / np.outer(size, size), rtol=1e-9)
    # A constant of little effect is scaled by a ten-thousandth of the largest: 2e-4 instead of 2e-7.
    same = fit_problem.curvature(line(np.full(4, 1e-7), np.zeros(4)), np.array([[0.1, 0.0]]))
    scaled = np.array([[1.0, 1e-3], [1e-3, 1e-6]]) + 1e-6 * np.eye(2)
    np.testing.assert_allclose(same[0], np.linalg.inv(scaled) / np.outer([2, 2e-4], [2, 2e-4]), rtol=1e-6)


def test_huber_tails_count_a_thousandth_at_least() -> None:
    """Pulls over residuals are 1 within delta and delta/|r| outside: 1e-4 at |r| = 10 is taken as 1e-3."""
    x = np.array([0.0, 1.0])
    p = line(x, np.array([0.0005, -10.0]), Huber(1e-3))
    found = fit_problem.curvature(p, np.zeros((1, 2)))
    expected = np.array([[1.001, 0.001], [0.001, 0.001]])
    size = np.sqrt(np.diag(expected))
    scaled = expected / np.outer(size, size) + 1e-6 * np.eye(2)
    np.testing.assert_allclose(found[0], np.linalg.inv(scaled) / np.outer(size, size), rtol=1e-9)


def test_what_overflows_is_infinite_and_pulls_nowhere() -> None:
    p, theta = made(Squared(), plain=True)
    theta[1, 0] = 800.0
    value, gradient = fit_problem.evaluate(p, theta)
    np.testing.assert_array_equal(np.isinf(value), [False, True, False, False])
    np.testing.assert_array_equal(gradient[1], 0.0)
    assert (np.abs(gradient[[0, 2, 3]]) > 0).all()
    assert np.isfinite(fit_problem.hessian(p, theta)).all()
    assert np.isfinite(fit_problem.curvature(p, theta)).all()

    class Steep(Line):
        def log_value_and_pull(self, theta: Array, x: Array) -> tuple[Array, Any]:
            value, pull = super().log_value_and_pull(theta, x)

            def steep(w: Array) -> Array:
                out: Array = pull(w)
                out[1, 0] = np.nan
                return out

            return value, steep

    x = np.array([0.0, 1.0, 2.0])
    value, gradient = fit_problem.evaluate(line(x, x, form=Steep()), np.array([[0.0, 0.5], [0.0, 0.5]]))
    np.testing.assert_array_equal(np.isinf(value), [False, True])
    np.testing.assert_array_equal(gradient[1], 0.0)
    assert gradient[0].all()

    class Sharp(Line):
        def jacobian(self, theta: Array, x: Array) -> Array:
            out = super().jacobian(theta, x)
            out[0, 0] = [np.inf, 1.0]
            out[0, 1] = [-np.inf, 1.0]
            out[0, 2] = [np.nan, 1.0]
            return out

    sharp = fit_problem.curvature(line(x, np.ones(3), form=Sharp()), np.zeros((1, 2)))
    assert sharp[0, 1, 1] == pytest.approx(1 / (3 + 3e-6), rel=1e-9)
    assert sharp[0, 0, 1] == 0.0
    bends = fit_problem.hessian(line(x, np.ones(3), form=Sharp()), np.zeros((1, 2)))
    np.testing.assert_allclose(bends, [[[0.0, 0.0], [0.0, 3.0]]], atol=1e-9)


def test_a_problem_is_in_logs_about_their_means() -> None:
    params, tokens, loss = np.array([1e6, 1e8]), np.array([1e9, 1e9]), np.array([3.0, 2.0])
    p = fit_problem.problem(SURFACE, (params, tokens), loss, Squared())
    np.testing.assert_allclose(p.centres, [np.log(1e7), np.log(1e9)])
    np.testing.assert_allclose(p.x, [[-np.log(10), np.log(10)], [0, 0]], atol=1e-12)
    np.testing.assert_allclose(p.y, np.log(loss))
    assert (p.plain, p.tie, p.constraint) == (False, 0.0, FREE)
    np.testing.assert_allclose(fit_problem.residuals(p, np.array([[0.0, -900.0, -900.0, 0.3, 0.3]])), [np.log(loss)])
    twice = np.array([[np.log(2.0), -900.0, -900.0, 0.3, 0.3]])
    np.testing.assert_allclose(fit_problem.residuals(p, twice), [np.log(loss / 2)], atol=1e-15)
    plain = replace(p, plain=True)
    np.testing.assert_allclose(fit_problem.residuals(plain, np.array([[0.0, -900.0, -900.0, 0.3, 0.3]])), [loss - 1.0])
    other = fit_problem.residuals(plain, np.array([[0.0, -900.0, -900.0, 0.3, 0.3]]), np.log([[5.0, 6.0]]))
    np.testing.assert_allclose(other, [[4.0, 5.0]])


def test_least_squares_decide_by_a_thousandth_of_the_largest_pull() -> None:
    y = np.log(np.array([2.0, 4.0, 10.0]))
    x = np.arange(3.0)
    assert fit_problem.decided(line(x, y, Huber(0.02))).tie == pytest.approx(1e-3 * 0.02 / np.log(5.0))
    assert fit_problem.decided(replace(line(x, y, Huber(0.02)), plain=True)).tie == pytest.approx(1e-3 * 0.02 / 8.0)
    assert fit_problem.decided(line(x, np.zeros(3), Absolute())).tie == pytest.approx(1e-3 / 1e-12)
    for loss in (Squared(), StudentT()):
        p = line(x, y, loss)
        assert fit_problem.decided(p) is p


def test_starts_are_chosen_by_some_of_very_many_rows() -> None:
    for count, seen in ((5000, 5000), (5001, 5000)):
        form = Line(found=Candidates(np.array([[0.0, 1.0]]), np.zeros(1)))
        x = np.arange(float(count))
        found = multistart.starts_of(line(x, x, form=form))
        np.testing.assert_array_equal(found, [[0.0, 1.0]])
        assert len(np.unique(form.asked[0])) == seen
        assert (np.diff(form.asked[0]) > 0).all()


def test_starts_differ_by_a_fifth_somewhere() -> None:
    apart = np.array([[0.0, 0.0], [0.2, 0.0], [0.0, 0.25], [5.0, 0.1], [5.0, 5.0], [5.1, 4.9]])
    scores = np.array([1.0, 2.0, 3.0, 0.0, 9.0, 8.0])
    assert multistart._spread(apart, scores, 10) == [3, 0, 2, 5]
    assert multistart._spread(apart, scores, 2) == [3, 0]
    assert multistart._spread(np.array([[0.0], [2.0], [4.0]]), np.zeros(3), 3) == [0, 1, 2]


def test_starts_have_the_scores_of_the_form_or_of_the_objective() -> None:
    x = np.array([-1.0, 0.0, 1.0])
    theta = np.array([[3.0, 0.5], [0.1, 0.5], [1.0, 0.5], [2.0, 0.5]])
    given = Line(found=Candidates(theta, np.array([0.0, 3.0, 2.0, 1.0])))
    np.testing.assert_array_equal(multistart.starts_of(line(x, 0.5 * x, form=given), 3)[:, 0], [3.0, 2.0, 1.0])
    own = Line(found=Candidates(theta))
    np.testing.assert_array_equal(multistart.starts_of(line(x, 0.5 * x, form=own), 3)[:, 0], [0.1, 1.0, 2.0])
    apart = Line(found=Candidates(theta, np.arange(4.0), np.array([[0.0], [0.1], [0.2], [0.3]])))
    np.testing.assert_array_equal(multistart.starts_of(line(x, 0.5 * x, form=apart), 3)[:, 0], [3.0, 2.0])


def test_starts_of_a_held_problem_hold_it_and_are_scored_anew() -> None:
    p, _ = made(Squared(), fix={"E": 1.8, "alpha": 0.4})
    starts = multistart.starts_of(p)
    natural = SURFACE.natural(starts, p.centres)
    np.testing.assert_allclose(natural[:, [0, 3]], [[1.8, 0.4]] * len(starts))
    assert len(starts) == 8
    values = fit_problem.evaluate(p, p.constraint.reduce(starts))[0]
    assert (np.diff(values) >= 0).all()
    every = p.expanded(p.constraint.reduce(p.form.candidates(p.x, p.y).theta))
    lowest = fit_problem.evaluate(p, p.constraint.reduce(every))[0].min()
    assert values[0] == pytest.approx(lowest)


def test_more_starts_than_are_solved_at_once_are_all_scored() -> None:
    """405 candidates without scores of their own: 250 and 155."""
    table = studies.isoflop(0, noise=0.01)
    form = FORMS["kaplan_floor"]
    p = fit_problem.problem(form, (table["params"].to_numpy(), table["tokens"].to_numpy()), table["loss"].to_numpy(),
                       Squared())  # fmt: skip
    theta = form.candidates(p.x, p.y).theta
    scores = fit_problem.evaluate(p, theta)[0]
    np.testing.assert_array_equal(multistart.starts_of(p), theta[multistart._spread(theta, scores, 8)])


def test_solutions_of_rows_with_weights_targets_and_constraints_of_their_own() -> None:
    """Least squares lines, beside numpy's."""
    x = np.linspace(-1, 2, 9)
    generator = np.random.default_rng(0)
    y = generator.normal(size=(5, 9))
    w = generator.integers(1, 5, size=(5, 9)).astype(float)
    p = line(x, y[0])
    rows = np.stack((np.ones(9), x), axis=1)
    start = generator.normal(size=(5, 2))
    for weights, target in ((None, None), (w, None), (None, y), (w, y)):
        found = multistart.solve(p, start, weights=weights, y=target)
        for row in range(5):
            root = np.sqrt(np.ones(9) if weights is None else weights[row])
            own = y[0] if target is None else target[row]
            expected = np.linalg.lstsq(rows * root[:, None], own * root, rcond=None)[0]
            np.testing.assert_allclose(found.theta[row], expected, rtol=1e-7)
            assert found.value[row] == pytest.approx(0.5 * ((root * (rows @ expected - own)) ** 2).sum(), rel=1e-9)
    linked: Any = Linked()
    held = [constraint(linked, np.zeros(1), {"p": float(k)}) for k in range(5)]
    matrices = [h.matrix for h in held if h.matrix is not None]
    offsets = [h.offset for h in held if h.offset is not None]
    each = replace(held[0], matrix=np.stack(matrices), offset=np.stack(offsets))
    found = multistart.solve(p, start, held=each, y=y)
    np.testing.assert_allclose(found.theta[:, 1], np.arange(5.0))
    np.testing.assert_allclose(found.theta[:, 0], (y - np.arange(5.0)[:, None] * x).mean(axis=1), rtol=1e-6)


class Linked(Line):
    def link(self, _: Array) -> tuple[Array, Array]:
        return np.eye(2), np.zeros(2)


def test_searches_end_at_a_billionth_of_the_pull_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Array, Array]] = []
    kept = optimizer.minimise

    def watched(restrict: Any, start: Array, metric: Array, tolerance: Array) -> Minimum:
        asked.append((tolerance, metric))
        return kept(restrict, start, metric, tolerance)

    monkeypatch.setattr(multistart, "minimise", watched)
    x = np.linspace(-1, 2, 9)
    p = line(x, x, Huber(0.02))
    multistart.solve(p, np.zeros((2, 2)))
    np.testing.assert_allclose(asked[-1][0], 1e-9 * 0.02 * 9)
    weights = np.array([[1.0] * 9, [2.0] * 9])
    own = np.stack([np.eye(2), 3 * np.eye(2)])
    multistart.solve(p, np.zeros((2, 2)), weights=weights, tolerance=1e-6, metric=own)
    np.testing.assert_allclose(asked[-1][0], [1e-6 * 0.02 * 9, 1e-6 * 0.02 * 18])
    assert asked[-1][1] is own
    np.testing.assert_allclose(asked[0][1], fit_problem.curvature(p, np.zeros((2, 2))))


def minimum(value: Any, theta: Any = None, gradient: Any = None) -> Minimum:
    value = np.array(value, dtype=float)
    count = len(value)
    theta = np.arange(2.0 * count).reshape(count, 2) if theta is None else np.array(theta, dtype=float)
    gradient = np.zeros(count) if gradient is None else np.array(gradient, dtype=float)
    return Minimum(
        theta, value, gradient, np.tile(np.eye(2), (count, 1, 1)) * np.arange(1, count + 1)[:, None, None], 3
    )


@pytest.mark.parametrize(
    ("value", "theta", "number"),
    [
        ([3.0, 1.0, 2.0], None, 1),
        ([np.nan, np.inf, 2.0], None, 2),
        ([2.0, 2.0 + 1.9e-9, 2.0 + 2.1e-9], [[3, 4], [0, 4], [0, 1]], 1),  # equal to a billionth: the smaller norm
        ([-2.0, -2.0 + 1.9e-9, -2.0 + 2.1e-9], [[3, 4], [0, 4], [0, 1]], 1),
        ([0.0, 1e-300, 1e-299], [[3, 4], [0, 4], [0, 1]], 1),
        ([2.0, 2.0], [[0, 4.000003], [0, 4.0]], 0),  # equal norms, to six digits: the first
        ([2.0, 2.0], [[0, 4.000005], [0, 4.0]], 1),
        ([2.0, 2.0, 2.0], [[0, 7.0], [0, 4.0], [0, 4.0]], 1),
        ([0.0, 0.5], [[3, 4], [0, 1]], 0),
        ([2.0, 2.0], [[0, 0], [0, 0]], 0),
    ],
)
def test_of_equal_minima_the_smallest_constants_are_taken(value: Any, theta: Any, number: int) -> None:
    assert settled.chosen(minimum(value, theta)) == number


def test_values_within_a_millionth_are_the_same_minimum() -> None:
    assert settled.same(np.array([1.0, 1.0 + 0.9e-6, 1.0 + 1.1e-6]), np.array(1.0)).tolist() == [True, True, False]
    assert settled.same(np.array([-1.0, -1.0 + 0.9e-6, -1.0 + 1.1e-6]), np.array(-1.0)).tolist() == [
        True,
        True,
        False,
    ]
    assert settled.same(np.array([0.0, 1e-15, 1.1e-15]), np.array(0.0)).tolist() == [True, True, False]
    assert settled.same(np.array([100.0 + 0.9e-4, 100.0 + 1.1e-4]), np.array(100.0)).tolist() == [True, False]


def test_basins_are_the_distinct_minima_the_best_first() -> None:
    values = np.array([5.0, 2.0, np.inf, 2.0 + 1e-6, 5.0 + 4e-6, np.nan, 7.0, 2.0 + 1.9e-6])
    constants = np.arange(16.0).reshape(8, 2)
    assert multistart._basins(minimum(values), constants, ("c", "p"), 8, 1.0) == (
        Basin(2.0, 3 / 8, {"c": 2.0, "p": 3.0}),
        Basin(5.0, 2 / 8, {"c": 0.0, "p": 1.0}),
        Basin(7.0, 1 / 8, {"c": 12.0, "p": 13.0}),
    )
    assert multistart._basins(minimum([np.inf]), constants[:1], ("c", "p"), 1, 1.0) == ()


def test_basins_say_what_starts_came_to_and_leave_out_searches_that_stopped_on_a_slope() -> None:
    values, gradient = [2.0, 5.0, 3.0, 1.0, 5.0, 6.0, 6.0], [0.0, 1.0, 1.1, 9.0, 0.0, 2.0, 1.0]
    found = multistart._basins(minimum(values, gradient=gradient), np.zeros((7, 1)), ("c",), 3, 1.0)
    assert [(basin.objective, basin.share) for basin in found] == [(1.0, 0.0), (2.0, 1 / 3), (5.0, 1 / 3), (6.0, 0.0)]


def test_laws_looked_for_besides_are_no_starts() -> None:
    """Of a ladder's 32 searches 16 hold a power of one run: half of all, and a finding was up to one search more."""
    frame = studies.ladder(7, 34, 0.01, 0.02)
    columns = [frame[name].to_numpy() for name in ("params", "tokens")]
    found = multistart.fit_point(fit_problem.problem(SURFACE, columns, frame["loss"].to_numpy(), Huber()))
    assert found.minima is not None
    assert len(found.minima.value) > found.evidence.starts == 8
    assert found.evidence.agree_share > 0.5
    assert sum(basin.share for basin in found.evidence.basins) <= 1.0


def polishing(monkeypatch: pytest.MonkeyPatch, answers: list[Minimum], **given: Any) -> tuple[Minimum, list[Array]]:
    asked: list[Array] = []

    def solve(p: Problem, starts: Array, metric: Array, weights: Array | None, y: Array | None) -> Minimum:
        asked.append(starts)
        assert weights is None
        assert y is None
        np.testing.assert_array_equal(metric, fit_problem.curvature(p, starts))
        return answers[len(asked) - 1]

    monkeypatch.setattr(multistart, "solve", solve)
    x = np.array([-1.0, 0.0, 1.0, 2.0])
    limit = 1e-7 * 0.02 * 4
    found = minimum([4.0, 3.0, 2.0], gradient=[limit, 1.1 * limit, 5.0])
    return multistart.polished(line(x, x, Huber(0.02)), found, **given), asked


def test_rows_with_a_gradient_are_searched_again_from_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    better = minimum([3.0, 1.5], theta=[[9, 9], [8, 8]], gradient=[0.0, 0.3])
    worse = minimum([1.6], theta=[[7, 7]], gradient=[0.0])
    found, asked = polishing(monkeypatch, [better, worse])
    np.testing.assert_array_equal(asked[0], [[2.0, 3.0], [4.0, 5.0]])
    np.testing.assert_array_equal(asked[1], [[8.0, 8.0]])
    assert len(asked) == 2
    np.testing.assert_array_equal(found.theta, [[0, 1], [9, 9], [8, 8]])
    np.testing.assert_array_equal(found.value, [4.0, 3.0, 1.5])
    np.testing.assert_array_equal(found.gradient, [1e-7 * 0.02 * 4, 0.0, 0.3])
    np.testing.assert_array_equal(found.metric[1:], [np.eye(2), 2 * np.eye(2)])


def test_rows_are_searched_three_times_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [minimum([1.0 - k / 8, 1.0], gradient=[0.0, 9.0]) for k in range(1)]
    answers += [minimum([0.5 - k / 8], gradient=[9.0]) for k in range(5)]
    assert len(polishing(monkeypatch, answers)[1]) == 3
    answers[0] = minimum([1.0, 1.0], gradient=[0.0, 0.0])
    assert len(polishing(monkeypatch, answers)[1]) == 1
    assert len(polishing(monkeypatch, answers, again=0)[1]) == 0


def pointfit(values: Any, objective: float = 2.0, basins: int = 2) -> PointFit:
    found = minimum(values)
    evidence = Optimizer("", len(found.value), 1.0, 0.0, True, tuple(Basin(0.0, 0.1, {}) for _ in range(basins)))
    return PointFit(np.array([9.0, 9.0]), np.zeros(2), objective, np.eye(2) * 7, evidence, found)


def test_rivals_are_minima_within_two_per_cent() -> None:
    found = multistart._rivals(pointfit([2.0, 2.0 + 1e-6, 2.04, 2.03, 2.0300005, 2.0401, np.nan, np.inf]), 1.0)
    np.testing.assert_array_equal([theta for theta, _ in found], [[9, 9], [6, 7], [4, 5]])
    np.testing.assert_array_equal([metric[0, 0] for _, metric in found], [7.0, 4.0, 3.0])
    below = multistart._rivals(pointfit([-2.0, -1.97, -1.95], -2.0), 1.0)
    np.testing.assert_array_equal([theta for theta, _ in below], [[9, 9], [2, 3]])
    assert len(multistart._rivals(pointfit([2.0, 2.01, 2.02, 2.03, 2.035]), 1.0)) == 4
    assert len(multistart._rivals(pointfit([2.0, 2.01], basins=1), 1.0)) == 1
    assert len(multistart._rivals(replace(pointfit([2.0, 2.01]), minima=None), 1.0)) == 1
    assert len(multistart._rivals(pointfit([1000.0, 1015.0], 1000.0), 1.0)) == 2


def test_where_a_search_stopped_on_a_slope_is_no_rival() -> None:
    slopes = minimum([2.0, 2.01, 2.02, 2.03], gradient=[0.0, 0.5, 0.3, 0.31])
    found = multistart._rivals(replace(pointfit([2.0]), minima=slopes), 0.3)
    np.testing.assert_array_equal([theta for theta, _ in found], [[9, 9], [4, 5]])


def test_each_row_keeps_its_lowest_minimum() -> None:
    one = minimum([3.0, 1.0, 1.0])
    two = minimum([2.0, 2.0, 7.0], theta=[[9, 9], [8, 8], [7, 7]], gradient=[0.5, 0.5, 0.5])
    found = multistart._lowest([one, replace(two, rounds=8)])
    np.testing.assert_array_equal(found.theta, [[9, 9], [2, 3], [4, 5]])
    np.testing.assert_array_equal(found.value, [2.0, 1.0, 1.0])
    np.testing.assert_array_equal(found.gradient, [0.5, 0.0, 0.0])
    np.testing.assert_array_equal(found.metric[:, 0, 0], [1.0, 2.0, 3.0])
    assert found.rounds == 8
    assert multistart._lowest([one]) is one


def test_a_fit_says_how_it_was_found() -> None:
    p, _ = made(Squared())
    found = multistart.fit_point(p)
    assert found.evidence.starts == 8
    assert multistart.fit_point(p, 3).evidence.starts == 3
    assert found.minima is not None
    best = int(np.argmin(found.minima.value))
    assert found.evidence.gradient_norm < 1e-9
    assert found.evidence.converged
    assert found.objective == pytest.approx(float(found.minima.value[best]))
    np.testing.assert_allclose(found.constants, SURFACE.natural(found.theta[None], p.centres)[0])
    assert found.evidence.agree_share == pytest.approx(found.evidence.basins[0].share)
    np.testing.assert_allclose(np.linalg.norm(fit_problem.evaluate(p, found.theta[None])[1]), 0.0, atol=1e-9)


def shared(monkeypatch: pytest.MonkeyPatch, value: Any, gradient: Any, loss: Loss | None = None) -> PointFit:
    """Return the fit whose searches ended at these values and gradients."""
    monkeypatch.setattr(multistart, "starts_of", lambda p, count: np.zeros((len(value), 2)))
    monkeypatch.setattr(multistart, "solve", lambda p, starts: minimum(value, gradient=gradient))
    monkeypatch.setattr(multistart, "polished", lambda p, found: found)
    monkeypatch.setattr(multistart, "refined", lambda p, found: found)
    monkeypatch.setattr(settled, "settled", lambda p, found, starts, search: found)
    monkeypatch.setattr(multistart, "lone", lambda p, found: found)
    x = np.array([-1.0, 0.0, 1.0, 2.0])
    return multistart.fit_point(line(x, x, loss or Huber(0.02)))


def test_converged_means_a_small_gradient_for_the_rows_and_their_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    for size, converged in ((0.9e-6, True), (1.1e-6, False)):
        found = shared(monkeypatch, [2.0, 1.0, 1.0 + 5e-7, 3.0], [9.0, size * 0.02 * 4, 9.0, 9.0])
        assert found.evidence.gradient_norm == pytest.approx(size)
        assert found.evidence.converged == converged
        assert found.evidence.agree_share == 0.5
        assert (found.objective, found.metric[0, 0]) == (1.0, 2.0)
    # Of exact fits, values below the rounding of the rows agree.
    exact = shared(monkeypatch, [1e-20, 3.9e-15, 4.1e-15, 1.0], [0.0] * 4)
    assert exact.evidence.agree_share == 0.5


def test_many_rows_are_solved_in_parts_by_threads_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.linspace(-1, 2, 9)
    generator = np.random.default_rng(0)
    y = generator.normal(size=(7, 9))
    p = line(x, y[0])
    point = replace(pointfit([2.0], basins=1), theta=np.zeros(2), metric=np.eye(2) * 0.1)
    rows = np.stack((np.ones(9), x), axis=1)
    expected = np.linalg.lstsq(rows, y.T, rcond=None)[0].T
    sizes: list[int] = []
    kept = multistart.solve

    def watched(p: Problem, starts: Array, **given: Any) -> Minimum:
        sizes.append(len(starts))
        assert given["tolerance"] == 1e-6
        return kept(p, starts, **given)

    monkeypatch.setattr(multistart, "solve", watched)
    for cells, chunk, parts in ((27, 250, [3, 3, 1]), (1000, 2, [2, 2, 2, 1]), (1000, 250, [7]), (5, 250, [1] * 7)):
        monkeypatch.setattr(multistart, "CELLS", cells)
        monkeypatch.setattr(multistart, "CACHED", cells)
        monkeypatch.setattr(multistart, "CHUNK", chunk)
        for workers in (1, 2):
            sizes.clear()
            found = multistart.fit_many(p, point, y=y, workers=workers)
            assert sorted(sizes, reverse=True) == parts
            np.testing.assert_allclose(found.theta, expected, rtol=1e-9)
            np.testing.assert_allclose(found.value, 0.5 * ((expected @ rows.T - y) ** 2).sum(axis=1))
            assert found.metric.shape == (7, 2, 2)
            assert found.gradient.max() < 1e-9
            assert found.rounds > 0
    w = generator.integers(1, 4, size=(7, 9)).astype(float)
    found = multistart.fit_many(p, point, weights=w)
    for row in range(7):
        root = np.sqrt(w[row])
        own = np.linalg.lstsq(rows * root[:, None], y[0] * root, rcond=None)[0]
        np.testing.assert_allclose(found.theta[row], own, rtol=1e-9)
    with pytest.raises(AssertionError, match="needs weights or y"):
        multistart.fit_many(p, point)


def test_threads_are_asked_for_two_workers_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    kept = ThreadPoolExecutor

    def watched(workers: int) -> Any:
        asked.append(workers)
        return kept(workers)

    monkeypatch.setattr(multistart, "ThreadPoolExecutor", watched)
    x = np.linspace(-1, 2, 9)
    p = line(x, x)
    point = replace(pointfit([2.0], basins=1), theta=np.zeros(2), metric=np.eye(2) * 0.1)
    for workers in (0, 1, 2, 3):
        multistart.fit_many(p, point, y=np.zeros((2, 9)), workers=workers)
    multistart.fit_many(p, point, y=np.zeros((2, 9)))
    assert asked == [2, 3]


def test_the_objective_that_is_given_back_is_without_what_decides_among_equals() -> None:
    p, theta = made(Huber(1e-3))
    on = fit_problem.decided(p)
    found = multistart.refined(on, multistart.solve(on, theta))
    alone = multistart.lone(p, found)
    np.testing.assert_allclose(alone.value, fit_problem.evaluate(p, found.theta)[0])
    assert (alone.value < found.value).all()
    point = multistart.fit_point(p)
    assert point.objective == pytest.approx(float(fit_problem.evaluate(p, point.theta[None])[0][0]), rel=1e-12)
    # Newton's steps ended at the zero of the gradient of both together.
    np.testing.assert_allclose(fit_problem.evaluate(on, point.theta[None])[1], 0.0, atol=1e-12)
