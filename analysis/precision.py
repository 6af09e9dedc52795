"""`python -m analysis.precision runs/precision`: number formats side by side, from the folders of finished runs.

Writes precision.md and precision.svg into the study's folder, and prints the table: losses, gradient norms, steps lost
to overflow, the loss scale's way, and the shares of gradients that short formats would round to zero (recorded where
health.statistics_steps is above 0; they are counted alike in every run, whatever it computes in).
"""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from analysis.text.start import start

    start("analysis.precision")

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from analysis.inputs import recorded
from analysis.text.colours import ramp

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHARES = ("gradient_zero", "underflow_fp16", "underflow_fp8")


@dataclass(frozen=True)
class Run:
    """One run's records by kind, in order, as (tokens, metrics); `format` as its config names it."""

    format: str
    seed: int
    records: dict[str, list[tuple[int, dict[str, float]]]]

    def series(self, kind: str, name: str) -> list[tuple[int, float]]:
        """Return (tokens, value) of one metric, where it was recorded."""
        return [(tokens, m[name]) for tokens, m in self.records.get(kind, []) if name in m]

    def values(self, kind: str, name: str) -> list[float]:
        """Return the values alone."""
        return [value for _, value in self.series(kind, name)]


def read(folder: Path) -> list[Run]:
    """Return the runs below a study's folder, by format and seed; ValueError where there are none."""
    found = [_run(path.parent) for path in sorted(folder.glob("*/metrics.jsonl"))]
    if not found:
        raise ValueError(
            f"{folder} holds no runs with metrics.jsonl: give the folder of a study, such as runs/precision"
        )
    order = {"fp32": 0, "bf16": 1, "fp16": 2, "fp8": 3}
    return sorted(found, key=lambda run: (order.get(run.format.split()[0], 9), run.format, run.seed))


def _run(folder: Path) -> Run:
    import yaml

    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    precision = config.get("precision", {})
    name = _format(precision)
    records: dict[str, list[tuple[int, dict[str, float]]]] = {}
    for record in recorded.read(folder / "metrics.jsonl"):
        records.setdefault(record["kind"], []).append((record["tokens"], record["metrics"]))
    return Run(name, config.get("seed", 0), records)


def _format(precision: dict[str, Any]) -> str:
    """Return a run's number formats in words: runs that differ in one of them are told apart."""
    name = str(precision.get("name", "fp32"))
    if name == "fp8":
        name += f" {precision.get('fp8_scaling', 'tensorwise')}"
    said = {"fp8_history": "{} steps", "fp8_keep_blocks": "{} blocks kept", "fp8_gather": "gathered"}
    name += "".join(f" {words.format(precision[key])}" for key, words in said.items() if precision.get(key))
    others = {"optimizer_state": "moments", "reduce": "sums"}
    return name + "".join(
        f" {precision[key]} {of}" for key, of in others.items() if precision.get(key, "fp32") != "fp32"
    )


COLUMNS = (
    "format", "seed", "train loss, last tenth [nats]", "validation loss [nats]", "above the first row [nats]",
    "gradient norm, median", "largest", "steps lost", "loss scale, smallest to last",
    *(f"{name} [%]" for name in SHARES),
)  # fmt: skip


def rows(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """Return the report's table, a tuple for each run; what was not recorded is empty."""
    first = _last(runs[0].values("validation", "loss"))
    return [_row(run, first) for run in runs]


def _row(run: Run, first: float | None) -> tuple[str, ...]:
    losses, norms = run.values("train", "loss"), run.values("train", "grad_norm")
    validation = _last(run.values("validation", "loss"))
    skipped = max((*run.values("train", "skipped_steps"), *run.values("train", "overflows")), default=0.0)
    scales, smallest = run.values("train", "loss_scale"), run.values("train", "loss_scale_smallest")
    tail = losses[-max(1, len(losses) // 10) :]
    return (
        run.format,
        str(run.seed),
        f"{fmean(tail):.4f}" if tail else "",
        "" if validation is None else f"{validation:.4f}",
        "" if validation is None or first is None else f"{validation - first:+.4f}",
        f"{median(norms):.3g}" if norms else "",
        f"{max(norms):.3g}" if norms else "",
        f"{skipped:.0f}",
        f"{min(smallest):.0f} to {scales[-1]:.0f}" if scales and smallest else "",
        *(_percent(run.values("statistics", name)) for name in SHARES),
    )


def _last(values: Sequence[float]) -> float | None:
    return values[-1] if values else None


def _percent(values: Sequence[float]) -> str:
    return f"{100 * fmean(values):.3g}" if values else ""


def markdown(lines: Iterable[Sequence[str]]) -> str:
    """Return rows below the report's columns as a Markdown table."""
    table = [COLUMNS, ("---",) * len(COLUMNS), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in table) + "\n"


def apart(run: Run, first: Run, share: float = 0.1) -> list[tuple[int, float]]:
    """Return (tokens, training loss above the first run's [nats/token]), each a mean over `share` of the run.

    Formats differ by less than batches do, which the runs share: differences show what losses hide.
    """
    wanted = dict(first.series("train", "loss"))
    both = [(tokens, loss - wanted[tokens]) for tokens, loss in run.series("train", "loss") if tokens in wanted]
    width = max(1, round(share * len(both)))
    return [
        (both[end - 1][0], fmean(value for _, value in both[end - width : end])) for end in range(width, len(both) + 1)
    ]


def _tick(value: object) -> str:
    from analysis.report.figures import style

    assert isinstance(value, float)
    return f"{value:.3g}" if value < 1000 else style.parameters(value)


def figure(runs: Sequence[Run]) -> str:
    """Return losses, their differences, gradient norms and loss scales against tokens, a line a run, as SVG."""
    from analysis.report.figures import style
    from analysis.report.figures.canvas import Panel, Sheet

    def panel(name: str, label: str, series: Callable[[Run], list[tuple[int, float]]], log: bool = True) -> Panel:
        def draw(ax: Axes) -> Axes:
            style.frame(ax, "training tokens", label)
            heights: list[float] = []
            for run, colour in zip(runs, ramp(len(runs)), strict=True):
                points = [
                    (tokens, value) for tokens, value in series(run) if isfinite(value) and (value > 0 or not log)
                ]
                if points:
                    ax.plot(*zip(*points, strict=True), color=colour, linewidth=1.2, label=f"{run.format}, {run.seed}")
                    heights += [value for _, value in points]
            if log and heights:
                style.log_axis(ax.yaxis, *style.padded(heights), _tick)
            if heights:
                ax.legend(frameon=False)
            return ax

        return Panel(name, f"{label} against training tokens by number format", draw)

    def recorded(metric: str) -> Callable[[Run], list[tuple[int, float]]]:
        return lambda run: run.series("train", metric)

    panels = [
        panel("loss", "training loss [nats/token]", recorded("loss"), log=False),
        panel("apart", f"loss above {runs[0].format}'s [nats/token]", lambda run: apart(run, runs[0]), log=False),
        panel("grad_norm", "gradient norm", recorded("grad_norm")),
    ]
    if any(run.values("train", "loss_scale") for run in runs):
        panels.append(panel("loss_scale", "loss scale", recorded("loss_scale")))
    return Sheet(panels).svg("precision", transparent=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return 0
    if len(words) != 1 or words[0].startswith("-"):
        given = (
            f"{words[0]!r} is no folder" if words and words[0].startswith("-") else f"{len(words)} folders are given"
        )
        print(f"analysis.precision: {given}: name that of one study, such as runs/precision", file=sys.stderr)
        return 2
    folder = Path(words[0])
    try:
        runs = read(folder)
    except ValueError as error:
        print(f"analysis.precision: {error}", file=sys.stderr)
        return 2
    table = markdown(rows(runs))
    (folder / "precision.svg").write_text(figure(runs), encoding="utf-8")
    (folder / "precision.md").write_text(f"{table}\n![losses](precision.svg)\n", encoding="utf-8")
    print(table)
    return 0
