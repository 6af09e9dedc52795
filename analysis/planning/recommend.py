"""What to train with a budget: N*, D*, tokens per parameter and loss, by each approach, with intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.approaches import compute_optimal, loss_laws, optimum, power_laws
from analysis.approaches.compute_optimal import PATH_DRAWS, by_law, proposal_of
from analysis.approaches.cost import Cost, cost
from analysis.approaches.frontier import FrontierFit
from analysis.approaches.frontier_path import Proposer, by_exponents, by_power_laws, by_slope, with_path
from analysis.approaches.loss_laws import Closed, Law
from analysis.approaches.surface import Surface
from analysis.approaches.valleys import ValleyFit
from analysis.inputs.dataset import Rows
from analysis.planning import advice
from analysis.planning.advice import Advice
from analysis.values import approach_lines
from analysis.values.blocks import Block, Clash, Interval, PowerLaw
from analysis.values.study_result import Proposal, Recommendation


def by_surface(surface: Surface, rows: Rows, budget: float) -> Proposal | None:
    """Return the surface's proposal, None where it has no optimum near the sizes swept."""
    sizes = (float(rows.params.min()), float(rows.params.max()))
    price = cost(rows)
    best = np.stack(compute_optimal.optimum(surface.constants[None], price, budget, sizes))[:, 0]
    if not np.isfinite(best).all():
        return None
    return proposal_of(best, np.stack(compute_optimal.optimum(surface.draws, price, budget, sizes)))


def by_envelope(laws: Mapping[str, PowerLaw], budget: float) -> Proposal:
    """Return the proposal of power laws N*(C) and D*(C) without draws: no interval, no loss."""
    n, d = (
        float(laws[name].coefficient * (budget / laws[name].reference_flops) ** laws[name].exponent)
        for name in ("params", "tokens")
    )
    return Proposal(n, d, d / n, None, dict.fromkeys(("params", "tokens", "tokens_per_param", "loss")))


def by_valleys(fit: ValleyFit, frontier: FrontierFit | Block, law: Law | None, budget: float) -> Proposal | None:
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
        intercepts, slopes = power_laws.lines(fit.flops, power.reference_flops, draws)
        best.append(np.log(power.coefficient) + power.exponent * ratio)
        drawn.append(intercepts + slopes * ratio)
    loss, losses = np.nan, np.empty(0)
    if law is not None:
        both = law.loss(*(np.full(len(law), at) for at in best))
        loss, losses = float(both[0]), both[1:]
    elif isinstance(frontier, FrontierFit):
        loss, losses = frontier.predict(budget)
    return proposal_of(np.array([*best, loss]), np.stack(drawn), losses)


def clash(rows: Rows, fit: ValleyFit, surface: Surface | None) -> Clash | None:
    """Return the largest budget with a minimum if the surface puts its best size elsewhere; None if it agrees."""
    if surface is None:
        return None
    sizes = (float(rows.params.min()), float(rows.params.max()))
    return clash_of(Closed(surface.constants[None]), cost(rows), sizes, fit)


def clash_of(law: Law, price: Cost, sizes: Interval, fit: ValleyFit) -> Clash | None:
    """Return the largest budget with a minimum if a law puts its best size elsewhere; None if it agrees.

    Elsewhere is outside the valley's interval and off by more than CLASH, which is far more than what parabolas are
    biased by: the form of the law then does not follow these runs, whatever its intervals say.
    """
    minima = [v for v in fit.block.valleys if v.params_opt is not None and v.params_interval is not None]
    if not minima:
        return None
    last = max(minima, key=lambda v: v.flops)
    assert last.params_opt is not None
    assert last.params_interval is not None
    size = float(np.exp(optimum.training_only(law.row(0), price, last.flops, sizes).log_params[0]))
    low, high = last.params_interval
    if not np.isfinite(size):
        return None
    near = max(size / last.params_opt, last.params_opt / size) <= advice.CLASH
    return None if near or low <= size <= high else Clash(last.flops_budget, last.params_opt, (low, high), size)


def recommend(
    rows: Rows,
    valley_fit: ValleyFit,
    frontier: FrontierFit | Block,
    *,
    surface: Surface | None,
    budget: float,
    said: Advice,
) -> Recommendation | None:
    """Return both proposals and the one to follow, as it is advised; None where nothing is.

    The surface rests on all runs and on their residual degrees of freedom, so it is followed where it may be; else the
    valleys, which need no law of the loss, are. What may not be followed is not set beside what is.
    """
    if not said.follows:
        return None
    chosen = "surface" if said.follows == advice.LAW else "valleys"
    makers = proposers(rows, valley_fit, frontier, surface, said)
    found = {name: make(budget) for name, make in makers.items()}
    proposals = {name: proposal for name, proposal in found.items() if proposal is not None}
    if chosen not in proposals:
        return None
    source = loss_from(frontier, surface, said)
    plan = dataclasses.replace(followed(chosen, proposals, rows, budget), loss_from=source)
    if chosen == "surface":
        assert surface is not None, "it was fitted where it is used"
        block = surface.block
        return with_path(plan, makers[chosen], rows, lambda p, _: by_exponents(p, block))
    laws = valley_fit.block.exponents
    return with_path(plan, makers[chosen], rows, lambda p, _: by_power_laws(p, laws))


def loss_from(frontier: FrontierFit | Block, surface: Surface | None, said: Advice) -> str:
    """Return what says the loss of a proposal: the surface, the law of the lowest losses, or nothing ("").

    How far the loss falls hangs on its floor, which sizes do not: neither says one where it does not know its own.
    """
    if surface is not None and not said.law:
        return "surface"
    return "frontier" if isinstance(frontier, FrontierFit) and advice.frontier_known(frontier.block) else ""


def proposers(
    rows: Rows, valley_fit: ValleyFit, frontier: FrontierFit | Block, surface: Surface | None, said: Advice
) -> dict[str, Proposer]:
    """Return what proposes a run for a budget: the surface and the valleys, each where it may be followed."""
    source, found = loss_from(frontier, surface, said), dict[str, Proposer]()
    law = None
    if source == "surface":
        assert surface is not None, "a loss is from it"
        law = Closed(np.vstack((surface.constants[None], surface.draws)))
    known = frontier if source == "frontier" else valley_fit.block
    if not said.valleys:
        found["valleys"] = lambda at: by_valleys(valley_fit, known, law, at)
    if surface is not None and not said.law:
        found["surface"] = lambda at: by_surface(surface, rows, at)
    return found


def compared(plan: Recommendation | None, sizes: Mapping[str, float]) -> Recommendation | None:
    """Return the recommendation with the disagreement of `sizes`, which are N* at its budget by approach."""
    if plan is None:
        return None
    found = list(sizes.values())
    return dataclasses.replace(plan, disagreement=max(found) / min(found) if len(found) > 1 else None)


def sizes(plan: Recommendation, lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return N* at the recommendation's budget by approach: its own ones, then those of the table that are compared."""
    own = {name: p.params for name, p in plan.by_approach.items()}
    table = {str(line["approach"]): line.get("params") for line in filter(approach_lines.compared, lines)}
    return own | {name: float(n) for name, n in table.items() if n is not None}


def by_other_law(
    law: Law,
    price: Cost,
    sizes: Interval,
    *,
    block: Block,
    valley_fit: ValleyFit,
    rows: Rows,
    budget: float,
    said: Advice,
) -> Recommendation | None:
    """Return the recommendation of another form than the surface, beside the valleys; None where it has no best size.

    The valleys need no form; they stand beside it where they may be followed.
    """
    own = by_law(law, price, budget, sizes)
    if own is None:
        return None
    beside = by_valleys(valley_fit, valley_fit.block, law, budget) if not said.valleys else None
    proposals = {"law": own} | ({"valleys": beside} if beside else {})
    plan = dataclasses.replace(followed("law", proposals, rows, budget), loss_from="law")
    few = dataclasses.replace(law, theta=law.theta[: PATH_DRAWS + 1]) if isinstance(law, loss_laws.Fitted) else law
    return with_path(
        plan, lambda at: by_law(law, price, at, sizes), rows,
        lambda p, points: by_exponents(p, block) or by_slope(p, points), lambda at: by_law(few, price, at, sizes),
    )  # fmt: skip


def by_envelope_only(laws: Mapping[str, PowerLaw], rows: Rows, budget: float) -> Recommendation:
    """Return the recommendation of the envelope's power laws, where only approach 1 was asked for."""
    plan = followed("envelope", {"envelope": by_envelope(laws, budget)}, rows, budget)
    return with_path(plan, lambda at: by_envelope(laws, at), rows, lambda p, _: by_power_laws(p, laws))


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
