"""isoFLOP valleys: a parabola of the loss over ln N for each exact budget, and the power laws of their minima.

Minima at the edge, inverted and flat parabolas and budgets with fewer than three sizes are left out, with the reason.
The exponents of N* and D* come from separate regressions: they need not add to 1 where FLOPs are counted exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.approaches import chance, valley_findings
from analysis.approaches.parabola import Parabola, noise_of, parabola, status_of, swept, vertex
from analysis.approaches.power_laws import exp_interval, power_law
from analysis.approaches.valley_options import Choices
from analysis.inference import identifiability, resampling, scatter
from analysis.inputs.dataset import Array, Index, Rows
from analysis.text import numbers
from analysis.values.blocks import Identified, PowerLaw, Valley, Valleys

FORM = "loss = c0 + c1 x + c2 x^2, x = ln(N) - center"
LOSS = "squared(loss)"
DEFAULT = Choices()
ENOUGH = "a power law needs two, and three to show that it holds"


@dataclass(frozen=True)
class ValleyFit:
    """Valleys with the draws of their minima (R, m): ln N*, ln D* and loss; NaN where a draw has no minimum.

    Where there are three or more minima, draws of ln N* and ln D* are of minima within the sizes swept that scatter
    around their power law. Draws of the loss hold the noise within budgets alone.
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
    noise = noise_of(parabolas)
    judged = [(p, *status_of(p, 0.0 if choices.flat == "keep" else noise)) for p in parabolas]
    minima = [p for p, status, _ in judged if status == "minimum"]
    once, again = _draws(parabolas, minima, resamples, seed)
    noisy = swept(minima, once)
    points = [vertex(p, (p.inverse @ p.loss)[None]) for p in minima]
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
        else f"{numbers.counted(len(minima), 'budget')} with a minimum inside the sizes: {ENOUGH}",
        objective=float(sum((p.residual**2).sum() for p in parabolas)) if parabolas else None,
        params={name: exponents[q].exponent for name, q in quoted},
        intervals={n: exponents[q].exponent_interval if identified[n].identified else None for n, q in quoted},
        identified=identified,
        checks=(
            *valley_findings.of_budgets(valleys),
            *valley_findings.outside_window(rows, valleys, choices.window),
            *(valley_findings.flat_kept(minima, noise) if choices.flat == "keep" else ()),
            *valley_findings.of_draws(flops, again, found),
        ),
        rows_used=sum(len(p.keys) for p in minima),
        valleys=tuple(valleys),
        exponents=dict(exponents),
    )
    return ValleyFit(block, flops, best[:, 0], best[:, 1], best[:, 2], wider[..., 0], wider[..., 1], again[..., 2])


def _shared(rows: Rows) -> list[Index]:
    """Return the numbers of the rows of every budget that has two or more, and not by chance.

    Repeats of a size lie in the order of their values: a file's order changes nothing that is drawn for them.
    """
    order, counts = np.argsort(rows.budget, kind="stable"), np.bincount(rows.budget)
    size = np.unique(np.stack((rows.budget, rows.params)), axis=1, return_inverse=True)[1].ravel()[order]
    order[np.argsort(size, kind="stable")] = order[np.lexsort((rows.tokens[order], rows.loss[order], size))]
    ends = np.cumsum(counts)
    return [order[ends[g] - counts[g] : ends[g]] for g in np.flatnonzero((counts >= 2) & ~chance.budgets(rows))]


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
                drawn.append(vertex(p, losses @ p.inverse.T).reshape(resamples, 3))
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
    size, tokens, loss = vertex(p, coefficients[None])
    drawn = draws[:, number]
    return replace(
        base,
        params_opt=float(np.exp(size)),
        params_interval=exp_interval(resampling.interval(drawn[:, 0], float(size))),
        tokens_opt=float(np.exp(tokens)),
        tokens_interval=exp_interval(resampling.interval(drawn[:, 1], float(tokens))),
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
    """Return whether an exponent has an interval that says something, and a third minimum that checks it."""
    if law.df_resid < 1:
        return Identified(False, "two minima fix any power law")
    if law.exponent_interval is None:
        return Identified(False, "no degrees of freedom for an interval, or resamples without a minimum")
    return identifiability.ratio(law.exponent_interval, name)
