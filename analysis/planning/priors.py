"""What published laws say of constants before any run of a study is seen: wide Gaussians that keep small fits sane.

From few small runs a law of five constants is fitted almost anywhere; the exponents that were ever published lie close
together. So forecasts for the choice of runs are maxima of the posterior. Point fits and their intervals use no prior.
Runs may contradict the prior, which is then dropped: `met`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from analysis.estimation import fit_problem
from analysis.estimation.optimizer import Array
from analysis.inference import distributions
from analysis.text import numbers
from analysis.values.blocks import Check
from analysis.values.findings import finding

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
HOLDS = 0.02
"""A law that misses runs by more than this in ln loss does not hold over them: its constants contradict no prior."""
STEPS = 60
"""Evaluations for the highest posterior: ten are enough near it."""
CENTRINGS = 4
"""How often the prior is drawn around its own law: after that, the law stays where it is."""
RARE = 0.05
"""Runs as far from the prior as fewer than this share of its own studies contradict it."""


@dataclass(frozen=True, eq=False)
class Prior:
    """A Gaussian on theta (p,): its mean, and `root` (p, p) with root root' its covariance; `told` if it says much.

    `chance` is the share of studies of published laws that lie as far from these as the runs; a prior that the runs
    contradict is `dropped`.
    """

    middle: Array
    root: Array
    told: bool
    chance: float = 1.0

    @property
    def dropped(self) -> bool:
        """Whether published laws were left out of it because the runs contradict them."""
        return self.chance < RARE

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
        return _nothing(around)
    matrix, offset = form.link(problem.centres)
    middle, spread = matrix @ around + offset, np.full(len(around), WIDE)
    for i, name in enumerate(form.names):
        if name in KNOWN:
            middle[i], spread[i] = KNOWN[name]
        elif name == "E":
            middle[i], spread[i] = float(problem.y.min()) + np.log(FLOOR_SHARE[0]), FLOOR_SHARE[1]
    inverse = np.linalg.inv(matrix)
    return Prior(inverse @ (middle - offset), inverse * spread[None, :], True)


def _nothing(around: Array) -> Prior:
    """Return the prior of constants about which nothing is known."""
    return Prior(around, WIDE * np.eye(len(around)), False)


def met(problem: fit_problem.Problem, around: Array) -> Prior:
    """Return the prior of a problem, or one that says nothing where the runs contradict it.

    In squares of its error, the law of the highest posterior misses runs and prior by chi squared more than the best
    fit misses the runs, with one degree of freedom a constant that is known, where the prior is true: a check of the
    best fit against what the prior predicts of it (Evans & Moshonov 2006, Bayesian Analysis 1, 893). As they ask, the
    law itself is checked first: of one that does not hold over the runs, constants far from the prior say nothing of
    it. Where runs scatter by more than laws are taken to err, their own scatter is the measure, of which few runs tell
    little: its squares are F.
    """
    given = prior(problem, around)
    if not given.told or problem.constraint.matrix is not None:
        return given
    best = most_likely(problem, around, replace(_nothing(around), told=True))
    scale = misfit(squares(problem, best), problem.y.size, len(best))
    if scale > HOLDS:
        return given
    given = _centred(problem, best, scale)
    chance = _chance(problem, best, given, scale)
    return replace(given if chance >= RARE else _nothing(around), chance=chance)


def _centred(problem: fit_problem.Problem, best: Array, scale: float) -> Prior:
    """Return the prior whose constants of which nothing is known lie around its own law, not around the best fit's.

    Where exponents and floor are hardly identified, coefficients of the best fit can be off by any factor.
    """
    law = best
    for _ in range(CENTRINGS):
        law = _maximum(problem, law, prior(problem, law), scale)
    return prior(problem, law)


def _apart(problem: fit_problem.Problem, best: Array, given: Prior, scale: float) -> float:
    """Return by how much more the law of the highest posterior misses runs and prior than the best fit the runs.

    In squares of `scale`, the error of ln loss.
    """
    theta = _maximum(problem, given.middle, given, scale)
    more = (squares(problem, theta) - squares(problem, best)) / scale**2
    return max(more + 2.0 * given.penalty(theta), 0.0)


def _chance(problem: fit_problem.Problem, best: Array, given: Prior, scale: float) -> float:
    """Return the share of studies of the prior that lie as far from it as the runs, if laws err by `scale`."""
    known = sum(name in KNOWN or name == "E" for name in problem.form.names)
    free = problem.y.size - len(best)
    own = float(np.sqrt(squares(problem, best) / max(free, 1)))
    if free > 0 and own > GUESS:
        return distributions.f_tail(_apart(problem, best, given, own) / known, known, free)
    return distributions.chi2_tail(_apart(problem, best, given, scale), known)


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


def findings(given: Prior, constants: Mapping[str, float]) -> tuple[Check, ...]:
    """Return a finding where runs, whose best law has these constants, contradict the prior; () where they do not."""
    if not given.dropped:
        return ()
    each = ", ".join(
        f"{name} {numbers.number(constants[name], 2)} (published {KNOWN[name][0]:g} +- {KNOWN[name][1]:g})"
        for name in constants
        if name in KNOWN and not name.startswith("R_")
    )
    share = numbers.percent(given.chance) if given.chance >= 1e-4 else "less than 0.01 %"
    text = (
        f"the runs contradict published laws: {each}; of studies that follow such laws, {share} lie as far off. The "
        "forecast takes no prior from them"
    )
    advice = (
        "check that losses, sizes and tokens are counted as usual; where they are, such runs are of another kind than "
        "the published ones"
    )
    return (finding("prior_conflict", text, advice),)


def misfit(total: float, count: int, width: int) -> float:
    """Return the law's error in ln loss from a sum of squared residuals, with the guess for a few runs' worth."""
    return float(np.sqrt((total + WEIGHT * GUESS**2) / (max(count - width, 0) + WEIGHT)))


def squares(problem: fit_problem.Problem, theta: Array) -> float:
    """Return the sum of squared residuals of ln loss."""
    return float(((problem.form.log_value(theta[None], problem.x)[0] - problem.y) ** 2).sum())


def most_likely(problem: fit_problem.Problem, theta: Array, given: Prior) -> Array:
    """Return the theta (p,) of the highest posterior near `theta`; the error of the law is estimated with it."""
    if not given.told or problem.constraint.matrix is not None:
        return theta
    at, count = theta, problem.y.size
    for _ in range(3):
        at = _maximum(problem, at, given, misfit(squares(problem, at), count, len(theta)))
    return at


def _maximum(problem: fit_problem.Problem, theta: Array, given: Prior, scale: float) -> Array:
    """Return the theta (p,) of the highest posterior near `theta` for errors of ln loss of this standard deviation."""
    from scipy.optimize import least_squares

    inner, form = np.linalg.inv(given.root), problem.form

    def residuals(z: Array) -> Array:
        with np.errstate(all="ignore"):
            gap = (form.log_value(z[None], problem.x)[0] - problem.y) / scale
        return np.concatenate((np.clip(np.nan_to_num(gap, nan=1e3), -1e3, 1e3), inner @ (z - given.middle)))

    def slopes(z: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.concatenate((np.nan_to_num(form.jacobian(z[None], problem.x)[0]) / scale, inner))

    found = least_squares(residuals, theta, jac=slopes, max_nfev=STEPS)
    if found.status == 0:  # out of steps: from exponents and a floor near 0, constants that fit alike are a long way
        again = least_squares(residuals, given.middle, jac=slopes, max_nfev=STEPS)
        found = min(found, again, key=lambda end: float(end.cost))
    return np.asarray(found.x)
