"""Resampling: which scheme the rows ask for, weights over rows, runs or sizes, and intervals of draws.

Draws depend on the seed alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analysis.inference import distributions
from analysis.inference.schemes import SCHEMES
from analysis.inputs.dataset import Array, Index, Rows
from analysis.text import numbers
from analysis.values.blocks import Interval

MANY_CLUSTERS = 30
"""From so many groups on whole groups are drawn; with fewer, errors that the groups share are drawn around the fit."""
FEW_CLUSTERS = 12
"""Below so many groups what they share is known from so few of them that a finding says so."""
FEWEST_CLUSTERS = 8
"""Fewer groups than this are not drawn as wholes: their resamples would hold a fit's constants too rarely."""
MANY_RUNS = 100
"""From so many independent runs on whole runs are drawn, which also holds where errors grow over the range."""
LARGEST_SHARE = 2 / 3
"""Groups are taken as groups where there are at most this many of them a row: else most stand for one row alone."""
CONFIDENCE = 0.95
BEYOND = 0.01
"""So far beyond its percentile interval, as a share of the interval's width, an estimate has all of the hull."""
ROUNDING = 1e-6
"""An estimate no further beyond its percentile interval than this share of the width is at its end."""


@dataclass(frozen=True)
class Plan:
    """How uncertainty is resampled: by "sizes", "runs", "rows", "seeds" or "residuals"; `text` says it in fit.json.

    `shared` names the groups ("sizes" or "runs", else "") whose rows share a part of the residuals that are drawn.
    `within` is "runs" where rows of one run share another part, within those groups. With `drift` the best size of each
    FLOP budget is shifted as well.
    """

    by: str
    text: str
    shared: str = ""
    within: str = ""
    drift: bool = False


def plan(rows: Rows) -> Plan:
    """Return the default plan for these rows; see `choose`."""
    return choose(rows.size, rows.run_numbers)


def choose(size: Index, run: Index, by: str = "auto") -> Plan:
    """Return the plan `by` name, or for "auto" the default for these group numbers (n,) of sizes and runs.

    Rows of one run (its checkpoints) and runs of one size share what is peculiar to it: taken as independent they
    would give intervals that are too short. Many groups are drawn as wholes. With few, whole resamples would not hold
    a fit at all: then the design stays, and the errors that groups share and those of the rows are drawn anew.
    """
    counts = _counts(size, run)
    if by != "auto":
        if by not in SCHEMES:
            raise ValueError(f"cluster={by!r} is not known; use auto, {', '.join(SCHEMES)}")
        if by in counts and counts[by] < FEWEST_CLUSTERS:
            raise ValueError(
                f"cluster={by}: there are {numbers.counted(counts[by], by[:-1])}, and at least {FEWEST_CLUSTERS} are "
                "needed to resample whole ones; use cluster=auto, which draws a random effect for each"
            )
        return Plan(by, _text(by, counts))
    name, within = _grouping(size, run)
    if not name and len(size) >= MANY_RUNS:
        return Plan("runs", _text("runs", counts))
    if name and counts[name] >= MANY_CLUSTERS:
        return Plan(name, _text(name, counts))
    return residuals(size, run, name, within)


def residuals(size: Index, run: Index, shared: str = "", within: str = "") -> Plan:
    """Return the plan that draws errors around the fit, with a part that each group `shared`, and `within`, shares."""
    counts = _counts(size, run)
    if not shared:
        return Plan("residuals", _text("residuals", counts))
    text = f"residual bootstrap of {_units('rows', counts)}, with a random effect for each of {_units(shared, counts)}"
    return Plan("residuals", f"{text} and of {_units(within, counts)}" if within else text, shared, within)


def _counts(size: Index, run: Index) -> dict[str, int]:
    return {"sizes": len(np.unique(size)), "runs": len(np.unique(run)), "rows": len(size)}


def _units(name: str, counts: Mapping[str, int]) -> str:
    """Return how many units a scheme draws, in words."""
    return numbers.counted(counts.get(name, counts["rows"]), SCHEMES[name].unit)


def _text(name: str, counts: Mapping[str, int]) -> str:
    return SCHEMES[name].text.format(_units(name, counts))


def _grouping(size: Index, run: Index) -> tuple[str, str]:
    """Return the groups, "sizes" or "runs", whose rows share errors, and those within them that share more.

    Both are "" where rows are runs of as many sizes. Runs are groups wherever they have several rows. Their sizes are
    as well where these hold several runs.
    """
    rows, sizes, runs = len(size), len(np.unique(size)), len(np.unique(run))
    if runs > LARGEST_SHARE * rows:
        return ("sizes" if sizes < runs and sizes <= LARGEST_SHARE * rows else ""), ""
    nested = len(np.unique(np.stack((size, run)), axis=1).T) == runs
    if sizes < runs and nested and (sizes <= LARGEST_SHARE * runs or sizes >= MANY_CLUSTERS):
        return "sizes", "runs"
    return "runs", ""


def groups(plan: Plan, size: Index, run: Index) -> Index:
    """Return the group numbers, from 0 without gaps, whose members are drawn together or share errors."""
    chosen = {"sizes": size, "runs": run}.get(plan.shared or plan.by, np.arange(len(size)))
    return np.unique(chosen, return_inverse=True)[1].astype(np.int64)


def cluster_weights(groups: Index, resamples: int, seed: int) -> Array:
    """Return weights (resamples, n): how often each row's group was drawn, with replacement."""
    count = int(groups.max()) + 1
    generator = np.random.default_rng(np.random.SeedSequence([seed, 1]))
    drawn = generator.multinomial(count, np.full(count, 1.0 / count), size=resamples)
    return drawn[:, groups].astype(np.float64)


def redrawn(residual: Array, df_resid: int, resamples: int, seed: int, centre: float | None = None) -> Array:
    """Return errors (resamples, n) drawn from `residual` (n,) = observed - fitted, less their centre.

    `centre` is their location under the fit's loss function (see `objectives.location`), None their mean. The factor
    sqrt(n / df) undoes that a fit shrinks its residuals.
    """
    n, generator = len(residual), np.random.default_rng(np.random.SeedSequence([seed, 2]))
    middle = float(residual.mean()) if centre is None else centre
    drawn = (residual - middle)[generator.integers(n, size=(resamples, n))]
    return np.asarray(drawn * np.sqrt(n / df_resid), dtype=np.float64)


def student_scales(df_resid: int, resamples: int, seed: int) -> Array:
    """Return scales (resamples,) of errors over the one that residuals with `df_resid` estimate, drawn for it.

    Each is of its own chi squared, so that quantiles are those of t(df) at any confidence.
    """
    generator = np.random.default_rng(np.random.SeedSequence([seed, 6]))
    return np.asarray(np.sqrt(1.0 / squared_scales(df_resid, generator.uniform(size=resamples))))


def squared_scales(df: float, probability: Array | float) -> Array:
    """Return quantiles of chi squared over its `df` degrees of freedom."""
    return distributions.chi2_quantiles(probability, df) / df


def percentile(draws: Array, confidence: float = CONFIDENCE) -> Interval | None:
    """Return the percentile interval of draws (R,), half of those that are not finite taken as beyond either end.

    None where that leaves no end: as many are not finite as the interval leaves out.
    """
    finite = draws[np.isfinite(draws)]
    lost = 1.0 - len(finite) / max(len(draws), 1)
    if len(finite) < 2 or lost >= 1.0 - confidence:
        return None
    tail = 0.5 * (1.0 - confidence - lost) / (1.0 - lost)
    low, high = np.quantile(finite, [tail, 1.0 - tail], method="weibull")
    return float(low), float(high)


def interval(draws: Array, estimate: float, confidence: float = CONFIDENCE, logs: bool = False) -> Interval | None:
    """Return the interval of draws (R,) around an estimate, which lies within it whatever the draws are.

    Every two-sided interval that is printed comes from here, is symmetric about its estimate, or is a profile's, which
    is searched outwards from it; one-sided limits are moved to it where they leave it out (`identifiability.Verdicts`).

    It is the percentile interval. Where that leaves the estimate out, resamples are biased by more than they spread,
    and which way the truth lies from the estimate is not known: then it is the hull of the percentile and the basic
    interval, its mirror image about the estimate, in logs where `logs` says so. See `biased`. It grows from the one to
    the other while the estimate moves away from the end by BEYOND of the width, so that no rounding decides.
    """
    found = percentile(draws, confidence)
    if found is None or not np.isfinite(estimate):
        return found
    low, high = found
    if low <= estimate <= high:
        return found
    near, far = (low, high) if estimate < low else (high, low)
    if logs and min(low, estimate) > 0:
        mirrored = estimate * (estimate / far)
        share = _share(float(np.log(estimate) - np.log(near)), float(np.log(near) - np.log(far)))
        end = mirrored if share == 1.0 else near * (mirrored / near) ** share
    else:
        mirrored = 2.0 * estimate - far
        share = _share(estimate - near, near - far)
        end = mirrored if share == 1.0 else near + share * (mirrored - near)
    return min(low, estimate, end), max(high, estimate, end)  # the estimate itself against rounding


def _share(beyond: float, width: float) -> float:
    """Return how much of the way to its mirrored end an interval of this width goes; both of one sign, or no width."""
    return min(beyond / width / BEYOND, 1.0) if width and np.isfinite(beyond / width) else 1.0


def biased(draws: Array, estimate: float, confidence: float = CONFIDENCE) -> bool:
    """Return whether the estimate lies beyond the percentile interval of its own draws, by more than rounding."""
    found = percentile(draws, confidence)
    if found is None:
        return False
    slack = ROUNDING * (found[1] - found[0])
    return not found[0] - slack <= estimate <= found[1] + slack
