"""What a fit returns: frozen dataclasses, and `fit.json`, which is the same as JSON.

`save(fit, path)` writes `fit.json`, `load(path)` reads it back as a :class:`Fit`; every JSON object below has the
field names of its dataclass. Numbers are SI counts without hidden scaling: parameters, tokens, FLOPs; losses are in
`kinds.loss`; intervals are `[low, high]` at `confidence`, or null where the data do not identify the quantity.
JSON has no NaN: what is not a number is null. Lists and objects are never null, they are empty.

Top level (:class:`Fit`)::

    format              1
    study, source       name of the study; where the rows came from (path or "mlflow:EXPERIMENT")
    form .. optimizer   the block (see below) of the approach that gives the fitted law: a copy of fits.surface, or of
                        fits.law where another form was asked for, or of the one approach asked for (approach=1, 2).
                        `params` is empty when it could not be fitted.
    kinds               {params: matmul|total|non_embedding|given, flops: rule, loss: unit, tokens, tokenizer}
    interval_method, confidence, resamples, seed, versions
    runs                {total, used, dropped, completed, budgets, largest_flops}: runs of the table, those that the
                        fit reads, those left out; of form=multi_power a run is a curve: `used` are those fitted, those
                        held out are neither used nor dropped, `completed` those read to the end of their run;
                        largest_flops: exact FLOPs of the largest run used, where the data end
    fits                {valleys, surface, frontier, law, envelope}: one block an approach; `law` is the fit of another
                        form than the surface (form=), else null; `envelope` approach 1, null where it was not asked for
    backtest            null with fewer than three budgets
    profiles, cloud, rolling, sensitivity, record    see below; empty where they were not asked for
    recommendation      null when no approach can give one: the check no_recommendation says why

A block (:class:`Block`: top level and `fits.surface`; also the first fields of `fits.valleys`, `fits.frontier`)::

    form                the law as text, "E + A/N^alpha + B/D^beta"
    approach            surface | valleys | frontier
    status, reason      "ok" | "not possible", and why
    loss_function       "huber(log residual, delta=0.001)" | "squared(log residual)" | "squared(loss)"
    objective           summed over rows, null when not possible
    params              name -> value; empty when not possible
    derived             name -> value that follows from params (a = beta/(alpha+beta), b = 1 - a)
    intervals           name -> [low, high] | null, for params and derived
    identified          name -> {identified, reason, side, limit}; not identified: `side` ("upper"|"lower"|null) and
                        `limit` give the one-sided bound that the data do support: upper means "at most limit"
    checks              [{code, message, advice, level}]; level is "note" | "warning" | "error"
    rows_used           number of values that the law was fitted to: runs (the minima of approach 2 read several each);
                        of form=multi_power points of the fitted curves, at most 60 a curve; of form=learning_rate and
                        batch the optima of the sweeps where the runs are sweeps
    rows_dropped        [{key, code, reason}]: at the top level the runs that no approach uses; in a block of `fits`
                        those that this approach leaves out besides (valleys: the runs of budgets without a minimum).
                        Files of earlier versions repeat those of the top level in the blocks
    optimizer           {method, starts, agree_share, gradient_norm, converged, basins: [{objective, share, params}]}

`fits.valleys` (:class:`Valleys`) adds::

    valleys             by rising budget: {flops_budget (nominal label, else exact), flops (exact, geometric mean),
                        status: minimum|edge|inverted|flat|negative|too_few, reason, points, keys,
                        params_opt, params_interval, tokens_opt, tokens_interval, loss_opt, loss_interval,
                        center, coefficients: [c0, c1, c2], params_range: [low, high]}
                        the parabola is loss = c0 + c1*x + c2*x^2 with x = ln(N) - center; it is there (for drawing)
                        for edge and inverted ones too, and empty for too_few. *_opt is null unless status=minimum.
    exponents           {params: law, tokens: law} or empty with fewer than two minima: N*(C), D*(C) =
                        coefficient * (C / reference_flops)^exponent:
                        {coefficient, exponent, reference_flops, coefficient_interval, exponent_interval, bse,
                        points, df_resid}; bse is the regression's own standard error of the exponent

`fits.frontier` (:class:`Frontier`): params L_inf, a, alpha of L(C) = L_inf + a * (C / reference_flops)^-alpha, and::

    reference_flops     geometric middle of the points
    points              [{flops, loss}] the valleys' minima (or the lowest loss per budget: `points_are` says which)

`backtest` (:class:`Backtest`): the largest budget, predicted from budgets that lie as far below it as the
recommendation lies above the runs, or the farthest below that hold a fit; null where none lies 1.5 times below::

    held_out_budget, train_budgets, extrapolation_factor (held-out flops / largest flops of the fit)
    recommended_factor  that of the recommendation; `covers` says whether the test reached it
    predicted, observed, relative_error    lowest loss of the held-out budget (signed error: predicted/observed - 1):
                        that of its valley's minimum, which a law's losses of the same runs have too; where there is
                        no minimum that of the lowest run. predicted and relative_error are null where `approach` is ""
    approach            which approach the three figures above are from, that of the recommendation's `loss_from`:
                        surface, law, or valleys for the frontier; "" where it says no loss or has no test, and
                        `reason` says which. Where nothing is recommended, the law that was fitted, else valleys
    by_approach         name -> {predicted, observed, relative_error}, also those that are not recommended
    runs                [{key, params, tokens, flops, predicted, observed, relative_error}] by the surface or law where
                        `approach` is that, else empty
    mean_abs_relative_error, mean_relative_error   over `runs`, null without; `one_sided` says that all of at least
                        five held-out runs miss on the same side
    reach               what a right law's error stays below in 99 of 100 cases, fitted to so few runs; null for others

`recommendation` (:class:`Recommendation`)::

    approach            which approach the figures below are from: the surface (law where another form was asked for)
                        where it may be advised (:mod:`analysis.planning.advice`), else the valleys where they may be;
                        where neither may, or the form has no best size, there is no recommendation, and a check
                        says why. valleys or envelope where only this approach was asked for
    budget_flops, params, tokens, tokens_per_param, loss
                        N* is the size whose loss is lowest along C = cost(N) D, with the FLOPs per token that the
                        runs' exact counts show as they change with N; every N* of fit.json is of this count.
                        `loss_from` names what the loss at this N and D is from: surface, law or frontier; empty, and
                        the loss null, where no law of it may be advised
    growth              {params, tokens} -> {value, exponent, reference_flops, interval, reason}: how N* and D* grow
                        along the law of `approach`; the exponents are its a and b (reason: why there is no interval)
    path                [{flops, params, tokens, loss, intervals}]: the compute-optimal run at rising budgets, from the
                        smallest run to the recommended budget, by the law of `approach`: what figures draw
    optima              [{budget_flops, params, tokens, tokens_per_param, loss, intervals, beyond}]: the same law's
                        compute-optimal run at each budget of the data (of more than twelve the first, the last and
                        the whole decades between), at budget_flops, and at whole decades beyond the data, three of
                        them or up to budget_flops; `beyond` says that no run had as many FLOPs. Budgets without a
                        best size are left out. Files of earlier versions do not have it
    intervals           {params, tokens, tokens_per_param, loss} -> [low, high] | null
    extrapolation_factor   budget / largest exact flops of the rows used
    by_approach         name -> {params, tokens, tokens_per_param, loss, intervals}
    disagreement        largest ratio of params between all approaches that give one at this budget (by_approach and
                        those lines of record.approaches that have no note), null with one approach

`profiles` ([:class:`ProfileCurve`]): name, values, objective (summed, all other constants fitted anew), cut (the level
at which the interval ends), and the interval [low, high] with null for an open side.

`cloud` (:class:`Cloud`): params, tokens: resampled optima for the recommendation's budget; null without a surface.

`rolling` ([:class:`Cut`]): fits on the runs up to `flops`, judged on those above: exponent `a`, mean absolute error of
the runs above, and each as [flops, relative error].

`sensitivity` ([:class:`Choice`]): what the exponent a (or another quantity) becomes under another choice.

`record`                what else a reader needs to repeat the fit: options, schedules of the rows used, how rates were
                        selected, approaches side by side, the law's own record (kinds, bse, criteria, ranges)

`fit.created` beside it says when it was written (ISO 8601, UTC): the same fit, made again, is the same `fit.json`.
`metrics.json` and `points.csv` beside it are for tools that compare (:mod:`analysis.results.tracked`).

`runs.csv` lies beside it: the tidy frame of :mod:`analysis.inputs.frame`, one row a run, also the rows not used, with
the columns `used` (True/False), `drop_code` and `drop_reason` (empty for used rows) and `predicted` (surface loss).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.text import files
from analysis.values import fit_file
from analysis.values.blocks import (
    Basin,
    Block,
    Check,
    Dropped,
    Fits,
    Frontier,
    FrontierPoint,
    Identified,
    Interval,
    Kinds,
    Optimizer,
    PowerLaw,
    Valley,
    Valleys,
)
from analysis.values.json_values import from_json, to_json
from train.spec import calls

__all__ = [
    "FORMAT", "Backtest", "BacktestOptimum", "BacktestRun", "Basin", "Block", "BudgetOptimum", "Check", "Choice",
    "Cloud", "Cut", "Dropped", "Fit", "Fits", "Frontier", "FrontierPoint", "Growth", "Identified", "Interval", "Kinds",
    "Optimizer", "PathPoint", "PowerLaw", "ProfileCurve", "Proposal", "Recommendation", "Runs", "Valley", "Valleys",
    "load", "save",
]  # fmt: skip

FORMAT = 1
CREATED = ".created"
"""Ends the name of the file beside `fit.json` that says when it was made: the date is no part of the result."""


@dataclass(frozen=True)
class BacktestRun:
    """A held-out run, as the law of the smaller budgets predicts it."""

    key: str
    params: float
    tokens: float
    flops: float
    predicted: float
    observed: float
    relative_error: float


@dataclass(frozen=True)
class BacktestOptimum:
    """Lowest loss of the held-out budget: that of its valley's minimum, else of its lowest run."""

    predicted: float
    observed: float
    relative_error: float


@dataclass(frozen=True)
class Backtest:
    """Fit on all but the largest budget, predict the largest; `reason` says why there is no error of it."""

    held_out_budget: float
    train_budgets: tuple[float, ...]
    extrapolation_factor: float
    approach: str
    predicted: float | None
    observed: float
    relative_error: float | None
    by_approach: dict[str, BacktestOptimum]
    runs: tuple[BacktestRun, ...] = ()
    mean_abs_relative_error: float | None = None
    recommended_factor: float | None = None
    covers: bool = True
    mean_relative_error: float | None = None
    one_sided: bool = False
    reason: str = ""
    reach: float | None = None


@dataclass(frozen=True)
class Proposal:
    """The compute-optimal run of one approach for a budget."""

    params: float
    tokens: float
    tokens_per_param: float
    loss: float | None
    intervals: dict[str, Interval | None]


@dataclass(frozen=True)
class Growth:
    """How the best size, or the best tokens, grow along the recommended law: value (C / reference_flops)^exponent.

    `value` is the recommended N* or D*, `reference_flops` the budget that it is for.
    """

    value: float
    exponent: float
    reference_flops: float
    interval: Interval | None = None
    reason: str = ""


@dataclass(frozen=True)
class PathPoint:
    """The compute-optimal run of the recommended law at one budget [FLOPs]."""

    flops: float
    params: float
    tokens: float
    loss: float | None
    intervals: dict[str, Interval | None]


@dataclass(frozen=True)
class BudgetOptimum:
    """The compute-optimal run of the recommended law for one budget [FLOPs]; `beyond`: no run had as many."""

    budget_flops: float
    params: float
    tokens: float
    tokens_per_param: float
    loss: float | None
    intervals: dict[str, Interval | None]
    beyond: bool


@dataclass(frozen=True)
class Recommendation:
    """What to train with a new budget, and by the same law with others.

    `optima` are for the budgets of the data, the one asked for and decades beyond; `path` is for drawing.
    """

    approach: str
    budget_flops: float
    params: float
    tokens: float
    tokens_per_param: float
    loss: float | None
    intervals: dict[str, Interval | None]
    extrapolation_factor: float
    by_approach: dict[str, Proposal] = field(repr=False)
    disagreement: float | None = None
    growth: dict[str, Growth] = field(default_factory=dict, repr=False)
    path: tuple[PathPoint, ...] = field(default=(), repr=False)
    loss_from: str = ""
    optima: tuple[BudgetOptimum, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class ProfileCurve:
    """The objective over one constant with all others fitted anew, and where it crosses the confidence level."""

    name: str
    values: tuple[float, ...]
    objective: tuple[float, ...]
    cut: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Cloud:
    """Resampled compute-optimal sizes and tokens for one budget."""

    budget_flops: float
    params: tuple[float, ...]
    tokens: tuple[float, ...]


@dataclass(frozen=True)
class Cut:
    """A fit on the runs up to `flops` and its errors above: `runs` are (flops, relative error), `a` its exponent."""

    flops: float
    rows: int
    a: float | None
    mean_abs_relative_error: float
    runs: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Choice:
    """One line of the sensitivity table: under `choice` = `option` the quantity is `value`, with its interval."""

    choice: str
    option: str
    quantity: str
    value: float | None
    low: float | None
    high: float | None
    rows: int

    @property
    def words(self) -> str:
        """The option in words: params_non_embedding is non-embedding parameters."""
        name = self.option or self.choice
        if name.startswith("params_"):
            return f"{name.removeprefix('params_').replace('_', '-')} parameters"
        return name.replace("_", " ")


@dataclass(frozen=True)
class Runs:
    """How many runs there were and how many a fit could use."""

    total: int
    used: int
    dropped: int
    completed: int
    budgets: int
    largest_flops: float | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Fit(Block):
    """Everything that `fit.json` holds."""

    study: str
    source: str
    created: str
    kinds: Kinds
    interval_method: str
    confidence: float
    resamples: int
    seed: int
    versions: dict[str, str]
    runs: Runs
    fits: Fits
    backtest: Backtest | None = None
    recommendation: Recommendation | None = None
    profiles: tuple[ProfileCurve, ...] = ()
    cloud: Cloud | None = None
    rolling: tuple[Cut, ...] = ()
    sensitivity: tuple[Choice, ...] = ()
    record: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    def __repr__(self) -> str:
        """Return study, runs and law in one line: the fields would fill screens."""
        law = self.form if self.status == "ok" else self.reason
        return f"Fit({self.study}: {self.runs.used} of {self.runs.total} runs, {self.status}: {law})"


def save(fit: Fit, path: Path) -> None:
    """Write `fit.json` at `path`, and beside it when it was made, each by atomic rename."""
    fields = to_json(fit)
    files.write(path.with_suffix(CREATED), f"{fields.pop('created')}\n")
    files.write(path, json.dumps(fields, indent=1, allow_nan=False) + "\n")


def load(path: Path) -> Fit:
    """Read `fit.json` at `path`; ValueError says what is wrong with it."""
    value = fit_file.read(path)
    if value.get("format") != FORMAT:
        raise ValueError(
            f"fit={path} has the format {calls.shown(value.get('format'))}, not {FORMAT}; run analysis.fit again"
        )
    value.setdefault("created", _created(path))  # those of earlier versions hold it themselves
    fit = from_json(Fit, value, f"fit={path}")
    fit_file.check_record(fit.record, f"fit={path}.record")
    return fit


def _created(path: Path) -> str:
    try:
        return path.with_suffix(CREATED).read_text(encoding="utf-8").strip()
    except OSError:
        return ""  # fit.json was brought here alone
