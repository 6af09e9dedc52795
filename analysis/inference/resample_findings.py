"""Findings about resamples: few groups behind them, draws that have no value, estimates that lie beyond them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis.estimation import observations, ties
from analysis.inference import budget_drift, error_draws, nested_errors, resampling
from analysis.inference.intervals import METHODS
from analysis.inference.schemes import SCHEMES
from analysis.inputs.dataset import Array
from analysis.text import numbers
from analysis.values.blocks import Check
from analysis.values.findings import finding

if TYPE_CHECKING:
    from analysis.inference.inferred_law import InferredLaw

MANY_UNDEFINED = 0.01
"""A larger share of draws without a value than this is a finding."""
FEWEST_REPEATS = 8
"""With fewer degrees of freedom than this the noise of seeds is little known."""
WILD, MOST_WILD = 5.0, 0.25
"""Rows so many robust deviations from the law are wild, where no more than this share of all is."""
LEAST_NOISE = 1e-4
"""Runs that follow the law to this, in logs, have no noise to be compared to."""
FEWEST_JUDGED = 10
LIKELY = 0.5
"""Fewer repeats than this are expected to have one loss by chance where losses of one setting are called copies."""
LEAST_CHANCE = 1e-3
"""Probabilities below it are not told apart."""


def between_df(fit: InferredLaw) -> float:
    """Return the degrees of freedom that the groups of the plan have left beside the constants, for what they share."""
    around = error_draws.Around(fit.problem, fit.point, np.arange(fit.nobs))
    found = error_draws.parts(around, resampling.groups(fit.plan, fit.data.size, fit.data.run_numbers))
    return found.between_df if found.between_v >= error_draws.LEAST_BETWEEN else 0.0


def nested_df(fit: InferredLaw) -> tuple[float, float]:
    """Return the degrees of freedom left of sizes, and of the runs within them; 0 where nothing of them can be seen."""
    around = error_draws.Around(fit.problem, fit.point, np.arange(fit.nobs))
    size, run = (observations.by_first(numbers) for numbers in (fit.data.size, fit.data.run_numbers))
    found = nested_errors.levels(around, size, run)
    if not found.seen:
        return 0.0, 0.0
    *sizes, runs = (float(df) for df in found.df[:-1])
    return (sizes[0] if sizes else 0.0), runs


def drift_of(fit: InferredLaw) -> budget_drift.Drift | None:
    """Return how best sizes drift over the budgets of the fit's rows; None where these do not form budgets."""
    around = error_draws.Around(fit.problem, fit.point, observations.order(fit.data, fit.form))
    return budget_drift.find(around, fit.data)


def _groups(fit: InferredLaw) -> list[Check]:
    """Return that groups of rows are few, or are not held by the intervals at all."""
    grouping = resampling.choose(fit.data.size, fit.data.run_numbers)
    name = grouping.shared or (grouping.by if grouping.by == "sizes" else "")
    count = len(np.unique(resampling.groups(grouping, fit.data.size, fit.data.run_numbers)))
    if not name or count == fit.nobs:
        return []
    what = numbers.counted(count, SCHEMES[name].unit)
    finer = name == "sizes" and fit.plan.by == "runs" and fit.interval in ("bootstrap", "sandwich")
    holds = METHODS[fit.interval].groups(fit.plan) and not finer
    df, of_runs = np.inf, 0.0
    if fit.interval == "bootstrap" and fit.plan.shared:
        df, of_runs = nested_df(fit) if fit.plan.within else (between_df(fit), 0.0)
    if not holds or df == 0.0:
        unit = "run" if finer or of_runs else "row"
        text = f"{fit.nobs} rows are of {what}, and the intervals treat every {unit} as independent"
        advice = (
            ("use cluster=auto" if finer else "use resamples=1000 with cluster=auto, or interval=sandwich")
            if not holds
            else f"too few to estimate the variance between them: add {name}"
        )
        return [finding("clustered_rows", text, f"{advice}; until then intervals are lower bounds")]
    if count >= resampling.FEW_CLUSTERS:
        return _shared(fit, name, what, df, of_runs) if np.isfinite(df) else []
    text = f"{fit.nobs} rows are of only {what}"
    if np.isfinite(df):
        text += f": the variance between {SCHEMES[name].unit}s is estimated with {df:.2g} degrees of freedom"
    advice = f"intervals allow for it and are wide, or lower bounds where errors are one-sided: add {name}"
    return [finding("few_sizes" if name == "sizes" else "few_clusters", text, advice)]


def _shared(fit: InferredLaw, name: str, what: str, df: float, of_runs: float) -> list[Check]:
    """Return that intervals hold what the rows of a group share, and how much is known of it."""
    text = f"{fit.nobs} rows are of {what}: intervals include a random effect of the {SCHEMES[name].unit}, "
    text += f"its variance estimated with {df:.2g} degrees of freedom"
    if of_runs:
        text += f", and one of the run, with {of_runs:.0f}"
    advice = f"if there is no such effect, they are wider than necessary; more {name} narrow them"
    return [finding("shared_errors", text, advice)]


def _drift(fit: InferredLaw) -> list[Check]:
    """Return that best sizes drift from budget to budget, and whether the intervals allow for it."""
    found = drift_of(fit)
    if found is None or found.chance > budget_drift.RARE:
        return []
    chance = (
        numbers.percent(found.chance) if found.chance >= LEAST_CHANCE else f"less than {numbers.percent(LEAST_CHANCE)}"
    )
    text = (
        f"the residuals of {numbers.counted(found.count, 'budget')} show best sizes that differ from the law's by "
        f"{numbers.factor(float(np.exp(found.spread)))} (one standard deviation); independent errors would show as "
        f"much in {chance} of studies"
    )
    advice = "look for tuning or schedules that change with the budget; "
    if fit.interval == "bootstrap" and fit.plan.drift:
        advice += "intervals allow for it"
    else:
        advice += "these intervals do not allow for it: use resamples=1000 with cluster=auto"
    return [finding("budget_drift", text, advice)]


def _wild(fit: InferredLaw) -> list[Check]:
    """Return that a few rows lie far from the law, which resamples draw in numbers of their own."""
    if fit.interval != "bootstrap" or not len(fit.thetas) or fit.nobs < FEWEST_JUDGED:
        return []
    left = fit.resid - float(np.median(fit.resid))
    least = LEAST_NOISE * (float(fit.observed.max()) if fit.problem.plain else 1.0)
    far = np.abs(left) > WILD * max(fit.noise, least)
    if not far.any() or far.mean() > MOST_WILD:
        return []
    text = (
        f"{numbers.counted(int(far.sum()), 'row')} of {fit.nobs} lie more than {WILD:g} robust deviations from the law"
    )
    advice = "resamples contain such rows more or less often, which makes intervals wide: check these rows"
    return [finding("wild_rows", text, advice)]


def _repeats(fit: InferredLaw) -> list[Check]:
    """Return that few repeats say what seeds do, and that nothing else is in such intervals."""
    if fit.plan.by != "seeds" or fit.interval != "bootstrap":
        return []
    count = np.bincount(fit.cells)
    df = int((count[count > 0] - 1).sum())
    if df >= FEWEST_REPEATS:
        return []
    text = f"intervals rest on {numbers.counted(df, 'repeat')} of settings, and include the effect of seeds only"
    return [finding("few_repeats", text, "repeat more settings, or cluster=auto")]


def _copies(fit: InferredLaw) -> list[Check]:
    """Return that some repeats of a setting have one loss to the last digit, where digits are too many for chance."""
    if fit.plan.by != "seeds" or fit.interval != "bootstrap":
        return []
    order = np.lexsort((fit.observed, fit.cells))
    cell, value = fit.cells[order], fit.observed[order]
    beside = cell[1:] == cell[:-1]
    gaps = np.diff(value)[beside] / value[1:][beside]
    copied, apart = gaps <= ties.EQUAL, gaps[gaps > ties.EQUAL]
    if not copied.any() or not len(apart):
        return []
    by_chance = len(gaps) * printed(fit.observed) / float(np.median(apart))
    if by_chance > LIKELY:
        return []
    text = (
        f"{numbers.counted(int(copied.sum()), 'row')} of {fit.nobs} repeat the {fit.form.target} of another seed of "
        "their setting to the last digit"
    )
    advice = "they are copies, which say nothing of what seeds do, and intervals are too short: leave them out"
    return [finding("copied_seeds", text, advice)]


def printed(values: Array) -> float:
    """Return the last digit to which values (n,) are written, as a share of the smallest."""
    for digits in range(12):
        if np.allclose(values, np.round(values, digits), rtol=1e-12, atol=0.0):
            return float(10.0**-digits / values.min())
    return ties.EQUAL


def _undefined(fit: InferredLaw) -> list[Check]:
    shares = {name: share for name, share in fit.undefined.items() if share > MANY_UNDEFINED}
    if not shares:
        return []
    text = ", ".join(f"{numbers.percent(share)} for {name}" for name, share in shares.items())
    advice = "half of them count as beyond each end of the interval; if they reach the share outside it, there is none"
    return [finding("undefined_draws", f"resamples without a value: {text}", advice)]


def _biased(fit: InferredLaw) -> list[Check]:
    if fit.interval != "bootstrap" or not len(fit.thetas):
        return []
    values = {**fit.params.to_dict(), **fit.derived.to_dict()}
    names = [
        str(name)
        for name, value in values.items()
        if name not in fit.held
        and fit.identified[str(name)].identified
        and resampling.biased(fit.draws[name].to_numpy(), float(value), fit.confidence)
    ]
    if not names:
        return []
    text = f"the estimate of {', '.join(names)} lies beyond the middle {100 * fit.confidence:g} % of its own resamples"
    advice = "its interval is widened to cover a bias on either side: do not quote it to its last digits; add runs"
    return [finding("biased_resamples", text, advice)]


OF_RESAMPLES = (_groups, _drift, _wild, _repeats, _copies, _undefined, _biased)
