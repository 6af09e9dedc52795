"""Findings about isoFLOP valleys: budgets without a minimum, minima at the edge, drifting grids, lost draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.approaches.parabola import Parabola
from analysis.approaches.valley_options import WINDOW
from analysis.inference import scatter
from analysis.inference.scatter import Scatter
from analysis.inputs.dataset import Array, Rows
from analysis.text import numbers
from analysis.values.blocks import Check, Valley
from analysis.values.findings import finding

MANY_UNDEFINED = 0.01
"""A larger share of draws without a minimum than this is a finding."""

WIDER = "widen the range of sizes at this budget, or repeat with more seeds"
LEFT_OUT = {
    "edge": ("edge_minimum", "add sizes beyond the edge at this budget"),
    "inverted": ("inverted_parabola", WIDER),
    "flat": ("flat_parabola", WIDER),
    "negative": ("negative_parabola", "add sizes at this budget around its lowest losses"),
    "too_few": ("few_points", "add sizes at this budget; five over a factor of 16 are a good valley"),
}
"""The finding and the advice about a budget that is left out, by the status of its valley."""


def of_budgets(valleys: Sequence[Valley]) -> list[Check]:
    """Return a finding for each reason why budgets have no minimum, and for minima that lean on an edge of sizes."""
    out = []
    for status, (code, advice) in LEFT_OUT.items():
        bad = [v for v in valleys if v.status == status]
        if bad:
            several = advice.replace("this budget", "these budgets")
            out.append(finding(code, _left_out(bad), several if len(bad) > 1 else advice))
    minima = [v for v in valleys if v.status == "minimum"]
    out += scatter.few(len(minima))
    off = [v for v in minima if abs(_place(v)) > 0.7]
    if off:
        labels = ", ".join(numbers.scientific(v.flops_budget, 3) for v in off)
        text = f"the minimum lies near the edge of the sizes at {labels} FLOPs"
        out.append(finding("off_center", text, "centre the sizes on the minimum: off-centre parabolas are biased"))
    return [*out, *_drift(minima)]


def _left_out(bad: Sequence[Valley]) -> str:
    """Return which budgets are left out for one reason; up to three each with its own words."""
    if len(bad) > 3:
        labels = ", ".join(numbers.scientific(v.flops_budget, 3) for v in bad[:3])
        return f"{len(bad)} budgets are left out ({labels}, ... FLOPs); the first: {bad[0].reason}"
    if len(bad) > 1:
        each = "; ".join(f"{numbers.flops(v.flops_budget, 3)} ({v.reason})" for v in bad)
        return f"{len(bad)} budgets are left out: {each}"
    return f"budget {numbers.flops(bad[0].flops_budget, 3)} is left out: {bad[0].reason}"


def outside_window(rows: Rows, valleys: Sequence[Valley], window: float = WINDOW) -> list[Check]:
    """Return a finding about the runs of budgets with a parabola that are too far from its best size to be in it."""
    counts = np.bincount(rows.budget)
    left = int(counts[counts >= 2].sum()) - sum(v.points for v in valleys)
    if not left:
        return []
    text = f"{numbers.counted(left, 'run')} more than {window:g} times larger or smaller than the best of their budget"
    return [finding("outside_window", f"parabolas leave out {text}", "the surface rests on these runs too")]


def flat_kept(minima: Sequence[Parabola], noise: float) -> list[Check]:
    """Return the valleys that count though they are flat."""
    labels = [numbers.scientific(p.flops_budget, 3) for p in minima if p.is_flat(noise)]
    if not labels:
        return []
    named = ", ".join(labels[:4]) + (", ..." if len(labels) > 4 else "")
    text = (
        f"{numbers.counted(len(labels), 'valley')} within twice the noise of {100 * noise:.2g} % kept ({named} FLOPs)"
    )
    return [finding("flat_kept", text, "noise decides where such a minimum lies: flat_valleys=drop leaves it out")]


def of_draws(flops: Array, drawn: Array, found: Sequence[Scatter]) -> list[Check]:
    """Return findings about draws without a minimum, and about minima that scatter by more than their noise."""
    if not len(drawn):
        return []
    out, lost = [], np.isnan(drawn[..., 0]).mean(axis=0)
    bad = lost > MANY_UNDEFINED
    if bad.any():
        shares = ", ".join(
            f"{numbers.percent(float(s))} at {numbers.flops(float(c), 3)}"
            for s, c in zip(lost[bad], flops[bad], strict=True)
        )
        advice = "from 5 % on there is no interval: widen the sizes of these budgets or add seeds"
        out.append(finding("undefined_draws", f"resampled valleys without a minimum: {shares}", advice))
    if found:
        out += scatter.beyond(found[0])
    return out


def _drift(minima: Sequence[Valley]) -> list[Check]:
    """Return a finding where the minimum wanders through the sizes as the budget grows: that tilts exponents."""
    places = [_place(v) for v in minima]
    steps = np.diff(places)
    if len(places) < 3 or abs(places[-1] - places[0]) < 0.5 or not ((steps > 0).all() or (steps < 0).all()):
        return []
    side = "largest" if places[-1] > places[0] else "smallest"
    text = f"from budget to budget the minimum moves towards the {side} sizes swept: the grids drift"
    return [
        finding(
            "drifting_grid", text, "shift the sizes with the budget as N* grows: a drifting grid tilts the exponents"
        )
    ]


def _place(valley: Valley) -> float:
    """Return where the minimum lies among the sizes in ln N: -1 at the smallest, 1 at the largest."""
    assert valley.params_opt is not None
    low, high = np.log(valley.params_range)
    return float((np.log(valley.params_opt) - 0.5 * (low + high)) / (0.5 * (high - low)))
