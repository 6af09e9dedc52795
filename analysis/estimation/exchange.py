"""Laws with two terms that the rows cannot tell apart: where N and D keep one ratio, their constants may be exchanged.

A/N^alpha + B/D^beta is then the same at every row with (A, alpha) and (B, beta) exchanged: an exact symmetry. Of the
two laws the one whose first term is the larger at the middle of the rows is taken, so that neither rounding nor the
order of the rows decides.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from analysis.estimation.fit_problem import Problem
from analysis.estimation.optimizer import Array, Minimum
from analysis.laws.sum_of_powers import SumOfPowers

SAME = 1e-9
"""Logs of inputs that differ by less than this, but for their means, are the same input to a law."""


def exchange_of(p: Problem) -> NDArray[np.int64] | None:
    """Return the order (p,) of theta in which two terms have exchanged their constants; None where the rows tell them.

    None also where constraints hold one of the terms otherwise than the other.
    """
    form = p.form
    if not isinstance(form, SumOfPowers) or len(form.powers) != 2 or len(p.x) != 2:
        return None
    if any(len(parts) != 1 for _, parts in form.powers) or np.abs(p.x[0] - p.x[1]).max() > SAME:
        return None
    order = np.arange(len(form.names))
    (one, ((_, first),)), (other, ((_, second),)) = form.powers
    for name, partner in ((one, other), (first, second)):
        pair = [form.names.index(name), form.names.index(partner)]
        order[pair] = pair[::-1]
    held = p.constraint
    if held.matrix is None or held.offset is None:
        return order
    as_free = set(held.free) == {int(order[i]) for i in held.free}
    same = as_free and np.allclose(held.offset, held.offset[order]) and _alike(held.matrix, held.free, order)
    return order if same else None


def _alike(matrix: Array, free: tuple[int, ...], order: NDArray[np.int64]) -> bool:
    """Return whether a constraint's matrix (p, q) stays as it is where both sides are exchanged."""
    return bool(np.allclose(matrix, matrix[order][:, _searched(free, order)]))


def _searched(free: tuple[int, ...], order: NDArray[np.int64]) -> list[int]:
    """Return the order of what is searched, z, that goes with an order of theta."""
    return [free.index(int(order[i])) for i in free]


def oriented(p: Problem, found: Minimum) -> Minimum:
    """Return the minima with the larger term first, where the rows cannot tell which is whose."""
    order = exchange_of(p)
    if order is None:
        return found
    first = p.form.names.index(p.form.powers[0][0])  # type: ignore[attr-defined]
    theta, metric = found.theta.copy(), found.metric.copy()
    swap = theta[:, first] < theta[:, order[first]]
    searched = order if p.constraint.matrix is None else np.array(_searched(p.constraint.free, order))
    theta[swap] = theta[swap][:, order]
    metric[swap] = metric[swap][:, searched][:, :, searched]
    return replace(found, theta=theta, metric=metric)
