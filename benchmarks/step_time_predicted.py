"""Step times as train.spec.step_time predicts them beside those that were measured, on one to four H200s.

    python -m benchmarks.step_time_predicted [--measured FILE ...] [--write benchmarks/results]

Measured are rows of the results beside this file, and what FILE adds: a JSON list of {"row": as in
benchmarks.memory_predicted.names(), "gpus": n, "step_ms": x, ...}, or an object that has it as "rows", as
memory_predicted.json. Three rows have calibrated a constant each; no other
was used for any. Rows without a measurement are predicted. This needs no GPU.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.memory_predicted import names
from benchmarks.peers.ours import config_of
from benchmarks.peers.rows import PEAK, find
from train.spec import mesh
from train.spec.command_line import Parser
from train.spec.communication.cluster import ClusterProfile, read_profile
from train.spec.step_time import StepTime, step_time

ROOT = Path(__file__).parents[1]
PROFILE = ROOT / "conf" / "cluster" / "measured" / "h200_x4.yaml"
RESULTS = ROOT / "benchmarks" / "results"
CALIBRATION = {
    "ours-1b": "device.IN_STEP",
    "ours-1b-fsdp-x2": "overlap.CONTENTION",
    "ours-256x4-launched": "host.LAUNCH",
}
"""The rows that a constant of train.spec.step_time was calibrated on, and which."""
EAGER = "compile.blocks=false"
TABLES = {
    "small_models.md": {
        "ours-256x4-launched": 16.40, "ours-256x4": 5.18, "ours-384x6": 11.08, "ours-512x8": 20.55,
        "ours-768x12": 54.72,
    },
    "trainer_notes.md": {
        f"ours-256x4+{EAGER}": 5.30, f"ours-384x6+{EAGER}": 11.09, f"ours-768x12+{EAGER}": 56.81,
    },
    "kernels_end_to_end.md": {
        f"ours-150m+{EAGER}": 65536 / 561973 * 1e3, f"ours-1b+{EAGER}": 32768 / 86118 * 1e3,
    },
}  # fmt: skip
"""Milliseconds a step by table; in kernels_end_to_end.md as tokens a second, KERNELS=auto."""


@dataclass(frozen=True)
class Compared:
    """A row's prediction beside what was measured [ms], and where that is from."""

    name: str
    predicted: StepTime
    measured: float | None
    source: str

    @property
    def error(self) -> float | None:
        """How much longer the prediction is, as a share of what was measured."""
        return None if self.measured is None else self.predicted.seconds * 1e3 / self.measured - 1.0

    @property
    def held_out(self) -> bool:
        """Whether it was measured and no constant is from it."""
        return self.measured is not None and self.name not in CALIBRATION

    @property
    def group(self) -> tuple[str, int, str]:
        """Rows that are compared with each other: of one model, number of GPUs and precision."""
        row = find(self.name)
        return row.shape, row.gpus, config_of(row, Path("nowhere"), "cuda").precision.name

    def rate(self, milliseconds: float) -> float:
        """Return tokens a second of a step that takes so long."""
        return self.predicted.tokens / milliseconds * 1e3


def predicted(name: str, cluster: ClusterProfile) -> StepTime:
    """Return what is predicted of a row."""
    row = find(name)
    config = config_of(row, Path("nowhere"), "cuda")
    return step_time(config, mesh.axes(config.parallel, row.gpus), cluster)


def recorded() -> dict[str, tuple[float, str]]:
    """Return the milliseconds of our rows that were measured, and the table they are in."""
    document = json.loads((RESULTS / "trainer_peers.json").read_text(encoding="utf-8"))
    found: dict[str, tuple[float, str]] = {}
    for source, rows in (("trainer_peers.json", document["rows"]), ("trainer_peers.json, 2026-11-21", _four(document))):
        for row in rows:
            if row["row"].startswith("ours-") and "step_seconds" in row:
                found[row["row"]] = (row["step_seconds"] * 1e3, source)
    for source, table in TABLES.items():
        found |= {name: (milliseconds, source) for name, milliseconds in table.items()}
    return found


def _four(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    rows: Sequence[Mapping[str, Any]] = document["four_gpus"]["rows"]
    return rows


def read_measured(path: Path) -> dict[str, tuple[float, str]]:
    """Return the milliseconds of rows in a JSON list; ValueError for what is none, or names a row that there is not."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        rows = document["rows"] if isinstance(document, dict) else document
        found = {str(row["row"]): (float(row["step_ms"]), path.name) for row in rows if row.get("step_ms") is not None}
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f'{path}: it has to be a JSON list of {{"row": …, "step_ms": …}}: {error!r}') from None
    for name in found:
        find(name)
    return found


def compare(measured: Mapping[str, tuple[float, str]], cluster: ClusterProfile) -> list[Compared]:
    """Return every row that is known, measured or not."""
    known = dict.fromkeys((*measured, *names()))
    return [Compared(name, predicted(name, cluster), *measured.get(name, (None, ""))) for name in known]


def table(rows: Sequence[Compared]) -> str:
    """Return the rows as a table: calibration, held out, then what was not measured."""
    lines = [
        "| row | GPUs | predicted ms | measured ms | error | used as | limit | MFU predicted | measured in |",
        "|---|---:|---:|---:|---:|---|---|---:|---|",
    ]
    for row in sorted(rows, key=lambda one: (one.measured is None, one.held_out)):
        error = "" if row.error is None else f"{row.error:+.1%}"
        used = "held out" if row.held_out else CALIBRATION.get(row.name, "not measured")
        measured = "" if row.measured is None else f"{row.measured:.2f}"
        found = row.predicted
        lines.append(
            f"| {row.name} | {find(row.name).gpus} | {found.seconds * 1e3:.2f} | {measured} | {error} | {used} "
            f"| {found.binding} | {found.mfu(PEAK):.1%} | {row.source} |"
        )
    return "\n".join(lines)


def summary(rows: Iterable[Compared]) -> str:
    """Return the median and the worst error of the rows that were held out."""
    errors = {row.name: abs(row.error) for row in rows if row.held_out and row.error is not None}
    if not errors:
        return "No row that is held out was measured."
    worst = max(errors, key=errors.__getitem__)
    median = statistics.median(errors.values())
    return (
        f"{len(errors)} rows held out: median error {median:.1%} (goal 10 %), worst {errors[worst]:.1%} of {worst} "
        "(goal 25 %)."
    )


def by_group(rows: Iterable[Compared]) -> list[str]:
    """Return a line for each group of measured rows: how far the predicted best is from the measured best."""
    groups: dict[tuple[str, int, str], list[Compared]] = {}
    for row in rows:
        if row.measured is not None:
            groups.setdefault(row.group, []).append(row)
    lines = []
    for (shape, gpus, precision), members in groups.items():
        if len(members) < 2:
            continue
        rates = {row.name: row.rate(row.measured) for row in members if row.measured is not None}
        chosen = max(members, key=lambda row: row.predicted.tokens_per_second)
        best = max(rates, key=rates.__getitem__)
        behind = 1.0 - rates[chosen.name] / rates[best]
        lines.append(
            f"{shape} in {precision} on {gpus} GPU{'s' if gpus > 1 else ''}, {len(members)} rows: predicted best "
            f"{chosen.name}, {behind:.1%} fewer tokens a second than the measured best, {best}"
        )
    return lines


def report(rows: Sequence[Compared], cluster: ClusterProfile) -> str:
    """Return the page."""
    constants = ", ".join(f"{constant} on {name}" for name, constant in CALIBRATION.items())
    return "\n\n".join(
        [
            f"Step times predicted by train.spec.step_time with cluster profile {cluster.name}, beside what was "
            "measured on H200s, torch 2.11.0. Only rows that say so are measured.",
            f"Calibrated: {constants}. All other constants are from kernels measured alone, data sheets and papers; "
            "each has its source beside it. No other row has set a constant, but rows in tables of earlier dates "
            "were known when the model was written: the sharper test is of rows measured after their prediction.",
            table(rows),
            summary(rows),
            "\n".join(f"- {line}" for line in by_group(rows)),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(description="predicted step times beside measured ones")
    parser.add_argument("--measured", type=Path, nargs="*", default=[], metavar="FILE", help="further measurements")
    parser.add_argument("--write", type=Path, metavar="DIR", help="also write step_time_predicted.md there")
    options = parser.parse_args(arguments)
    cluster, measured = read_profile(PROFILE), recorded()
    for path in options.measured:
        measured |= read_measured(path)
    text = report(compare(measured, cluster), cluster)
    if options.write is not None:
        (options.write / "step_time_predicted.md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
