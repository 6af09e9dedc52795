"""What to train with a budget: N*, D*, tokens per parameter and loss, by each approach, with intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.approaches import loss_laws, power_laws
from analysis.approaches.compute_optimal import PATH_DRAWS, by_law, optimum, proposal_of
from analysis.approaches.cost import Cost, cost
from analysis.approaches.frontier import FrontierFit
from analysis.approaches.frontier_path import Proposer, by_exponents, by_power_laws, by_slope, with_path
from analysis.approaches.loss_laws import Closed, Law
from analysis.approaches.surface import Surface
from analysis.approaches.valleys import ValleyFit
from analysis.inputs.dataset import Rows
from analysis.text import numbers
from analysis.values.blocks import Block, Clash, Interval, PowerLaw
from analysis.values.study_result import Proposal, Recommendation

CLASH = 1.5
"""The surface may miss the best size of a budget that was run by this factor."""


def by_surface(surface: Surface, rows: Rows, budget: float) -> Proposal | None:
    """Return the surface's proposal, None where it has no optimum near the sizes swept."""
    sizes = (float(rows.params.min()), float(rows.params.max()))
    price = cost(rows)
    best = np.stack(optimum(surface.constants[None], price, budget, sizes))[:, 0]
    if not np.isfinite(best).all():
        return None
    return proposal_of(best, np.stack(optimum(surface.draws, price, budget, sizes)))


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
    frontier: FrontierFit | Block,
    *,
    surface: Surface | None,
    budget: float,
    only: str = "",
) -> Recommendation | None:
    """Return both proposals and the one to follow, None where there is neither.

    The surface rests on all runs and on their residual degrees of freedom, so it is followed where it identifies the
    exponent of N*, its interval closes and it does not clash with the best sizes that were seen; else the valleys,
    which need no form of the loss, are, where they identify it. What is not identified is neither followed nor set
    beside what is. Where one approach is asked for, `only` it is followed.
    """
    makers = proposers(rows, valley_fit, frontier, surface)
    found = {name: make(budget) for name, make in makers.items()}
    proposals = {name: proposal for name, proposal in found.items() if proposal is not None}
    chosen = only or _chosen(proposals, surface, valley_fit, clash(rows, valley_fit, surface))
    if chosen not in proposals:
        return None
    if not _known(valley_fit):
        proposals = {name: p for name, p in proposals.items() if name in ("surface", only)}
    source = "surface" if surface is not None else "frontier"
    plan = dataclasses.replace(followed(chosen, proposals, rows, budget), loss_from=source)
    if chosen == "surface":
        assert surface is not None, "it was fitted where it is used"
        block = surface.block
        return with_path(plan, makers[chosen], rows, lambda p, _: by_exponents(p, block))
    laws = valley_fit.block.exponents
    return with_path(plan, makers[chosen], rows, lambda p, _: by_power_laws(p, laws))


def proposers(
    rows: Rows, valley_fit: ValleyFit, frontier: FrontierFit | Block, surface: Surface | None
) -> dict[str, Proposer]:
    """Return what the valleys, and the surface where there is one, propose for a budget."""
    if surface is None:
        return {"valleys": lambda at: by_valleys(valley_fit, frontier, None, at)}
    law = Closed(np.vstack((surface.constants[None], surface.draws)))
    return {
        "valleys": lambda at: by_valleys(valley_fit, frontier, law, at),
        "surface": lambda at: by_surface(surface, rows, at),
    }


def why_none(rows: Rows, valley_fit: ValleyFit, surface: Surface | None, budget: float) -> str:
    """Return why neither approach is followed: what each of them does not identify."""
    apart = clash(rows, valley_fit, surface)
    if surface is None:
        said = "there is no surface"
    elif not surface.block.identified["a"].identified:
        said = f"the surface does not identify the exponent of N* ({surface.block.identified['a'].reason})"
    elif apart is not None:
        said = f"the surface puts the best size of {numbers.flops(apart.budget)} elsewhere than the runs do"
    else:
        said = f"the surface has no best size for {numbers.flops(budget)}, or no interval of it; the largest run has "
        said += numbers.flops(float(rows.flops.max()))
    count = len(valley_fit.flops)
    if not valley_fit.block.exponents:
        return f"no approach can recommend a size: {said}; of the valleys, {valley_fit.block.reason}"
    if count < 3:
        return f"no approach can recommend a size: {said}; {count} valleys have a minimum, and two fix any power law"
    return f"no approach can recommend a size: {said}; the valleys do not identify it either"


def compared(plan: Recommendation | None, sizes: Mapping[str, float]) -> Recommendation | None:
    """Return the recommendation with the disagreement of `sizes`, which are N* at its budget by approach."""
    if plan is None:
        return None
    found = list(sizes.values())
    return dataclasses.replace(plan, disagreement=max(found) / min(found) if len(found) > 1 else None)


def sizes(plan: Recommendation, lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return N* at the recommendation's budget by approach: its own ones, then those of the table of approaches."""
    own = {name: p.params for name, p in plan.by_approach.items()}
    table = {str(line["approach"]): line.get("params") for line in lines}
    return own | {name: float(n) for name, n in table.items() if n is not None}


def by_other_law(
    law: Law, price: Cost, sizes: Interval, *, block: Block, valley_fit: ValleyFit, rows: Rows, budget: float
) -> Recommendation | None:
    """Return the recommendation of another form than the surface, beside the valleys; None where it has no best size.

    The valleys need no form; they stand beside it where they identify the exponent of N*.
    """
    own = by_law(law, price, budget, sizes)
    if own is None:
        return None
    beside = by_valleys(valley_fit, valley_fit.block, law, budget) if _known(valley_fit) else None
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


def _chosen(
    proposals: Mapping[str, Proposal], surface: Surface | None, valley_fit: ValleyFit, clash: Clash | None
) -> str:
    """Return the name of the proposal to follow, empty where none identifies what it proposes."""
    if "surface" in proposals and surface is not None and clash is None:
        closes = proposals["surface"].intervals["params"] is not None or not len(surface.draws)
        if surface.block.identified["a"].identified and closes:
            return "surface"
    return "valleys" if "valleys" in proposals and _known(valley_fit) else ""


def _known(fit: ValleyFit) -> bool:
    """Return whether the valleys identify the exponent of N*: three minima, and an interval that says something.

    Two minima fix a power law whatever they are: there is nothing left to judge it by.
    """
    law = fit.block.exponents.get("params")
    if law is None or law.df_resid < 1:
        return False
    return fit.block.identified["a"].identified or not len(fit.draw_params)
