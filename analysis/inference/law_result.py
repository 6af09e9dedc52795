"""What `fit_law` returns: frozen results with statsmodels' names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.inference.inferred_law import InferredLaw
from analysis.text import numbers
from analysis.values.blocks import Block, Check, Interval
from train.spec import calls

if TYPE_CHECKING:
    from analysis.inference.summary import Summary


SHOWN = (
    "aic", "aicc", "bic", "bse", "check", "conf_int", "confidence", "constraints", "cov_params", "data", "derived",
    "df_model", "df_resid", "draws", "fittedvalues", "form", "get_prediction", "identified", "interval_method", "kinds",
    "llf", "loss_function", "names", "nobs", "noise", "objective", "optimizer", "params", "plot_draws", "plot_fit",
    "plot_profile", "plot_residuals", "predict", "prediction", "profile", "record", "resid", "seed", "summary",
)  # fmt: skip
"""What Tab lists of a law; its other attributes are for the analysis itself."""


@dataclass(frozen=True, eq=False, repr=False)
class LawFit(InferredLaw):
    """A fitted law. Constants and quantities that follow from them go by name; see `fit_law` for how it was made.

    `params` are the estimates, `conf_int()` their intervals, `predict(inputs)` losses, `summary()` a table, `check()`
    the findings; `plot_residuals`, `plot_profile`, `plot_fit` and `plot_draws` return axes.
    """

    def __dir__(self) -> list[str]:
        """Return the names that people use."""
        return [*SHOWN]

    def __repr__(self) -> str:
        """Return the law with its constants in one line; `summary()` says more."""
        constants = ", ".join(f"{name} {numbers.number(value)}" for name, value in self.params.items())
        return f"LawFit({self.form.name}: {constants}; {numbers.counted(self.nobs, 'row')})"

    def _repr_html_(self) -> str:
        """Return the summary for a notebook."""
        return self.summary().as_html()

    @calls.answered()
    def check(self, runs: Any = None) -> tuple[Check, ...]:
        """Return findings about the fit, each with a code and advice; `runs` may hold columns beyond the form's."""
        from analysis.inference.findings import findings

        return findings(self, runs)

    def summary(self) -> Summary:
        """Return the summary: `str()`, `as_text()`, `as_html()`, `as_latex()`, `as_csv()`."""
        from analysis.inference.summary import summary

        return summary(self, self.check())

    def block(self) -> Block:
        """Return the fit as a block of fit.json."""
        table = self.conf_int()
        ends = {name: (float(table[0][name]), float(table[1][name])) for name in self.names}
        known: dict[str, Interval | None] = {
            name: pair if self.identified[name].identified and np.isfinite(pair).all() else None
            for name, pair in ends.items()
        }
        return Block(
            form=self.form.text,
            approach="surface"
            if self.form.target == "loss" and {"params", "tokens"} <= set(self.form.inputs)
            else self.form.name,
            loss_function=self.loss_function,
            objective=self.objective,
            params={str(name): float(value) for name, value in self.params.items()},
            derived={str(name): float(value) for name, value in self.derived.items()},
            intervals=known,
            identified=dict(self.identified),
            checks=self.check(),
            rows_used=self.nobs,
            optimizer=self.optimizer,
        )

    def record(self) -> dict[str, Any]:
        """Return everything that a report of this fit has to say, as plain JSON values."""
        from analysis.inference.summary import record

        return record(self, self.block())

    @calls.answered(against=calls.text, ax=calls.axes)
    def plot_residuals(self, against: str = "params", ax: Any = None) -> Any:
        """Draw residuals against an input; return the axes."""
        return _figures().residuals(self, against, ax)

    @calls.answered(name=calls.text, ax=calls.axes)
    def plot_profile(self, name: str, ax: Any = None) -> Any:
        """Draw the profile of a constant; return the axes."""
        return _figures().profile(self, name, ax)

    @calls.answered(ax=calls.axes)
    def plot_fit(self, ax: Any = None) -> Any:
        """Draw observed over fitted; return the axes."""
        return _figures().observed(self, ax)

    @calls.answered(x=calls.text, y=calls.text, ax=calls.axes)
    def plot_draws(self, x: str, y: str, ax: Any = None) -> Any:
        """Draw the resamples of two quantities; return the axes."""
        return _figures().draws(self, x, y, ax)


def _figures() -> Any:
    from importlib import import_module

    return import_module("analysis.report.figures.laws")
