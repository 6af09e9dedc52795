"""Dual numbers: values and slopes of every operation beside those of 40 digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest

from analysis.laws import dual
from analysis.laws.dual import Dual

POINTS = [-2.5, -0.75, -1e-9, 1e-9, 0.4, 1.0, 3.5]
ONE: dict[str, tuple[Callable[[Any], Dual], Callable[[Any], Any], list[float]]] = {
    "exp": (dual.exp, mpmath.exp, POINTS),
    "log": (dual.log, mpmath.log, [1e-299, 1e-9, 0.4, 1.0, 3.5]),
    "log1p": (dual.log1p, lambda x: mpmath.log(1 + x), [-0.9, -1e-9, 1e-12, 0.4, 3.5]),
    "expm1": (dual.expm1, lambda x: mpmath.exp(x) - 1, [*POINTS, 1e-14]),
    "softplus": (dual.softplus, lambda x: mpmath.log(1 + mpmath.exp(x)), [*POINTS, -40.0, 600.0]),
    "minus": (lambda x: -x, lambda x: -x, POINTS),
    "plus a number": (lambda x: x + 1.5, lambda x: x + 1.5, POINTS),
    "a number plus": (lambda x: 1.5 + x, lambda x: x + 1.5, POINTS),
    "less a number": (lambda x: x - 1.5, lambda x: x - 1.5, POINTS),
    "a number less": (lambda x: 1.5 - x, lambda x: 1.5 - x, POINTS),
    "times a number": (lambda x: x * 1.5, lambda x: x * 1.5, POINTS),
    "a number times": (lambda x: 1.5 * x, lambda x: x * 1.5, POINTS),
    "over a number": (lambda x: x / 1.5, lambda x: x / mpmath.mpf(1.5), POINTS),
    "a number over": (lambda x: 1.5 / x, lambda x: 1.5 / x, POINTS),
    "an array less": (lambda x: np.array([[1.5]]) - x, lambda x: 1.5 - x, POINTS),
    "an array over": (lambda x: np.array([[1.5]]) / x, lambda x: 1.5 / x, POINTS),
    "itself twice": (lambda x: x * x / (x + 3.0), lambda x: x * x / (x + 3), POINTS),
}
TWO: dict[str, tuple[Callable[[Any, Any], Dual], Callable[[Any, Any], Any]]] = {
    "plus": (lambda x, y: x + y, lambda x, y: x + y),
    "less": (lambda x, y: x - y, lambda x, y: x - y),
    "times": (lambda x, y: x * y, lambda x, y: x * y),
    "over": (lambda x, y: x / y, lambda x, y: x / y),
    "logaddexp": (dual.logaddexp, lambda x, y: mpmath.log(mpmath.exp(x) + mpmath.exp(y))),
    "minimum": (dual.minimum, lambda x, y: mpmath.mpf(min(x, y))),
}


def at(value: float, number: int = 0) -> Dual:
    return Dual.variable(np.array([[value]]), number)


@pytest.mark.parametrize("name", ONE)
def test_functions_of_one(name: str) -> None:
    ours, exact, points = ONE[name]
    with mpmath.workdps(40):
        for point in points:
            found = ours(at(point))
            assert found.value.shape == (1, 1)
            assert float(found.value[0, 0]) == pytest.approx(float(exact(mpmath.mpf(point))), rel=1e-14, abs=0)
            step = mpmath.mpf(point) * mpmath.mpf(10) ** -13
            slope = float((exact(point + step) - exact(point - step)) / (2 * step))
            assert float(found.slopes[0][0, 0]) == pytest.approx(slope, rel=1e-12, abs=0)


@pytest.mark.parametrize("name", TWO)
def test_functions_of_two(name: str) -> None:
    ours, exact = TWO[name]
    with mpmath.workdps(40):
        for x, y in ((0.3, 1.7), (-2.0, 0.6), (2.5, -1.25), (40.0, 3.0)):
            found = ours(at(x, 3), at(y, 5))
            assert float(found.value[0, 0]) == pytest.approx(float(exact(mpmath.mpf(x), mpmath.mpf(y))), rel=1e-14)
            assert set(found.slopes) == {3, 5}
            for number, place in ((3, (1, 0)), (5, (0, 1))):
                slope = float(mpmath.diff(exact, (mpmath.mpf(x), mpmath.mpf(y)), place))
                assert float(found.slopes[number][0, 0]) == pytest.approx(slope, rel=1e-12, abs=1e-30)


def test_slopes_by_the_same_constant_add_up() -> None:
    x = at(0.5)
    found = dual.exp(x) * x + x * x - x / dual.exp(x)
    assert float(found.slopes[0][0, 0]) == pytest.approx(1.5 * np.exp(0.5) + 1.0 - 0.5 * np.exp(-0.5), rel=1e-14)


def test_the_logarithm_ends_at_its_floor() -> None:
    for value in (0.0, -3.0, 1e-300):
        found = dual.log(at(value))
        assert (float(found.value[0, 0]), float(found.slopes[0][0, 0])) == (np.log(1e-300), 0.0)


def test_the_smaller_of_equals_has_the_first_ones_slope() -> None:
    found = dual.minimum(at(1.0, 0), at(1.0, 1))
    assert [float(found.slopes[i][0, 0]) for i in (0, 1)] == [1.0, 0.0]
    held = dual.minimum(at(2.0, 0), np.array([[1.0]]))
    assert (float(held.value[0, 0]), float(held.slopes[0][0, 0])) == (1.0, 0.0)


@pytest.mark.parametrize("z", [0.0, 1e-12, 3e-6, -8e-5, 9.9e-5, 1.01e-4, -2e-3, 0.5, -0.9, 3.0])
def test_the_power_is_smooth_at_zero(z: float) -> None:
    """(e^(q x) - 1)/q and its slope by q, on both sides of where the series takes over."""
    x = 7.0
    with mpmath.workdps(60), np.errstate(all="raise"):
        found = dual.power(at(z / x), np.array([x]))
        exact = mpmath.mpf(z) / x
        q = mpmath.mpf(z / x)
        exact = (mpmath.exp(q * x) - 1) / q if q else mpmath.mpf(x)
        slope = (x * mpmath.exp(q * x) - exact) / q if q else mpmath.mpf(x) ** 2 / 2
        assert float(found.value[0, 0]) == pytest.approx(float(exact), rel=3e-13)
        assert float(found.slopes[0][0, 0]) == pytest.approx(float(slope), rel=1e-11)
