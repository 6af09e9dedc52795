"""Which runs tell most about a forecast: posterior over basins, expected drop of its variance, a greedy batch.

The posterior is a mixture: every basin of the multi-start is a Gaussian around its constants, weighted by its evidence,
with a wide prior from published laws (see :mod:`analysis.planning.priors`).
To it comes the error of the form itself, smooth in the logs of the inputs, so that runs near the target tell more about
it than runs far away, however many. A candidate run is worth the drop that it is expected to bring in the variance of
ln loss at the targets. Within a basin that is a rank-one update (V-optimal); between basins it is the share by which
seeing the run's loss tells them apart, by one-dimensional quadrature over that loss. After arXiv 2604.22753, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from analysis.estimation import fit_problem, multistart, ties
from analysis.estimation.optimizer import Array
from analysis.laws.base import Form
from analysis.planning import priors, run_noise

NODES = 12
TINY = 1e-100
"""The least sd of ln loss: a candidate whose loss is known without any noise is divided by this."""
FLOOR = 1e-3
"""Least error of a form in ln loss: none is exact."""
REACH = 2.0
"""How far in ln of the inputs the form's own error is alike: a factor of about seven."""
SAME = 0.25
"""Basins whose predictions differ by less than this share of the floor are one."""
POWERS = (1.0, 0.4, 0.0)
"""Greedy batches by drop per FLOP, per FLOP^0.4 and by drop alone: the one that ends lowest is taken."""


@dataclass(frozen=True)
class Basin:
    """Internal constants (p,) of a local minimum and its weight in the mixture."""

    theta: Array
    weight: float


@dataclass(frozen=True)
class Posterior:
    """What runs say of a law: form, centres (k,), logs of the runs (k, n), basins; errors of ln loss as sd.

    `noise` is that from run to run, `misfit` the form's own, smooth one; root root' is the prior covariance of the
    constants, and `prior` is where that is from.
    """

    form: Form
    centres: Array
    x: Array
    basins: tuple[Basin, ...]
    noise: float
    misfit: float
    root: Array | None = None
    prior: priors.Prior | None = None

    @property
    def weights(self) -> Array:
        """The basins' weights (b,)."""
        return np.array([basin.weight for basin in self.basins])

    def to_logs(self, columns: Sequence[ArrayLike]) -> Array:
        """Return positive inputs, in the order of form.inputs, as the form's logs (k, m)."""
        return np.log(np.stack([np.asarray(c, dtype=np.float64) for c in columns])) - self.centres[:, None]

    def means(self, x: Array) -> Array:
        """Return ln loss (b, m) by each basin."""
        return np.stack([self.form.log_value(basin.theta[None], x)[0] for basin in self.basins])

    def covariances(self, x: Array) -> Array:
        """Return the covariances (b, m, m) of ln loss at x in each basin, given the runs: constants and misfit."""
        return np.stack([_conditioned(self, basin.theta, x) for basin in self.basins])


@dataclass(frozen=True)
class Choice:
    """A chosen candidate: its number, its cost, and the targets' mean variance of ln loss before and after it."""

    index: int
    cost: float
    before: float
    after: float


def posterior(
    problem: fit_problem.Problem, starts: int = 16, noise: float | None = None, *, given: priors.Prior | None = None
) -> Posterior:
    """Return the posterior of a fitted problem from its multi-start.

    Basins weigh by their likelihood with the scale profiled out, SSE^(-n/2), times the volume of their Gaussian.
    The runs tell how much they scatter (see :mod:`analysis.planning.run_noise`), unless a `noise` of ln loss is given.
    The prior is dropped where the runs contradict it, unless one is `given`.
    """
    found = multistart.fit_point(problem, starts).minima
    assert found is not None, "a multi-start keeps its minima"
    order = np.argsort(found.value, kind="stable")
    fitted = problem.expanded(found.theta[order][np.isfinite(found.value[order])])
    given = given or priors.met(problem, fitted[0])
    thetas = _distinct(problem, np.stack([priors.most_likely(problem, t, given) for t in _distinct(problem, fitted)]))
    sums = np.array([priors.squares(problem, t) for t in thetas])
    error = _error(problem, float(sums.min()))
    basins = _weighed(problem, thetas, sums, given, error)
    noise = noise or _noise(problem, basins[0].theta, given, error)
    # The form's error is what remains of the residuals, so that scatter is not counted twice. As much scatter as seeds
    # make stays in it: runs cannot tell so little from an error of the form.
    shown = max(problem.y.size - len(thetas[0]), 0) * max(noise**2 - run_noise.SEEDS**2, 0.0)
    misfit = _error(problem, max(float(sums.min()) - shown, 0.0))
    return Posterior(problem.form, problem.centres, problem.x, basins, noise, misfit, given.root, given)


def form_words() -> str:
    """Return the prior of the form's own error in words."""
    guess = f"{100 * priors.GUESS:g} %, counted as {priors.WEIGHT:g} runs"
    return f"{guess} and alike within a factor of {np.exp(REACH):.0f} of N and D"


def _error(problem: fit_problem.Problem, total: float) -> float:
    """Return the error of ln loss from a sum of squared residuals."""
    return max(FLOOR, priors.misfit(total, problem.y.size, len(problem.form.names)))


def _weighed(
    problem: fit_problem.Problem, thetas: list[Array], sums: Array, given: priors.Prior, error: float
) -> tuple[Basin, ...]:
    """Return the basins at these constants that weigh anything, the heaviest first."""
    count, width = problem.y.size, len(thetas[0])
    logs = []
    for theta, total in zip(thetas, sums, strict=True):
        slope = problem.form.jacobian(theta[None], problem.x)[0]
        sign, volume = np.linalg.slogdet(slope.T @ slope / error**2 + given.precision)
        assert sign > 0, "a precision matrix is positive"
        # A floor on the residuals: an exact fit of few runs is no infinite evidence.
        likely = -0.5 * max(count - width, 1) * np.log(total + count * FLOOR**2)
        logs.append(likely - (given.penalty(theta) if given.told else 0.0) - 0.5 * float(volume))
    weights = np.exp(np.array(logs) - max(logs))
    keep = [int(i) for i in np.argsort(-weights, kind="stable") if weights[i] > 1e-4 * weights.sum()]
    total = float(weights[keep].sum())
    return tuple(Basin(thetas[i], float(weights[i]) / total) for i in keep)


def _noise(problem: fit_problem.Problem, theta: Array, given: priors.Prior, error: float) -> float:
    """Return the scatter of ln loss from run to run, linear around theta, beside this error of the form."""
    slope = problem.form.jacobian(theta[None], problem.x)[0]
    gaps = problem.y - problem.form.log_value(theta[None], problem.x)[0] - slope @ (given.middle - theta)
    known = slope @ given.root
    return run_noise.scatter(known @ known.T + error**2 * _near(problem.x, problem.x), gaps)


def _distinct(problem: fit_problem.Problem, thetas: Array | list[Array]) -> list[Array]:
    """Return constants, the best first, without those that predict the runs and their surroundings alike."""
    around = np.concatenate([problem.x, problem.x * 2.0], axis=1)
    kept: list[Array] = []
    seen: list[Array] = []
    for theta in thetas:
        values = problem.form.log_value(theta[None], around)[0]
        with np.errstate(invalid="ignore"):  # two that are infinite at one place are alike there
            apart = [float(np.abs(values - other).max()) for other in seen]
        if all(gap > SAME * FLOOR for gap in apart):
            kept.append(theta)
            seen.append(values)
    return kept


def _conditioned(found: Posterior, theta: Array, x: Array) -> Array:
    """Return the covariance (m, m) of ln loss at x, linear around theta, given runs at found.x."""
    root = priors.WIDE * np.eye(len(theta)) if found.root is None else found.root
    seen, wanted = (found.form.jacobian(theta[None], place)[0] @ root for place in (found.x, x))
    among = seen @ seen.T + alike(found, found.x, found.x) + found.noise**2 * np.eye(len(seen))
    across = wanted @ seen.T + alike(found, x, found.x)
    solved = np.linalg.solve(np.linalg.cholesky(among), across.T)
    return np.asarray(wanted @ wanted.T + alike(found, x, x) - solved.T @ solved)


def alike(found: Posterior, a: Array, b: Array) -> Array:
    """Return the covariance of the form's own error between places (k, m) and (k, n)."""
    return found.misfit**2 * _near(a, b)


def _near(a: Array, b: Array) -> Array:
    """Return the correlation of the form's own error between places (k, m) and (k, n)."""
    apart = ((a[:, :, None] - b[:, None, :]) ** 2).sum(axis=0)
    return np.asarray(np.exp(-0.5 * apart / REACH**2))


@dataclass
class _State:
    """Targets first, then candidates: means (b, t + m), covariances (b, t + m, t + m), weights (b,)."""

    targets: int
    weights: Array
    means: Array
    covariances: Array
    noise: float

    def variance(self) -> float:
        """Return the targets' mean variance of ln loss, within basins and between them."""
        within = np.einsum("bii->bi", self.covariances)[:, : self.targets].mean(axis=1)
        aims = self.means[:, : self.targets]
        between = (self.weights @ (aims - self.weights @ aims) ** 2).mean()
        return float(self.weights @ within + between)

    def drops(self) -> Array:
        """Return the expected drop (m,) of that variance for each candidate."""
        t = self.targets
        spread = np.einsum("bii->bi", self.covariances)[:, t:] + self.noise**2
        learnt = (self.covariances[:, :t, t:] ** 2).mean(axis=1)
        inside = np.divide(learnt, spread, out=np.zeros_like(learnt), where=spread > 0)  # what is known tells nothing
        return np.asarray(self.weights @ inside + _between(self, np.maximum(np.sqrt(spread), TINY)))

    def observe(self, index: int) -> None:
        """Plan a run at candidate `index`: covariances shrink; its loss is not known yet, so weights stay."""
        place = self.targets + index
        column = self.covariances[:, :, place]
        spread = np.maximum(self.covariances[:, place, place] + self.noise**2, TINY**2)
        self.covariances = self.covariances - column[:, :, None] * column[:, None, :] / spread[:, None, None]


def _between(state: _State, spreads: Array) -> Array:
    """Return the expected drop of the variance between basins, by Gauss-Hermite quadrature over the loss seen."""
    t = state.targets
    if len(state.weights) == 1:
        return np.zeros(state.means.shape[1] - t)
    aims, means = state.means[:, :t], state.means[:, t:]
    before = float((state.weights @ (aims - state.weights @ aims) ** 2).mean())
    nodes, shares = np.polynomial.hermite_e.hermegauss(NODES)
    after = np.zeros(means.shape[1])
    for b, weight in enumerate(state.weights):
        for node, part in zip(nodes, shares / shares.sum(), strict=True):
            seen = means[b] + node * spreads[b]
            logs = np.log(state.weights)[:, None] - 0.5 * ((seen - means) / spreads) ** 2 - np.log(spreads)
            odds = np.exp(logs - logs.max(axis=0))
            odds /= odds.sum(axis=0)
            centre = odds.T @ aims
            left = sum(odds[k][:, None] * (aims[k] - centre) ** 2 for k in range(len(odds)))
            after += weight * part * np.asarray(left).mean(axis=1)
    return np.asarray(np.maximum(before - after, 0.0))


def forecast(found: Posterior, targets: Array) -> tuple[Array, Array]:
    """Return the mixture's mean of ln loss (t,) at the targets and its standard deviation."""
    means, covariances = found.means(targets), found.covariances(targets)
    mean = found.weights @ means
    within = np.einsum("bii->bi", covariances)
    return mean, np.sqrt(found.weights @ (within + (means - mean) ** 2))


def batch(
    found: Posterior, candidates: Array, targets: Array, costs: Array, *, budget: float, count: int, power: float | None
) -> list[Choice]:
    """Return up to `count` candidates within `budget` [FLOPs], each the best by drop / cost^power after those before.

    Without a `power` the greedy batches of POWERS are made and the one that ends with the lowest variance is taken:
    cost-benefit greedy alone can be arbitrarily poor (Leskovec et al. 2007, section 3).
    """
    powers = POWERS if power is None else (power,)
    made = [_greedy(_state(found, candidates, targets), costs, budget, count, p) for p in powers]
    return min(made, key=lambda choices: choices[-1].after if choices else np.inf)


def _state(found: Posterior, candidates: Array, targets: Array) -> _State:
    both = np.concatenate([targets, candidates], axis=1)
    return _State(targets.shape[1], found.weights, found.means(both), found.covariances(both), found.noise)


def _greedy(state: _State, costs: Array, budget: float, count: int, power: float) -> list[Choice]:
    chosen: list[Choice] = []
    free = np.ones(len(costs), dtype=bool)
    spent = 0.0
    while len(chosen) < count:
        free &= costs <= (budget - spent) * (1 + 1e-12)
        if not free.any():
            break
        value = np.where(free, state.drops() / costs**power, -np.inf)
        pick, before = ties.lowest(-value), state.variance()
        if value[pick] <= 0.0:
            break
        state.observe(pick)
        chosen.append(Choice(pick, float(costs[pick]), before, state.variance()))
        spent += float(costs[pick])
        free[pick] = False
    return chosen
