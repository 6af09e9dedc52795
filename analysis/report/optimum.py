"""The compute-optimal run of a budget as a notebook shows it: one line, a small table, or a row for each budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.report.optima import QUANTITIES
from analysis.text import numbers
from analysis.values.blocks import Interval
from analysis.values.study_result import BudgetOptimum, Recommendation

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Optimum:
    """The compute-optimal run of a budget [FLOPs] by one approach: parameters, tokens, loss, and their intervals.

    `intervals` are of params, tokens, tokens_per_param and loss, None where the runs give none; `extrapolation_factor`
    is the budget over the largest run's FLOPs.
    """

    budget_flops: float
    params: float
    tokens: float
    tokens_per_param: float
    loss: float | None
    intervals: Mapping[str, Interval | None]
    approach: str
    extrapolation_factor: float

    @classmethod
    def of(cls, plan: Recommendation) -> Optimum:
        """Return what a recommendation says of its budget."""
        return cls(
            plan.budget_flops, plan.params, plan.tokens, plan.tokens_per_param, plan.loss, plan.intervals,
            plan.approach, plan.extrapolation_factor,
        )  # fmt: skip

    def __repr__(self) -> str:
        """Return the run in one line."""
        known = "" if self.loss is None else f", loss {numbers.number(self.loss, 4)}{self._ends('loss', 4)}"
        return (
            f"Optimum({numbers.flops(self.budget_flops)}: N* {numbers.amount(self.params)}{self._ends('params')}, "
            f"D* {numbers.amount(self.tokens)}{self._ends('tokens')}{known}, by the {self.approach})"
        )

    def _repr_html_(self) -> str:
        """Return the run as a small table."""
        from analysis.report.html import table

        lines: list[tuple[str, str, Any]] = [
            ("parameters N*", "params", numbers.amount), ("tokens D*", "tokens", numbers.amount),
            ("tokens per parameter", "tokens_per_param", numbers.number),
            ("loss", "loss", lambda value: numbers.number(value, 4)),
        ]  # fmt: skip
        rows = [
            [label, show(getattr(self, name)), numbers.interval(self.intervals.get(name), show)]
            for label, name, show in lines
        ]
        return table([f"at {numbers.flops(self.budget_flops)}", f"by the {self.approach}", "interval"], rows)

    def _ends(self, name: str, digits: int = 3) -> str:
        show = numbers.amount if name != "loss" else lambda value: numbers.number(value, digits)
        between = numbers.interval(self.intervals.get(name), show)
        return "" if between == numbers.MISSING else f" ({between})"


def as_table(optima: Iterable[tuple[Optimum | BudgetOptimum, bool]]) -> pd.DataFrame:
    """Return a row for each budget: its optimum, `_low` and `_high` of each quantity, and whether it is `beyond`.

    optima: each with whether no run had as many FLOPs.
    """
    import pandas as pd

    ends = [f"{name}_{end}" for name in QUANTITIES for end in ("low", "high")]
    columns = ["budget_flops", *QUANTITIES, *ends]
    rows = []
    for one, beyond in optima:
        bounds = [bound for name in QUANTITIES for bound in one.intervals.get(name) or (None, None)]
        values = [one.budget_flops, *(getattr(one, name) for name in QUANTITIES), *bounds]
        rows.append([*values, beyond])
    types = dict.fromkeys(columns, float) | {"beyond": bool}
    return pd.DataFrame(rows, columns=[*columns, "beyond"]).astype(types)
