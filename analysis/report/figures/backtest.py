"""The backtest: the largest budget predicted from the smaller ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.report import sentences
from analysis.report.figures import style
from analysis.report.figures.canvas import Figure, Panel, Table
from analysis.text import numbers
from analysis.values.study_result import Backtest, BacktestRun, Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def prepare(backtest: Backtest) -> tuple[BacktestRun, ...]:
    """Return the held-out runs with a finite prediction, by rising size."""
    good = [r for r in backtest.runs if r.params > 0 and math.isfinite(r.predicted) and math.isfinite(r.observed)]
    return tuple(sorted(good, key=lambda run: run.params))


def figure(fit: Fit) -> Figure | None:
    """Return the figure, or None without a backtest."""
    backtest = fit.backtest
    if backtest is None:
        return None
    runs = prepare(backtest)
    panels = []
    if runs:
        panels.append(
            Panel(
                "runs",
                "Held-out runs: observed and predicted loss against parameters",
                lambda ax: draw_runs(ax, runs, fit.kinds.params, fit.kinds.loss),
                height=3.7,
            )
        )
    errors = error_bars(backtest)
    if not errors:
        return None
    own = bool(backtest.approach)
    panels.append(
        Panel("errors", "Backtest error of each approach", lambda ax: draw_errors(ax, errors, own=own), height=3.4)
    )
    caption = _caption(sentences.read(fit), backtest)
    return Figure(
        "backtest", "Backtest: would it have predicted the largest budget?", caption, tuple(panels), table(backtest)
    )


def _caption(said: sentences.Json, backtest: Backtest) -> str:
    """Return what was predicted from what and how far off that was, or why the recommendation has no such test."""
    if backtest.relative_error is None:
        return f"The recommendation's loss has no backtest: {backtest.reason}. The bars are other approaches'."
    more = (sentences.uncovered(said), sentences.sided(said["backtest"]))
    whose = sentences.tested(said) or "law"
    return (
        f"Fitted to the {len(backtest.train_budgets)} smallest budgets, the {whose} predicted "
        f"{numbers.flops(backtest.held_out_budget)}, {numbers.factor(backtest.extrapolation_factor)} beyond them, with "
        f"an error of {numbers.percent(abs(backtest.relative_error))} in the lowest loss"
        + "".join(f"; {text}" for text in more if text)
        + "."
    )


def draw_runs(ax: Axes, runs: Sequence[BacktestRun], params_kind: str, loss_unit: str) -> Axes:
    """Draw observed and predicted loss of the held-out runs, each pair joined."""
    style.frame(ax, numbers.labelled("parameters N", params_kind), f"loss [{loss_unit}]")
    n = [run.params for run in runs]
    style.log_axis(ax.xaxis, *style.padded(n, 0.08), style.parameters)
    ax.vlines(n, [r.observed for r in runs], [r.predicted for r in runs], color=style.MUTED, linewidth=1, zorder=1)
    ax.plot(
        n,
        [r.predicted for r in runs],
        "D--",
        ms=6,
        mfc="none",
        mec=style.ORANGE,
        color=style.ORANGE,
        linewidth=1,
        mew=1.5,
        label="predicted by the law",
        zorder=2,
    )
    ax.plot(n, [r.observed for r in runs], "o", ms=6, mfc=style.BLUE, mec=style.PAPER, label="observed", zorder=3)
    every = [value for run in runs for value in (run.observed, run.predicted)]
    room = max((max(every) - min(every)), 1e-3)
    ax.set_ylim(min(every) - 0.08 * room, max(every) + 0.08 * room)
    style.key(ax)
    return ax


def error_bars(backtest: Backtest) -> tuple[tuple[str, float], ...]:
    """Return label and signed error [%]: each approach at the valley's minimum, then the mean over runs."""
    names = sorted(backtest.by_approach, key=lambda name: (name != backtest.approach, name))
    bars = [(f"{name}:\nlowest loss", 100 * backtest.by_approach[name].relative_error) for name in names]
    if backtest.mean_abs_relative_error is not None:
        bars.append((f"{_of(backtest)}:\nmean |error|\nof runs", 100 * backtest.mean_abs_relative_error))
    return tuple(bar for bar in bars if math.isfinite(bar[1]))


def _of(backtest: Backtest) -> str:
    """Return which approach the held-out runs' predictions are from."""
    return "law" if "law" in backtest.by_approach else "surface"


def draw_errors(ax: Axes, bars: Sequence[tuple[str, float]], *, own: bool = True) -> Axes:
    """Draw signed errors as bars from zero with their values at the ends; the first stands out where it is the `own`.

    That is the error of what the recommendation's loss is from.
    """
    style.frame(ax, "predicted / observed − 1 [%]", "")
    ax.grid(False, axis="y")
    places = list(range(len(bars)))[::-1]
    colours = [style.ORANGE if own and i == 0 else style.BLUE for i in range(len(bars))]
    ax.barh(places, [value for _, value in bars], height=0.5, color=colours, zorder=2)
    ax.axvline(0, color=style.INK, linewidth=1, zorder=3)
    reach = max([abs(value) for _, value in bars] + [0.1]) * 1.9
    ax.set_xlim(-reach, reach)
    ax.set_ylim(-0.6, len(bars) - 0.4)
    ax.set_yticks(places, [label for label, _ in bars])
    ax.tick_params(axis="y", length=0)
    for place, (label, value) in zip(places, bars, strict=True):
        ax.annotate(
            error_label(label, value),
            (value, place),
            xytext=(4 if value >= 0 else -4, 0),
            textcoords="offset points",
            ha="left" if value >= 0 else "right",
            va="center",
            fontsize=style.SMALL,
            color=style.INK,
        )
    return ax


def error_label(label: str, error: float) -> str:
    """Return an error [%] as it stands at its bar; a mean of errors without their signs has none."""
    text = numbers.typeset(numbers.signed(error / 100, 1 if abs(error) >= 1 else 2))
    return text.removeprefix("+") if "|error|" in label else text


def table(backtest: Backtest) -> Table:
    """Return held-out runs and the held-out minimum of each approach as rows."""
    columns = ("what", "approach", "key", "params", "tokens", "flops", "observed", "predicted", "relative_error")
    rows: list[tuple[object, ...]] = []
    for r in prepare(backtest):
        rows.append(
            ("run", _of(backtest), r.key, r.params, r.tokens, r.flops, r.observed, r.predicted, r.relative_error)
        )
    for name, o in sorted(backtest.by_approach.items()):
        flops = backtest.held_out_budget
        rows.append(("minimum", name, "", None, None, flops, o.observed, o.predicted, o.relative_error))
    return Table(columns, tuple(rows))
