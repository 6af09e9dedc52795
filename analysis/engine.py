"""The batched engine: many starts, resamples or fixed constants are solved at once, as rows of one array.

Objective of a row, always summed: sum_i w_i rho(ln f(x_i; theta) - ln loss_i). Projected grid over the exponents (the
other constants are linear: solved for), then batched BFGS. Resampling enters as weights, so no data are copied.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from analysis.bfgs import Array, Evaluate, Index, Minimum, minimise
from analysis.forms import Form
from analysis.results import Basin, Optimizer

CHUNK = 250
STARTS = 8
RESAMPLE_TOLERANCE = 1e-7
GRID = np.geomspace(0.02, 2.5, 32)
METHOD = "projected grid of 32 values per exponent, then batched BFGS with analytic gradients"


@dataclass(frozen=True)
class Huber:
    """Huber's loss on log residuals: quadratic within `delta`, linear outside."""

    delta: float = 1e-3

    @property
    def text(self) -> str:
        """How fit.json names it."""
        return f"huber(log residual, delta={self.delta:g})"

    @property
    def scale(self) -> float:
        """A residual's largest pull, to which gradients are compared."""
        return self.delta

    def __call__(self, residual: Array) -> tuple[Array, Array]:
        """Return rho and its derivative."""
        psi = np.clip(residual, -self.delta, self.delta)
        return psi * (residual - 0.5 * psi), psi


@dataclass(frozen=True)
class Squared:
    """Half the squared log residual."""

    @property
    def text(self) -> str:
        """How fit.json names it."""
        return "squared(log residual)"

    @property
    def scale(self) -> float:
        """A typical residual's pull, to which gradients are compared."""
        return 1e-3

    def __call__(self, residual: Array) -> tuple[Array, Array]:
        """Return rho and its derivative."""
        return 0.5 * residual * residual, residual


Loss = Huber | Squared


@dataclass(frozen=True)
class Problem:
    """What is fitted: centred logs `x` (k, n), their `centres` (k,), ln loss `y` (n,), the form and the loss."""

    form: Form
    x: Array
    centres: Array
    y: Array
    loss: Loss


@dataclass(frozen=True)
class PointFit:
    """The best row of a multi-start: internal constants (p,), inverse Hessian (p, p), and the evidence."""

    theta: Array
    constants: Array
    objective: float
    metric: Array
    evidence: Optimizer


def problem(form: Form, columns: Sequence[Array], losses: Array, loss: Loss) -> Problem:
    """Return the problem of fitting `form` to positive `columns` (in the order of form.inputs) and losses."""
    logs = np.log(np.stack([np.asarray(c, dtype=np.float64) for c in columns]))
    centres = logs.mean(axis=1)
    return Problem(form, logs - centres[:, None], centres, np.log(np.asarray(losses, dtype=np.float64)), loss)


def evaluate(p: Problem, theta: Array, weights: Array | None = None, y: Array | None = None) -> tuple[Array, Array]:
    """Return the summed objective (R,) and its gradient (R, p); where it overflows, infinity and no gradient."""
    with np.errstate(over="ignore", invalid="ignore"):
        log_value, pull = p.form.log_value_and_pull(theta, p.x)
        rho, psi = p.loss(log_value - (p.y if y is None else y))
        if weights is not None:
            rho, psi = rho * weights, psi * weights
        total, gradient = rho.sum(axis=1), pull(psi)
    bad = ~(np.isfinite(total) & np.isfinite(gradient).all(axis=1))
    total[bad], gradient[bad] = np.inf, 0.0
    return total, gradient


def grid_starts(p: Problem, count: int = STARTS) -> Array:
    """Return `count` distinct starts (count, p), the best first, from the projected grid over the exponents."""
    exponents = np.array(list(itertools.product(GRID, repeat=p.form.exponents)))
    basis = p.form.basis(exponents, p.x)
    basis *= np.exp(-p.y)[None, :, None]
    gram = np.matmul(basis.transpose(0, 2, 1), basis)
    totals = basis.sum(axis=1)
    size = np.sqrt(np.einsum("gmm->gm", gram))
    scaled = gram / (size[:, :, None] * size[:, None, :]) + 1e-12 * np.eye(gram.shape[1])
    coefficients = np.linalg.solve(scaled, (totals / size)[:, :, None])[:, :, 0] / size
    # A negative constant is outside the law: such a start begins with a small share of the loss instead.
    smallest = 1e-3 * np.sqrt(p.y.size) / size
    # Squared relative error at these constants, from the normal equations: no need to look at the runs again.
    coefficients = np.maximum(coefficients, smallest)
    fitted = np.einsum("gm,gmk,gk->g", coefficients, gram, coefficients)
    scores = fitted - 2.0 * np.einsum("gm,gm->g", coefficients, totals)
    theta = p.form.assemble(exponents, coefficients)
    return theta[_spread(np.log(exponents), scores, count)]


def _spread(logs: Array, scores: Array, count: int) -> list[int]:
    """Return the indices of the best scores whose exponents differ by at least a fifth from those chosen before."""
    chosen: list[int] = []
    far = np.ones(len(scores), dtype=bool)
    for index in np.argsort(scores, kind="stable"):
        if far[index]:
            chosen.append(int(index))
            far &= np.abs(logs - logs[index]).max(axis=1) > 0.2
        if len(chosen) == count:
            break
    return chosen


def solve(
    p: Problem,
    starts: Array,
    *,
    metric: Array | None = None,
    weights: Array | None = None,
    y: Array | None = None,
    fixed: tuple[int, ...] = (),
    tolerance: float = 1e-9,
) -> Minimum:
    """Minimise from every row of `starts` (R, p); `weights` and `y` are (R, n), `fixed` constants stay."""
    first = np.eye(starts.shape[1]) / (p.y.size * 0.1) if metric is None else metric
    total = np.full(len(starts), float(p.y.size)) if weights is None else weights.sum(axis=1)

    def restrict(index: Index) -> Evaluate:
        whole = len(index) == len(starts)
        w = weights if weights is None or whole else weights[index]
        target = p.y if y is None else y if whole else y[index]
        return lambda theta: evaluate(p, theta, w, target)

    return minimise(restrict, starts, first, tolerance * p.loss.scale * total, fixed=fixed)


def fit_point(p: Problem, starts: int = STARTS) -> PointFit:
    """Return the best of many starts, with the share that agrees and the basins that were found."""
    found = solve(p, grid_starts(p, starts))
    best = int(np.argmin(found.value))
    constants = p.form.natural(found.theta, p.centres)
    gradient = float(found.gradient[best] / (p.loss.scale * p.y.size))
    agree = found.value <= found.value[best] * (1 + 1e-6) + 1e-15 * p.y.size
    evidence = Optimizer(
        METHOD,
        len(found.value),
        float(agree.mean()),
        gradient,
        bool(gradient < 1e-6),
        _basins(found.value, constants, p.form.names),
    )
    return PointFit(found.theta[best], constants[best], float(found.value[best]), found.metric[best], evidence)


def _basins(values: Array, constants: Array, names: tuple[str, ...]) -> tuple[Basin, ...]:
    """Return the distinct minima, the best first; values within 1e-6 of each other are one."""
    basins: list[Basin] = []
    left = list(np.argsort(values, kind="stable"))
    while left and np.isfinite(values[left[0]]):
        lead = left[0]
        near = [i for i in left if values[i] <= values[lead] * (1 + 1e-6) + 1e-15]
        params = {name: float(value) for name, value in zip(names, constants[lead], strict=True)}
        basins.append(Basin(float(values[lead]), len(near) / len(values), params))
        left = [i for i in left if i not in near]
    return tuple(basins)


def fit_many(
    p: Problem, start: PointFit, *, weights: Array | None = None, y: Array | None = None, workers: int = 1
) -> Minimum:
    """Return a minimum for every row of resampling `weights` (R, n) or of log losses `y` (R, n).

    Rows are solved in fixed chunks, so that the numbers do not depend on `workers` (threads).
    """
    given = weights if weights is not None else y
    assert given is not None, "fit_many needs weights or y"

    def chunk(begin: int) -> Minimum:
        rows = slice(begin, min(begin + CHUNK, len(given)))
        starts = np.broadcast_to(start.theta, (rows.stop - rows.start, start.theta.size))
        w, target = (None if a is None else a[rows] for a in (weights, y))
        return solve(p, starts, metric=start.metric, weights=w, y=target, tolerance=RESAMPLE_TOLERANCE)

    begins = range(0, len(given), CHUNK)
    if workers <= 1:
        parts = [chunk(b) for b in begins]
    else:
        with ThreadPoolExecutor(workers) as pool:
            parts = list(pool.map(chunk, begins))
    return Minimum(
        np.concatenate([part.theta for part in parts]),
        np.concatenate([part.value for part in parts]),
        np.concatenate([part.gradient for part in parts]),
        np.concatenate([part.metric for part in parts]),
        max(part.rounds for part in parts),
    )
