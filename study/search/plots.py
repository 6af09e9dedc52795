"""Pictures of a search from its log: who survived which rung, the curves, a population's family tree and schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from study.search.state import Search, Trial
from sweeps.history import Config
from sweeps.schedulers.base import Population
from sweeps.space import Integers, Interval

DOTS = 150
"""Resolution [dots per inch]."""
RUNGS = "viridis"
INCUMBENT = "#c23b22"
QUIET = "#9a9a9a"


def draw(search: Search, out: Path) -> list[Path]:
    """Draw what there is to draw of a search as PNG files in `out`; return them. Needs no display."""
    pictures: dict[str, Callable[[Any, Search], None]] = {"curves": _curves, "settings": _settings}
    if (population := search.scheduler.population) is not None:
        pictures |= {"lineage": partial(_lineage, population), "schedule": partial(_schedule, population)}
    else:
        pictures["survival"] = _survival
    out.mkdir(parents=True, exist_ok=True)
    return [_written(out / f"{name}.png", picture, search) for name, picture in pictures.items()]


def survivors(search: Search) -> list[tuple[int, int, int, int]]:
    """Return a row for each resource with values: it, the trials that came, of these how many went on, are bad."""
    levels = sorted({at for trial in search.trials.values() for at in trial.values})
    rows = []
    for level in levels:
        here = [trial for trial in search.trials.values() if level in trial.values]
        further = sum(trial.at > level for trial in here)
        bad = sum(not math.isfinite(trial.values[level]) or (trial.failed and trial.at == level) for trial in here)
        rows.append((level, len(here), further, bad))
    return rows


def _written(path: Path, picture: Callable[[Any, Search], None], search: Search) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    picture(figure, search)
    figure.savefig(path, format="png", dpi=DOTS)
    return path


def _survival(figure: Any, search: Search) -> None:
    """How many trials came to each rung, and what became of them there."""
    axes = figure.subplots()
    rows = survivors(search)
    places = range(len(rows))
    came, further, bad = ([row[k] for row in rows] for k in (1, 2, 3))
    stay = [a - b - c for a, b, c in zip(came, further, bad, strict=True)]
    last = bool(rows) and rows[-1][0] >= search.settings.R
    colours = ["#d9d9d9"] * len(rows)
    if last:
        colours[-1] = "#2a788e"
    axes.bar(places, further, color="#2a788e", label="went on (at the last: completed)")
    axes.bar(places, stay, bottom=further, color=colours, label="paused or stopped")
    axes.bar(places, bad, bottom=[a + b for a, b in zip(further, stay, strict=True)], color=INCUMBENT, label="bad")
    for place, count in zip(places, came, strict=True):
        axes.text(place, count, f"{count}", ha="center", va="bottom", fontsize=9)
    axes.set_xticks(list(places), [_tokens(row[0]) for row in rows])
    axes.set(xlabel="rung [tokens]", ylabel="trials", title=f"{search.settings.scheduler}: who survived which rung")
    axes.margins(y=0.12)
    axes.legend(frameon=False)
    _bare(axes)


def _curves(figure: Any, search: Search) -> None:
    """Loss over tokens, coloured by the rung that a trial came to; the incumbent on top."""
    from matplotlib import colormaps

    axes = figure.subplots()
    best = search.incumbent
    levels = sorted({trial.at for trial in search.trials.values() if trial.values})
    colour = {at: colormaps[RUNGS](0.92 * k / max(1, len(levels) - 1)) for k, at in enumerate(levels)}
    named: set[int] = set()
    for trial in sorted(search.trials.values(), key=lambda t: t.at):
        points = [(at, value) for at, value in sorted(trial.values.items()) if math.isfinite(value)]
        if points and trial is not best:
            label = None if trial.at in named else f"to {_tokens(trial.at)}"
            named.add(trial.at)
            axes.plot(*zip(*points, strict=True), "o-", color=colour[trial.at], lw=1, ms=3, alpha=0.75, label=label)
    if best is not None:
        points = sorted(best.values.items())
        axes.plot(*zip(*points, strict=True), "o-", color=INCUMBENT, lw=2.2, ms=5, label=f"best ({best.key})")
    axes.set_xscale("log")
    finite = sorted(v for t in search.trials.values() for v in t.values.values() if math.isfinite(v))
    if finite:  # a few losses far above the rest must not flatten it
        top = finite[min(len(finite) - 1, int(0.98 * len(finite)))]
        span = max(top - finite[0], 1e-9)
        axes.set_ylim(finite[0] - 0.05 * span, top + 0.05 * span)
    axes.set(xlabel="tokens", ylabel="validation loss [nats per token]", title="Curves, by the rung reached")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    _bare(axes)


def _settings(figure: Any, search: Search) -> None:
    """Loss at the trial's highest rung over each setting; large dots came far."""
    names = list(search.space.domains)
    axes = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    known = [t for t in search.trials.values() if t.values and math.isfinite(t.value)]
    levels = sorted({t.at for t in known})
    best = search.incumbent
    for panel, name in zip(axes, names, strict=True):
        domain = search.space.domains[name]
        here = [t for t in known if name in t.config]
        panel.scatter(
            [_coordinate(t, name) for t in here],
            [t.value for t in here],
            s=[14 + 22 * levels.index(t.at) for t in here],
            c=[levels.index(t.at) for t in here],
            cmap=RUNGS,
            vmin=0,
            vmax=max(1, len(levels) / 0.92),
            alpha=0.8,
        )
        if best is not None and name in best.config:
            panel.axvline(_coordinate(best, name), color=INCUMBENT, lw=1)
        if isinstance(domain, Interval | Integers) and domain.log:
            panel.set_xscale("log")
        panel.set_xlabel(name)
        _bare(panel)
    if names:
        axes[0].set_ylabel("loss at the highest rung [nats per token]")
    figure.suptitle("Settings (large and light: came far; line: the best)")


def _lineage(population: Population, figure: Any, search: Search) -> None:
    """Members over tokens: a line is training, an arrow a copy of weights; red is what led to the best."""
    axes = figure.subplots()
    path = _way_to_best(population, search)
    for trial in search.trials.values():
        axes.plot([0, trial.at], [trial.number] * 2, color="#d0d0d0", lw=1.5, zorder=1)
    for copy in population.lineage:
        axes.annotate(
            "",
            xy=(copy.resource, copy.member),
            xytext=(copy.resource, copy.donor),
            arrowprops={"arrowstyle": "->", "color": QUIET, "lw": 0.9},
        )
    for (begin, member), (end, follower) in path:
        axes.plot([begin, end], [member, member], color=INCUMBENT, lw=2.4, zorder=3)
        if follower != member:
            axes.plot([end, end], [member, follower], color=INCUMBENT, lw=2.4, zorder=3)
    axes.set(xlabel="tokens", ylabel="member", title=f"{len(population.lineage)} copies; red: what led to the best")
    axes.set_yticks(sorted(search.trials))
    _bare(axes)


def _schedule(population: Population, figure: Any, search: Search) -> None:
    """The settings that led to the best member, over tokens; grey: all members'."""
    best = search.incumbent
    names = [n for n, d in search.space.domains.items() if isinstance(d, Interval | Integers)] or list(
        search.space.domains
    )
    axes = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    for panel, name in zip(axes, names, strict=True):
        for trial in search.trials.values():
            _steps(panel, population.schedule(trial.number), trial.at, name, color="#cccccc", lw=1)
        if best is not None:
            _steps(panel, population.schedule(best.number), best.at, name, color=INCUMBENT, lw=2.2)
        domain = search.space.domains[name]
        if isinstance(domain, Interval | Integers) and domain.log:
            panel.set_yscale("log")
        panel.set_ylabel(name, fontsize=8)
        _bare(panel)
    axes[-1].set_xlabel("tokens")
    figure.suptitle("The schedule that led to the best member (grey: all members)")


def _steps(panel: Any, steps: Sequence[tuple[int, Config]], end: int, name: str, **style: Any) -> None:
    known = [(at, config[name]) for at, config in steps if name in config]
    if known:
        panel.step([*(at for at, _ in known), end], [*(v for _, v in known), known[-1][1]], where="post", **style)


def _way_to_best(population: Population, search: Search) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the pieces of training that led to the best: from (tokens, member) to (tokens, who went on with it)."""
    best = search.incumbent
    if best is None:
        return []
    pieces: list[tuple[tuple[int, int], tuple[int, int]]] = []
    member, end, follower, last = best.number, best.at, best.number, len(population.lineage)
    while True:
        place = next((k for k in reversed(range(last)) if population.lineage[k].member == member), None)
        if place is None:
            return [((0, member), (end, follower)), *pieces]
        copy = population.lineage[place]
        pieces.insert(0, ((copy.resource, member), (end, follower)))
        follower, member, end, last = member, copy.donor, copy.resource, place


def _coordinate(trial: Trial, name: str) -> float | str:
    value = trial.config[name]
    return value if isinstance(value, int | float) else str(value)


def _tokens(count: int) -> str:
    from study.text import human

    return human(count)


def _bare(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def captions() -> Mapping[str, str]:
    """Return what each picture shows, by its name."""
    return {
        "survival": "how many trials came to each rung and what became of them",
        "curves": "loss over tokens, coloured by the rung that a trial came to",
        "settings": "loss at the highest rung over each setting",
        "lineage": "who copied whose weights, and what led to the best",
        "schedule": "the settings over tokens that led to the best member",
    }
