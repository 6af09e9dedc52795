"""What a notebook does with a study's runs: load them, fit laws to them, look at what the laws say.

>>> import analysis as sa
>>> fit = sa.fit("docs/example-runs.csv", resamples=100, sensitivity=False)
>>> fit.law
LawFit(chinchilla: E 1.80, A 527, B 1910, alpha 0.356, beta 0.365; 25 rows)
>>> best = fit.optimum(1e22)
>>> f"{best.params:.3g} parameters, {best.tokens:.3g} tokens"
'9.04e+09 parameters, 1.84e+11 tokens'
"""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports, which take their time
    from train.spec.interrupts import no_command

    no_command(
        "analysis.notebook",
        "in Python, analysis.load(...) and analysis.fit(...); in a shell, python -m analysis.fit runs=...",
    )

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.report.optimum import Optimum, as_table
from analysis.results.fit_options import option_names, read_options
from analysis.text import files, numbers
from analysis.values.blocks import Check
from analysis.values.study_result import BudgetOptimum, Fit, Recommendation
from train.spec import calls

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from analysis.inference.law_result import LawFit
    from analysis.report.figures.data import Row
    from analysis.results.load import Runs
    from analysis.results.study_fit import Parts

FARTHEST = 2000.0
"""How many times the largest run's FLOPs a budget may have without a warning: a little more than the table of
best sizes has."""
KINDS, SIZES = ("svg", "pdf", "png"), ("screen", "column", "page")
"""Kinds of the figures' files, and what they are sized for."""


def folder_of(name: str, value: object) -> None:
    """Check a folder for results: that it can be made and written to."""
    if not isinstance(value, (str, Path)) or not str(value):
        raise ValueError(f"{name}={calls.shown(value)}: the path of a folder is needed, such as 'reports/mine'")
    files.check_folder(name, Path(value))


@calls.answered(option_names)
def load(runs: Runs, **options: Any) -> pd.DataFrame:
    """Return runs as a tidy frame: one row per run, including those that no fit uses, with the reason beside them.

    Parameters
    ----------
    runs : str, Path or DataFrame
        A study's folder ("runs/isoflop"), "mlflow:EXPERIMENT", a file of runs (.csv, .tsv, .parquet, .jsonl), or a
        frame of pandas, polars or Arrow with the columns of such a file.
    **options
        Keys of `python -m analysis.fit` that say how to read: columns, where, params, flop_rule, loss_unit, uri, ...

    Raises
    ------
    ValueError
        There are no such runs, or an option does not fit them.
    TypeError
        An option is not known.

    Examples
    --------
    >>> frame = load("docs/example-runs.csv")
    >>> len(frame), int(frame["used"].sum()), frame["loss_unit"][0]
    (25, 25, 'nats per token')
    """
    from analysis.results import load as reading

    return reading.load_frame({**read_options(options), **reading.source(reading.kept(runs))})


@calls.answered(option_names, form=calls.text, loss=calls.text, interval=calls.text)
def fit(
    runs: Runs,
    *,
    form: str = "chinchilla",
    approach: str = "all",
    loss: str = "huber",
    interval: str = "bootstrap",
    budget: float | None = None,
    resamples: int = 1000,
    seed: int = 0,
    sensitivity: bool = True,
    **options: Any,
) -> StudyFit:
    """Fit scaling laws to the runs of a study and return what they say.

    The options are the keys of `python -m analysis.fit`, whose `--help` says more about each.

    Parameters
    ----------
    runs : str, Path or DataFrame
        A study's folder ("runs/isoflop"), "mlflow:EXPERIMENT", a file of runs (.csv, .tsv, .parquet, .jsonl), or a
        frame: with the columns of such a file, or as `load` returns it.
    form : str
        The law of the loss, by its name, paper or formula: "chinchilla", "hoffmann", "E + A/N^alpha + B/D^beta".
    approach : str
        "1" (envelope of learning curves), "2" (isoFLOP valleys), "3" (surface), some of them ("2,3"), or "all".
    loss : str
        Loss function on log residuals: "huber", "student_t", "l1", "squared", or "linear" (squared plain residuals).
    interval : str
        Method of the law's intervals: "bootstrap", "delta", "sandwich" or "profile".
    budget : float, optional
        FLOPs to recommend a run for; by default ten times the largest run's.
    resamples : int
        Bootstrap resamples: 0 for no bootstrap intervals, else 20 or more.
    seed : int
        Seed of the resamples.
    sensitivity : bool
        Whether the fit is repeated under other choices.
    **options
        Which runs: where, points, select, mid_schedule, thin. How a file is read: columns, decimal, params, flop_rule,
        loss_unit, tokenizer, validation. Where MLflow is: uri. How laws are fitted: delta, fix, tie, cluster,
        valley_window, flat_valleys, workers. Laws of learning rate, batch size and schedules: window, optimum, train.

    Returns
    -------
    StudyFit
        The law, the compute-optimal run of any budget, findings, plots and the report.

    Raises
    ------
    ValueError
        There are no such runs, they cannot be fitted, or an option is not allowed.
    TypeError
        An option is not known.

    Examples
    --------
    >>> import analysis as sa
    >>> fit = sa.fit("docs/example-runs.csv", resamples=100, sensitivity=False)
    >>> fit
    StudyFit(example-runs: 25 of 25 runs, L(N, D) = 1.80 + 527/N^0.356 + 1910/D^0.365)
    >>> fit.optimum(1e22).tokens_per_param > 15
    True
    """
    from analysis.inputs.dataset import is_tidy
    from analysis.results import load as reading
    from analysis.results.fitted import fitted

    named = {"form": form, "approach": approach, "loss": loss, "interval": interval, "budget": budget}
    asked = read_options({**options, **named, "resamples": resamples, "seed": seed, "sensitivity": sensitivity})
    source = reading.source(reading.kept(runs))
    loaded = is_tidy(source.get("table"))
    frame = source["table"] if loaded else reading.load_frame({**asked, **source})
    asked["runs"] = source["runs"] if "table" not in source else ""
    return StudyFit(*fitted(frame, asked), frame, asked)


@dataclass(frozen=True, repr=False, eq=False)
class StudyFit:
    """Laws fitted to the runs of a study: what `analysis.fit(runs)` returns.

    `result` is everything that `fit.json` holds. `frame` has the runs; `options` what the fit was asked for.
    """

    result: Fit
    _parts: Parts | None
    frame: pd.DataFrame
    options: Mapping[str, Any]

    @cached_property
    def law(self) -> LawFit:
        """The fitted law: constants, intervals, residuals, predictions; ValueError where there is none."""
        from analysis.approaches import parametric

        parts = self._parts
        found = None if parts is None else (parts.law if parts.other is None else parts.other_fit)
        if parts is None and self.result.approach != "curves":
            found = parametric.law_and_fit(self.frame, None, self.options)[2]
        if found is None:
            raise ValueError(f"there is no law L(N, D) of these runs: {self.result.reason or self.result.form}")
        return found

    if not TYPE_CHECKING:  # types of attributes stay checked

        def __getattr__(self, name: str) -> Any:
            """Say of a name that only the law has where it is: `fit.predict` is `fit.law.predict`."""
            from analysis.inference.law_result import SHOWN

            if hasattr(type(self), name):  # one of ours, which failed with an AttributeError of its own
                return object.__getattribute__(self, name)
            said = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(f"{said}; use law.{name}" if name in SHOWN else said, name=name, obj=self)

    @property
    def recommendation(self) -> Recommendation | None:
        """What to train with the budget of the fit (`budget=`, else ten times the largest); None without an answer."""
        return self.result.recommendation

    @property
    def checks(self) -> tuple[Check, ...]:
        """Findings, each with a code, a level, a message and advice."""
        return self.result.checks

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The runs with the column `predicted`, the law's loss."""
        from analysis.results.predicted import with_prediction

        return with_prediction(self.result, self.frame)

    @calls.answered(budget=calls.flops)
    def optimum(self, budget: float) -> Optimum:
        """Return the compute-optimal run of a budget, by the law or the valleys as `plan` follows them for this budget.

        Parameters
        ----------
        budget : float
            Training compute [FLOPs].

        Returns
        -------
        Optimum
            Parameters, tokens and loss, with their intervals; `extrapolation_factor` is the budget over the largest
            run's.

        Raises
        ------
        ValueError
            The budget is not positive, or the runs give no best size for it; the message says why.

        Examples
        --------
        >>> import analysis as sa
        >>> fit = sa.fit("docs/example-runs.csv", resamples=0, sensitivity=False)
        >>> fit.optimum(1e21)
        Optimum(1e21 FLOPs: N* 2.82B, D* 59.1B, loss 2.254, by the surface)
        """
        flops = float(budget)
        parts = self._parts
        if parts is None:
            raise ValueError(f"these runs give no best size for {numbers.flops(flops)}: one law is all there is")
        approach, found, why = parts.proposal(flops)
        if found is None:
            raise ValueError(f"these runs give no best size for {numbers.flops(flops)}: {why}")
        far = flops / float(parts.rows.flops.max())
        if far > FARTHEST:
            warnings.warn(
                f"budget={numbers.scientific(flops)} is {numbers.factor(far)} the largest run: no run says whether the "
                "law holds there",
                stacklevel=3,
            )
        return Optimum(
            flops, found.params, found.tokens, found.tokens_per_param, found.loss, found.intervals, approach,
            far,
        )  # fmt: skip

    @calls.answered(budgets=calls.budgets)
    def optima(self, budgets: Iterable[float] | None = None) -> pd.DataFrame:
        """Return the compute-optimal run of each budget: of those given, or of the data's and of decades beyond.

        Parameters
        ----------
        budgets : list of float, optional
            Training compute [FLOPs]; by default the budgets of the data, the one asked for and decades beyond.

        Returns
        -------
        DataFrame
            One row a budget: `budget_flops`, `params`, `tokens`, `tokens_per_param`, `loss`, then each of these four
            with `_low` and `_high` (NaN without an interval), and `beyond`: no run had as many FLOPs. It has no rows
            where nothing is recommended. `fit.json` and the report have the same numbers.

        Examples
        --------
        >>> import analysis as sa
        >>> fit = sa.fit("docs/example-runs.csv", resamples=0, sensitivity=False)
        >>> fit.optima()[["budget_flops", "params", "tokens", "beyond"]].tail(2).map("{:.3g}".format)
          budget_flops    params    tokens beyond
        6        1e+22  9.04e+09  1.84e+11      1
        7        1e+23   2.9e+10  5.74e+11      1
        """
        from analysis.approaches.frontier_path import data_end

        found: list[tuple[Optimum | BudgetOptimum, bool]]
        if budgets is not None:
            of = None if self._parts is None else self._parts.rows
            end = 0.0 if of is None else data_end(of.labels.tolist(), float(of.flops.max()))
            found = [(one, one.budget_flops > end) for one in map(self.optimum, budgets)]
        else:
            found = [] if self.recommendation is None else [(one, one.beyond) for one in self.recommendation.optima]
        return as_table(found)

    def summary(self) -> str:
        """Return the lines that `python -m analysis.fit` ends with: law, frontier, what to train, how far to trust."""
        from analysis.report import sentences
        from analysis.report.terminal import summary

        return summary(sentences.read(self.result))

    @calls.answered(ax=calls.axes)
    def plot_isoflop(self, ax: Axes | None = None) -> Axes:
        """Draw loss against parameters at equal compute: runs, law, parabolas and their minima; return the axes."""
        return self.plot("valleys", "valleys", ax)

    @calls.answered(quantity=calls.text, ax=calls.axes)
    def plot_frontier(self, quantity: str = "params", ax: Axes | None = None) -> Axes:
        """Draw optimal "params" or "tokens" against compute, with the law's band; return the axes."""
        return self.plot("frontier", quantity, ax)

    @calls.answered(ax=calls.axes)
    def plot_loss(self, ax: Axes | None = None) -> Axes:
        """Draw the lowest loss against compute; return the axes."""
        return self.plot("loss", "loss", ax)

    @calls.answered(against=calls.text, ax=calls.axes)
    def plot_residuals(self, against: str = "flops", ax: Axes | None = None) -> Axes:
        """Draw residuals against "params", "tokens" or "flops", coloured by budget; return the axes."""
        return self.plot("law", against, ax)

    @calls.answered(panel=calls.text, ax=calls.axes)
    def plot(self, figure: str = "valleys", panel: str = "", ax: Axes | None = None) -> Axes:
        """Draw one panel of a figure of the report on `ax`, or on new axes; return the axes.

        ValueError lists the figures, or the figure's panels, or says that these runs cannot fill it.
        """
        from analysis.report.figures.canvas import new_axes
        from analysis.report.figures.registry import FIGURES

        if figure not in FIGURES:
            raise ValueError(f"figure={figure!r} is not known; use one of {', '.join(FIGURES)}")
        found = FIGURES[figure](self.result, self._rows, ())
        if found is None:
            raise ValueError(f"these runs cannot fill the figure {figure!r}: {self.result.reason or 'see checks'}")
        panels = {one.name: one for one in found.panels}
        name = panel or found.panels[0].name
        if name not in panels:
            raise ValueError(
                f"{name!r} is no panel of {figure}; use {'one of ' * (len(panels) > 1)}{', '.join(panels)}"
            )
        return panels[name].draw(ax if ax is not None else new_axes(panels[name].height))

    @calls.answered(folder=folder_of)
    def save(self, folder: str | Path) -> Path:
        """Write fit.json, metrics.json, points.csv and runs.csv into a folder; return the path of fit.json.

        ValueError says that the folder cannot be made or written to.
        """
        from analysis.results.fitted import write

        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"folder={folder}: it cannot be made ({error.strerror}); give another folder") from None
        write(self.result, self.frame, Path(folder))
        return Path(folder) / "fit.json"

    @calls.answered(folder=folder_of, figures=calls.some_of(*KINDS), size=calls.one_of(*SIZES))
    def report(self, folder: str | Path, figures: Sequence[str] = KINDS, size: str = "screen") -> Path:
        """Write report.html with its figures, and what `save` writes, into a folder; return the page's path.

        `figures` are the kinds of their files, `size` is "screen", "column" or "page" of a paper. ValueError says which
        is not known, or that the folder cannot be made or written to.
        """
        from analysis.report.write import write

        runs = Path(str(self.options.get("runs") or ""))
        learning = runs if (runs / "points.jsonl").is_file() else None
        return write(self.save(folder), Path(folder), learning, tuple(figures), size).report

    def __repr__(self) -> str:
        """Return study, runs and law in one line; `summary()` says more."""
        from analysis.report import sentences
        from analysis.report.terminal import law_text

        used = f"{self.result.runs.used} of {self.result.runs.total} runs"
        side = "L(N, D) = " if self.result.approach == "surface" else ""
        if self.result.status != "ok":
            return f"StudyFit({self.result.study}: {used}, no law: {self.result.reason})"
        return f"StudyFit({self.result.study}: {used}, {side}{law_text(sentences.read(self.result))})"

    def _repr_html_(self) -> str:
        """Return the head of the report for a notebook: answer, law, findings."""
        from analysis.report.page import head

        return head(self.result)

    @cached_property
    def _rows(self) -> tuple[Row, ...]:
        from analysis.report.figures.data import as_rows

        return as_rows(self.runs)
