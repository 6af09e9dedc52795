"""The size that a law makes optimal for a budget, with what its draws say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis.approaches import loss_laws
from analysis.approaches.cost import Cost, cost
from analysis.approaches.loss_laws import Closed, Law
from analysis.approaches.optimum import training_only
from analysis.approaches.power_laws import exp_interval
from analysis.inference import resampling
from analysis.inputs.dataset import Array, Rows
from analysis.values.blocks import Interval
from analysis.values.study_result import Proposal

if TYPE_CHECKING:
    from analysis.inference.law_result import LawFit


MOST_DRAWS = 300
"""Draws of a law that has no closed form: each plan searches with every one of them."""

PATH_DRAWS = 100
"""Draws of a law without a closed form that the band of its path rests on: each searches every budget."""


def optimum(constants: Array, price: Cost, budget: float, sizes: Interval) -> tuple[Array, Array, Array]:
    """Return ln N*, ln D* and loss (R,) of surfaces (R, 5) at this budget [FLOPs]; NaN where there is no optimum."""
    found = training_only(constants, price, budget, sizes)
    return found.log_params, found.log_tokens, found.loss


def priced(fit: LawFit, rows: Rows) -> tuple[Law, Cost, Interval]:
    """Return the law with its draws, what a token costs and the sizes swept, as the form counts them.

    Raises ValueError where the form has no best size: it gives no loss of N and D, or reads more than these.
    """
    form = fit.form
    if not loss_laws.plannable(form):
        raise ValueError(f"form={form.name} gives no loss of N and D, so it has no best size")
    further = loss_laws.further(form)
    if further:
        at = ",".join(f"{name}:NUMBER" for name in further)
        raise ValueError(
            f"form={form.name} reads {', '.join(further)} too: python -m analysis.plan form={form.name} at={at} says "
            "the best size for one"
        )
    sized = rows.replaced(params=rows.column(loss_laws.size_column(form)))
    drawn = fit.thetas if form.name == "chinchilla" else fit.thetas[:MOST_DRAWS]
    theta = np.vstack((fit.point.theta[None], drawn))
    price = cost(sized)
    ends = (float(sized.params.min()), float(sized.params.max()))
    if form.name == "chinchilla":
        return Closed(form.natural(theta, fit.problem.centres)), price, ends
    return loss_laws.Fitted(form, theta, fit.problem.centres, price, {}), price, ends


def by_law(law: Law, price: Cost, budget: float, sizes: Interval) -> Proposal | None:
    """Return the proposal of any law, first row the point and then the draws; None where it has no best size."""
    found = training_only(law, price, budget, sizes)
    every = np.stack((found.log_params, found.log_tokens, found.loss))
    return proposal_of(every[:, 0], every[:, 1:]) if np.isfinite(every[:, 0]).all() else None


def proposal_of(best: Array, drawn: Array, losses: Array | None = None) -> Proposal:
    """Return a proposal from ln N*, ln D*, loss (3,) and their draws (2 or 3, R)."""
    size, tokens, loss = best
    return Proposal(
        params=float(np.exp(size)),
        tokens=float(np.exp(tokens)),
        tokens_per_param=float(np.exp(tokens - size)),
        loss=float(loss) if np.isfinite(loss) else None,
        intervals={
            "params": exp_interval(resampling.interval(drawn[0], size)),
            "tokens": exp_interval(resampling.interval(drawn[1], tokens)),
            "tokens_per_param": exp_interval(resampling.interval(drawn[1] - drawn[0], tokens - size)),
            "loss": resampling.interval(drawn[2] if losses is None else losses, loss),
        },
    )
