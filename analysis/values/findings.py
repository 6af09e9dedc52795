"""Every finding by its code: what it means, how bad it is, and where else than beside its own fit it is said.

`fit`, plans, the report and the documentation read this table; what finds them returns `finding(code, …)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analysis.values.blocks import Check

LEVELS = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """What a code means, and its level unless a finding says another.

    `in_plan`: a note of a plan says it. `of_sweep`: it is about a sweep of rates or batches, which its optima
    are not. `of_study`: the findings of a study's rows and surface say it already. `of_runs`: it is about the runs, and
    holds for another law than the surface too.
    """

    means: str
    level: str = "warning"
    in_plan: bool = False
    of_sweep: bool = False
    of_study: bool = False
    of_runs: bool = False


FINDINGS: Mapping[str, Finding] = {
    # rows
    "not_a_loss": Finding("losses look like accuracies or error rates", "error"),
    "perplexity": Finding("losses look like perplexities", "error"),
    "mixed_units": Finding("losses in bits beside nats, or sizes or tokens in millions beside counts", "error"),
    "units": Finding("sizes or tokens are too few to be counts", "error"),
    "outliers": Finding("losses lie far from those of similar size and tokens"),
    "copies": Finding("rows agree in every number to the last digit"),
    "few_tokens": Finding("every run has fewer tokens than parameters: columns may be swapped"),
    "not_started": Finding("points of the study have not started"),
    "rows_dropped": Finding("runs were not used", "note"),
    "unusable_rows": Finding("cells are missing, not positive or not numbers"),
    "mid_schedule": Finding("losses were taken before the learning-rate schedule ended"),
    "constant_rate": Finding("runs ended at a constant learning rate, as trunks do, and are not used", "note"),
    "mid_schedule_corrected": Finding("losses within the schedule were corrected to its end (`mid_schedule=correct`)"),
    "mixed_settings": Finding("rows with different values of another column are fitted together"),
    "flops_not_6nd": Finding("FLOPs differ from 6 N D", in_plan=True, of_study=True),
    "not_isoflop": Finding("no budget has three runs", "note"),
    "many_epochs": Finding("tokens are repeated more than 4 times"),
    "very_many_epochs": Finding("tokens are repeated more than 16 times"),
    "past_lowest": Finding("runs ended above their lowest validation loss: they overfit"),
    "long_warmup": Finding("runs warm up for more than 10 % of their tokens"),
    "lr_not_tuned": Finding("all sizes train at the same learning rate", of_sweep=True),
    "swept_settings": Finding("all runs of a sweep are fitted, not only the best of each", in_plan=True, of_sweep=True),
    "optimum_on_edge": Finding("a best learning rate or batch is on the edge of its sweep", of_sweep=True),
    # one law
    "not_converged": Finding("the optimizer stopped before the minimum", in_plan=True),
    "basins": Finding("fewer than half of the starting points reach the same minimum", in_plan=True),
    "flat_optimum": Finding("a range of laws fits the rows equally well"),
    "low_df": Finding("fewer than five residual degrees of freedom", in_plan=True),
    "few_models": Finding("a law of task errors rests on fewer than five models", "error"),
    "not_identified": Finding("the data do not determine a constant"),
    "seed_noise": Finding("the standard deviation between repeats of a setting", "note"),
    "lack_of_fit": Finding("the law misses budgets or settings by more than noise explains"),
    "no_surface": Finding("no surface was fitted"),
    "single_epoch": Finding("the surface is fitted only to runs of one epoch or less", "note", of_runs=True),
    "asymmetry": Finding("alpha and beta differ so much that parabolas of valleys are biased"),
    "surface_off": Finding("the surface and the valleys disagree on the best size"),
    # resamples
    "clustered_rows": Finding("rows of a size or run are treated as independent", of_study=True),
    "few_sizes": Finding("rows are of fewer than 12 sizes", of_runs=True),
    "few_clusters": Finding("rows are of fewer than 12 runs"),
    "shared_errors": Finding("intervals include a random effect of the size or run", "note"),
    "budget_drift": Finding("best sizes drift from budget to budget by more than noise explains"),
    "few_repeats": Finding("intervals from seeds rest on fewer than 8 repeats"),
    "copied_seeds": Finding("repeats of a setting have one loss to the last digit"),
    "wild_rows": Finding("a few rows lie far from the law", "note"),
    "undefined_draws": Finding("some resamples have no value of a constant, or no minimum"),
    "biased_resamples": Finding("an estimate lies outside the interval of its own resamples"),
    # isoFLOP valleys
    "few_points": Finding("a budget has fewer than three sizes"),
    "edge_minimum": Finding("a budget's minimum is beyond its sizes"),
    "inverted_parabola": Finding("a budget's parabola has no minimum"),
    "flat_parabola": Finding("a valley is shallower than twice the noise"),
    "negative_parabola": Finding("a parabola's minimum is not a positive loss"),
    "flat_kept": Finding("valleys shallower than twice the noise are kept (`flat_valleys=keep`)"),
    "outside_window": Finding("parabolas leave out runs far from the best size", "note"),
    "off_center": Finding("a minimum lies near the edge of its sizes"),
    "drifting_grid": Finding("minima drift across the sizes as the budget grows"),
    "few_valleys": Finding("fewer than five budgets have a minimum"),
    "valley_scatter": Finding("best sizes scatter around their power law by more than noise explains"),
    # sweeps' optima, learning curves
    "window_matters": Finding("optima of sweeps depend on the window"),
    "few_curves": Finding("too few learning curves for intervals"),
    "no_held_out_curve": Finding("every learning curve was fitted: none tests the law"),
    "ridge": Finding("a law of learning curves stopped on a ridge", "note"),
    "constant_schedules": Finding("no learning rate changes in the curves"),
    # forecast
    "no_recommendation": Finding("no approach can recommend a size", "error"),
    "not_advised": Finding("the law does not qualify, and the valleys' best sizes are recommended without it"),
    "disagreement": Finding("approaches disagree on the best size by more than a factor of 1.5"),
    "far_extrapolation": Finding("the budget is more than 30 times the largest run"),
    "choices_disagree": Finding("choices of the analysis move an exponent by more than chance"),
    "no_backtest": Finding("too few budgets for a backtest", "note"),
    "near_backtest": Finding("the recommendation extrapolates farther than the backtest"),
    "backtest_error": Finding("held-out losses are missed by more than 3 %"),
    "backtest_bias": Finding("all held-out losses are missed in the same direction"),
    "interval_short": Finding("a held-out loss lies outside the forecast's interval"),
    "prior_conflict": Finding("the runs contradict the published laws that `analysis.next` takes as its prior"),
}  # fmt: skip


def finding(code: str, message: str, advice: str, level: str = "") -> Check:
    """Return a finding: what was found and what to do about it, at the level of its code unless another is given."""
    usual = FINDINGS[code].level
    return Check(code, message, advice, level or usual)
