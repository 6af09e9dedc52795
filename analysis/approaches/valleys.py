"""isoFLOP valleys: a parabola of the loss over ln N for each exact budget, and the power laws of their minima.

Minima at the edge, inverted and flat parabolas and budgets with fewer than three sizes are left out, with the reason.
The exponents of N* and D* come from separate regressions: they need not add to 1 where FLOPs are counted exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.approaches.valley_options import WINDOW, Choices
from analysis.estimation import ties
from analysis.inference import identifiability, resampling, scatter
from analysis.inference.scatter import Scatter
from analysis.inputs.dataset import Array, Index, Mask, Rows
from analysis.text import numbers
from analysis.values.blocks import Check, Identified, Interval, PowerLaw, Valley, Valleys

FORM = "loss = c0 + c1 x + c2 x^2, x = ln(N) - center"
LOSS = "squared(loss)"
DEFAULT = Choices()
MANY_UNDEFINED = 0.01
"""A larger share of draws without a minimum than this is a finding."""


@dataclass(frozen=True)
class Parabola:
    """The runs of a budget as a regression: design (n, 3), its pseudo-inverse, losses, log tokens, centre of ln N."""

    flops_budget: float
    flops: float
    keys: tuple[str, ...]
    x: Array
    center: float
    loss: Array
    log_tokens: Array
    inverse: Array

    @property
    def design(self) -> Array:
        """Columns 1, x, x^2."""
        return np.vander(self.x, 3, increasing=True)

    @property
    def fitted(self) -> Array:
        """The parabola at the runs."""
        return np.asarray(self.design @ (self.inverse @ self.loss))

    @property
    def residual(self) -> Array:
        """Losses minus the parabola."""
        return np.asarray(self.loss - self.fitted)

    @property
    def relative(self) -> Array:
        """Residuals as shares of the budget's mean loss: of budgets of other losses they are of one size."""
        return np.asarray(self.residual / self.loss.mean())

    @property
    def depth(self) -> float:
        """How far the parabola rises from its middle to the end of the sizes."""
        low, high = self.reach
        return float(abs((self.inverse @ self.loss)[2])) * (0.5 * (high - low)) ** 2

    def spread(self, noise: float) -> float:
        """The noise of this budget's losses, where it is a share of them."""
        return noise * float(self.loss.mean())

    def is_flat(self, noise: float) -> bool:
        """Whether the parabola is less deep than twice the noise, which is a share of the loss."""
        return self.depth < 2 * self.spread(noise)

    @property
    def reach(self) -> Interval:
        """The swept range of x."""
        return float(self.x.min()), float(self.x.max())


@dataclass(frozen=True)
class ValleyFit:
    """Valleys with the draws of their minima (R, m): ln N*, ln D* and loss; NaN where a draw has no minimum.

    Draws of ln N* and ln D* are of minima that scatter around their power law, where there are three or more of them;
    those of the loss hold the noise within budgets alone.
    """

    block: Valleys
    flops: Array
    params: Array
    tokens: Array
    loss: Array
    draw_params: Array
    draw_tokens: Array
    draw_loss: Array


def fit(rows: Rows, *, resamples: int, seed: int, choices: Choices = DEFAULT) -> ValleyFit:
    """Return the valleys of all budgets, their exponents and intervals from pooled residuals."""
    parabolas, valleys = [], []
    for index in _shared(rows):
        if len(np.unique(rows.size[index])) >= 3:
            parabolas.append(parabola(rows, index, choices.window))
        else:
            valleys.append(_too_few(rows, index))
    noise = _noise(parabolas)
    judged = [(p, *_status(p, 0.0 if choices.flat == "keep" else noise)) for p in parabolas]
    minima = [p for p, status, _ in judged if status == "minimum"]
    noisy, again = _draws(parabolas, minima, resamples, seed)
    points = [_vertex(p, (p.inverse @ p.loss)[None]) for p in minima]
    for p, status, reason in judged:
        valleys.append(_valley(p, status, reason, again, minima))
    valleys.sort(key=lambda v: v.flops)
    best = np.array(points).reshape(len(minima), 3)
    flops = np.array([p.flops for p in minima])
    found = scatter.scatters(np.log(flops), best, noisy) if len(minima) > 2 and resamples else ()
    generator = np.random.default_rng(np.random.SeedSequence([seed, 8]))
    wider = scatter.allowed(found, best, noisy, generator) if found else again
    exponents = _exponents(flops, best, wider)
    quoted = (("a", "params"), ("b", "tokens")) if exponents else ()
    identified = {name: _identified(exponents[q], name) for name, q in quoted}
    block = Valleys(
        form=FORM,
        approach="valleys",
        loss_function=LOSS,
        status="ok" if exponents else "not possible",
        reason=""
        if exponents
        else f"{numbers.counted(len(minima), 'budget')} with a minimum inside the sizes; exponents need two",
        objective=float(sum((p.residual**2).sum() for p in parabolas)) if parabolas else None,
        params={name: exponents[q].exponent for name, q in quoted},
        intervals={n: exponents[q].exponent_interval if identified[n].identified else None for n, q in quoted},
        identified=identified,
        checks=(
            *_checks(valleys),
            *_far(rows, valleys, choices.window),
            *(_kept(minima, noise) if choices.flat == "keep" else ()),
            *_resampled(flops, again, found),
        ),
        rows_used=sum(len(p.keys) for p in minima),
        valleys=tuple(valleys),
        exponents=dict(exponents),
    )
    return ValleyFit(block, flops, best[:, 0], best[:, 1], best[:, 2], wider[..., 0], wider[..., 1], again[..., 2])


def _shared(rows: Rows) -> list[Index]:
    """Return the numbers of the rows of every budget that has two or more."""
    order, counts = np.argsort(rows.budget, kind="stable"), np.bincount(rows.budget)
    ends = np.cumsum(counts)
    return [order[ends[g] - counts[g] : ends[g]] for g in np.flatnonzero(counts >= 2)]


def parabola(rows: Rows, chosen: Mask | Index, window: float = WINDOW) -> Parabola:
    """Return the regression of one budget's `chosen` rows, on the sizes within a factor of `window` of the best one.

    Where the window holds fewer than four sizes all of them are taken.
    """
    index = np.arange(len(rows))[chosen]
    logs = np.log(rows.params[index])
    near = np.abs(logs - logs[ties.lowest(rows.loss[index], logs)]) <= np.log(window) * (1 + 1e-9)
    if len(np.unique(rows.size[index[near]])) >= 4:
        index, logs = index[near], logs[near]
    center = float(logs.mean())
    x = logs - center
    return Parabola(
        flops_budget=float(rows.labels[rows.budget[index[0]]]),
        flops=float(np.exp(np.log(rows.flops[index]).mean())),
        keys=tuple(rows.keys[i] for i in index),
        x=x,
        center=center,
        loss=rows.loss[index],
        log_tokens=np.log(rows.tokens[index]),
        inverse=np.asarray(np.linalg.pinv(np.vander(x, 3, increasing=True)), dtype=np.float64),
    )


def power_law(reference: float, log_flops: Array, values: Array, draws: Array) -> PowerLaw:
    """Return the log-log regression of `values` (m,) = ln y on ln(C/reference), with intervals from `draws` (R, m)."""
    import statsmodels.api as sm

    x = log_flops - np.log(reference)
    design = sm.add_constant(x)
    result = sm.OLS(values, design).fit()
    lines = _lines(x, draws)
    ends = zip(lines, (float(v) for v in result.params), strict=True)
    intervals = [resampling.interval(line, value) for line, value in ends]
    low_high = None if intervals[0] is None else (float(np.exp(intervals[0][0])), float(np.exp(intervals[0][1])))
    df = len(values) - 2
    return PowerLaw(
        coefficient=float(np.exp(result.params[0])),
        exponent=float(result.params[1]),
        reference_flops=reference,
        coefficient_interval=low_high,
        exponent_interval=intervals[1],
        bse=float(result.bse[1]) if df > 0 else None,
        points=len(values),
        df_resid=df,
    )


def lines(flops: Array, reference: float, draws: Array) -> tuple[Array, Array]:
    """Return intercepts and slopes (R,) of ln y on ln(C/reference) for `draws` (R, m); NaN entries are left out."""
    return _lines(np.log(flops / reference), draws)


def _lines(x: Array, draws: Array) -> tuple[Array, Array]:
    there = np.isfinite(draws)
    y = np.where(there, draws, 0.0)
    count = there.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_x, mean_y = (there * x).sum(axis=1) / count, y.sum(axis=1) / count
        dx = np.where(there, x - mean_x[:, None], 0.0)
        slope = (dx * y).sum(axis=1) / np.where(count >= 2, (dx * dx).sum(axis=1), np.nan)
    return np.asarray(mean_y - slope * mean_x), np.asarray(slope)


def _exp(interval: Interval | None) -> Interval | None:
    return None if interval is None else (float(np.exp(interval[0])), float(np.exp(interval[1])))


def _resampled(flops: Array, drawn: Array, found: Sequence[Scatter]) -> list[Check]:
    """Return findings about draws without a minimum, and about minima that scatter by more than their noise."""
    if not len(drawn):
        return []
    out, lost = [], np.isnan(drawn[..., 0]).mean(axis=0)
    bad = lost > MANY_UNDEFINED
    if bad.any():
        shares = ", ".join(f"{numbers.percent(s)} at {c:.3g} FLOPs" for s, c in zip(lost[bad], flops[bad], strict=True))
        advice = "there is no interval where 5 % are reached: widen the sizes of these budgets or add seeds"
        out.append(Check("undefined_draws", f"resampled valleys without a minimum: {shares}", advice))
    if found:
        out += scatter.beyond(found[0])
    return out


def _noise(parabolas: Sequence[Parabola]) -> float:
    """Return the residuals' standard deviation, pooled over budgets, as a share of the loss; 0 without any freedom."""
    df = sum(max(0, len(p.keys) - 3) for p in parabolas)
    return float(np.sqrt(sum((p.relative**2).sum() for p in parabolas) / df)) if df else 0.0


def _status(p: Parabola, noise: float) -> tuple[str, str]:
    """Return whether there is a minimum inside the swept sizes, else why not; `noise` is a share of the loss."""
    level, slope, curve = p.inverse @ p.loss
    low, high = p.reach
    if p.depth <= 1e-10 * float(np.abs(p.loss).max()):
        return "flat", "the loss does not depend on the size here: there is no minimum"
    if curve <= 0:
        return "inverted", "the parabola opens downwards: noise or too narrow a range of sizes"
    if p.is_flat(noise):
        text = f"the valley is {p.depth:.2g} deep, within twice the noise of {p.spread(noise):.2g}"
        return "flat", f"{text}: no minimum to be seen"
    at = -slope / (2 * curve)
    if not low < at < high:
        side, size = ("smallest", low) if at <= low else ("largest", high)
        return "edge", f"the minimum lies beyond the {side} size swept, {np.exp(size + p.center):.3g} parameters"
    lowest = level + 0.5 * slope * at
    if lowest <= 0:
        return "negative", f"the parabola falls to a loss of {lowest:.2g} where no size was swept"
    return "minimum", ""


def _vertex(p: Parabola, coefficients: Array) -> Array:
    """Return ln N*, ln D* and loss (..., 3) at the minima of `coefficients` (R, 3); NaN far outside or inverted."""
    c0, c1, c2 = coefficients.T
    low, high = p.reach
    with np.errstate(divide="ignore", invalid="ignore"):
        at = -c1 / (2 * c2)
    wide = high - low
    at = np.where((c2 > 0) & (at > low - wide) & (at < high + wide), at, np.nan)
    tokens = np.polynomial.polynomial.polyval(at, p.inverse @ p.log_tokens)
    out = np.stack((at + p.center, tokens, c0 + c1 * at + c2 * at * at), axis=-1)
    return out[0] if len(out) == 1 else out


def _draws(parabolas: Sequence[Parabola], minima: Sequence[Parabola], resamples: int, seed: int) -> tuple[Array, Array]:
    """Return draws (R, m, 3) of the minima when residuals, pooled over all budgets, are drawn anew.

    The first are at the scale that the residuals have, in the second the scale is drawn as well.
    """
    total = sum(len(p.keys) for p in parabolas)
    df = total - 3 * len(parabolas)
    nothing = np.full((max(resamples, 0), len(minima), 3), np.nan)
    if resamples == 0 or df <= 0 or not minima:
        return nothing, nothing
    residual = np.concatenate([p.relative for p in parabolas])
    once = resampling.redrawn(residual, df, resamples, seed)
    scaled = once * resampling.student_scales(df, resamples, seed)[:, None]
    out: tuple[list[Array], list[Array]] = ([], [])
    for noise, drawn in zip((once, scaled), out, strict=True):
        begin = 0
        for p in parabolas:
            part = noise[:, begin : begin + len(p.keys)]
            begin += len(p.keys)
            if any(p is m for m in minima):
                losses = p.fitted + part * p.loss.mean()
                drawn.append(_vertex(p, losses @ p.inverse.T).reshape(resamples, 3))
    return np.stack(out[0], axis=1), np.stack(out[1], axis=1)


def _valley(p: Parabola, status: str, reason: str, draws: Array, minima: Sequence[Parabola]) -> Valley:
    """Return one budget's result; `draws` (R, m, 3) are those of all minima."""
    coefficients = p.inverse @ p.loss
    low, high = np.exp(np.array(p.reach) + p.center)
    base = Valley(
        p.flops_budget, p.flops, status, reason, len(p.keys), p.keys, (float(low), float(high)), p.center,
        tuple(float(c) for c in coefficients),
    )  # fmt: skip
    if status != "minimum":
        return base
    number = next(i for i, m in enumerate(minima) if m is p)
    size, tokens, loss = _vertex(p, coefficients[None])
    drawn = draws[:, number]
    return replace(
        base,
        params_opt=float(np.exp(size)),
        params_interval=_exp(resampling.interval(drawn[:, 0], float(size))),
        tokens_opt=float(np.exp(tokens)),
        tokens_interval=_exp(resampling.interval(drawn[:, 1], float(tokens))),
        loss_opt=float(loss),
        loss_interval=resampling.interval(drawn[:, 2], float(loss)),
    )


def _too_few(rows: Rows, index: Index) -> Valley:
    """Return a budget that has fewer than three sizes."""
    sizes = len(np.unique(rows.size[index]))
    logs = np.log(rows.params[index])
    return Valley(
        float(rows.labels[rows.budget[index[0]]]), float(np.exp(np.log(rows.flops[index]).mean())), "too_few",
        f"{numbers.counted(sizes, 'size')}: a parabola needs at least three", len(index),
        tuple(rows.keys[i] for i in index),
        (float(rows.params[index].min()), float(rows.params[index].max())), float(logs.mean()),
    )  # fmt: skip


def _exponents(flops: Array, best: Array, draws: Array) -> dict[str, PowerLaw]:
    """Return the power laws of N* and D*; empty with fewer than two minima."""
    if len(flops) < 2:
        return {}
    reference = float(np.exp(np.log(flops).mean()))
    log_flops = np.log(flops)
    return {n: power_law(reference, log_flops, best[:, i], draws[..., i]) for i, n in enumerate(("params", "tokens"))}


def _identified(law: PowerLaw, name: str) -> Identified:
    """Return whether an exponent has an interval that says something."""
    if law.exponent_interval is None:
        return Identified(False, "no degrees of freedom for an interval, or resamples without a minimum")
    return identifiability.ratio(law.exponent_interval, name)


def _kept(minima: Sequence[Parabola], noise: float) -> list[Check]:
    """Return the valleys that count though they are flat."""
    labels = [f"{p.flops_budget:.3g}" for p in minima if p.is_flat(noise)]
    if not labels:
        return []
    named = ", ".join(labels[:4]) + (", ..." if len(labels) > 4 else "")
    text = (
        f"{numbers.counted(len(labels), 'valley')} within twice the noise of {100 * noise:.2g} % kept ({named} FLOPs)"
    )
    return [
        Check("flat_kept", text, "where such a minimum lies is the noise's choice: flat_valleys=drop leaves it out")
    ]


def _far(rows: Rows, valleys: Sequence[Valley], window: float = WINDOW) -> list[Check]:
    """Return a finding about the runs of budgets with a parabola that are too far from its best size to be in it."""
    counts = np.bincount(rows.budget)
    left = int(counts[counts >= 2].sum()) - sum(v.points for v in valleys)
    if not left:
        return []
    text = f"{numbers.counted(left, 'run')} of other sizes than {window:g} times around the best of the budget"
    return [Check("outside_window", f"parabolas leave out {text}", "the surface rests on these runs too", "note")]


def _checks(valleys: Sequence[Valley]) -> list[Check]:
    """Return a finding for every budget without a minimum, and for minima that lean on the edge of their sizes."""
    advice = {
        "edge": "add sizes beyond that edge at this budget",
        "inverted": "widen the range of sizes at this budget, or repeat with more seeds",
        "flat": "widen the range of sizes at this budget, or repeat with more seeds",
        "negative": "add sizes at this budget around its lowest losses",
        "too_few": "add sizes at this budget; five over a factor of 16 are a good valley",
    }
    codes = {
        "edge": "edge_minimum", "inverted": "inverted_parabola", "flat": "flat_parabola",
        "negative": "negative_parabola", "too_few": "few_points",
    }  # fmt: skip
    out = []
    for status, code in codes.items():
        bad = [v for v in valleys if v.status == status]
        if len(bad) > 3:
            labels = ", ".join(f"{v.flops_budget:.3g}" for v in bad[:3])
            text = f"{len(bad)} budgets are left out ({labels}, ... FLOPs); the first: {bad[0].reason}"
            out.append(Check(code, text, advice[status]))
        else:
            texts = [f"budget {v.flops_budget:.3g} FLOPs is left out: {v.reason}" for v in bad]
            out += [Check(code, text, advice[status]) for text in texts]
    minima = [v for v in valleys if v.status == "minimum"]
    out += scatter.few(len(minima))
    off = [v for v in minima if _offset(v) > 0.7]
    if off:
        labels = ", ".join(f"{v.flops_budget:.3g}" for v in off)
        text = f"the minimum lies near the edge of the sizes at {labels} FLOPs"
        out.append(Check("off_center", text, "centre the sizes on the minimum: off-centre parabolas are biased"))
    return [*out, *_drift(minima)]


def _drift(minima: Sequence[Valley]) -> list[Check]:
    """Return a finding where the minimum wanders through the sizes as the budget grows: that tilts exponents."""
    places = [_place(v) for v in minima]
    steps = np.diff(places)
    if len(places) < 3 or abs(places[-1] - places[0]) < 0.5 or not ((steps > 0).all() or (steps < 0).all()):
        return []
    side = "largest" if places[-1] > places[0] else "smallest"
    text = f"from budget to budget the minimum moves towards the {side} sizes swept: the grids drift"
    return [
        Check("drifting_grid", text, "shift the sizes with the budget as N* grows: a drifting grid tilts the exponents")
    ]


def _offset(valley: Valley) -> float:
    """Return how far the minimum is from the middle of the sizes, as a share of half their range."""
    return abs(_place(valley))


def _place(valley: Valley) -> float:
    """Return where the minimum lies among the sizes in ln N: -1 at the smallest, 1 at the largest."""
    assert valley.params_opt is not None
    low, high = np.log(valley.params_range)
    return float((np.log(valley.params_opt) - 0.5 * (low + high)) / (0.5 * (high - low)))
