"""Errors drawn anew around a fit: independent ones, errors that rows of a group share, and those of repeats.

Residuals are smaller than errors: a fit absorbs part of them, most where it rests on few groups. What is drawn here is
scaled up to the errors' variance, and that variance is drawn too, so that quantiles are those of Student's t at any
confidence. Each draw is used twice, as it is and mirrored: one-sided errors ask for the first in a percentile interval
and for the second in a basic one, and only both together hold on either side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analysis.estimation import fit_problem, multistart, objectives
from analysis.inference.resampling import squared_scales
from analysis.inputs.dataset import Array, Index

CALIBRATION = (50, 200)
"""Fewest and most resamples, a fifth of those asked for, that measure by how much residuals are smaller than errors."""
LEAST_SHRINKAGE = 0.5
LEAST_BETWEEN = 0.5
"""Degrees of freedom that groups must have left beside the constants for what they share to be seen at all."""
FAR = 3.0
RAREST = 1e-3
"""Scales are drawn from chi squared down to this quantile: what lies below would say nothing but infinity."""


@dataclass(frozen=True, eq=False)
class Around:
    """A fit around which errors are drawn; `order` (n,) sorts its rows, so that no draw depends on a file's order."""

    problem: fit_problem.Problem
    point: multistart.PointFit
    order: Index
    seed: int = 0
    workers: int = 1

    @property
    def free(self) -> int:
        """The number of constants that were fitted."""
        return self.problem.free

    @property
    def df(self) -> int:
        """Residual degrees of freedom."""
        return len(self.order) - self.free

    @cached_property
    def fitted(self) -> Array:
        """The fit's log targets (n,)."""
        return np.asarray(self.problem.form.log_value(self.point.theta[None], self.problem.x)[0])

    @cached_property
    def residual(self) -> Array:
        """Observed less fitted (n,) in `order`, less the location that the objective gives them."""
        residual = fit_problem.residuals(self.problem, self.point.theta[None])[:, self.order]
        return np.asarray(centred(self.problem.loss, residual)[0])

    @cached_property
    def slopes(self) -> Array:
        """Derivatives (n, q), in `order`, of what residuals are taken of by the free constants."""
        p, theta = self.problem, self.point.theta[None]
        found = p.constraint.pull(p.form.jacobian(theta, p.x)[0])
        return (found * np.exp(self.fitted)[:, None] if p.plain else found)[self.order]

    def generator(self, number: int) -> np.random.Generator:
        """Return the generator of this number under the seed."""
        return np.random.default_rng(np.random.SeedSequence([self.seed, number]))

    def targets(self, errors: Array, fitted: Array | None = None) -> Array:
        """Return log targets (R, n) in the file's order: fitted ones with errors (R, n) that are in `order`."""
        back = errors[:, np.argsort(self.order, kind="stable")]
        logs = self.fitted if fitted is None else fitted
        return np.asarray(np.log(np.maximum(np.exp(logs) + back, 1e-300)) if self.problem.plain else logs + back)

    def solved(self, y: Array) -> Array:
        """Return theta (R, p) fitted to log targets (R, n)."""
        return multistart.fit_many(self.problem, self.point, y=y, workers=self.workers).theta


@dataclass(frozen=True)
class Parts:
    """Errors of rows as a part that each group shares (u) and a part of each row's own (v).

    `between` and `within` are the residuals' sums of squares over group means and around them; the four traces say what
    unit variances of u and v add to each; `between_df` and `within_df` are effective degrees of freedom, less what the
    fit takes (Satterthwaite).
    """

    between: float
    within: float
    between_u: float
    between_v: float
    within_u: float
    within_v: float
    between_df: float
    within_df: float


def centred(loss: objectives.Loss, residual: Array) -> Array:
    """Return residuals (R, n) less the location that the loss gives each row."""
    return residual - objectives.locations(loss, residual)[:, None]


def scales(df: float, count: int, generator: np.random.Generator) -> Array:
    """Return draws (count,) of chi squared over its `df` degrees of freedom."""
    return squared_scales(df, generator.uniform(RAREST, 1.0, count))


def independent(around: Around, resamples: int) -> Array:
    """Return errors (resamples, n) drawn from the residuals, scaled up to the variance of the errors."""
    n, generator = len(around.order), around.generator(2)
    pool = around.residual * np.sqrt(n / around.df) / shrinkage(around, int(np.clip(resamples // 5, *CALIBRATION)))
    half = -(-resamples // 2)
    drawn = pool[generator.integers(n, size=(half, n))] / np.sqrt(scales(around.df, half, generator))[:, None]
    return np.concatenate((drawn, -drawn))[:resamples]


def shrinkage(around: Around, resamples: int) -> float:
    """Return how far resamples of resamples move the fit, over how far resamples of the fit do; at most 1.

    What resampling loses from the truth to the fit it loses again from a fit to its resample, where it can be seen
    (Davison and Hinkley 1997, section 3.9). Losses near L1 pass through as many rows as they have constants, so that
    the errors nearest to zero, which decide its spread, come out too small: sqrt(n / df) alone does not undo that.
    """
    p, generator, n = around.problem, around.generator(7), len(around.order)
    grown, shape = np.sqrt(n / around.df), (resamples, n)
    y = around.targets((around.residual * grown)[generator.integers(n, size=shape)])
    once = around.solved(y)
    left = centred(p.loss, fit_problem.residuals(p, once, y)[:, around.order]) * grown
    first = p.form.log_value(once, p.x)
    again = around.targets(np.take_along_axis(left, generator.integers(n, size=shape), axis=1), first)
    second = p.form.log_value(around.solved(again), p.x)
    with np.errstate(invalid="ignore", over="ignore"):
        moved = [np.linalg.norm(b - a, axis=1) for a, b in ((around.fitted, first), (first, second))]
    known = [each[~np.isnan(each)] for each in moved]
    if not all(map(len, known)) or not 0.0 < (before := float(np.median(known[0]))) < np.inf:
        return 1.0
    share = float(np.median(known[1])) / before
    return min(max(share, LEAST_SHRINKAGE), 1.0) if np.isfinite(share) else 1.0


def followed(slopes: Array) -> Array:
    """Return an orthonormal basis (n, q) of what the constants can follow, by the law's slopes (n, p)."""
    size = np.linalg.norm(slopes, axis=0)
    basis, values, _ = np.linalg.svd(slopes / np.where(size > 0, size, 1.0), full_matrices=False)
    return np.asarray(basis[:, values > 1e-9 * values.max()])


def parts(around: Around, groups: Index) -> Parts:
    """Return what the residuals say of errors shared within groups (n,), numbered from 0 without gaps, in `order`."""
    return split(around.slopes, tamed(around.residual, groups), groups, np.ones(len(groups)))


def split(slopes: Array, residual: Array, groups: Index, weight: Array) -> Parts:
    """Return what residuals (n,) say of a part that is a number of each group's times the `weight` (n,) of a row.

    `slopes` (n, q) are the law's by its constants, which follow some of it. Groups whose weights are all 0 say nothing.
    """
    basis, count = followed(slopes), np.bincount(groups, weight**2)
    sums = np.zeros((len(count), basis.shape[1]))
    np.add.at(sums, groups, basis * weight[:, None])
    left = np.diag(count) - sums @ sums.T  # Z' M Z, with M the projection on what a fit leaves and Z the weights
    known = np.maximum(count, 1e-300)
    means = left / known[:, None]
    between = float((np.bincount(groups, weight * residual) ** 2 / known).sum())
    whole, trace, square = len(groups) - basis.shape[1], float(np.trace(means)), float(np.trace(means @ means))
    shared_u, own = float(np.trace(means @ left)), whole - trace
    return Parts(
        between, float((residual**2).sum()) - between, shared_u, trace, float(np.trace(left)) - shared_u, own,
        trace**2 / max(square, 1e-300), own**2 / max(whole - 2.0 * trace + square, 1e-300),
    )  # fmt: skip


def middles(residual: Array, groups: Index) -> Array:
    """Return the median of each row's group (n,)."""
    order = np.lexsort((residual, groups))
    count = np.bincount(groups)
    begin = np.cumsum(count) - count
    lower, upper = (residual[order[begin + (count - side) // 2]] for side in (1, 0))
    return np.asarray(0.5 * (lower + upper))[groups]


def tamed(residual: Array, groups: Index) -> Array:
    """Return residuals (n,) with those far from all, or from their group's median, moved to FAR robust deviations.

    Runs that went badly hardly move a fit by a robust loss: they are not to pass for what their whole group shares.
    """
    residual = clipped(residual)  # groups of two have no median
    middle = middles(residual, groups)
    away = np.abs(residual - middle)
    most = FAR * 1.4826 * float(np.median(away[away > 0])) if (away > 0).any() else 0.0
    return np.asarray(middle + np.clip(residual - middle, -most, most))


def clipped(residual: Array) -> Array:
    """Return residuals (n,) with those far from all moved to FAR robust deviations from their median."""
    middle = float(np.median(residual))
    most = FAR * 1.4826 * float(np.median(np.abs(residual - middle)))
    return np.clip(residual, middle - most, middle + most)


def shared(around: Around, groups: Index, resamples: int) -> Array:
    """Return errors (resamples, n) with a part that groups (n,), in `order`, share; both parts' variances are drawn.

    Each sum of squares over its chi squared is a draw of what it estimates (generalized confidence intervals of
    variance components, Weerahandi 1993): few groups give t quantiles of few degrees of freedom.
    """
    found, generator = parts(around, groups), around.generator(2)
    half, n, count = -(-resamples // 2), len(groups), np.bincount(groups)
    between = found.between / scales(found.between_df, half, generator)
    within = found.within / scales(found.within_df, half, generator)
    determinant = found.between_u * found.within_v - found.between_v * found.within_u
    common = np.maximum((between * found.within_v - within * found.between_v) / determinant, 0.0)
    own = np.maximum((within - found.within_u * common) / found.within_v, 0.0)
    rest = of_rows(around, groups)
    drawn = generator.normal(size=(half, len(count)))[:, groups] * np.sqrt(common)[:, None]
    drawn += rest[generator.integers(n, size=(half, n))] * np.sqrt(own)[:, None]
    return np.concatenate((drawn, -drawn))[:resamples]


def of_rows(around: Around, groups: Index) -> Array:
    """Return what rows' own parts (n,), of mean square one, are drawn from, beside what groups (n,) share.

    They have the shape of whole residuals: less the middle of their group, which is one of them, many would be nothing,
    and losses near L1, whose spread their density there decides, would be taken as far too sure.
    """
    size = float(np.sqrt((tamed(around.residual, groups) ** 2).mean()))
    return np.asarray(around.residual / max(size, 1e-300))


def repeats(around: Around, cell: Index, resamples: int) -> Array:
    """Return errors (resamples, n), around the fit, of seeds alone: settings `cell` (n,) keep how the law misses them.

    Differences of repeats are pooled over settings, so that those run once move as well. The m repeats of a setting
    show (m - 1) / m of their variance: theirs are made larger by as much.
    """
    p, generator = around.problem, around.generator(3)
    residual = fit_problem.residuals(p, around.point.theta[None])[0][around.order]
    _, number = np.unique(cell, return_inverse=True)
    count = np.bincount(number)
    means, m = (np.bincount(number, residual) / count)[number], count[number]
    several = m > 1
    pool = (residual - means)[several] * np.sqrt(m[several] / (m[several] - 1.0))
    scale = np.sqrt(scales(float((count - 1).sum()), resamples, generator))[:, None]
    return np.asarray(means + pool[generator.integers(len(pool), size=(resamples, len(cell)))] / scale)
