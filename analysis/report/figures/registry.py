"""All figures of the report in its order, by the name of their files. A new one is a module and its entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from analysis.report.figures import backtest, cloud, curves, fan, frontier, law, loss, profiles, sensitivity, valleys
from analysis.report.figures.canvas import Figure
from analysis.report.figures.data import Curve, Row
from analysis.report.figures.paper import NAME as PAPER
from analysis.report.figures.paper import figure as for_paper
from analysis.values.study_result import Fit

Make = Callable[[Fit, Sequence[Row], Sequence[Curve]], Figure | None]

FIGURES: Mapping[str, Make] = {
    "valleys": lambda fit, rows, learning: valleys.figure(fit, rows),
    "frontier": lambda fit, rows, learning: frontier.figure(fit),
    "loss": lambda fit, rows, learning: loss.figure(fit),
    "law": lambda fit, rows, learning: law.figure(fit, rows),
    "profiles": lambda fit, rows, learning: profiles.figure(fit),
    "cloud": lambda fit, rows, learning: cloud.figure(fit),
    "backtest": lambda fit, rows, learning: backtest.figure(fit),
    "fan": lambda fit, rows, learning: fan.figure(fit),
    "sensitivity": lambda fit, rows, learning: sensitivity.figure(fit),
    "curves": lambda fit, rows, learning: curves.figure(fit, learning),
    PAPER: lambda fit, rows, learning: for_paper(fit, rows),
}
