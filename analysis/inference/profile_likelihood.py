"""Profile likelihood of a constant or of a quantity that follows from constants: all else fitted anew at each value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.estimation import multistart
from analysis.estimation.constraints import Constraint, solved
from analysis.estimation.fit_problem import Problem
from analysis.estimation.multistart import PointFit
from analysis.values.blocks import Identified

Array = NDArray[np.float64]
REACH = 14.0
"""How far, in nats, the log of a positive constant is followed: a factor of a million."""

STEPS = 16


@dataclass(frozen=True)
class Profile:
    """The deviance 2 (llf - llf at the value), at least 0, over `values` of `name`, rising; `cut` is where it rejects.

    `low` and `high` are where it crosses `cut`; where it does not within the search (`closed_low`, `closed_high`
    False) they are the search's limits.
    """

    name: str
    values: Array
    deviance: Array
    cut: float
    low: float
    high: float
    closed_low: bool
    closed_high: bool

    @property
    def identified(self) -> Identified:
        """Whether both sides close; else the one-sided limit that the data support."""
        if self.closed_low and self.closed_high:
            return Identified(True)
        if not self.closed_low and not self.closed_high:
            return Identified(False, f"the law fits as well with any {self.name}")
        if self.closed_high:
            return Identified(
                False, f"the profile of {self.name} is flat down to the search's limit", "upper", self.high
            )
        return Identified(False, f"the profile of {self.name} is flat up to the search's limit", "lower", self.low)


def profile(p: Problem, point: PointFit, name: str, alpha: float = 0.05, spread: float | None = None) -> Profile:
    """Return the profile of a constant, or of a derived quantity that is linear in constants, such as a.

    `spread` is a rough standard error, of the constant's log where it is positive; it only sets the step. Raises
    ValueError where the constant is fixed, or the quantity cannot be held at a value.
    """
    positive = name in p.form.names and p.form.logs[p.form.names.index(name)]
    best = float(_value(p, point.theta[None], name)[0])
    offsets = _offsets(positive, name in p.form.names, best, spread)
    at = np.concatenate((best - offsets[::-1], [best], best + offsets))
    if name not in p.form.names:
        at = np.unique(np.clip(at, 1e-3, 1 - 1e-3))
    middle = int(np.argmin(np.abs(at - best)))
    theta, value = _followed(p, point, _holding(p, name, at), middle)
    path = _refined(p, name, _Path(at, theta, value, best), _level(p, point, alpha))
    level = _level(p, point, alpha, min(point.objective, float(path.value.min())))
    (low, closed_low), (high, closed_high) = (_crossing(path, level, side) for side in (-1, 1))
    most = p.loss.llf_of(point.objective, p.y.size)
    deviance = np.array([_deviance(p, most, v) for v in path.value])
    values = path.at
    if positive:
        values, low, high = np.exp(values), float(np.exp(low)), float(np.exp(high))
    return Profile(name, values, deviance, _cut(p, alpha), low, high, closed_low, closed_high)


@dataclass(frozen=True)
class _Path:
    """Values (R,) at which a quantity is held, the constants (R, p) and objective (R,) there, and the best value."""

    at: Array
    theta: Array
    value: Array
    best: float

    @property
    def middle(self) -> int:
        """The number of the best value."""
        return int(np.argmin(np.abs(self.at - self.best)))

    def edge(self, level: float, side: int) -> int:
        """Return the number of the farthest accepted value on one side: a second basin counts as well."""
        numbers = np.flatnonzero(self.value <= level)
        numbers = numbers[numbers >= self.middle] if side > 0 else numbers[numbers <= self.middle]
        return int(numbers[-1 if side > 0 else 0]) if len(numbers) else self.middle


def _offsets(positive: bool, constant: bool, best: float, spread: float | None) -> Array:
    """Return the steps to each side, geometric from a fraction of the standard error to the end of the search."""
    known = spread is not None and np.isfinite(spread) and spread > 0
    reach = max(REACH, REACH + abs(best)) if positive else 1.0 if not constant else max(3.0, 3.0 * abs(best))
    first = min(0.4 * float(spread or 0.0), 0.05 * reach) if known else 1e-3 * reach
    return np.geomspace(max(first, 1e-6 * reach), reach, STEPS)


def along(p: Problem, point: PointFit, name: str, at: Array, middle: int) -> tuple[Array, Array]:
    """Return theta (R, p) and objective (R,) with a constant (its log where positive) held at values `at` (R,), rising.

    All else is fitted anew; `middle` is the number of the value nearest to the best fit's own.
    """
    return _followed(p, point, _holding(p, name, at), middle)


def _value(p: Problem, theta: Array, name: str) -> Array:
    """Return the constant, as a log where it is positive, or the derived quantity (R,)."""
    form = p.form
    if name in form.names:
        natural = form.natural(theta, p.centres)[:, form.names.index(name)]
        return np.log(np.maximum(natural, 1e-300)) if form.logs[form.names.index(name)] else natural
    return form.derived(form.natural(theta, p.centres))[name]


def _holding(p: Problem, name: str, at: Array) -> Constraint:
    """Return the problem's constraint with the quantity held at each value, one row each."""
    form = p.form
    matrix, offset = form.link(p.centres)
    rows, rights = [], []
    for value in at:
        if name in form.names:
            i = form.names.index(name)
            rows.append(matrix[i])
            rights.append(value - offset[i])
        else:
            found = form.equation(name, float(value))
            if found is None:
                raise ValueError(f"{name} of {form.name} has no profile: it is not linear in the constants")
            terms, right = found
            rows.append(sum((c * matrix[form.names.index(n)] for n, c in terms.items()), np.zeros(len(form.names))))
            rights.append(right - sum(c * offset[form.names.index(n)] for n, c in terms.items()))
    if not np.isfinite(rows).all():
        raise ValueError(f"{name} of {form.name} has no profile: the law does not hold it as it is")
    parts = []
    for row, right in zip(rows, rights, strict=True):
        above = p.constraint
        if above.matrix is None or above.offset is None:
            inner = solved(row[None], np.array([right]), [], name)
            parts.append(inner)
            continue
        inner = solved((row @ above.matrix)[None], np.array([right - row @ above.offset]), [], name)
        assert inner.matrix is not None
        assert inner.offset is not None
        free = tuple(above.free[i] for i in inner.free)
        parts.append(Constraint(above.matrix @ inner.matrix, above.matrix @ inner.offset + above.offset, free))
    # Rows may have been solved for different constants: one that all can be solved for keeps z the same.
    assert len({part.free for part in parts}) == 1, "a profile's rows leave different constants free"
    return Constraint(
        np.stack([part.matrix for part in parts if part.matrix is not None]),
        np.stack([part.offset for part in parts if part.offset is not None]),
        parts[0].free,
    )


def _followed(p: Problem, point: PointFit, held: Constraint, middle: int) -> tuple[Array, Array]:
    """Return theta (R, p) and objective (R,): from the best fit, then again from each value's inner neighbour."""
    assert held.offset is not None
    count = len(held.offset)
    found = multistart.solve(p, np.repeat(point.theta[None], count, axis=0), held=held, tolerance=1e-7)
    theta, value = found.theta, found.value
    inner = np.where(np.arange(count) < middle, np.arange(count) + 1, np.arange(count) - 1).clip(0)
    for _ in range(2):
        again = multistart.solve(p, theta[inner], held=held, tolerance=1e-7)
        better = again.value < value
        theta[better], value[better] = again.theta[better], again.value[better]
        if not better.any():
            break
    return theta, value


def _refined(p: Problem, name: str, path: _Path, level: float) -> _Path:
    """Return the path with eight more values between the last accepted and the first rejected one, on each side."""
    more, starts = [], []
    for side in (-1, 1):
        edge = path.edge(level, side)
        if 0 <= edge + side < len(path.at):
            more.append(np.linspace(path.at[edge], path.at[edge + side], 10)[1:-1])
            starts.append(np.repeat(path.theta[edge][None], 8, axis=0))
    if not more:
        return path
    new = np.concatenate(more)
    found = multistart.solve(p, np.concatenate(starts), held=_holding(p, name, new), tolerance=1e-7)
    at = np.concatenate((path.at, new))
    order = np.argsort(at, kind="stable")
    theta, value = np.concatenate((path.theta, found.theta)), np.concatenate((path.value, found.value))
    return _Path(at[order], theta[order], value[order], path.best)


def _crossing(path: _Path, level: float, side: int) -> tuple[float, bool]:
    """Return where the objective crosses the level on one side, and whether it does within the search."""
    edge = path.edge(level, side)
    beyond = edge + side
    if not 0 <= beyond < len(path.at):
        return float(path.at[edge]), False
    share = (level - path.value[edge]) / max(path.value[beyond] - path.value[edge], 1e-300)
    return float(path.at[edge] + np.clip(share, 0.0, 1.0) * (path.at[beyond] - path.at[edge])), True


def _cut(p: Problem, alpha: float) -> float:
    """Return the deviance that rejects: n ln(1 + F/df), the likelihood ratio that belongs to the F test."""
    from scipy.stats import f

    n = p.y.size
    free = len(p.form.names) if p.constraint.matrix is None else p.constraint.matrix.shape[-1]
    df = max(n - free, 1)
    return n * float(np.log1p(f.ppf(1.0 - alpha, 1, df) / df))


def _level(p: Problem, point: PointFit, alpha: float, lowest: float | None = None) -> float:
    """Return the objective at which the deviance reaches the cut, by bisection: it rises with the objective."""
    base = point.objective if lowest is None else lowest
    cut, most = _cut(p, alpha), p.loss.llf_of(base, p.y.size)
    low, high = base, base + max(abs(base), 1e-12)
    for _ in range(60):
        if _deviance(p, most, high) > cut:
            break
        high = base + 2.0 * (high - base)
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _deviance(p, most, middle) < cut else (low, middle)
    return high


def _deviance(p: Problem, most: float, value: float) -> float:
    """Return 2 (`most`, the llf at the best - llf at this objective): the likelihood depends on the objective alone."""
    return max(0.0, 2.0 * (most - p.loss.llf_of(value, p.y.size)))
