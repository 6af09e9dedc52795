"""Constants that fall to a bound where the search only comes ever nearer: a floor of 0, an exponent without an end.

In logs 0 is infinitely far, so that where a search stops on its way there depends on rounding. The law at the bound is
another one, of fewer constants: it is fitted as such, and taken where no other law fits better.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from analysis.estimation.constraints import Constraint
from analysis.estimation.fit_problem import Problem
from analysis.estimation.optimizer import Array, Mask
from analysis.laws.base import Form
from analysis.laws.sum_of_powers import SumOfPowers

NOTHING = 1e-12
"""What is left of a term at its bound 0, as a share of the lowest target."""
GONE = 1e-8
"""A floor below this share of the lowest target is at its bound."""
NEAR = 1e-2
"""A floor below this share may be on its way there."""
SAME = 1e-6
"""Logs of inputs that differ by less are the same input."""
STEEP, STEEPEST = 12.0, 28.0
"""Nats by which a power falls from the first input to the next, that may be without an end, and that say it is."""


def floor_of(form: Form) -> int | None:
    """Return the number of a law's floor, a positive constant that is searched as its log; None without one."""
    name = getattr(form, "floor", "E" if "E" in form.names else "")
    if not name or name not in form.names:
        return None
    number = form.names.index(name)
    return number if form.logs[number] else None


def without_floor(p: Problem) -> Problem | None:
    """Return the problem with its floor held at nothing; None where it has none, or a constraint holds it."""
    number = floor_of(p.form)
    if number is None or not _own(p.form, number):
        return None
    return held(p, number, nothing(p))


def nothing(p: Problem) -> float:
    """Return the log of a floor at its bound."""
    return float(p.y.min() + np.log(NOTHING))


def falling(p: Problem, theta: Array) -> Mask:
    """Return which laws (R, p) have a floor so low that it may be on its way to 0."""
    number = floor_of(p.form)
    assert number is not None, "asked of laws with a floor"
    return np.asarray(theta[:, number] < p.y.min() + np.log(NEAR))


def grounded(p: Problem, theta: Array) -> Array:
    """Return laws (R, p) with what is left of a floor at its bound told alike."""
    number = floor_of(p.form)
    if number is None or not _own(p.form, number) or held(p, number, 0.0) is None:
        return theta
    gone = theta[:, number] < p.y.min() + np.log(GONE)
    if not gone.any():
        return theta
    theta = theta.copy()
    theta[gone, number] = nothing(p)
    return theta


def levelled(p: Problem, theta: Array) -> Array:
    """Return laws (R, p) in which a power of an input that never varies is a part of the floor, as large as the rest.

    Such a power is as constant as a floor is, whatever its exponent: 0 is given, and halves of what both make up. These
    are the constants nearest to zero, as they are searched. Constants that a constraint binds stay as they are.
    """
    form = p.form
    if not isinstance(form, SumOfPowers):
        return theta
    still = [
        pair
        for pair, (_, parts) in zip(form.pairs, form.powers, strict=True)
        if len(parts) == 1 and np.ptp(p.x[form.inputs.index(parts[0][0])]) <= SAME and held(p, pair[1], 0.0) is not None
    ]
    still = [(c, e) for c, e in still if sum(other == e for _, other in form.pairs) == 1]
    if not still:
        return theta
    theta = theta.copy()
    theta[:, [e for _, e in still]] = 0.0
    floor = floor_of(form)
    parts = [i for i in (floor, *(c for c, _ in still)) if i is not None and held(p, i, 0.0) is not None]
    if len(parts) > 1:
        theta[:, parts] = (np.logaddexp.reduce(theta[:, parts], axis=1) - np.log(len(parts)))[:, None]
    return theta


def _own(form: Form, number: int) -> bool:
    """Return whether a constant is searched as it is quoted, whatever the centres of the inputs."""
    matrix, offset = form.link(np.ones(len(form.inputs)))
    return bool((matrix[number] == np.eye(len(form.names))[number]).all() and offset[number] == 0.0)


def held(p: Problem, number: int, value: float) -> Problem | None:
    """Return the problem with one more constant held at an internal value; None where a constraint binds it already."""
    width = len(p.form.names)
    matrix, offset, free = p.constraint.matrix, p.constraint.offset, p.constraint.free
    if matrix is None or offset is None:
        matrix, offset, free = np.eye(width), np.zeros(width), tuple(range(width))
    if number not in free:
        return None
    column = free.index(number)
    if np.count_nonzero(matrix[:, column]) != 1:
        return None
    kept = [k for k in range(len(free)) if k != column]
    offset = offset.copy()
    offset[number] = value
    return replace(p, constraint=Constraint(matrix[:, kept], offset, tuple(free[k] for k in kept), p.constraint.text))


@dataclass(frozen=True)
class Spike:
    """A power that is there at the rows of one input alone: numbers of its constants, and the law (p,) to go on from.

    All steeper ones are the same law.
    """

    coefficient: int
    exponent: int
    theta: Array


def spikes(p: Problem, theta: Array) -> list[Spike]:
    """Return the powers of a law (p,) that are no more than the rows of their smallest, or largest, input."""
    form = p.form
    if not isinstance(form, SumOfPowers):
        return []
    found = []
    for (coefficient, exponent), (_, parts) in zip(form.pairs, form.powers, strict=True):
        if len(parts) != 1:
            continue
        x = p.x[form.inputs.index(parts[0][0])]
        steep = float(theta[exponent])
        first = x.min() if steep > 0 else x.max()
        others = np.abs(x - first) > SAME
        if not others.any():
            continue
        gap = float(np.abs(x - first)[others].min())
        if abs(steep) * gap < STEEP:
            continue
        at = theta[coefficient] - steep * first
        least = float(np.sign(steep)) * STEEPEST / gap
        own = theta.copy()
        own[exponent], own[coefficient] = least, at + least * first
        found.append(Spike(coefficient, exponent, own))
    return found
