"""What published laws say of constants before any run of a study is seen: wide Gaussians that keep small fits sane.

From few small runs a law of five constants is fitted almost anywhere; the exponents that were ever published lie close
together. So forecasts for the choice of runs are maxima of the posterior. Point fits and their intervals use no prior.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analysis.estimation import fit_problem
from analysis.estimation.optimizer import Array

WIDE = 3.0
"""Standard deviation of a constant (of its log, where it is positive) of which nothing is known."""
KNOWN: Mapping[str, tuple[float, float]] = {
    "alpha": (0.34, 0.06),
    "beta": (0.32, 0.06),
    "eta": (0.165, 0.03),
    "R_D": (2.7, 1.5),
    "R_N": (1.7, 1.5),
}
"""Mean and standard deviation: alpha 0.28 to 0.41, beta 0.27 to 0.41 (Hoffmann et al. 2022, Besiroglu et al. 2024,
Muennighoff et al. 2023, DeepSeek-AI 2024), eta half of these at C ~ N D; ln R_D and ln R_N of Muennighoff et al. 2023,
wide."""
FORMS_TOLD = ("chinchilla", "chinchilla_tied", "overtraining", "repeats")
FLOOR_SHARE = (0.65, 0.3)
"""E as a share of the lowest loss seen, and the standard deviation of its log."""
GUESS, WEIGHT = 0.01, 3.0
"""The error of a law in ln loss before runs show it, and for how many runs that guess counts."""


@dataclass(frozen=True, eq=False)
class Prior:
    """A Gaussian on theta (p,): its mean, and `root` (p, p) with root root' its covariance; `told` if it says much."""

    middle: Array
    root: Array
    told: bool

    @property
    def precision(self) -> Array:
        """Return the inverse covariance (p, p)."""
        inner = np.linalg.inv(self.root)
        return np.asarray(inner.T @ inner)

    def penalty(self, theta: Array) -> float:
        """Return half the squared distance from the mean, in standard deviations."""
        return 0.5 * float((np.linalg.solve(self.root, theta - self.middle) ** 2).sum())


def prior(problem: fit_problem.Problem, around: Array) -> Prior:
    """Return the prior of a problem; of constants about which nothing is known it is wide, around the fitted ones."""
    form = problem.form
    if form.name not in FORMS_TOLD:
        return Prior(around, WIDE * np.eye(len(around)), False)
    matrix, offset = form.link(problem.centres)
    middle, spread = matrix @ around + offset, np.full(len(around), WIDE)
    for i, name in enumerate(form.names):
        if name in KNOWN:
            middle[i], spread[i] = KNOWN[name]
        elif name == "E":
            middle[i], spread[i] = float(problem.y.min()) + np.log(FLOOR_SHARE[0]), FLOOR_SHARE[1]
    inverse = np.linalg.inv(matrix)
    return Prior(inverse @ (middle - offset), inverse * spread[None, :], True)


def words(form: str, lowest: float) -> str:
    """Return the prior of a form in words, for runs whose lowest loss is `lowest`; "" where it says nothing."""
    from analysis.laws.registry import FORMS

    if form not in FORMS_TOLD:
        return ""
    names = FORMS[form].names
    said = [f"{'ln ' if n.startswith('R_') else ''}{n} {KNOWN[n][0]:g} +- {KNOWN[n][1]:g}" for n in names if n in KNOWN]
    if "E" in names:
        said.append(f"E {FLOOR_SHARE[0] * lowest:.3g} within a factor of {np.exp(FLOOR_SHARE[1]):.2f}")
    return ", ".join(said)


def misfit(total: float, count: int, width: int) -> float:
    """Return the law's error in ln loss from a sum of squared residuals, with the guess for a few runs' worth."""
    return float(np.sqrt((total + WEIGHT * GUESS**2) / (max(count - width, 0) + WEIGHT)))


def most_likely(problem: fit_problem.Problem, theta: Array, given: Prior) -> Array:
    """Return the theta (p,) of the highest posterior near `theta`; the error of the law is estimated with it."""
    from scipy.optimize import least_squares

    if not given.told or problem.constraint.matrix is not None:
        return theta
    inner = np.linalg.inv(given.root)
    form, count = problem.form, problem.y.size
    scale = misfit(float(((form.log_value(theta[None], problem.x)[0] - problem.y) ** 2).sum()), count, len(theta))
    at = theta
    for _ in range(3):

        def residuals(z: Array, scale: float = scale) -> Array:
            with np.errstate(all="ignore"):
                gap = (form.log_value(z[None], problem.x)[0] - problem.y) / scale
            return np.concatenate((np.clip(np.nan_to_num(gap, nan=1e3), -1e3, 1e3), inner @ (z - given.middle)))

        def slopes(z: Array, scale: float = scale) -> Array:
            with np.errstate(all="ignore"):
                return np.concatenate((np.nan_to_num(form.jacobian(z[None], problem.x)[0]) / scale, inner))

        at = least_squares(residuals, at, jac=slopes, max_nfev=60).x
        scale = misfit(float(((form.log_value(at[None], problem.x)[0] - problem.y) ** 2).sum()), count, len(theta))
    return np.asarray(at)
