"""The scatter of valleys' minima around their power law: how much of it the runs' noise explains, and what is left.

Runs of a budget share their schedule, their tuning and their sizes, so that minima differ by more than the noise within
a budget says. What is seen of it, the mean square around the line, is the scale of the regression's intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analysis.inference import distributions, error_draws, resampling
from analysis.inputs.dataset import Array
from analysis.text import numbers
from analysis.values.blocks import Check
from analysis.values.findings import finding

LUCK = 0.05
"""Scatter below this quantile of what noise alone shows is luck: the interval is no shorter for it."""
RARE = 0.05
"""Scatter above noise that comes with this probability or less is a finding."""
FEW_MINIMA = 5
"""With fewer minima than this Student's quantiles make the intervals of exponents twice as wide, or more."""
NORMAL = 0.1587
"""The probability of a normal draw below -1."""


@dataclass(frozen=True)
class Scatter:
    """Minima `y` (m,) = ln N* or ln D* over `x` = ln C beside the variances (m,) that noise within budgets gives them.

    Of the mean square around the line over m - 2, noise explains `expected`. What is beyond that is the `between`
    variance, alike at all budgets. `df` is what the mean square then has (Satterthwaite): m - 2 for equal variances.
    """

    x: Array
    y: Array
    noise: Array

    @cached_property
    def left(self) -> Array:
        """The projection (m, m) on what a line through the minima leaves."""
        design = np.stack((np.ones_like(self.x), self.x - self.x.mean()), axis=1)
        return np.asarray(np.eye(len(self.x)) - design @ np.linalg.pinv(design))

    @cached_property
    def square(self) -> float:
        """The mean square around the line."""
        return float(self.y @ self.left @ self.y) / (len(self.x) - 2)

    @cached_property
    def expected(self) -> float:
        """The mean square that noise within budgets alone would have."""
        return float(np.diag(self.left) @ self.noise) / (len(self.x) - 2)

    @property
    def between(self) -> float:
        """The variance that minima have beyond the noise within their budgets."""
        return max(self.square - self.expected, 0.0)

    @cached_property
    def df(self) -> float:
        """Effective degrees of freedom of the mean square."""
        return self._freedom(self.noise + self.between)

    def _freedom(self, variance: Array) -> float:
        """Return the effective degrees of freedom of the mean square of minima with these variances (m,)."""
        weighted = self.left * variance
        square = float(np.trace(weighted @ weighted))
        return float(np.trace(weighted)) ** 2 / square if square > 0 else float(len(self.x) - 2)

    @property
    def share(self) -> float:
        """The mean square over what noise and `between` give it, at least what luck leaves (see LUCK)."""
        least = float(resampling.squared_scales(self.df, LUCK))
        return max(self.square / max(self.expected + self.between, 1e-300), least)

    @property
    def rare(self) -> bool:
        """Whether the minima scatter by more than noise within budgets does, but for RARE of all studies."""
        cut = distributions.f_quantile(1.0 - RARE, self._freedom(self.noise), max(len(self.x), 5))
        return self.expected > 0 and self.square > self.expected * cut


def scatters(x: Array, best: Array, drawn: Array) -> tuple[Scatter, ...]:
    """Return the scatter of ln N* and ln D* over ln C (m,), of minima (m, k) and draws (R, m, k) of their noise."""
    return tuple(Scatter(x, best[:, i], variances(drawn[..., i])) for i in (0, 1))


def variances(draws: Array) -> Array:
    """Return the variances (m,) of draws (R, m) over R; 0 where a column has no draw."""
    if np.isnan(draws).all(axis=0).any():
        return np.zeros(draws.shape[1])
    return np.asarray(np.nanvar(draws, axis=0))


def allowed(each: Sequence[Scatter], best: Array, drawn: Array, generator: np.random.Generator) -> Array:
    """Return draws (R, m, k) of minima (m, k) that scatter around their power law as the minima themselves do.

    `drawn` (R, m, k) holds the noise within budgets, at a scale that is given. What minima scatter by beyond it is
    added, and all is divided by a drawn chi squared over its degrees of freedom: an exponent then has the regression's
    interval (Student's t) with the noise of each budget in its place (Knapp and Hartung 2003, Statistics in Medicine
    22). Two minima show no scatter.
    """
    out = drawn.copy()
    away = generator.normal(size=drawn.shape[:2])
    picks = generator.uniform(error_draws.RAREST, 1.0, len(drawn))
    for column, (found, sign) in enumerate(zip(each, (1.0, -1.0), strict=True)):
        own = drawn[..., column] - best[:, column] + sign * away * np.sqrt(found.between)
        scale = np.sqrt(found.share / resampling.squared_scales(found.df, picks))
        out[..., column] = best[:, column] + own * scale[:, None]
    return out


def middle_variances(draws: Array) -> Array:
    """Return the variances (m,) of draws (R, m) over R, from their middle 68 %; 0 where a column has no draw.

    Draws of minima far beyond the sizes swept do not count here.
    """
    if np.isnan(draws).all(axis=0).any():
        return np.zeros(draws.shape[1])
    low, high = np.nanquantile(draws, [NORMAL, 1.0 - NORMAL], axis=0)
    return np.asarray(0.25 * (high - low) ** 2)


def beyond(found: Scatter) -> list[Check]:
    """Return a finding where the minima scatter by more than the noise within their budgets."""
    if not found.rare:
        return []
    text = (
        f"best sizes lie {np.sqrt(found.square / found.expected):.2g} times as far from their power law as the runs' "
    )
    advice = (
        "tuning, schedules or sizes drift over budgets: the intervals of exponents allow for it, a minimum's do not"
    )
    return [finding("valley_scatter", f"{text}noise lets them", advice)]


def few(count: int) -> list[Check]:
    """Return a finding about exponents of few minima, and what that makes of their intervals."""
    if not 0 < count < FEW_MINIMA:
        return []
    text = f"only {numbers.counted(count, 'budget')} with a minimum"
    if count < 3:
        why = (
            "exponents of two points have no check" if count == 2 else "an exponent needs two, and a third to check it"
        )
        return [finding("few_valleys", text, f"run more budgets; {why}")]
    tail = 0.5 + resampling.CONFIDENCE / 2
    times = distributions.t_quantile(tail, count - 2) / distributions.normal_quantile(tail)
    text += f": {numbers.counted(count - 2, 'degree')} of freedom to judge their scatter around a power law"
    advice = f"intervals of exponents are {times:.2g} times as wide as of many budgets: run more of them"
    return [finding("few_valleys", text, advice, "note")]
