"""BFGS with a weak-Wolfe line search on many independent rows at once, each row at its own pace.

Weak Wolfe (bisect when too high, lengthen when still steep) also converges on the kinks that Huber's loss almost has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]
Rows = Index | slice
Evaluate = Callable[[Array], tuple[Array, Array]]
Restrict = Callable[[Index], Evaluate]
Hessian = Callable[[Index, Array], Array]

ROUNDS = 500
LONGEST = 2.0
TRIALS = 40
RESETS = 2
WHOLE = slice(None)
"""All rows, which are read where they lie; rows by number are copied. Sums are the same where each row is in one piece:
the state's arrays are."""
ROUNDING = 1e-12
"""Two values, each a sum over residuals, may be equal but for rounding where they differ by no more than this share."""


@dataclass(frozen=True)
class Minimum:
    """Where the rows ended: point (R, p), value (R,), largest gradient entry (R,), inverse Hessians (R, p, p)."""

    theta: Array
    value: Array
    gradient: Array
    metric: Array
    rounds: int


@dataclass
class _State:
    """Rows in progress; every array has the rows first."""

    index: Index
    theta: Array
    value: Array
    gradient: Array
    metric: Array
    direction: Array
    slope: Array
    step: Array
    low: Array
    high: Array
    trials: Index
    resets: Index

    def numbers(self, rows: Rows) -> Index:
        """Return the places of rows among those in progress."""
        return np.arange(len(self.index))[rows]

    def keep(self, mask: Mask) -> None:
        """Go on with the rows of `mask` only."""
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name)[mask])


def minimise(restrict: Restrict, start: Array, metric: Array, tolerance: Array, *, rounds: int = ROUNDS) -> Minimum:
    """Minimise row by row from `start` (R, p).

    `restrict(index)` returns the function for these rows; `metric` is a first inverse Hessian (p, p); a row is done
    when no gradient entry exceeds its `tolerance` (R,), or when no step lowers it.
    """
    count, width = start.shape
    index = np.arange(count)
    evaluate = restrict(index)
    value, gradient = evaluate(start)
    zeros = np.zeros(count)
    state = _State(
        index, start.copy(), value, np.ascontiguousarray(gradient),
        np.broadcast_to(metric, (count, width, width)).copy(),
        np.zeros_like(start), zeros.copy(), zeros.copy(), zeros.copy(), zeros.copy(), np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
    )  # fmt: skip
    done = Minimum(np.empty_like(start), np.empty(count), np.empty(count), np.empty((count, width, width)), 0)
    _turn(state, WHOLE)
    used = 0
    while len(state.index):
        finished = _finished(state, tolerance) if used < rounds else np.ones(len(state.index), bool)
        if finished.any():
            _store(done, state, finished)
            state.keep(~finished)
            if not len(state.index):
                break
            tolerance, evaluate = tolerance[~finished], restrict(state.index)
        _advance(state, evaluate)
        used += 1
    return Minimum(done.theta, done.value, done.gradient, done.metric, used)


def resumed(restrict: Restrict, found: Minimum, tolerance: Array, *, rounds: int) -> Minimum:
    """Return the minima after further rounds of the rows whose gradient is above their `tolerance` (R,)."""
    rows = np.flatnonzero(found.gradient > tolerance)
    if not len(rows):
        return found
    more = minimise(
        lambda index: restrict(rows[index]), found.theta[rows], found.metric[rows], tolerance[rows], rounds=rounds
    )
    theta, value, gradient, metric = (a.copy() for a in (found.theta, found.value, found.gradient, found.metric))
    theta[rows], value[rows], gradient[rows], metric[rows] = more.theta, more.value, more.gradient, more.metric
    return Minimum(theta, value, gradient, metric, found.rounds + more.rounds)


def _turn(state: _State, rows: Rows) -> None:
    """Begin a line search in these rows."""
    gradient = state.gradient[rows]
    direction = -np.einsum("rij,rj->ri", state.metric[rows], gradient)
    direction[gradient == 0.0] = 0.0
    # No log-constant moves by more than e^2 in one step: far out the laws are flat and a start would be lost there.
    direction *= (LONGEST / np.abs(direction).max(axis=1, initial=LONGEST))[:, None]
    state.direction[rows] = direction
    state.slope[rows] = np.einsum("ri,ri->r", direction, gradient)
    state.step[rows], state.low[rows], state.high[rows], state.trials[rows] = 1.0, 0.0, np.inf, 0


def _advance(state: _State, evaluate: Evaluate) -> None:
    """Try one step in every row: accept it and turn, or bisect, or lengthen."""
    trial = state.theta + state.step[:, None] * state.direction
    value, gradient = evaluate(trial)
    after = np.einsum("ri,ri->r", gradient, state.direction)
    falls = value <= state.value + 1e-4 * state.step * state.slope
    # Where the value no longer tells, its slope does (Hager and Zhang 2005, SIAM J. Optim. 16, eq. 2.2).
    level = (np.abs(value - state.value) <= ROUNDING * np.abs(state.value)) & (after <= -0.9998 * state.slope)
    too_high = ~(falls | level)
    too_steep = ~too_high & (after < 0.9 * state.slope)
    state.high[too_high] = state.step[too_high]
    state.low[too_steep] = state.step[too_steep]
    state.trials += 1
    accept = ~too_high & ~(too_steep & (state.trials <= 12))
    if accept.all():
        _taken(state, WHOLE, np.ascontiguousarray(trial), value, np.ascontiguousarray(gradient))
        return
    middle = np.where(np.isfinite(state.high), 0.5 * (state.low + state.high), 2.0 * state.step)
    state.step = np.where(accept, state.step, middle)
    rows = accept.nonzero()[0]
    if len(rows):
        _taken(state, rows, trial[rows], value[rows], gradient[rows])


def _taken(state: _State, rows: Rows, theta: Array, value: Array, gradient: Array) -> None:
    """Go to these points in these rows, and turn."""
    _update(state, rows, theta - state.theta[rows], gradient - state.gradient[rows])
    state.theta[rows], state.value[rows], state.gradient[rows] = theta, value, gradient
    _turn(state, rows)


def _update(state: _State, rows: Rows, s: Array, y: Array) -> None:
    """Update the inverse Hessians where the step met positive curvature."""
    curvature = np.einsum("ri,ri->r", s, y)
    with np.errstate(over="ignore"):
        good = curvature > 1e-14 * np.sqrt((s * s).sum(axis=1)) * np.sqrt((y * y).sum(axis=1))
    if not good.all():
        rows, s, y, curvature = state.numbers(rows)[good], s[good], y[good], curvature[good]
    metric = state.metric[rows]
    my = np.einsum("rij,rj->ri", metric, y)
    factor = (1.0 + np.einsum("ri,ri->r", y, my) / curvature) / curvature
    cross = my[:, :, None] * (s / curvature[:, None])[:, None, :]
    metric += (factor[:, None] * s)[:, :, None] * s[:, None, :]
    metric -= cross
    metric -= cross.transpose(0, 2, 1)
    state.metric[rows] = metric


def _finished(state: _State, tolerance: Array) -> Mask:
    """Return which rows are done; a stuck row first tries again along the plain gradient, a few times."""
    steepest = np.abs(state.gradient).max(axis=1, initial=0.0)
    # What a step would still gain is below the rounding of the value: nothing more can be measured.
    rounding = (-state.slope <= 2e-15 * np.abs(state.value)) & (steepest <= 1e3 * tolerance)
    small = (steepest <= tolerance) | rounding
    stuck = ~small & ((state.trials > TRIALS) | (state.slope >= 0.0))
    if not stuck.any():
        return np.asarray(small)
    again = np.flatnonzero(stuck & (state.resets < RESETS))
    if len(again):
        norm = np.abs(state.gradient[again]).max(axis=1)
        state.metric[again] = np.eye(state.theta.shape[1]) * (0.1 / norm)[:, None, None]
        state.resets[again] += 1
        _turn(state, again)
        stuck[again] = False
    return np.asarray(small | stuck)


def _store(done: Minimum, state: _State, mask: Mask) -> None:
    """Keep the rows that are done."""
    rows = state.index[mask]
    done.theta[rows], done.value[rows] = state.theta[mask], state.value[mask]
    done.gradient[rows], done.metric[rows] = np.abs(state.gradient[mask]).max(axis=1, initial=0.0), state.metric[mask]
