"""Profile likelihood of a constant or of a quantity that follows from constants: all else fitted anew at each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.estimation import multistart
from analysis.estimation.constraints import Constraint, joined, solved
from analysis.estimation.fit_problem import Problem
from analysis.estimation.multistart import PointFit
from analysis.inference import distributions
from analysis.inputs.dataset import Array, Index
from analysis.laws.sum_of_powers import SumOfPowers
from analysis.text import numbers
from analysis.values.blocks import Identified

REACH = 14.0
"""How far, in nats, the log of a positive constant is followed: a factor of a million."""

STEPS = 16
MANY, FAR = 5_000, 100.0
"""Of more rows than this nothing is fitted beyond values whose deviance is so many times the one that rejects."""


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        """Return what the profile is of and its ends in one line; `values` and `deviance` hold the curve."""
        low = numbers.number(self.low) if self.closed_low else "no lower end"
        high = numbers.number(self.high) if self.closed_high else "no upper end"
        return f"Profile({self.name}: {low} to {high}; {numbers.counted(len(self.values), 'value')})"

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
    return profiles(p, point, {name: spread}, alpha)[name]


def profiles(p: Problem, point: PointFit, spreads: Mapping[str, float | None], alpha: float) -> dict[str, Profile]:
    """Return the profiles of the names in `spreads`, which are solved for together; see `profile`."""
    if not spreads:
        return {}
    begun = {name: _values(p, point, name, spread) for name, spread in spreads.items()}
    best = {name: float(quantity(p, point.theta[None], name)[0]) for name in begun}
    middles = [int(np.argmin(np.abs(at - best[name]))) for name, at in begun.items()]
    theta, value = _followed(p, point, _held(p, begun), _inner([len(at) for at in begun.values()], middles))
    level = _level(p, point, alpha)
    paths = _refined(p, _split(begun, theta, value, best), level)
    most = p.loss.llf_of(point.objective, p.y.size)
    found = {}
    for name, path in paths.items():
        lowest = float(path.value.min())
        own = level if lowest >= point.objective else _level(p, point, alpha, lowest)
        deviance = np.array([_deviance(p, most, v) for v in path.value])
        (low, closed_low), (high, closed_high) = (_crossing(path, own, side) for side in (-1, 1))
        values = path.at
        if is_positive(p, name):
            with np.errstate(over="ignore"):
                values, low, high = np.exp(values), float(np.exp(low)), float(np.exp(high))
        closed_low, closed_high = closed_low and low < np.inf, closed_high and high < np.inf  # not beyond any number
        found[name] = Profile(name, values, deviance, _cut(p, alpha), low, high, closed_low, closed_high)
    return found


def has_profile(p: Problem, name: str) -> bool:
    """Return whether a constant can be held at a value: no constraint holds it, and the law does as it is."""
    try:
        _holding(p, name, np.zeros(1))
    except ValueError:
        return False
    return True


def is_positive(p: Problem, name: str) -> bool:
    """Return whether a name is of a constant that is positive."""
    return name in p.form.names and p.form.logs[p.form.names.index(name)]


def _values(p: Problem, point: PointFit, name: str, spread: float | None) -> Array:
    """Return the values (R,), rising, at which the quantity, or its log, is held."""
    best = float(quantity(p, point.theta[None], name)[0])
    offsets = _offsets(is_positive(p, name), name in p.form.names, best, spread)
    at = np.concatenate((best - offsets[::-1], [best], best + offsets))
    return at if name in p.form.names else np.unique(np.clip(at, 1e-3, 1 - 1e-3))


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

    def accepts(self, at: float, level: float) -> bool:
        """Return whether a value of the path is accepted."""
        return bool((self.value[self.at == at] <= level).all())

    def with_fits(self, at: Array, theta: Array, value: Array) -> _Path:
        """Return this path with more fits, values in order; of two fits at one value, the better."""
        at, theta = np.concatenate((self.at, at)), np.concatenate((self.theta, theta))
        value = np.concatenate((self.value, value))
        order = np.lexsort((value, at))
        order = order[np.concatenate(([True], np.diff(at[order]) > 0))]
        return _Path(at[order], theta[order], value[order], self.best)


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
    return _followed(p, point, _holding(p, name, at), _inner([len(at)], [middle]))


def quantity(p: Problem, theta: Array, name: str) -> Array:
    """Return the constant, as a log where it is positive, or the derived quantity (R,)."""
    form = p.form
    if name in form.names:
        matrix, offset = form.link(p.centres)
        i = form.names.index(name)
        return np.asarray(theta @ matrix[i] + offset[i])
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


def _held(p: Problem, values: Mapping[str, Array]) -> Constraint:
    """Return the constraint of all rows: each quantity held at its values, one after another."""
    return joined([_holding(p, name, at) for name, at in values.items()])


def _split(at: Mapping[str, Array], theta: Array, value: Array, best: Mapping[str, float]) -> dict[str, _Path]:
    """Return each quantity's path of the rows that were solved for together, as far as they were."""
    ends = np.cumsum([len(values) for values in at.values()])[:-1]
    rows = zip(at.items(), np.split(theta, ends), np.split(value, ends), strict=True)
    return {
        name: _Path(values[there], own[there], found[there], best[name])
        for (name, values), own, found in rows
        for there in [np.isfinite(found)]
    }


def _inner(counts: Sequence[int], middles: Sequence[int]) -> Index:
    """Return the number (R,) of each row's neighbour towards the middle of its path, of paths one after another."""
    begins = np.cumsum([0, *counts[:-1]])
    parts = []
    for begin, count, middle in zip(begins, counts, middles, strict=True):
        number = np.arange(count)
        parts.append(begin + np.where(number < middle, number + 1, number - 1).clip(0))
    return np.concatenate(parts)


def _followed(p: Problem, point: PointFit, held: Constraint, inner: Index) -> tuple[Array, Array]:
    """Return theta (R, p) and objective (R,): from the best fit, then again from each value's inner neighbour."""
    if p.y.size > MANY and not _shares_inputs(p):
        return _outwards(p, point, held, inner)
    found = multistart.solve(p, np.repeat(point.theta[None], len(inner), axis=0), held=held, tolerance=1e-7)
    theta, value = found.theta, found.value
    rows = np.arange(len(inner))
    for _ in range(2):
        again = multistart.solve(p, theta[inner[rows]], held=held.take(rows), tolerance=1e-7)
        better = again.value < value[rows]
        theta[rows[better]], value[rows[better]] = again.theta[better], again.value[better]
        rows = np.flatnonzero(np.isin(inner, rows[better]))  # of the others the neighbour is what it was
        if not len(rows):
            break
    return theta, value


def _shares_inputs(p: Problem) -> bool:
    """Return whether several terms read one input: far out they may take each other's place, and fit as well again."""
    powers = p.form.powers if isinstance(p.form, SumOfPowers) else ()
    read = [column for _, parts in powers for column, _ in parts]
    return len(set(read)) < len(read)


def _outwards(p: Problem, point: PointFit, held: Constraint, inner: Index) -> tuple[Array, Array]:
    """Return theta (R, p) and objective (R,) of very many runs: each from its inner neighbour, step by step.

    Beyond a value that is rejected by far nothing is fitted, and the objective there is infinite: very many runs close
    a profile within a few steps, and fits far from them take longest.
    """
    theta, value = np.repeat(point.theta[None], len(inner), axis=0), np.full(len(inner), np.inf)
    cut, most = _cut(p, 0.05), p.loss.llf_of(point.objective, p.y.size)
    rows = np.flatnonzero(inner[inner] == np.arange(len(inner)))  # a middle and its neighbour are each other's
    left = np.ones(len(inner), dtype=bool)
    while len(rows):
        found = multistart.solve(p, theta[inner[rows]], held=held.take(rows), tolerance=1e-7)
        theta[rows], value[rows], left[rows] = found.theta, found.value, False
        near = np.array([_deviance(p, most, v) <= FAR * cut for v in value])
        rows = np.flatnonzero(left & ~left[inner] & near[inner])
    return theta, value


def _refined(p: Problem, paths: Mapping[str, _Path], level: float) -> dict[str, _Path]:
    """Return the paths with eight more values between the last accepted and the first rejected one, on each side.

    The rejected one is then fitted again from its new neighbour: far out, a fit that starts at a distance may end too
    early. Where that accepts it, the path goes on to the value after it.
    """
    found, sides = dict(paths), [(name, side) for name in paths for side in (-1, 1)]
    while sides:
        edges = {(name, side): found[name].edge(level, side) for name, side in sides}
        between = {
            (name, side): np.linspace(found[name].at[edge], found[name].at[edge + side], 10)[1:]
            for (name, side), edge in edges.items()
            if 0 <= edge + side < len(found[name].at)
        }
        found = _with_fits(p, found, {side: at[:-1] for side, at in between.items()}, level)
        found = _with_fits(p, found, {side: at[-1:] for side, at in between.items()}, level)
        sides = [(name, side) for (name, side), at in between.items() if found[name].accepts(at[-1], level)]
    return found


def _with_fits(
    p: Problem, paths: Mapping[str, _Path], at: Mapping[tuple[str, int], Array], level: float
) -> dict[str, _Path]:
    """Return the paths with fits at values of a quantity, each from the last accepted value on its side."""
    if not at:
        return dict(paths)
    starts = [
        np.repeat(paths[name].theta[[paths[name].edge(level, side)]], len(values), axis=0)
        for (name, side), values in at.items()
    ]
    held = joined([_holding(p, name, values) for (name, _), values in at.items()])
    found = multistart.solve(p, np.concatenate(starts), held=held, tolerance=1e-7)
    made, begin = dict(paths), 0
    for (name, _), values in at.items():
        own = slice(begin, begin + len(values))
        made[name] = made[name].with_fits(values, found.theta[own], found.value[own])
        begin = own.stop
    return made


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
    n = p.y.size
    df = max(n - p.free, 1)
    return n * float(np.log1p(distributions.f_quantile(1.0 - alpha, 1, df) / df))


def _level(p: Problem, point: PointFit, alpha: float, lowest: float | None = None) -> float:
    """Return the objective at which the deviance, which rises with it, reaches the cut."""
    from scipy.optimize import brentq

    base = point.objective if lowest is None else lowest
    cut, most = _cut(p, alpha), p.loss.llf_of(base, p.y.size)
    high = base + max(abs(base), 1e-12)
    for _ in range(60):
        if _deviance(p, most, high) > cut:
            break
        high = base + 2.0 * (high - base)
    else:
        return high
    rest = brentq(lambda value: _deviance(p, most, value) - cut, base, high, xtol=2.0**-60 * (high - base), disp=False)
    return float(rest)


def _deviance(p: Problem, most: float, value: float) -> float:
    """Return 2 (`most`, the llf at the best - llf at this objective): the likelihood depends on the objective alone."""
    return max(0.0, 2.0 * (most - p.loss.llf_of(value, p.y.size)))
