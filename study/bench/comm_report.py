"""What was measured as a table, as CSV, as a picture, and as a cluster profile."""

from __future__ import annotations

import csv
import datetime
import io
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from analysis.report.figures.style import BLUE, GREEN, INK, MUTED, ORANGE, PINK
from study import text
from study.bench.comm_results import Fits, Results, TimedPoint
from train.spec.communication.cluster import ClusterProfile, Compute, Fitted, Level, Point
from train.spec.communication.messages import COLLECTIVES

COLUMNS = (
    "level", "collective", "ranks", "size", "seconds", "spread", "algorithm_bandwidth", "bus_bandwidth",
    "fitted_seconds",
)  # fmt: skip
DOTS = 150
"""Resolution of pictures [dots per inch]."""
LOOKS = {
    "all_reduce": (BLUE, "o"), "all_gather": (GREEN, "s"), "reduce_scatter": (ORANGE, "^"),
    "all_to_all": (PINK, "D"), "broadcast": (INK, "v"), "send": (MUTED, "x"),
}  # fmt: skip
"""Colour and marker of each collective's line."""


def in_words(point: TimedPoint) -> str:
    """Return one point in one line."""
    timed = point.timed
    return f"{timed.collective} {size(timed.size)}: {time(timed.seconds)}, bus {rate(timed.bus_bandwidth)}"


def rows(results: Results, fits: Fits) -> list[dict[str, Any]]:
    """Return a row for each point: sizes in bytes, times in seconds, rates in bytes a second."""
    found = []
    for point in results.points:
        timed, fit = point.timed, fits.found.get((point.level, point.timed.collective))
        found.append(
            {
                "level": point.level,
                "collective": timed.collective,
                "ranks": timed.ranks,
                "size": timed.size,
                "seconds": timed.seconds,
                "spread": point.spread,
                "algorithm_bandwidth": timed.algorithm_bandwidth,
                "bus_bandwidth": timed.bus_bandwidth,
                "fitted_seconds": None if fit is None else _fitted(fit, results, point),
            }
        )
    return found


def _fitted(fit: Any, results: Results, point: TimedPoint) -> float:
    alike = [
        one for one in results.points if (one.level, one.timed.collective) == (point.level, point.timed.collective)
    ]
    return float(point.timed.seconds * (1 + fit.residuals[alike.index(point)]))


def fit_rows(fits: Fits) -> list[dict[str, Any]]:
    """Return a row for each link: start of a hop [s], bandwidth [B/s], errors as shares of what was measured."""
    return [
        {
            "level": level,
            "collective": collective,
            "ranks": fit.ranks,
            "alpha": fit.link.alpha,
            "bandwidth": fit.link.bandwidth,
            "median_error": fit.median,
            "worst_error": fit.worst,
        }
        for (level, collective), fit in fits.found.items()
    ]


def table(results: Results, fits: Fits) -> list[str]:
    """Return lines for people: every point, then the fitted links."""
    head = ("level", "collective", "size", "time", "spread", "algorithm", "bus", "fitted")
    cells = [
        (
            row["level"],
            row["collective"],
            size(row["size"]),
            time(row["seconds"]),
            text.percent(row["spread"]),
            rate(row["algorithm_bandwidth"]),
            rate(row["bus_bandwidth"]),
            "" if row["fitted_seconds"] is None else f"{100 * (row['fitted_seconds'] / row['seconds'] - 1):+.0f} %",
        )
        for row in rows(results, fits)
    ]
    lines = text.aligned([head, *cells], right=range(2, len(head)))
    links = [
        (
            row["level"],
            row["collective"],
            time(row["alpha"]),
            rate(row["bandwidth"]),
            text.percent(row["median_error"]),
            text.percent(row["worst_error"]),
        )
        for row in fit_rows(fits)
    ]
    if links:
        told = ("level", "collective", "alpha", "bandwidth", "median error", "worst")
        lines += ["", *text.aligned([told, *links], right=range(2, len(told)))]
    lines += [f"no link: {why}" for why in fits.why.values()]
    return [*lines, *device_lines(results.device)]


def device_lines(device: Compute | None) -> list[str]:
    """Return lines for people of a device's ceilings."""
    if device is None:
        return []
    grouped = [replace(one, of=f"{one.of}, of groups") for one in device.grouped]
    every = (*device.matmul, *grouped, *device.attention)
    rates = [(f"{one.of}", one.format, flops(one.per_second)) for one in every]
    lines = ["", *text.aligned([("product or attention", "format", "rate"), *rates], right=(2,))]
    named = (("copy (read and written)", device.copy), ("host to device", device.host_to_device))
    lines += [f"{name}: {rate(value)}" for name, value in named if value is not None]
    if device.launch is not None:
        lines.append(f"kernel launch: {time(device.launch)}")
    return lines


def as_csv(results: Results, fits: Fits) -> str:
    """Return the points as CSV."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(results, fits))
    return out.getvalue()


def draw(results: Results, fits: Fits, path: Path) -> None:
    """Draw bus bandwidth against size, a line a collective, dashed what the fitted links say; PNG, needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    levels = list(dict.fromkeys(point.level for point in results.points))
    figure = Figure(figsize=(7.0, 4.4 * len(levels)), layout="constrained")
    FigureCanvasAgg(figure)
    for place, level in enumerate(levels):
        axes = figure.add_subplot(len(levels), 1, place + 1)
        for collective in COLLECTIVES:
            here = [row for row in rows(results, fits) if (row["level"], row["collective"]) == (level, collective)]
            if not here:
                continue
            (colour, marker), sizes = LOOKS[collective], [row["size"] for row in here]
            buses = [row["bus_bandwidth"] / 1e9 for row in here]
            axes.plot(sizes, buses, "-", marker=marker, color=colour, label=collective, markersize=4)
            if all(row["fitted_seconds"] is not None for row in here):
                fitted = [bus * row["seconds"] / row["fitted_seconds"] for bus, row in zip(buses, here, strict=True)]
                axes.plot(sizes, fitted, "--", color=colour, linewidth=0.9)
        axes.set(xscale="log", yscale="log", xlabel="message size [bytes]", ylabel="bus bandwidth [GB/s]")
        axes.set_title(f"{level}: {results.about.get('machine', '')}\ndashed: fitted alpha and bandwidth", fontsize=9)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, format="png", dpi=DOTS)


def profile_of(results: Results, fits: Fits, name: str, today: datetime.date) -> ClusterProfile:
    """Return a cluster profile of what was measured; ValueError where a level shows no link at all."""
    levels: list[Level] = []
    for level in dict.fromkeys(point.level for point in results.points):
        found = {collective: fit for (where, collective), fit in fits.found.items() if where == level}
        if not found:
            raise ValueError(
                f"no link of level {level} could be fitted: {'; '.join(fits.why.values())}; no profile is written"
            )
        general = found.get("all_reduce") or next(iter(found.values()))
        ranks = general.ranks if level == "node" else None  # a network joins any number of hosts
        fitted = tuple(
            Fitted(alpha=_rounded(fit.link.alpha), bandwidth=_rounded(fit.link.bandwidth), collective=collective)
            for collective, fit in found.items()
        )
        link = general.link
        levels.append(Level(level, _rounded(link.alpha), _rounded(link.bandwidth), ranks, fitted))
    points = tuple(
        Point(one.level, one.timed.ranks, one.timed.size, one.timed.collective, _rounded(one.timed.seconds))
        for one in results.points
    )
    errors = [fit.median for fit in fits.found.values()]
    return ClusterProfile(
        name=name,
        source=f"python -m study bench comm, {results.about.get('backend', 'unknown')} through torch.distributed",
        machine=str(results.about.get("machine", "unknown")),
        versions=str(results.about.get("versions", "unknown")),
        date=today.isoformat(),
        levels=tuple(levels),
        kind="measured",
        note=_note(errors),
        device="cpu" if results.about.get("backend") == "gloo" else "cuda",
        compute=_rounded_rates(results.device or Compute()),
        points=points,
    )


def _note(errors: list[float]) -> str:
    if not errors:
        return "a single GPU: no messages were measured"
    return f"links are fitted to the points: {text.percent(median(errors))} off in the median of collectives"


def _rounded(value: float) -> float:
    """Return a figure with five digits, which is more than a repetition would confirm."""
    return float(f"{value:.5g}")


def _rounded_rates(device: Compute) -> Compute:
    """Return a device's ceilings with the digits that a repetition would confirm."""

    def rounded(value: float | None) -> float | None:
        return None if value is None else _rounded(value)

    return replace(
        device,
        matmul=tuple(replace(one, per_second=_rounded(one.per_second)) for one in device.matmul),
        attention=tuple(replace(one, per_second=_rounded(one.per_second)) for one in device.attention),
        grouped=tuple(replace(one, per_second=_rounded(one.per_second)) for one in device.grouped),
        copy=rounded(device.copy),
        host_to_device=rounded(device.host_to_device),
        launch=rounded(device.launch),
    )


def size(count: float) -> str:
    """Return bytes as people write message sizes: 4 KiB."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def time(seconds: float) -> str:
    """Return a time that is a fraction of a second: 21.0 us."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def flops(per_second: float) -> str:
    """Return a rate of arithmetic: 694.0 TFLOP/s, of a CPU 61.2 GFLOP/s."""
    unit, factor = ("TFLOP/s", 1e12) if per_second >= 1e12 else ("GFLOP/s", 1e9)
    return f"{per_second / factor:,.1f} {unit}"


def rate(per_second: float) -> str:
    """Return a rate of bytes, in the thousands that nccl-tests count in: 12.3 GB/s."""
    for unit, factor in (("TB/s", 1e12), ("GB/s", 1e9)):
        if per_second >= factor:
            return f"{per_second / factor:.3g} {unit}"
    return f"{per_second / 1e6:.3g} MB/s"
