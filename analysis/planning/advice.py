"""The one rule of what may be advised: a law of the loss, the valleys' best sizes, or nothing, each with its reason.

`fit`, `plan`, `next`, the report and a notebook's `optimum` read it here alone, so that none advises what another
refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from analysis.text import numbers

if TYPE_CHECKING:
    import pandas as pd

    from analysis.approaches.cost import Cost
    from analysis.approaches.loss_laws import Law
    from analysis.approaches.valleys import ValleyFit
    from analysis.inference.law_result import LawFit
    from analysis.inputs.dataset import Rows
    from analysis.values.blocks import Block, Check, Interval, PowerLaw
    from analysis.values.study_result import Cut

CLASH = 1.5
"""A law may miss the best size of a budget that was run by this factor."""
LAW, VALLEYS = "law", "valleys"


@dataclass(frozen=True, eq=False)
class Candidate:
    """A fitted law of the loss: its fit, the law with its draws, what a token costs and the sizes swept."""

    fit: LawFit
    law: Law
    price: Cost
    sizes: Interval


@dataclass(frozen=True)
class Advice:
    """What is followed: "law", "valleys" or nothing (""); why the law is not, why the valleys are not, what would help.

    `law` and `valleys` are empty where they may be followed. The loss of a proposal is the law's only where `law` is
    empty.
    """

    form: str
    law: str
    valleys: str
    cure: str
    wrong: str = ""
    only: str = ""

    @property
    def follows(self) -> str:
        """What is followed: the law, else the valleys, which need no law of the loss; nothing of rows that are wrong.

        Where one of the two was asked for, `only` that one is.
        """
        if self.wrong:
            return ""
        if not self.law and self.only != VALLEYS:
            return LAW
        return VALLEYS if not self.valleys and self.only != LAW else ""

    @property
    def why(self) -> str:
        """Why nothing is recommended, or the law is not followed; empty where it is."""
        if self.wrong or self.follows == LAW:
            return self.wrong
        law = f"form={self.form} does not qualify ({self.law})" if self.law and self.only != VALLEYS else ""
        if self.follows == VALLEYS or self.only == LAW:
            return law
        return "; ".join(part for part in (law, f"the valleys do not qualify ({self.valleys})") if part)


@dataclass(frozen=True, eq=False)
class Judged:
    """What these rows let be advised where the law has a best size, and the law, None where it was not fitted."""

    at_all: Advice
    candidate: Candidate | None

    def at(self, budget: float) -> Advice:
        """Return what is advised for a budget [FLOPs], at which a law may have no best size."""
        said = self.at_all
        if said.law or self.candidate is None or said.only == VALLEYS:
            return said
        return replace(said, law=_sizeless(self.candidate, budget))


def judge(
    frame: pd.DataFrame,
    rows: Rows,
    form: str,
    candidate: Candidate | str,
    valley_fit: ValleyFit,
    *,
    checks: Iterable[Check],
    only: str = "",
    cuts: Iterable[Cut] | None = None,
) -> Judged:
    """Return what these rows let be advised; `candidate` is the law `form` of the loss, or why there is none.

    `checks` are the findings about the rows, of which an error forbids all advice. `only` the law or the valleys were
    asked for; `cuts` are backtests of the law, where they are made already.
    """
    from analysis.diagnostics import at_rows
    from analysis.inference import identifiability

    wrong = at_rows.wrong(checks)
    usual = "finish or add runs, larger budgets first"
    cure = identifiability.cure(rows.params, rows.tokens, usual, at_rows.alone(frame))
    if wrong is not None:
        cure = f"see {wrong.code}: {wrong.advice}"
    law = candidate if isinstance(candidate, str) else law_lacks(candidate, rows, valley_fit, cuts)
    found = None if isinstance(candidate, str) else candidate
    said = Advice(form, law, valleys_lack(valley_fit), cure, "" if wrong is None else wrong.message, only)
    return Judged(said, found)


def law_lacks(candidate: Candidate, rows: Rows, valley_fit: ValleyFit, cuts: Iterable[Cut] | None = None) -> str:
    """Return why a law is not advised, whatever the budget; empty where it may be.

    It may where its fit converged, the runs identify every constant, none is on a bound, a backtest shows how it
    extrapolates, its loss falls ever less, and it finds the best size of the largest budget that was run.
    """
    from analysis.diagnostics import qualify
    from analysis.planning.beyond import quickening

    on, ends = candidate.law, (float(rows.flops.min()), float(rows.flops.max()))
    return (
        qualify.lacking(candidate.fit, rows, cuts)
        or quickening(on, candidate.price, candidate.sizes, ends)
        or elsewhere(candidate, valley_fit)
    )


def elsewhere(candidate: Candidate, valley_fit: ValleyFit) -> str:
    """Return that a law puts the best size of the largest budget with a minimum elsewhere; empty where it does not."""
    from analysis.approaches import loss_laws
    from analysis.planning.recommend import clash_of

    if loss_laws.size_column(candidate.fit.form) != "params":  # valleys count parameters in another way
        return ""
    found = clash_of(candidate.law, candidate.price, candidate.sizes, valley_fit)
    if found is None:
        return ""
    return (
        f"it puts the best size of {numbers.flops(found.budget)} at {numbers.amount(found.surface)} parameters, the "
        f"runs put it at {numbers.amount(found.valley)}"
    )


def _sizeless(candidate: Candidate, budget: float) -> str:
    """Return that a law has no best size for a budget [FLOPs], or no interval of it; empty where it has."""
    from analysis.approaches.compute_optimal import by_law

    found = by_law(candidate.law, candidate.price, budget, candidate.sizes)
    if found is None:
        return f"it has no best size for {numbers.flops(budget)} near the sizes swept"
    if len(candidate.law) > 1 and found.intervals["params"] is None:
        return f"more than one in twenty of its resamples have no best size for {numbers.flops(budget)}"
    return ""


def refusal(said: Advice, *, planned: bool = True) -> str:
    """Return why no plan is made, what would help and, where a law can be `planned` with, how to do so all the same."""
    cure = f"no recommendation: {said.why}. {said.cure[:1].upper()}{said.cure[1:]}".rstrip(".")
    anyway = f"; strict=no plans with form={said.form} anyway: an extrapolation, not a recommendation"
    return cure + (anyway if planned else "")


def valleys_lack(found: ValleyFit) -> str:
    """Return why the valleys are not followed; empty where they may be. E and other constants do not concern them.

    They may where they identify the exponents of N* and D*, three or more of them have a minimum, and the largest lies
    far enough beyond two others to test how these grow. Two minima fix a power law whatever they are.
    """
    import numpy as np

    from analysis.diagnostics.qualify import TESTED

    block = found.block
    law = block.exponents.get("params")
    if law is None:
        return block.reason
    if law.df_resid < 1:
        return f"{numbers.counted(len(found.flops), 'valley')} with a minimum, and two fix any power law"
    if len(found.draw_params):
        for name, verdict in block.identified.items():
            if not verdict.identified:
                return f"{name} is not identified: {verdict.reason}"
    rising = np.sort(found.flops)
    far = float(rising[-1] / rising[1])
    if far < TESTED:
        return f"no backtest shows how they extrapolate: the largest minimum is {numbers.factor(far)} beyond the second"
    return ""


def envelope_lacks(laws: Mapping[str, PowerLaw], resampled: bool) -> str:
    """Return why the envelope of learning curves is not followed; empty where it may be."""
    from analysis.inference import identifiability

    if laws["params"].df_resid < 1:
        return "it touches two curves, and two fix any power law"
    for name, quantity in (("a", "params"), ("b", "tokens")):
        verdict = identifiability.ratio(laws[quantity].exponent_interval, name)
        if resampled and not verdict.identified:
            return f"{name} is not identified: {verdict.reason}"
    return ""


def frontier_known(block: Block) -> bool:
    """Return whether the law of the lowest losses may say a loss: it has a floor, and the minima identify all of it."""
    from analysis.laws.sum_of_powers import FRONTIER

    return block.form == FRONTIER.text and all(verdict.identified for verdict in block.identified.values())
