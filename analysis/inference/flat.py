"""Flat optima: where many laws fit the runs equally well, the direction in which they lie and how far it goes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analysis.estimation import bounds, exchange, fit_problem, level_ground, multistart, ties
from analysis.estimation.fit_problem import Problem
from analysis.estimation.multistart import PointFit
from analysis.inference.profile_likelihood import along, quantity
from analysis.inputs.dataset import Array
from analysis.text import numbers

EQUAL = 1e-10
"""Objectives that differ by less than this share are equal ..."""
EXACT = 1e-8
"""... and so are all below that of rows that are off by this share each: runs without noise have an objective of 0."""
MOVED = 1e-3
"""An optimum is flat where equal laws differ in one of their terms by more than this share of the target."""
FARTHEST = 20.0
"""How far a constant, or its log, is followed."""
CLOSE = 1e-6
"""Laws are followed while the objective stays this close."""
STOPPED = 1e-4
"""The same for where searches stopped that did not come to a minimum."""
NEAREST = "the one of the constants nearest to zero, as they are searched,"
"""Which of equal laws is given where least squares do not tell them apart."""
NAMED = 0.02
"""Components of the direction that are smaller are left out of the words."""


@dataclass(frozen=True)
class Flat:
    """Equal laws: the unit vector between them by name (of the logs of positive constants), and both ends' constants.

    `moved` is by how much a term differs between the ends, as a share of the target. `exchanged` are the two inputs
    whose terms have each other's constants at the other end: two laws, with none between; else empty. `given` says
    which of the equal laws is the fit's.
    """

    direction: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]
    moved: float
    exchanged: tuple[str, ...] = ()
    given: str = "the one of least squared residuals"

    @property
    def text(self) -> str:
        """The direction and its width: what trades off for what, and from where to where."""
        names = sorted(self.direction, key=lambda name: -abs(self.direction[name]))
        named = [name for name in names if abs(self.direction[name]) >= NAMED]
        axis = ", ".join(f"{name} {self.direction[name]:+.2f}" for name in named)
        plain = [name.removeprefix("ln ") for name in named]
        return f"along ({axis}), from {', '.join(self._range(name) for name in plain)}"

    def _range(self, name: str) -> str:
        """Return a constant and from where to where it goes."""
        low, high = self.low[name], self.high[name]
        end = f"to {numbers.number(high, 4)}" if np.isfinite(high) else "upwards" if high > 0 else "downwards"
        return f"{name} {numbers.number(low, 4)} {end}"


def flat(p: Problem, point: PointFit) -> Flat | None:
    """Return the direction in which the objective is level farthest around the best fit; None where it is not level.

    Followed are the axes of the second derivatives with the least squares that decide among equals, straight to both
    sides; a valley in which even these have no slope is followed along its bends. Where the rows let two terms exchange
    their constants, and this moves the law farther, that is the way. A power of the rows of one input alone may be as
    steep as one likes; and of a search that did not end all that is known is where it was.
    """
    found = [one for one in (_around(p, point), _exchanged(p, point), _endless(p, point)) if one is not None]
    best = max(found, key=lambda one: one.moved, default=None)
    return best if best is not None or point.evidence.converged else _unended(p, point)


def _around(p: Problem, point: PointFit) -> Flat | None:
    """Return the level ground around the best fit, else the way to another minimum; None without either."""
    z = p.constraint.reduce(point.theta[None])[0]
    if not len(z):
        return None
    bend, axes, reach = level_ground.axes(p, z)
    if bend[0] < level_ground.SINGULAR * bend[-1]:
        return _valley(p, point, axes[0], given=NEAREST) or _other(p, point)
    rays = np.concatenate((axes, -axes))
    rays *= (MOVED / np.maximum(np.abs(rays * reach).max(axis=1), 1e-300))[:, None]
    level = _level(p, point)
    near = np.abs(rays).max(axis=1) <= FARTHEST
    near[near] = _value(p, z + rays[near]) <= level
    ends = _ends(p, z, rays, near, level)
    half = len(axes)
    width = np.abs((ends[:half] - ends[half:]) * reach).max(axis=1)
    best = int(np.argmax(width))
    if width[best] <= MOVED:
        return _other(p, point)
    first, last = (p.expanded(e[None])[0] for e in (ends[half + best], ends[best]))
    return _between(p, first, last, float(width[best]))


def _valley(p: Problem, point: PointFit, axis: Array, close: float = CLOSE, given: str = Flat.given) -> Flat | None:
    """Return the ends of a valley without slope: its leading constant is held at values, all else fitted anew."""
    leading = ties.lowest(-np.abs(axis))
    number = leading if p.constraint.matrix is None else p.constraint.free[leading]
    form, log = p.form, p.form.logs[number]
    best = float(quantity(p, point.theta[None], form.names[number])[0])
    steps = np.geomspace(1e-3, 3.0 if log else max(0.5, abs(best)), 12)
    at = np.concatenate((best - steps[::-1], [best], best + steps))
    try:
        theta, value = along(p, point, form.names[number], at, len(steps))
    except ValueError:  # the law does not hold this constant as it is
        return None
    limit = min(point.objective, float(value.min()))
    good = value <= limit + close * abs(limit) + _exact(p)
    first, last = len(steps), len(steps)
    while first > 0 and good[first - 1]:
        first -= 1
    while last < len(at) - 1 and good[last + 1]:
        last += 1
    width = float(np.abs(theta[last] - theta[first])[number] * np.abs(axis[leading]) ** -1)
    return _between(p, theta[first], theta[last], width, given) if width > MOVED else None


def _level(p: Problem, point: PointFit) -> float:
    """Return the objective up to which laws are equal to the best."""
    return point.objective + EQUAL * abs(point.objective) + _exact(p)


def _exact(p: Problem) -> float:
    """Return the objective of rows that are off by EXACT each: of runs without noise no law is better than that."""
    target = np.exp(p.y) if p.plain else np.ones_like(p.y)
    return max(float(p.loss.summed(EXACT * target[None], None)[0][0]), 0.0)


def _value(p: Problem, z: Array) -> Array:
    """Return the objective (R,) at z (R, q), infinite where it is none."""
    size = max(1, multistart.CELLS // p.y.size)
    parts = [fit_problem.evaluate(p, z[i : i + size])[0] for i in range(0, len(z), size)]
    return np.concatenate(parts) if parts else np.empty(0)


def _ends(p: Problem, z: Array, rays: Array, near: NDArray[np.bool_], level: float) -> Array:
    """Return where level ground ends along each ray (R, q): doubled, then halved; z where it is not level."""
    limit = FARTHEST / np.maximum(np.abs(rays).max(axis=1), 1e-300)
    low, high = np.where(near, 1.0, 0.0), np.where(near, np.inf, 0.0)
    for _ in range(40):
        rows = np.flatnonzero(near & (high - low > 1e-3 * low))
        if not len(rows):
            break
        trial = np.where(np.isfinite(high[rows]), 0.5 * (low[rows] + high[rows]), 2.0 * low[rows])
        trial = np.minimum(trial, limit[rows])
        good = _value(p, z + trial[:, None] * rays[rows]) <= level
        low[rows[good]], high[rows[~good]] = trial[good], trial[~good]
        high[rows[good & (trial >= limit[rows])]] = limit[rows[good & (trial >= limit[rows])]]
    return np.asarray(z + low[:, None] * rays)


def _other(p: Problem, point: PointFit) -> Flat | None:
    """Return the way to another minimum of the same objective that predicts otherwise; None where there is none."""
    found = point.minima
    if found is None:
        return None
    best = p.form.log_value(point.theta[None], p.x)[0]
    for theta, value in zip(found.theta, found.value, strict=True):
        if np.isfinite(value) and value <= _level(p, point):
            gap = float(np.abs(p.form.log_value(theta[None], p.x)[0] - best).max())
            if gap > MOVED:
                return _between(p, point.theta, theta, gap)
    return None


def _exchanged(p: Problem, point: PointFit) -> Flat | None:
    """Return the law with the constants of two terms exchanged, where no row tells it from the best; None else."""
    order = exchange.exchange_of(p)
    if order is None:
        return None
    shares = p.form.jacobian(point.theta[None], p.x)[0]  # by the log of a coefficient: its term's share of the target
    moved = float(max(np.abs(shares[:, i] - shares[:, order[i]]).max() for i in np.flatnonzero(p.form.logs)))
    if moved <= MOVED:
        return None
    return replace(_between(p, point.theta, point.theta[order], moved), exchanged=tuple(p.form.inputs))


def _endless(p: Problem, point: PointFit) -> Flat | None:
    """Return that a power which is there at the rows of one input alone may be steeper; None without such a power."""
    for spike in bounds.spikes(p, point.theta):
        slopes = p.form.jacobian(point.theta[None], p.x)[0]
        coefficient = spike.coefficient
        moved = float(slopes[:, coefficient].max())
        if moved <= MOVED or abs(spike.theta[spike.exponent]) > abs(point.theta[spike.exponent]) * (1.0 + 1e-6):
            continue
        side = float(np.sign(point.theta[spike.exponent]))
        name = p.form.names[spike.exponent]
        low = dict(zip(p.form.names, map(float, point.constants), strict=True))
        high = {**low, name: side * float("inf"), p.form.names[coefficient]: float("inf") if side > 0 else 0.0}
        names = [f"ln {n}" if log else n for n, log in zip(p.form.names, p.form.logs, strict=True)]
        return Flat({n: side * (n == name) for n in names}, low, high, moved, given="the least steep one")
    return None


def _unended(p: Problem, point: PointFit) -> Flat | None:
    """Return how far apart the laws are at which searches stopped on a slope, nearly equal; None where they agree."""
    found = point.minima
    if found is None:
        return None
    z = p.constraint.reduce(np.concatenate((point.theta[None], found.theta)))
    _, axes, reach = level_ground.axes(p, z[0])
    good = np.flatnonzero(found.value <= point.objective + STOPPED * abs(point.objective))
    if not len(good) or not len(axes):
        return None
    apart = np.abs((z[1 + good] - z[0]) * reach).max(axis=1)
    last = int(good[ties.lowest(-apart)])
    if apart.max() <= EXACT:
        return _valley(p, point, axes[0], STOPPED)
    return _between(p, point.theta, found.theta[last], float(apart.max()), given="the lowest that was found")


def _between(p: Problem, first: Array, last: Array, moved: float, given: str = Flat.given) -> Flat:
    """Return the direction from one law's constants to another's."""
    form = p.form
    low, high = (form.natural(theta[None], p.centres)[0] for theta in (first, last))
    logs = np.array(form.logs)
    with np.errstate(divide="ignore", invalid="ignore"):  # also where both ends of a coefficient are infinite
        ends = [np.where(logs, np.log(np.maximum(np.abs(v), 1e-300)), v) for v in (low, high)]
        gap = ends[1] - ends[0]
    gap[~np.isfinite(gap)] = 0.0  # a coefficient beyond any number: its exponent tells the direction
    gap /= max(float(np.linalg.norm(gap)), 1e-300)
    if gap[ties.lowest(-np.abs(gap))] < 0:
        gap, low, high = -gap, high, low
    names = [f"ln {name}" if log else name for name, log in zip(form.names, form.logs, strict=True)]
    first_end, last_end = (dict(zip(form.names, map(float, v), strict=True)) for v in (low, high))
    return Flat(dict(zip(names, map(float, gap), strict=True)), first_end, last_end, moved, given=given)
