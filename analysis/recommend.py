"""What to train with a budget: N*, D*, tokens per parameter and loss, by each approach, with intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analysis import bootstrap, planbasis, planlaws, plans, valleys
from analysis.cost import Cost, cost
from analysis.frontier import FrontierFit
from analysis.planlaws import Closed, Law
from analysis.results import Frontier, Interval, PowerLaw, Proposal, Recommendation
from analysis.rows import Array, Rows
from analysis.surface import Surface
from analysis.valleys import ValleyFit

if TYPE_CHECKING:
    from analysis.lawfit import LawFit

CLASH = 1.5
"""The surface may miss the best size of a budget that was run by this factor."""


@dataclass(frozen=True)
class Clash:
    """A budget [FLOPs] that was run, its best size and interval by its valley, and the best size by the surface."""

    budget: float
    valley: float
    interval: Interval
    surface: float


def optimum(constants: Array, price: Cost, budget: float, sizes: Interval) -> tuple[Array, Array, Array]:
    """Return ln N*, ln D* and loss (R,) of surfaces (R, 5) at this budget [FLOPs]; NaN where there is no optimum."""
    found = plans.training_only(constants, price, budget, sizes)
    return found.log_params, found.log_tokens, found.loss


def by_surface(surface: Surface, rows: Rows, budget: float) -> Proposal | None:
    """Return the surface's proposal, None where it has no optimum near the sizes swept."""
    sizes = (float(rows.params.min()), float(rows.params.max()))
    price = cost(rows)
    best = np.stack(optimum(surface.constants[None], price, budget, sizes))[:, 0]
    if not np.isfinite(best).all():
        return None
    found = _proposal(best, np.stack(optimum(surface.draws, price, budget, sizes)))
    if not surface.block.identified["a"].identified and found.intervals["params"] is None and len(surface.draws):
        return None  # any N* would do as well
    return found


def priced(fit: LawFit, rows: Rows) -> tuple[Law, Cost, Interval]:
    """Return the law with its draws, what a token costs and the sizes swept, as the form counts them.

    Raises ValueError where the form has no best size: it gives no loss of N and D, or reads more than these.
    """
    form = fit.form
    if not planlaws.plannable(form):
        raise ValueError(f"form={form.name} gives no loss of N and D, so it has no best size")
    further = planlaws.further(form)
    if further:
        at = ",".join(f"{name}:NUMBER" for name in further)
        raise ValueError(
            f"form={form.name} reads {', '.join(further)} too: python -m analysis.plan form={form.name} at={at} says "
            "the best size for one"
        )
    sized = dataclasses.replace(rows, params=rows.column(planlaws.size_column(form)))
    theta = np.vstack((fit.point.theta[None], fit.thetas[: planbasis.MOST_DRAWS]))
    price = cost(sized)
    ends = (float(sized.params.min()), float(sized.params.max()))
    return planlaws.Fitted(form, theta, fit.problem.centres, price, {}), price, ends


def by_law(law: Law, price: Cost, budget: float, sizes: Interval) -> Proposal | None:
    """Return the proposal of any law, first row the point and then the draws; None where it has no best size."""
    found = plans.training_only(law, price, budget, sizes)
    every = np.stack((found.log_params, found.log_tokens, found.loss))
    return _proposal(every[:, 0], every[:, 1:]) if np.isfinite(every[:, 0]).all() else None


def by_envelope(laws: Mapping[str, PowerLaw], budget: float) -> Proposal:
    """Return the proposal of power laws N*(C) and D*(C) without draws: no interval, no loss."""
    n, d = (
        float(laws[name].coefficient * (budget / laws[name].reference_flops) ** laws[name].exponent)
        for name in ("params", "tokens")
    )
    return Proposal(n, d, d / n, None, dict.fromkeys(("params", "tokens", "tokens_per_param", "loss")))


def by_valleys(fit: ValleyFit, frontier: FrontierFit | Frontier, law: Law | None, budget: float) -> Proposal | None:
    """Return the valleys' proposal: N*(C) and D*(C) from the exponents.

    The loss is the law's at this N and D, which rests on all runs; without a law it is the frontier's, which rests on
    a few minima and, with fewer than four of them, has no floor: it is then too low far out.
    """
    laws = fit.block.exponents
    if not laws:
        return None
    best, drawn = [], []
    for name, draws in (("params", fit.draw_params), ("tokens", fit.draw_tokens)):
        power = laws[name]
        ratio = np.log(budget / power.reference_flops)
        intercepts, slopes = valleys.lines(fit.flops, power.reference_flops, draws)
        best.append(np.log(power.coefficient) + power.exponent * ratio)
        drawn.append(intercepts + slopes * ratio)
    loss, losses = np.nan, np.empty(0)
    if law is not None:
        both = law.loss(*(np.full(len(law), at) for at in best))
        loss, losses = float(both[0]), both[1:]
    elif isinstance(frontier, FrontierFit):
        loss, losses = frontier.predict(budget)
    return _proposal(np.array([*best, loss]), np.stack(drawn), losses)


def clash(rows: Rows, fit: ValleyFit, surface: Surface | None) -> Clash | None:
    """Return the largest budget with a minimum if the surface puts its best size elsewhere; None if it agrees.

    Elsewhere is outside the valley's interval and off by more than CLASH, which is far more than what parabolas are
    biased by: the form of the surface then does not follow these runs, whatever its intervals say.
    """
    minima = [v for v in fit.block.valleys if v.params_opt is not None and v.params_interval is not None]
    if surface is None or not minima:
        return None
    last = max(minima, key=lambda v: v.flops)
    assert last.params_opt is not None
    assert last.params_interval is not None
    sizes = (float(rows.params.min()), float(rows.params.max()))
    size = float(np.exp(optimum(surface.constants[None], cost(rows), last.flops, sizes)[0][0]))
    low, high = last.params_interval
    if not np.isfinite(size):
        return None
    near = max(size / last.params_opt, last.params_opt / size) <= CLASH
    return None if near or low <= size <= high else Clash(last.flops_budget, last.params_opt, (low, high), size)


def recommend(
    rows: Rows,
    valley_fit: ValleyFit,
    frontier: FrontierFit | Frontier,
    *,
    surface: Surface | None,
    budget: float,
    only: str = "",
) -> Recommendation | None:
    """Return both proposals and the one to follow, None where there is neither.

    The surface rests on all runs and on their residual degrees of freedom, so it is followed where it identifies the
    exponent of N*, its interval closes and it does not clash with the best sizes that were seen; else the valleys,
    which need no form of the loss, are. Where one approach is asked for, `only` it is followed.
    """
    law = Closed(np.vstack((surface.constants[None], surface.draws))) if surface else None
    found = {
        "valleys": by_valleys(valley_fit, frontier, law, budget),
        "surface": by_surface(surface, rows, budget) if surface else None,
    }
    proposals = {name: proposal for name, proposal in found.items() if proposal is not None}
    if not proposals or (only and only not in proposals):
        return None
    return followed(only or _chosen(proposals, surface, clash(rows, valley_fit, surface)), proposals, rows, budget)


def followed(chosen: str, proposals: Mapping[str, Proposal], rows: Rows, budget: float) -> Recommendation:
    """Return the recommendation of the proposal with this name, beside the others."""
    p = proposals[chosen]
    sizes = [q.params for q in proposals.values()]
    return Recommendation(
        approach=chosen,
        budget_flops=budget,
        params=p.params,
        tokens=p.tokens,
        tokens_per_param=p.tokens_per_param,
        loss=p.loss,
        intervals=p.intervals,
        extrapolation_factor=budget / float(rows.flops.max()),
        by_approach=dict(proposals),
        disagreement=max(sizes) / min(sizes) if len(sizes) > 1 else None,
    )


def _chosen(proposals: Mapping[str, Proposal], surface: Surface | None, clash: Clash | None) -> str:
    """Return the name of the proposal to follow."""
    if len(proposals) == 1 or surface is None:
        return next(iter(proposals))
    closes = {name: p.intervals["params"] is not None for name, p in proposals.items()}
    known = surface.block.identified["a"].identified and closes["surface"] and clash is None
    return "surface" if known or not closes["valleys"] else "valleys"


def _proposal(best: Array, drawn: Array, losses: Array | None = None) -> Proposal:
    """Return a proposal from ln N*, ln D*, loss (3,) and their draws (2 or 3, R)."""
    size, tokens, loss = best
    return Proposal(
        params=float(np.exp(size)),
        tokens=float(np.exp(tokens)),
        tokens_per_param=float(np.exp(tokens - size)),
        loss=float(loss) if np.isfinite(loss) else None,
        intervals={
            "params": _exp(bootstrap.percentile(drawn[0])),
            "tokens": _exp(bootstrap.percentile(drawn[1])),
            "tokens_per_param": _exp(bootstrap.percentile(drawn[1] - drawn[0])),
            "loss": bootstrap.percentile(drawn[2] if losses is None else losses),
        },
    )


def _exp(interval: Interval | None) -> Interval | None:
    return None if interval is None else (float(np.exp(interval[0])), float(np.exp(interval[1])))
