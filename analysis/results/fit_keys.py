"""The keys of `python -m analysis.fit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.approaches import valley_options
from analysis.estimation.losses import LOSSES
from analysis.inference.intervals import METHODS
from analysis.inference.schemes import SCHEMES
from analysis.results import load
from analysis.text import commandline
from analysis.text.commandline import Key

PURPOSE = "From runs to scaling laws with intervals, checks, a backtest and a recommendation."
EXAMPLES = (
    "python -m analysis.fit runs=runs/isoflop",
    "python -m analysis.fit runs=table.csv columns=params:N,tokens:D,loss:val_loss flop_rule=6ND form=kaplan_floor",
)
APPROACHES = ("1", "2", "3")


def _approach(key: Key, text: str) -> tuple[str, ...]:
    """Read all, or some of 1, 2, 3."""
    named = {"envelope": "1", "valleys": "2", "isoflop": "2", "surface": "3", "parametric": "3"}
    found = tuple(named.get(part.strip(), part.strip()) for part in text.split(","))
    if found == ("all",):
        return APPROACHES
    bad = [part for part in found if part not in APPROACHES]
    if bad:
        raise ValueError(f"approach={text}: {bad[0]!r} is none of 1, 2, 3, all ({key.help})")
    return found


def _delta(key: Key, text: str) -> str:
    if text != "squared":
        commandline.number(key, text)
    return text


KEYS = (
    *load.KEYS,
    Key("form", "law of the loss, by name, paper or formula (analysis.compare forms=list lists them)", "chinchilla"),
    Key("approach", "1 (envelope of learning curves), 2 (isoFLOP valleys), 3 (surface), or all", APPROACHES, _approach),
    Key("loss", "loss function on log residuals; linear: squared plain residuals", "huber", choices=tuple(LOSSES)),
    Key("delta", "Huber's delta on log residuals; squared: least squares", "0.001", _delta),
    Key("interval", "method of the law's intervals", "bootstrap", choices=tuple(METHODS)),
    Key("cluster", "unit of resampling; auto: sizes or runs where rows share one, else residuals or runs", "auto",
        choices=("auto", *SCHEMES)),
    Key("fix", "constants held fixed: E:1.7,alpha:0.34", {}, commandline.constants),
    Key("tie", "constants made equal: beta:alpha", {}, commandline.names),
    Key("budget", "FLOPs to recommend a run for (default 10 times the largest run)", None, commandline.number),
    Key("window", "laws of learning rate and batch: runs within this share of a sweep's lowest loss", 0.01,
        commandline.share),
    Key("optimum", "laws of learning rate and batch: how the optimum of a sweep is found", "quadratic",
        choices=("quadratic", "envelope", "minimum")),
    *valley_options.KEYS,
    Key("train", "form=multi_power: the runs to fit, A|B|C; the others are predicted (default all)"),
    Key("resamples", "bootstrap resamples; 0: no bootstrap intervals", 1000, commandline.resamples),
    Key("seed", "seed of the resamples", 0, commandline.whole),
    Key("workers", "threads; results do not depend on their number; 0: one, of very many rows one a core, up to 4", 0,
        commandline.whole),
    Key("sensitivity", "table of results under other choices", True, commandline.switch),
    Key("report", "write report.html and the figures", True, commandline.switch),
    Key("out", "folder for fit.json, runs.csv and the report (default reports/STUDY)"),
)  # fmt: skip


def parse(given: Sequence[str]) -> dict[str, Any]:
    """Return the options of `key=value` arguments; ValueError names an unknown key's nearest, or a bad value."""
    from analysis.laws.registry import resolve

    options = commandline.parse(given, KEYS)
    options["form"] = resolve(options["form"], curves=True)
    return options
