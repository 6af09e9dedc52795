"""Proposed runs in words: lines for a terminal, and one line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from analysis.planning.next_runs import TELLS
from analysis.text import numbers

if TYPE_CHECKING:
    from analysis.planning.next_runs import Next, Share


FAR = 10.0
"""Tokens per parameter this many times off those of the target need a word of explanation."""


def line(found: Next) -> str:
    """Return what a proposal says first, in one line."""
    total = numbers.flops(sum(run.flops for run in found.runs))
    return (
        f"Next({numbers.counted(len(found.runs), 'run')} with {total} for the loss at {numbers.flops(found.target)}: "
        f"sd {numbers.percent(found.sd_now)} now, {numbers.percent(found.sd_after)} after them)"
    )


def text(found: Next) -> str:
    """Return the proposal as lines for a terminal."""
    (low, high), (low_after, high_after) = found.between(found.sd_now), found.between(found.sd_after)
    lines = [
        *(str(check) for check in found.checks),
        f"target    {numbers.flops(found.target)}, {numbers.count(found.target_params)} parameters: loss "
        f"{numbers.number(found.loss, 4)} {found.loss_unit} by the law through the runs",
        f"now       {numbers.number(low, 4)} to {numbers.number(high, 4)} (95 %, around the forecast "
        f"{numbers.number(found.middle, 4)}; {numbers.counted(found.basins, 'basin')})",
        f"then      {numbers.number(low_after, 4)} to {numbers.number(high_after, 4)} after the runs below",
        *([f"prior     {found.prior} (published laws; the runs add to it)"] if found.prior else []),
        *_errors(found),
        *([f"{'no prior' if found.prior else 'resampled':<10}{without_prior(found)}"] if found.without else []),
        *([f"barely    {barely(found)}"] if found.barely else []),
        *([f"no advice {found.unadvised}: these losses choose runs, they recommend none"] if found.unadvised else []),
        "",
        f"  {'':>3} {'params':>9} {'tokens':>9} {'FLOPs':>9} {'shape':>10} {'95 % after':>11} {'narrower by':>12}",
    ]
    for i, run in enumerate(found.runs, 1):
        shape = f"{run.width} x {run.layers}" if run.width else "-"
        lines.append(
            f"  {i:>3} {numbers.count(run.params):>9} {numbers.count(run.tokens):>9} "
            f"{numbers.scientific(run.flops):>9} {shape:>10} {_either_side(found, run.after):>11} "
            f"{numbers.percent(1 - run.after / run.before):>12}"
        )
    lines.append(f"  sum {'':>19} {numbers.scientific(sum(r.flops for r in found.runs)):>9}")
    if why := far_off(found):
        lines += ["", f"why       {'; '.join(why)}"]
    if found.simulation is not None:
        lines += ["", _simulation(found.simulation)]
    return "\n".join(lines).translate(numbers.ASCII)


def _errors(found: Next) -> Iterator[str]:
    """Yield the lines of the errors that the forecast expects, each with its prior."""
    each = (("scatter", "from run to run", found.scatter), ("form", "by the form of the law", found.form_error))
    for name, of, one in each:
        if one is not None:
            yield f"{name:<10}{numbers.percent(one.sd)} {of} (prior: {one.prior}; the runs add to it)"


def without_prior(found: Next) -> str:
    """Return the interval that fits and plans give for the same budget, and what it leaves out."""
    assert found.without is not None, "it is said where there is one"
    low, high = (numbers.number(end, 4) for end in found.without)
    less = "without priors and the form's own error"
    given = "analysis.plan strict=no gives" if found.unadvised else "analysis.fit and analysis.plan give"
    return f"{low} to {high} by resamples of the runs alone, as {given} it: {less}"


def barely(found: Next) -> str:
    """Return by how little the proposed runs narrow the interval, and the smallest single run that would by much."""
    now, then = (_either_side(found, sd) for sd in (found.sd_now, found.sd_after))
    said = f"these runs narrow the interval of the loss at {numbers.flops(found.target)} only from {now} to {then}"
    if found.larger is None:
        return said
    one, budget = found.larger, numbers.brief(found.larger.flops)
    return (
        f"{said}; a larger run would help more: one of {budget} FLOPs alone, "
        f"{numbers.count(one.params)} parameters on {numbers.count(one.tokens)} tokens, narrows it to "
        f"{_either_side(found, one.after)} (ask with budget={budget} largest={budget})"
    )


def _either_side(found: Next, sd: float) -> str:
    return f"+-{numbers.number(found.half_width(sd), 3)}"


def _simulation(share: Share) -> str:
    grid = f"the isoFLOP grid of {share.grid_runs} runs ({numbers.flops(share.grid_flops)})"
    spread = f"{numbers.percent(share.sd_now)} now, {numbers.percent(share.sd_grid)} by the grid"
    if share.sd_grid >= TELLS * share.sd_now:
        return (
            f"simulated: {grid} would hardly narrow the forecast ({spread}): the uncertainty there is in the "
            "form of the law so far out, which runs of this size cannot reduce"
        )
    if share.share is None and share.sd_chosen <= share.sd_grid:
        return (
            f"simulated: {numbers.counted(share.runs, 'chosen run')} may forecast as narrowly as {grid}, but "
            f"{share.studies} studies cannot tell; simulate={10 * share.studies} may (sd of the loss at the target "
            f"{spread}, {numbers.percent(share.sd_chosen)} by the chosen runs)"
        )
    if share.share is None:
        end = numbers.percent(share.sd_chosen)
        return (
            f"simulated: {grid} narrows the forecast more than {share.runs} chosen runs do (sd of the loss at the "
            f"target {spread}, {end} by the chosen runs; {share.studies} studies)"
        )
    return (
        f"simulated: {numbers.counted(share.runs, 'chosen run')} with {numbers.percent(share.share)} of the FLOPs of "
        f"{grid} forecast as narrowly (sd of the loss at the target {spread}; {share.studies} studies)"
    )


def far_off(found: Next) -> tuple[str, ...]:
    """Return why runs are proposed whose tokens per parameter are far from the target's; empty where none is."""
    if not math.isfinite(found.target_ratio):
        return ()
    odd = [(i, run.tokens / run.params) for i, run in enumerate(found.runs, 1)]
    odd = [(i, ratio) for i, ratio in odd if not 1 / FAR < ratio / found.target_ratio < FAR]
    if not odd:
        return ()
    low, high = found.done_ratios
    shown = ", ".join(f"{numbers.number(ratio, 2)} (run {i})" for i, ratio in odd)
    beyond = [ratio for _, ratio in odd if not low / 1.5 <= ratio <= high * 1.5]
    return (
        f"tokens per parameter {shown} are far from the target's {numbers.number(found.target_ratio, 2)}. These runs "
        "are not proposed as models: at one ratio the terms of N and D fall together, and runs far from it separate "
        "them with the least compute",
        f"the finished runs have {numbers.number(low, 2)} to {numbers.number(high, 2)}"
        + (", so the law is tested beyond what it was fitted to" if beyond else "")
        + f"; ratios={numbers.number(found.target_ratio / FAR, 1)}:{numbers.number(found.target_ratio * FAR, 1)} "
        "leaves such runs out",
    )
