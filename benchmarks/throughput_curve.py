"""Tokens a second from 1 to 1,024 GPUs: measured on 1, 2 and 4 H200s, simulated on them and beyond. Needs no GPU.

    python -m benchmarks.throughput_curve [--write benchmarks/results]

Measured are rows of results/trainer_peers.json. Simulated is what train.spec.step_time predicts: on up to four GPUs
with the measured profile h200_x4, beyond with h200_x8_400g, whose links are by data sheet. Every GPU has as many
sequences as in the measured rows, so that the global batch grows with the GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.peers.ours import config_of
from benchmarks.peers.rows import PEAK, find
from study.config.compose import conf_folder
from study.config.single import composed
from train.spec.command_line import Parser
from train.spec.communication.cluster import ClusterProfile, read_profile
from train.spec.config import RunConfig
from train.spec.mesh import axes
from train.spec.resolve import resolve
from train.spec.step_time import StepTime, step_time

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "results" / "trainer_peers.json"
MEASURED, BEYOND = "h200_x4", "h200_x8_400g"
GPUS = (1, 2, 4, 8, 64, 512, 1024)
HOST = 8
ROWS = {
    "1B": {1: "ours-1b", 2: "ours-1b-fsdp-x2", 4: "ours-1b-fsdp"},
    "8B": {2: "ours-8b-fsdp-x2", 4: "ours-8b-fsdp"},
}
"""The rows that were measured, by model and number of GPUs."""
LAYOUTS = {"FSDP2 over all": None, "HSDP, shards of a host": HOST}
"""What simulated runs of more than one host do: over how many ranks a weight is cut; None: over all."""
COLOURS = {"1B": "#1f77b4", "8B": "#d62728"}


@dataclass(frozen=True)
class Point:
    """One model on so many GPUs. rate: tokens/s of all of them. limit: what binds a simulated step."""

    model: str
    layout: str
    gpus: int
    rate: float
    mfu: float
    measured: bool
    limit: str = ""


def simulated(model: str, layout: str, gpus: int) -> Point:
    """Return what is predicted of a model on so many GPUs."""
    row = find(next(iter(reversed(ROWS[model].values()))))
    config = config_of(row, Path("nowhere"), "cuda")
    cut = min(gpus, LAYOUTS[layout] or gpus)
    tokens = row.sequences * gpus * config.data.sequence_length
    config = replace(
        config,
        parallel=replace(config.parallel, dp_replicate=gpus // cut, dp_shard=cut),
        batch=replace(config.batch, tokens=tokens),
    )
    found = step(config, gpus, MEASURED if gpus <= max(ROWS[model]) else BEYOND)
    return Point(model, layout, gpus, found.tokens_per_second, found.mfu(PEAK), False, found.binding)


def measured(record: Mapping[str, Any]) -> list[Point]:
    """Return what was measured, FSDP2 over all GPUs; of a row that was measured twice the later."""
    rows = {row["row"]: row for row in (*record["rows"], *record["four_gpus"]["rows"])}
    return [
        Point(model, "FSDP2 over all", gpus, gpus * rows[name]["tokens_per_second_per_gpu"], rows[name]["mfu"], True)
        for model, by_gpus in ROWS.items()
        for gpus, name in by_gpus.items()
    ]


def points(record: Mapping[str, Any]) -> list[Point]:
    """Return every point; of both layouts where there is more than one host."""
    found = measured(record)
    for model, by_gpus in ROWS.items():
        for gpus in (gpus for gpus in GPUS if gpus >= min(by_gpus)):
            layouts = (layout for layout, cut in LAYOUTS.items() if cut is None or cut < gpus)
            found += [simulated(model, layout, gpus) for layout in layouts]
    return found


def presets() -> list[tuple[str, int, StepTime, str]]:
    """Return what is predicted of each preset of conf/reference: its name, GPUs, step and the profile it is from."""
    found = []
    for path in (conf_folder() / "reference").glob("*.yaml"):
        config = composed([f"+reference={path.stem}"])
        gpus = config.cluster.nodes * config.cluster.gpus_per_node
        profile = "h100_x8_400g" if config.cluster.gpu_memory_gb < 100 else BEYOND
        found.append((path.stem, gpus, step(resolve(config.run()), gpus, profile), profile))
    return sorted(found, key=lambda row: row[2].model_flops / row[2].tokens * row[1])


def step(config: RunConfig, gpus: int, profile: str) -> StepTime:
    """Return the predicted step of a run on so many GPUs of a profile in conf/cluster/measured."""
    return step_time(config, axes(config.parallel, gpus), _profile(profile))


@cache
def _profile(name: str) -> ClusterProfile:
    return read_profile(conf_folder() / "cluster" / "measured" / f"{name}.yaml")


def page(found: Sequence[Point], record: Mapping[str, Any]) -> str:
    """Return the tables."""
    lines = [
        "Tokens a second from 1 to 1,024 H200s, bf16. **Rows on more than 4 GPUs are simulated, not measured**: they "
        f"are predictions of train.spec.step_time with cluster profile {BEYOND}, whose links are by data sheet; on up "
        f"to 4 GPUs predictions use the measured profile {MEASURED} and stand beside measurements. The 1B row on one "
        "GPU and that on two have calibrated a constant each. Every GPU has 8 sequences of 4,096 tokens (1B) or 2 of "
        "8,192 (8B).",
        f"Measured: {record['about']}.",
        "| model | GPUs | layout | | tokens/s | tokens/s/GPU | MFU | largest limit |\n"
        "|---|---:|---|---|---:|---:|---:|---|",
    ]
    for point in sorted(found, key=lambda one: (one.model, one.gpus, one.layout, not one.measured)):
        kind = "measured" if point.measured else "simulated"
        lines[-1] += (
            f"\n| {point.model} | {point.gpus} | {point.layout} | {kind} | {point.rate:,.0f} "
            f"| {point.rate / point.gpus:,.0f} | {point.mfu:.1%} | {point.limit} |"
        )
    lines.append(
        "The presets of conf/reference, **all simulated**, on H100s (80 GB) or H200s with 400 Gb/s a GPU:\n\n"
        "| preset | GPUs | profile | step, s | tokens/s | tokens/s/GPU | MFU | largest limit |\n"
        "|---|---:|---|---:|---:|---:|---:|---|"
    )
    for name, gpus, whole, profile in presets():
        rate = whole.tokens_per_second
        lines[-1] += (
            f"\n| {name} | {gpus} | {profile} | {whole.seconds:.1f} | {rate:,.0f} | {rate / gpus:,.0f} "
            f"| {whole.mfu(PEAK):.1%} | {whole.binding} |"
        )
    return "\n\n".join(lines)


def draw(found: Iterable[Point], target: Path) -> None:
    """Draw tokens/s of all GPUs, and MFU, as an SVG."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    whole, each = figure.subplots(1, 2)
    by_line: dict[tuple[str, str, bool], list[Point]] = {}
    for point in found:
        by_line.setdefault((point.model, point.layout, point.measured), []).append(point)
    for (model, layout, real), line in by_line.items():
        style: dict[str, Any] = {"color": COLOURS[model], "zorder": 2 if real else 3}
        if real:
            style |= {"marker": "o", "linestyle": "none", "markersize": 9}
        else:
            style |= {"markerfacecolor": "white", "markersize": 5, "linewidth": 1.2}
            style |= (
                {"marker": "s", "linestyle": "--"} if LAYOUTS[layout] is None else {"marker": "^", "linestyle": ":"}
            )
        label = f"{model}, {layout}: {'MEASURED' if real else 'simulated'}"
        gpus = [point.gpus for point in line]
        whole.plot(gpus, [point.rate for point in line], **style)
        each.plot(gpus, [point.mfu * 100 for point in line], label=label, **style)
    for axis, title in ((whole, "tokens/s of all GPUs"), (each, "MFU, % of 989.5 TFLOP/s")):
        axis.axvspan(max(ROWS["1B"]) * 1.4, GPUS[-1] * 1.4, color="#f0f0f0", zorder=0)
        axis.set_xscale("log", base=2)
        axis.set_xticks(GPUS, [f"{gpus:,}" for gpus in GPUS])
        axis.set_xlim(0.75, GPUS[-1] * 1.4)
        axis.set_xlabel("H200s")
        axis.set_title(title, fontsize=10)
        axis.grid(True, alpha=0.3)
        axis.text(0.97, 0.03, "grey: simulated only", transform=axis.transAxes, ha="right", fontsize=8, color="#555555")
    whole.set_yscale("log")
    each.set_ylim(0, 75)
    each.legend(fontsize=7, loc="lower left", bbox_to_anchor=(0.0, 0.07))
    figure.suptitle(
        "Measured on 1, 2 and 4 H200s; beyond, simulated with links of 400 Gb/s a GPU by data sheet", fontsize=11
    )
    with mpl.rc_context({"svg.hashsalt": "throughput_curve"}):
        figure.savefig(target, metadata={"Date": None})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(description="tokens a second from 1 to 1,024 GPUs")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write throughput_curve.md and .svg there")
    options = parser.parse_args(arguments)
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    found = points(record)
    text = page(found, record)
    if options.write is not None:
        draw(found, options.write / "throughput_curve.svg")
        (options.write / "throughput_curve.md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
