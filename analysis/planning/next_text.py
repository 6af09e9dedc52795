"""Proposed runs in words: lines for a terminal, and one line."""

from __future__ import annotations

import math
import textwrap
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
    low, high = (found.loss * math.exp(s * 1.96 * found.sd_now) for s in (-1, 1))
    low_after, high_after = (found.loss * math.exp(s * 1.96 * found.sd_after) for s in (-1, 1))
    lines = [
        f"target    {numbers.flops(found.target)}, {numbers.count(found.target_params)} parameters: loss "
        f"{numbers.number(found.loss, 4)} {found.loss_unit}",
        f"now       {numbers.number(low, 4)} to {numbers.number(high, 4)} (95 %, "
        f"{numbers.counted(found.basins, 'basin')})",
        f"then      {numbers.number(low_after, 4)} to {numbers.number(high_after, 4)} after the runs below",
        *([f"prior     {found.prior} (published laws; the runs add to it)"] if found.prior else []),
        "",
        f"  {'':>3} {'params':>9} {'tokens':>9} {'FLOPs':>9} {'shape':>10} {'sd after':>9} {'drop per FLOP':>14}",
    ]
    for i, run in enumerate(found.runs, 1):
        shape = f"{run.width} x {run.layers}" if run.width else "-"
        lines.append(
            f"  {i:>3} {numbers.count(run.params):>9} {numbers.count(run.tokens):>9} "
            f"{numbers.scientific(run.flops):>9} {shape:>10} {numbers.percent(run.after):>9} "
            f"{numbers.scientific(run.drop_per_flop):>14}"
        )
    lines.append(f"  sum {'':>19} {numbers.scientific(sum(r.flops for r in found.runs)):>9}")
    if why := far_off(found):
        lines += ["", *textwrap.wrap(f"why: {'; '.join(why)}", 80, subsequent_indent="     ")]
    if found.simulation is not None:
        lines += ["", _simulation(found.simulation)]
    return "\n".join(lines).translate(numbers.ASCII)


def _simulation(share: Share) -> str:
    grid = f"the isoFLOP grid of {share.grid_runs} runs ({numbers.flops(share.grid_flops)})"
    spread = f"{numbers.percent(share.sd_now)} now, {numbers.percent(share.sd_grid)} by the grid"
    if share.sd_grid >= TELLS * share.sd_now:
        return (
            f"simulated: {grid} would hardly narrow the forecast ({spread}): the uncertainty there is in the "
            "form of the law so far out, which runs of this size cannot reduce"
        )
    if share.share is None:
        end = numbers.percent(share.sd_chosen)
        return f"simulated: {share.runs} chosen runs end at {end} ({spread}), not below {grid}"
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
