"""Resampling: weights over rows, runs, sizes or seeds, or residuals drawn anew. Draws depend on the seed alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.results import Interval
from analysis.rows import Array, Index, Rows

FEW_CLUSTERS = 12
FEW_RUNS = 40
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Plan:
    """How uncertainty is resampled: by "sizes", "runs" or "residuals"; `text` is how fit.json says it."""

    by: str
    text: str


def plan(rows: Rows) -> Plan:
    """Return the default plan for these rows.

    Runs of one size share what is peculiar to that size, so sizes are resampled where they repeat: resampling runs
    then gives intervals that are too short. With few sizes or runs, whole resamples would not hold a fit at all:
    then the design stays and residuals are drawn anew, widened for the degrees of freedom that the fit used.
    """
    return choose(rows.size, np.arange(len(rows)) if rows.run is None else rows.run)


def choose(size: Index, run: Index, by: str = "auto") -> Plan:
    """Return the plan `by` name, or for "auto" the default for these group numbers (n,) of sizes and runs."""
    rows, sizes, runs = len(size), len(np.unique(size)), len(np.unique(run))
    texts = {
        "sizes": f"percentile bootstrap over the {sizes} model sizes",
        "runs": f"percentile bootstrap over the {runs} runs",
        "rows": f"percentile bootstrap over the {rows} rows",
        "seeds": "percentile bootstrap over the seeds of each setting",
        "residuals": f"residual bootstrap of {rows} runs, widened for the degrees of freedom used",
    }
    if by != "auto":
        if by not in texts:
            raise ValueError(f"cluster={by!r} is not known; use auto, {', '.join(texts)}")
        return Plan(by, texts[by])
    if sizes < runs and sizes >= FEW_CLUSTERS and rows >= FEW_RUNS:
        return Plan("sizes", texts["sizes"])
    if runs >= FEW_RUNS and (runs < rows or sizes == rows):
        return Plan("runs", texts["runs"])
    return Plan("residuals", texts["residuals"])


def groups(plan: Plan, size: Index, run: Index) -> Index:
    """Return the group numbers, from 0 without gaps, whose members are drawn together."""
    chosen = {"sizes": size, "runs": run}.get(plan.by, np.arange(len(size)))
    return np.unique(chosen, return_inverse=True)[1].astype(np.int64)


def seed_weights(cell: Index, resamples: int, seed: int) -> Array:
    """Return weights (resamples, n) that draw anew, with replacement, among the rows of each setting `cell` (n,)."""
    generator = np.random.default_rng(np.random.SeedSequence([seed, 3]))
    out = np.zeros((resamples, len(cell)))
    for number in np.unique(cell):
        rows = np.flatnonzero(cell == number)
        out[:, rows] = generator.multinomial(len(rows), np.full(len(rows), 1.0 / len(rows)), size=resamples)
    return out


def cluster_weights(groups: Index, resamples: int, seed: int) -> Array:
    """Return weights (resamples, n): how often each row's group was drawn, with replacement."""
    count = int(groups.max()) + 1
    generator = np.random.default_rng(np.random.SeedSequence([seed, 1]))
    drawn = generator.multinomial(count, np.full(count, 1.0 / count), size=resamples)
    return drawn[:, groups].astype(np.float64)


def residual_draws(residual: Array, df_resid: int, resamples: int, seed: int, centre: float | None = None) -> Array:
    """Return errors (resamples, n) drawn from `residual` (n,) = observed - fitted, less their centre, and widened.

    `centre` is where the fit's objective has their centre (see `losses.location`); the mean, that of squares, if None.

    The factor sqrt(n / df) undoes that a fit shrinks its residuals, t(df) / normal that their scale is an estimate.
    """
    widen = widening(len(residual), df_resid)
    generator = np.random.default_rng(np.random.SeedSequence([seed, 2]))
    picks = generator.integers(len(residual), size=(resamples, len(residual)))
    middle = float(residual.mean()) if centre is None else centre
    return np.asarray((residual - middle)[picks] * widen, dtype=np.float64)


def widening(count: int, df_resid: int) -> float:
    """Return the factor by which residuals of a fit are too small, and their quantiles too short for `df_resid`."""
    from scipy.stats import norm, t

    assert df_resid > 0, "no residual degrees of freedom"
    tail = 0.5 + CONFIDENCE / 2
    return float(np.sqrt(count / df_resid) * t.ppf(tail, df_resid) / norm.ppf(tail))


def percentile(draws: Array, confidence: float = CONFIDENCE, lost: float = 0.05) -> Interval | None:
    """Return the percentile interval of the finite draws; None where more than the share `lost` is not finite."""
    finite = draws[np.isfinite(draws)]
    if not len(draws) or len(finite) < (1.0 - lost) * len(draws):
        return None
    low, high = np.quantile(finite, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
