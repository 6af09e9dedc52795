"""Findings about a fit: each has a stable code, what was found and what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from analysis.approaches.loss_laws import Closed
from analysis.inference import distributions, identifiability
from analysis.inputs.dataset import Index, Rows
from analysis.laws.sum_of_powers import SURFACE
from analysis.text import numbers
from analysis.values import choice_lines
from analysis.values.blocks import NOT_DECAYED, Block, Check, Clash, Dropped, Interval, agreement
from analysis.values.findings import finding
from analysis.values.study_result import Backtest, Choice, Recommendation

BIASED = 0.01
"""A mean error on one side above this is no note."""
SPREAD = 0.1
"""Other choices may move an exponent by this, or within its interval, before that is said."""
LEAST_MISFIT = 5e-4
"""Errors of whole budgets below this, 0.05 %, are less than what seeds do, however small the scatter."""
ASSUMED = ("", "given", "6ND")
"""FLOP rules that say nothing about attention; any other counts it and need not be 6 N D."""
UNUSABLE = ("missing", "not_positive", "not_a_number")
"""What is wrong with the cells of rows that are named, up to so many."""
FAR = 10.0
"""FLOPs further from 6 N D than this factor, either way, are no other count: units differ."""


@dataclass(frozen=True)
class Data:
    """What findings about the rows look at: those used and dropped, the rule of FLOPs, points that never started."""

    rows: Rows
    dropped: tuple[Dropped, ...]
    flop_rule: str
    waiting: int


def data(rows: Rows, dropped: Iterable[Dropped], *, flop_rule: str = "given", waiting: int = 0) -> list[Check]:
    """Return findings about the rows: what was left out, whether the counts agree, how few there are.

    `waiting` points of the study never started.
    """
    on = Data(rows, tuple(dropped), flop_rule, waiting)
    return [check for find in OF_DATA for check in find(on)]


def _not_started(on: Data) -> list[Check]:
    if not on.waiting:
        return []
    text = f"{on.waiting} points of the study have not started"
    return [finding("not_started", text, "the laws rest on part of the design: fit again when they are done")]


def _rows_dropped(on: Data) -> list[Check]:
    counts = Counter(row.code for row in on.dropped)
    if not counts:
        return []
    total = sum(counts.values())
    each = ", ".join(f"{n} {c}" for c, n in counts.items())
    text = f"{total} of {total + len(on.rows)} runs were not used ({each})"
    return [finding("rows_dropped", text, "see rows_dropped in fit.json for each run's reason")]


def _unusable_rows(on: Data) -> list[Check]:
    cells = [row for row in on.dropped if row.code in UNUSABLE]
    if not cells:
        return []
    named = numbers.listed((f"{row.key}: {row.reason}" for row in cells), "; ")
    text = f"{numbers.counted(len(cells), 'row')} cannot be used ({named})"
    advice = (
        "fill in or fix these cells; if runs diverged because of their size or learning rate, the law is biased "
        "towards the others"
    )
    return [finding("unusable_rows", text, advice)]


def _mid_schedule(on: Data) -> list[Check]:
    """Return what is said of unfinished runs, and of those whose schedule never was to come down."""
    reasons = [row.reason for row in on.dropped if row.code == "mid_schedule"]
    constant = reasons.count(NOT_DECAYED)
    unfinished = len(reasons) - constant
    found = []
    if unfinished:
        text = f"{numbers.counted(unfinished, 'run')} had not finished {'its' if unfinished == 1 else 'their'} "
        advice = "losses in mid-schedule are 1 to 2 % too high: let the runs finish, or use mid_schedule=correct"
        found.append(finding("mid_schedule", f"{text}learning-rate schedule", advice))
    if constant:
        verb = "is" if constant == 1 else "are"
        text = f"{numbers.counted(constant, 'run')} ended at a constant learning rate and {verb} not used"
        advice = "branches are used in place of their trunks; give other runs a cooldown (schedule.parent)"
        found.append(finding("constant_rate", text, advice))
    return found


def _flops(on: Data) -> list[Check]:
    """Return whether FLOPs differ from 6 N D: as a rule that counts attention says, or by what no count explains."""
    ratio = on.rows.flops / (6.0 * on.rows.params * on.rows.tokens)
    if np.abs(ratio - 1.0).max() <= 0.05:
        return []
    between = f"{100 * (ratio.min() - 1):+.1f} to {100 * (ratio.max() - 1):+.1f} %"
    text, level = f"FLOPs differ from 6 N D by {between}", "warning"
    advice = "attention or another count of N: exact FLOPs are used, do not mix with results that assume 6 N D"
    if on.flop_rule not in ASSUMED:
        text, level = f"FLOPs by {on.flop_rule} differ from 6 N D by {between}, as expected", "note"
        advice = "the exact count is used everywhere; results that assume 6 N D cannot be compared with these"
    elif max(ratio.max(), 1 / ratio.min()) > FAR:
        text = f"FLOPs are {ratio.min():.3g} to {ratio.max():.3g} times 6 N D"
        advice = (
            "counts of parameters do not differ by that much: check that params, tokens and flops have one unit in "
            "all rows (columns=params:size_m*1e6)"
        )
    return [finding("flops_not_6nd", text, advice, level)]


def _not_isoflop(on: Data) -> list[Check]:
    if not (np.bincount(on.rows.budget) < 3).all():
        return []
    text = "no budget has three runs: the runs do not form isoFLOP groups"
    return [finding("not_isoflop", text, "use the surface for such runs")]


OF_DATA: tuple[Callable[[Data], list[Check]], ...] = (
    _not_started, _rows_dropped, _unusable_rows, _mid_schedule, _flops, _not_isoflop,
)  # fmt: skip


def surface(block: Block, rows: Rows, clash: Clash | None = None, alone: str = "form=compute") -> list[Check]:
    """Return findings about the surface: convergence, degrees of freedom, identification, fit, asymmetry.

    `alone` is what is typed to fit the loss over compute alone.
    """
    if block.status != "ok" or block.optimizer is None:
        return [finding("no_surface", f"no surface was fitted: {block.reason}", "finish or add runs")]
    out = []
    df, evidence = len(rows) - len(block.params), block.optimizer
    if df < 5:
        text = f"only {df} residual degrees of freedom: {len(rows)} runs for {len(block.params)} constants"
        out.append(finding("low_df", text, "add runs; treat every interval as a lower bound"))
    if not evidence.converged:
        text = f"the optimizer stopped at a relative gradient of {evidence.gradient_norm:.1g}"
        out.append(finding("not_converged", text, "do not quote the constants; report the data as a problem"))
    if evidence.agree_share < 0.5:
        text = f"only {agreement(evidence)}" if evidence.agree_share else agreement(evidence)
        out.append(finding("basins", text, "compare the basins' predictions before trusting one"))
    cure = identifiability.cure(rows.params, rows.tokens, "add larger budgets or a wider range of sizes", alone)
    out += identifiability.findings(block.identified, cure)
    out += _misfit(block, rows, clash)
    alpha, beta = block.params["alpha"], block.params["beta"]
    known = clash is None and all(block.identified[n].identified for n in ("alpha", "beta"))
    if known and beta > 0 and not 0.8 <= alpha / beta <= 1.25:
        text = f"alpha/beta is {alpha / beta:.2f}: parabolas of the valleys are biased on such a surface"
        out.append(finding("asymmetry", text, "prefer the surface's N* and D* to the valleys'"))
    return out


def _misfit(block: Block, rows: Rows, clash: Clash | None) -> list[Check]:
    """Return findings that the surface's form does not follow the runs, which no interval of it can show."""
    out = []
    shares = _budget_errors(block, rows)
    if shares is not None:
        errors = ", ".join(f"{100 * share:+.1f}" for share in shares)
        text = f"the surface misses whole budgets: its mean errors are {errors} % by rising budget"
        advice = "the form does not hold over this range: leave out the smallest budgets or add larger ones"
        out.append(finding("lack_of_fit", text, advice))
    if clash is not None:
        text = (
            f"at {numbers.flops(clash.budget)} the surface puts the best size at {numbers.amount(clash.surface)} "
            f"parameters, the runs put it at {numbers.amount(clash.valley)} "
            f"({numbers.interval(clash.interval, numbers.amount)})"
        )
        out.append(finding("surface_off", text, "the valleys' N* and D* are recommended instead of the surface's"))
    return out


def _budget_errors(block: Block, rows: Rows) -> list[float] | None:
    """Return the surface's mean log error of each budget where these differ more than runs do (F test, 1 %).

    Budgets of a single run say nothing of how runs differ and are left out; where fewer than three have more, groups
    of runs by rising compute take their place.
    """
    constants = np.array([block.params[name] for name in SURFACE.names])
    fitted = Closed(constants[None]).loss(np.log(rows.params)[None], np.log(rows.tokens)[None])[0]
    errors = np.log(fitted / rows.loss)
    group, kept = rows.budget, np.bincount(rows.budget)[rows.budget] >= 2
    if len(np.unique(group[kept])) < 3:
        group, kept = _by_compute(rows), np.ones(len(rows), dtype=bool)
    _, group = np.unique(group[kept], return_inverse=True)
    errors, counts = errors[kept], np.bincount(group)
    df = len(errors) - len(counts)
    if len(counts) < 3 or counts.min() < 2 or df < 5:
        return None
    means = np.bincount(group, errors) / counts
    within = float(((errors - means[group]) ** 2).sum()) / df
    between = float((counts * (means - errors.mean()) ** 2).sum()) / (len(counts) - 1)
    if np.abs(means).max() < LEAST_MISFIT:
        return None
    return means.tolist() if between > within * distributions.f_quantile(0.99, len(counts) - 1, df) else None


def _by_compute(rows: Rows) -> Index:
    """Return groups of about four runs each, at most five, by rising compute."""
    order = np.argsort(np.argsort(rows.flops, kind="stable"), kind="stable")
    count = min(5, len(rows) // 4)
    return np.asarray(order * count // max(len(rows), 1), dtype=np.int64)


def outlook(
    plan: Recommendation | None,
    test: Backtest | None,
    why: str = "",
    level: str = "error",
    sizes: Mapping[str, float] | None = None,
    *,
    cure: str = "finish or add runs",
) -> list[Check]:
    """Return findings about the recommendation and the backtest.

    `why` the law is not followed or nothing is recommended, how bad that is, and what would help (`cure`); `sizes` are
    N* at its budget by approach.
    """
    out = []
    if plan is not None and why:
        text = f"{why}: the valleys' N* and D*, which need no law of the loss, are recommended"
        out.append(finding("not_advised", text, f"{cure}; until then the law forecasts no loss"))
    if plan is None:
        advice = cure if level == "error" else "form=chinchilla, or approach=2, recommends one"
        out.append(finding("no_recommendation", why or "no approach can recommend a size", advice, level))
    elif plan.disagreement is not None and plan.disagreement > 1.5:
        text = f"the approaches disagree on N* by a factor of {plan.disagreement:.2g}"
        if sizes:
            least, most = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
            text += f" ({', '.join(f'{_called(name)} {numbers.count(sizes[name])}' for name in (least, most))})"
        out.append(finding("disagreement", text, "the truth may lie between them; train a valley at a larger budget"))
    if plan is not None and plan.extrapolation_factor > 30:
        text = f"the budget is {plan.extrapolation_factor:.3g} times the largest run"
        advice = "train a valley in between first; intervals do not include model-form error"
        out.append(finding("far_extrapolation", text, advice))
    return [*out, *_tested(plan, test)]


def _called(name: str) -> str:
    """Return an approach's name in a sentence: "2 akima" is approach 2 by akima."""
    number, _, way = name.partition(" ")
    return f"approach {number} by {way}" if number.isdigit() and way else name


def _tested(plan: Recommendation | None, test: Backtest | None) -> list[Check]:
    """Return findings about the backtest: none, too near, off, on one side, outside the interval that is printed."""
    if test is None:
        text = "no backtest: it needs at least three budgets, two of them 1.5 times below the largest or more"
        return [finding("no_backtest", text, "add budgets")]
    error = test.relative_error
    if error is None:
        level = "warning" if plan is not None and plan.loss is not None else "note"
        advice = "add runs that test it: valleys with a minimum at more budgets"
        return [finding("no_backtest", f"no backtest: {test.reason}", advice, level)]
    out = []
    if plan is not None and not test.covers:
        text = (
            f"the backtest is over a factor of {numbers.number(test.extrapolation_factor, 2)}, the recommendation over "
            f"{numbers.number(plan.extrapolation_factor, 2)}: nothing here tests that far"
        )
        out.append(finding("near_backtest", text, "add smaller budgets, or recommend for a nearer one (budget=)"))
    if abs(error) > 0.03:
        side = "low" if error < 0 else "high"
        text = f"the held-out largest budget is predicted {numbers.percent(abs(error))} too {side}"
        out.append(finding("backtest_error", text, "expect at least this error in the forecast"))
    if test.one_sided and test.mean_relative_error is not None:
        text = f"the backtest errs in one direction: {one_sided(test)}"
        level = "warning" if abs(test.mean_relative_error) > BIASED else "note"
        out.append(finding("backtest_bias", text, "expect the forecast to be off in that direction", level))
    ends = plan.intervals.get("loss") if plan is not None else None
    if plan is not None and plan.loss and ends is not None:
        low, high = (end / plan.loss - 1.0 for end in ends)
        # Observed over predicted is where the truth of the backtest lies, relative to what it had foreseen.
        beyond = 1.0 / (1.0 + error) - 1.0
        if not low <= beyond <= high and (test.reach is None or abs(np.log1p(beyond)) > np.log1p(test.reach)):
            off, least, most = _apart(100 * beyond, 100 * low, 100 * high)
            side = "above" if beyond > 0 else "below"
            text = (
                f"the held-out loss is {off.lstrip('+-')} % {side} its prediction, outside the forecast's interval of "
                f"{least} to {most} %"
            )
            if test.reach is not None:
                text += f" and further off than the {numbers.percent(test.reach)} that its fewer runs explain"
            advice = "expect errors like the backtest's in the forecast: its interval is too short"
            out.append(finding("interval_short", text, advice))
    return out


def _apart(value: float, low: float, high: float) -> tuple[str, str, str]:
    """Return a value outside an interval and its ends, with the fewest decimals that show it to be outside."""
    shown = ("", "", "")
    for decimals in range(1, 7):
        shown = (f"{value:+.{decimals}f}", f"{low:+.{decimals}f}", f"{high:+.{decimals}f}")
        if shown[0] not in shown[1:]:
            break
    return shown


def one_sided(test: Backtest) -> str:
    """Return that all held-out runs are predicted too high, or too low, and by how much on average."""
    assert test.mean_relative_error is not None, "a test with runs has a mean error"
    side = "high" if test.mean_relative_error > 0 else "low"
    mean = numbers.percent(abs(test.mean_relative_error))
    return f"all {len(test.runs)} held-out losses predicted too {side}, by {mean} on average"


def choices(lines: Iterable[Choice], interval: Interval | None) -> list[Check]:
    """Return a finding where other choices of the analysis move the quantity by more than its interval says."""
    known = choice_lines.telling(lines)
    values = [line.value for line in known if line.value is not None]
    if len(values) < 3:
        return []
    low, high = min(values), max(values)
    inside = interval is not None and interval[0] <= low and high <= interval[1]
    if inside or high - low <= SPREAD:
        return []
    ends = [next(line for line in known if line.value == end) for end in (low, high)]
    which = "; ".join(f"{line.value:.2f}: {line.words}" for line in ends)
    between = f"lies between {low:.2f} and {high:.2f} over {len(values)} choices of the analysis"
    text = f"the surface's exponent {known[0].quantity} {between}"
    return [finding("choices_disagree", f"{text} ({which})", "the interval covers one choice only: state which one")]
