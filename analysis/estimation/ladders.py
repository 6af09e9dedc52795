"""Runs at about one ratio of N and D: laws that searches from a grid of exponents find by luck alone.

N and D are then nearly one input, so that two terms of one input have to share what the runs say. Which of them takes
what is nearly a toss-up, and one of them may be left with nothing but the first run or the last.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analysis.estimation import bounds
from analysis.estimation.exchange import exchange_of
from analysis.estimation.fit_problem import Problem
from analysis.estimation.optimizer import Array
from analysis.inputs.dataset import ONE_RATIO
from analysis.laws.sum_of_powers import SumOfPowers

LEAST, STEPS = 4.0, 4.0
"""The least exponent of such a term that a search begins with, and by what factor the next is steeper."""
SHARE = 0.01
"""What a start gives to a term of the first rows, or the last, alone: as a share of the target."""


def terms(p: Problem) -> tuple[tuple[int, int], ...]:
    """Return the numbers of the coefficients and exponents of two terms that nearly are of one input; else nothing."""
    form = p.form
    if not isinstance(form, SumOfPowers) or len(form.powers) != 2 or len(p.x) != 2:
        return ()
    if any(len(parts) != 1 for _, parts in form.powers) or np.ptp(p.x[0] - p.x[1]) > np.log(ONE_RATIO):
        return ()
    (_, one), (_, other) = form.pairs
    return form.pairs if one != other else ()


def mirrored(p: Problem, theta: Array) -> Array:
    """Return laws (R, p) with the constants of two terms exchanged; none where the rows cannot tell these apart."""
    both = terms(p)
    if not both or exchange_of(p) is not None:
        return theta[:0]
    order: NDArray[np.int64] = np.arange(theta.shape[1])
    for pair in zip(*both, strict=True):
        order[list(pair)] = pair[::-1]
    return np.asarray(theta[:, order])


def steep(p: Problem, starts: Array) -> list[tuple[Problem, Array]]:
    """Return problems in which one term falls off steeply from the first rows, or the last, and starts (R, p) of each.

    `starts` are laws in which this term is put. Where two terms may exchange their constants one of them will do.
    """
    both = terms(p)
    out = []
    for coefficient, exponent in both[:1] if exchange_of(p) is not None else both:
        x = p.x[[c for c, _ in both].index(coefficient)]
        for side in (1.0, -1.0):
            first = x.min() if side > 0 else x.max()
            end = p.y[np.argmin(np.abs(x - first))]
            for value in _exponents(np.abs(x - first)):
                held = bounds.held(p, exponent, side * value)
                if held is not None:
                    theta = starts.copy()
                    theta[:, exponent] = side * value
                    theta[:, coefficient] = np.log(SHARE) + end + side * value * first
                    out.append((held, theta))
    return out


def _exponents(apart: Array) -> list[float]:
    """Return exponents from the steepest on, of inputs this far (n,) from the first, each a step less steep."""
    apart = apart[apart > bounds.SAME]
    out = [bounds.STEEPEST / float(apart.min())] if len(apart) else []
    while out and out[-1] > LEAST * STEPS:
        out.append(out[-1] / STEPS)
    return out
