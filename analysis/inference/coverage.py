"""Do intervals cover? Studies with a known law and known errors, fitted like real ones, many times over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.estimation import fit_problem, multistart, objectives, observations
from analysis.inference import budget_drift, covariance, distributions, error_draws, resampling
from analysis.inputs.dataset import Array, Rows
from analysis.laws.base import Form
from analysis.laws.registry import named
from train.spec import calls

CHOICES = ("default", "sizes", "runs", "rows", "residuals", "delta", "sandwich")


@dataclass(frozen=True)
class Errors:
    """Errors of ln loss: `row_sd` each row's own, `size_sd` shared by the rows of a model size.

    `df` of Student's t gives the rows' errors its tails, scaled to the standard deviation; None is normal. The defaults
    are what the Chinchilla points show: robust spread 0.0048, heavy tails.
    """

    row_sd: float = 0.0048
    size_sd: float = 0.004
    df: float | None = 3.0

    def drawn(self, size: NDArray[np.int64], generator: np.random.Generator) -> Array:
        """Return the errors (n,) of one study with these group numbers (n,)."""
        n = len(size)
        own = generator.normal(size=n)
        if self.df is not None:
            own = generator.standard_t(self.df, size=n) / np.sqrt(self.df / (self.df - 2.0))
        return np.asarray(self.row_sd * own + self.size_sd * generator.normal(size=int(size.max()) + 1)[size])


def coverage(
    runs: Any,
    constants: Mapping[str, float],
    form: str | Form = "chinchilla",
    *,
    quantity: str = "a",
    methods: Sequence[str] = ("default", "rows", "delta", "sandwich"),
    errors: Errors | None = None,
    studies: int = 500,
    resamples: int = 250,
    confidence: float = 0.95,
    loss: objectives.Loss | None = None,
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """Return, for each method, the share of simulated studies whose interval holds the true `quantity`.

    Every study has the design of `runs` (the form's input columns), the law of `constants` and new errors; it is fitted
    from the projected grid like any study. Beside `coverage` stand the mean width, and the shares of intervals that lie
    `below` and `above` the truth. "default" is what `fit_law` would choose; studies do not depend on the methods.
    """
    unknown = [m for m in methods if m not in CHOICES]
    if unknown:
        raise ValueError(f"method {unknown[0]!r} is not known; use {', '.join(CHOICES)}")
    law = named(form)
    x = observations.inputs(runs, law)
    data = observations.read({**dict(zip(law.inputs, x, strict=True)), law.target: np.ones(x.shape[1])}, law)
    truth = np.array([[constants[name] for name in law.names]])
    base = fit_problem.problem(law, list(x), np.ones(x.shape[1]), loss or objectives.Huber())
    exact = law.log_value(law.internal(truth, base.centres), base.x)[0]
    true = float(_quantity(law, truth, quantity)[0])
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
    for number in range(studies):
        generator = np.random.default_rng(np.random.SeedSequence([seed, 5, number]))
        p = replace(base, y=exact + (errors or Errors()).drawn(data.size, generator))
        point = multistart.fit_point(p)
        for name in methods:
            ends = _interval(
                p, point, data, method=name, quantity=quantity, resamples=resamples, confidence=confidence, seed=number
            )
            found[name].append(ends)
    return {name: _shares(np.array(ends), true) for name, ends in found.items()}


def _interval(
    p: fit_problem.Problem,
    point: multistart.PointFit,
    data: Rows,
    *,
    method: str,
    quantity: str,
    resamples: int,
    confidence: float,
    seed: int,
) -> tuple[float, float]:
    if method in ("delta", "sandwich"):
        return _normal(p, point, data, method=method, quantity=quantity, confidence=confidence)
    from analysis.inference.fit_law import resampled

    how = resampling.choose(data.size, data.run_numbers, "auto" if method == "default" else method)
    if method == "default":
        how = budget_drift.allowing(how, error_draws.Around(p, point, observations.order(data, p.form)), data)
    theta = resampled(p, point, data, how, resamples=resamples, seed=seed)
    draws = _quantity(p.form, p.form.natural(theta, p.centres), quantity)
    estimate = float(_quantity(p.form, point.constants[None], quantity)[0])
    return resampling.interval(draws, estimate, confidence) or (-np.inf, np.inf)


def _normal(
    p: fit_problem.Problem, point: multistart.PointFit, data: Rows, *, method: str, quantity: str, confidence: float
) -> tuple[float, float]:
    clusters = len(np.unique(data.size))
    spread = covariance.delta(p, point) if method == "delta" else covariance.sandwich(p, point, data.size)
    df = len(data) - len(point.theta) if method == "delta" else clusters - 1
    step = 1e-6
    shifted = point.theta + step * np.concatenate((np.eye(len(point.theta)), -np.eye(len(point.theta))))
    values = _quantity(p.form, p.form.natural(shifted, p.centres), quantity)
    half = len(point.theta)
    slope = (values[:half] - values[half:]) / (2 * step)
    middle = float(_quantity(p.form, point.constants[None], quantity)[0])
    reach = float(distributions.t_quantile(0.5 + confidence / 2, df) * np.sqrt(slope @ spread @ slope))
    return middle - reach, middle + reach


def _quantity(form: Form, constants: Array, name: str) -> Array:
    if name in form.names:
        return constants[:, form.names.index(name)]
    derived = form.derived(constants)
    if name not in derived:
        raise ValueError(calls.none_such("quantity", name, form.name, (*form.names, *derived)))
    return derived[name]


def _shares(ends: Array, true: float) -> dict[str, float]:
    below, above = ends[:, 1] < true, ends[:, 0] > true
    return {
        "coverage": float(1.0 - below.mean() - above.mean()), "width": float(np.mean(ends[:, 1] - ends[:, 0])),
        "below": float(below.mean()), "above": float(above.mean()), "studies": float(len(ends)),
    }  # fmt: skip
