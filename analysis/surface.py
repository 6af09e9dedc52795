"""L(N, D) = E + A/N^alpha + B/D^beta on all runs: the fit, its intervals, and what it says is compute-optimal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analysis import bootstrap, engine, human, identify, losses
from analysis.forms import SURFACE
from analysis.results import Block
from analysis.rows import Array, Rows

FORM = SURFACE
FEWEST = len(SURFACE.names) + 1
E, A, B, ALPHA, BETA = range(5)


@dataclass(frozen=True)
class Surface:
    """A fitted surface: constants (5,) and their draws (R, 5) in the order E, A, B, alpha, beta, and the block."""

    block: Block
    constants: Array
    draws: Array
    point: engine.PointFit


def predict(constants: Array, params: Array, tokens: Array) -> Array:
    """Return the loss; `constants` (..., 5) broadcast against `params` and `tokens`."""
    c = np.moveaxis(np.asarray(constants, dtype=np.float64), -1, 0)
    return np.asarray(c[E] + np.exp(_log(c[A]) - c[ALPHA] * _log(params)) + np.exp(_log(c[B]) - c[BETA] * _log(tokens)))


def point_fit(rows: Rows, loss: engine.Loss) -> engine.PointFit | None:
    """Return the surface through these rows, None with too few of them."""
    if len(rows) < FEWEST or len(np.unique(rows.size)) < 3:
        return None
    return engine.fit_point(engine.problem(FORM, (rows.params, rows.tokens), rows.loss, loss))


def fit(rows: Rows, loss: engine.Loss, *, resamples: int, seed: int, workers: int = 1) -> Surface | Block:
    """Return the fitted surface with intervals; a Block that says why where it is not possible."""
    point = point_fit(rows, loss)
    if point is None:
        return Block(
            form=FORM.text,
            approach="surface",
            loss_function=loss.text,
            status="not possible",
            reason=f"{human.counted(len(rows), 'run')} of {human.counted(len(np.unique(rows.size)), 'size')}; "
            f"{len(FORM.names)} constants need at least {FEWEST} runs of 3 sizes",
        )
    problem = engine.problem(FORM, (rows.params, rows.tokens), rows.loss, loss)
    draws = _draws(problem, point, rows, resamples=resamples, seed=seed, workers=workers)
    derived, named = exponents(point.constants), {n: draws[:, i] for i, n in enumerate(FORM.names)}
    named |= {name: np.asarray(values) for name, values in exponents(draws).items()}
    identified = identify.surface(rows, point, named)
    block = Block(
        form=FORM.text,
        approach="surface",
        loss_function=loss.text,
        objective=point.objective,
        params={name: float(v) for name, v in zip(FORM.names, point.constants, strict=True)},
        derived={name: float(v) for name, v in derived.items()},
        intervals={n: bootstrap.percentile(v) if identified[n].identified else None for n, v in named.items()},
        identified=identified,
        rows_used=len(rows),
        optimizer=point.evidence,
    )
    return Surface(block, point.constants, draws, point)


def exponents(constants: Array) -> Mapping[str, Array]:
    """Return a = beta/(alpha+beta) of N* ~ C^a, and b = 1 - a of D* ~ C^b, for C proportional to N D."""
    a = constants[..., BETA] / (constants[..., ALPHA] + constants[..., BETA])
    return {"a": a, "b": 1.0 - a}


def _draws(
    problem: engine.Problem, point: engine.PointFit, rows: Rows, *, resamples: int, seed: int, workers: int
) -> Array:
    """Return resampled constants (resamples, 5)."""
    how = bootstrap.plan(rows)
    if resamples == 0:
        return np.empty((0, len(FORM.names)))
    if how.by == "residuals":
        fitted = problem.form.log_value(point.theta[None], problem.x)[0]
        residual = problem.y - fitted
        centre = losses.location(problem.loss, residual)
        noise = bootstrap.residual_draws(residual, len(rows) - len(FORM.names), resamples, seed, centre)
        found = engine.fit_many(problem, point, y=fitted + noise, workers=workers)
    else:
        groups = rows.size if how.by == "sizes" else np.arange(len(rows))
        weights = bootstrap.cluster_weights(groups, resamples, seed)
        found = engine.fit_many(problem, point, weights=weights, workers=workers)
    return FORM.natural(found.theta, problem.centres)


def _log(values: Array) -> Array:
    return np.log(np.maximum(values, 1e-300))
