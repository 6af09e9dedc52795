"""Numbers that carry their exact first derivatives by a law's constants: forward differentiation on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ONE: Array = np.ones((1, 1))


class Dual:
    """A value (R, n) or (R, 1) and its `slopes`: number of a constant -> derivative of a shape that broadcasts."""

    __array_priority__ = 100.0
    __slots__ = ("slopes", "value")

    def __init__(self, value: Array, slopes: dict[int, Array] | None = None) -> None:
        self.value = value
        self.slopes = {} if slopes is None else slopes

    @staticmethod
    def variable(value: Array, number: int) -> Dual:
        """Return constant `number` itself, whose derivative by itself is 1."""
        return Dual(value, {number: ONE})

    def through(self, value: Array, slope: Array) -> Dual:
        """Return f(self) of this `value` and derivative."""
        return Dual(value, {i: slope * s for i, s in self.slopes.items()})

    def __add__(self, other: Dual | Array | float) -> Dual:
        return _joined(self, other, np.add, 1.0, 1.0)

    def __radd__(self, other: Array | float) -> Dual:
        return self + other

    def __sub__(self, other: Dual | Array | float) -> Dual:
        return _joined(self, other, np.subtract, 1.0, -1.0)

    def __rsub__(self, other: Array | float) -> Dual:
        return -self + other

    def __neg__(self) -> Dual:
        return Dual(-self.value, {i: -s for i, s in self.slopes.items()})

    def __mul__(self, other: Dual | Array | float) -> Dual:
        value = other.value if isinstance(other, Dual) else other
        return _joined(self, other, np.multiply, value, self.value)

    def __rmul__(self, other: Array | float) -> Dual:
        return self * other

    def __truediv__(self, other: Dual | Array | float) -> Dual:
        value = other.value if isinstance(other, Dual) else other
        return _joined(self, other, np.divide, 1.0 / value, -self.value / (value * value))

    def __rtruediv__(self, other: Array | float) -> Dual:
        return self.through(other / self.value, -other / (self.value * self.value))


def exp(x: Dual) -> Dual:
    """Return e^x."""
    value = np.exp(x.value)
    return x.through(value, value)


def log(x: Dual) -> Dual:
    """Return ln x; below 1e-300 that of 1e-300, with no slope."""
    safe = np.maximum(x.value, 1e-300)
    return x.through(np.log(safe), np.where(x.value > 1e-300, 1.0 / safe, 0.0))


def log1p(x: Dual) -> Dual:
    """Return ln(1 + x)."""
    return x.through(np.log1p(x.value), 1.0 / (1.0 + x.value))


def expm1(x: Dual) -> Dual:
    """Return e^x - 1, also where x is small."""
    return x.through(np.expm1(x.value), np.exp(x.value))


def logaddexp(x: Dual, y: Dual) -> Dual:
    """Return ln(e^x + e^y)."""
    value = np.logaddexp(x.value, y.value)
    return _joined(x, y, np.logaddexp, np.exp(x.value - value), np.exp(y.value - value))


def softplus(x: Dual) -> Dual:
    """Return ln(1 + e^x)."""
    value = np.logaddexp(0.0, x.value)
    return x.through(value, np.exp(x.value - value))


def power(q: Dual, x: Array) -> Dual:
    """Return (e^(q x) - 1)/q, which is x at q = 0."""
    small = np.abs(q.value * x) < 1e-4
    safe = np.where(small, 1.0, q.value)
    z = q.value * x
    value = np.where(small, x * (1.0 + z / 2.0 + z * z / 6.0), np.expm1(z) / safe)
    slope = np.where(small, x * x * (0.5 + z / 3.0 + z * z / 8.0), (x * np.exp(z) - value) / safe)
    return q.through(value, slope)


def minimum(x: Dual, y: Dual | Array) -> Dual:
    """Return the smaller of two; where they are equal, with the first one's slope."""
    value = y.value if isinstance(y, Dual) else y
    first = np.asarray(x.value <= value, dtype=np.float64)
    return _joined(x, y, np.minimum, first, 1.0 - first)


def _joined(
    x: Dual, y: Dual | Array | float, operation: Callable[..., Array], by_x: Array | float, by_y: Array | float
) -> Dual:
    """Return operation(x, y), whose derivatives by x and y are given."""
    kept = isinstance(by_x, float) and by_x == 1.0
    slopes = dict(x.slopes) if kept else {i: s * by_x for i, s in x.slopes.items()}
    if not isinstance(y, Dual):
        return Dual(operation(x.value, y), slopes)
    for i, s in y.slopes.items():
        slopes[i] = slopes[i] + s * by_y if i in slopes else s * by_y
    return Dual(operation(x.value, y.value), slopes)
