"""What to train with a budget: N*, D*, tokens per parameter and loss, by valleys and by surface, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analysis import bootstrap, valleys
from analysis.frontier import FrontierFit
from analysis.results import Frontier, Interval, Proposal, Recommendation
from analysis.rows import Array, Rows
from analysis.surface import ALPHA, BETA, A, B, Surface, predict
from analysis.valleys import ValleyFit

SEARCH = 1e4
"""The surface's optimum is searched for within this factor of the sizes swept."""

CLASH = 1.5
"""The surface may miss the best size of a budget that was run by this factor."""


@dataclass(frozen=True)
class Clash:
    """A budget [FLOPs] that was run, its best size and interval by its valley, and the best size by the surface."""

    budget: float
    valley: float
    interval: Interval
    surface: float


@dataclass(frozen=True)
class Cost:
    """FLOPs per token of a model with N parameters: 6 N (1 + extra (N/reference)^-fall).

    Attention and other work beyond the matrix products of the N counted falls, relative to 6 N, with size; where the
    runs' own FLOPs do not say so, the ratio is a constant.
    """

    reference: float
    ratio: float
    extra: float
    fall: float

    def log_per_token(self, log_params: Array) -> tuple[Array, Array]:
        """Return ln FLOPs per token and its derivative by ln N."""
        rest = self.extra * np.exp(-self.fall * (log_params - np.log(self.reference)))
        value = np.log(6.0 * self.ratio) + log_params + np.log1p(rest)
        return value, 1.0 - self.fall * rest / (1.0 + rest)


def cost(rows: Rows) -> Cost:
    """Return the FLOPs per token that the runs' exact FLOPs show."""
    logs, ratio = np.log(rows.params), rows.flops / (6.0 * rows.params * rows.tokens)
    middle = float(np.exp(logs.mean()))
    if (ratio > 1.001).all() and len(np.unique(rows.size)) >= 3:
        slope, intercept = np.polyfit(logs - np.log(middle), np.log(ratio - 1.0), 1)
        if 0.0 < -slope < 1.0:
            return Cost(middle, 1.0, float(np.exp(intercept)), float(-slope))
    return Cost(middle, float(np.exp(np.log(ratio).mean())), 0.0, 0.0)


def optimum(constants: Array, price: Cost, budget: float, sizes: Interval) -> tuple[Array, Array, Array]:
    """Return ln N*, ln D* and loss (R,) of surfaces (R, 5) at this budget [FLOPs]; NaN where there is no optimum.

    The loss along the budget has one minimum in ln N, where alpha A N^-alpha = beta B D^-beta d ln(cost)/d ln N:
    bisection within a factor SEARCH of the sizes.
    """
    c = np.asarray(constants, dtype=np.float64)
    low = np.full(len(c), np.log(sizes[0] / SEARCH))
    high = np.full(len(c), np.log(sizes[1] * SEARCH))
    ends = low.copy(), high.copy()
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        size_side = np.log(c[:, ALPHA] * c[:, A])
        token_side = np.log(c[:, BETA] * c[:, B])
        for _ in range(60):
            middle = 0.5 * (low + high)
            per_token, slope = price.log_per_token(middle)
            log_tokens = np.log(budget) - per_token
            gain = size_side - c[:, ALPHA] * middle
            loss = token_side - c[:, BETA] * log_tokens + np.log(np.maximum(slope, 1e-9))
            larger = gain > loss
            low, high = np.where(larger, middle, low), np.where(larger, high, middle)
        at = 0.5 * (low + high)
        inside = (at > ends[0] + 1e-6) & (at < ends[1] - 1e-6) & np.isfinite(size_side) & np.isfinite(token_side)
        at = np.where(inside, at, np.nan)
        log_tokens = np.log(budget) - price.log_per_token(at)[0]
        return at, log_tokens, predict(c, np.exp(at), np.exp(log_tokens))


def by_surface(surface: Surface, rows: Rows, budget: float) -> Proposal | None:
    """Return the surface's proposal, None where it has no optimum near the sizes swept."""
    sizes = (float(rows.params.min()), float(rows.params.max()))
    price = cost(rows)
    best = np.stack(optimum(surface.constants[None], price, budget, sizes))[:, 0]
    if not np.isfinite(best).all():
        return None
    return _proposal(best, np.stack(optimum(surface.draws, price, budget, sizes)))


def by_valleys(
    fit: ValleyFit, frontier: FrontierFit | Frontier, surface: Surface | None, budget: float
) -> Proposal | None:
    """Return the valleys' proposal: N*(C) and D*(C) from the exponents.

    The loss is the surface's at this N and D, which rests on all runs; without a surface it is the frontier's, which
    rests on a few minima and, with fewer than four of them, has no floor: it is then too low far out.
    """
    laws = fit.block.exponents
    if not laws:
        return None
    best, drawn = [], []
    for name, draws in (("params", fit.draw_params), ("tokens", fit.draw_tokens)):
        law = laws[name]
        ratio = np.log(budget / law.reference_flops)
        intercepts, slopes = valleys.lines(fit.flops, law.reference_flops, draws)
        best.append(np.log(law.coefficient) + law.exponent * ratio)
        drawn.append(intercepts + slopes * ratio)
    loss, losses = np.nan, np.empty(0)
    if surface is not None:
        both = predict(np.vstack((surface.constants[None], surface.draws)), *np.exp(np.array(best)))
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
    rows: Rows, valley_fit: ValleyFit, frontier: FrontierFit | Frontier, *, surface: Surface | None, budget: float
) -> Recommendation | None:
    """Return both proposals and the one to follow, None where there is neither.

    The surface rests on all runs and on their residual degrees of freedom, so it is followed where it identifies the
    exponent of N*, its interval closes and it does not clash with the best sizes that were seen; else the valleys,
    which need no form of the loss, are.
    """
    found = {
        "valleys": by_valleys(valley_fit, frontier, surface, budget),
        "surface": by_surface(surface, rows, budget) if surface else None,
    }
    proposals = {name: proposal for name, proposal in found.items() if proposal is not None}
    if not proposals:
        return None
    chosen = _chosen(proposals, surface, clash(rows, valley_fit, surface))
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
        by_approach=proposals,
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
