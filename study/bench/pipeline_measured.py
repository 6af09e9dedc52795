"""Pipelines measured pair by pair: which pairs of schedule and micro-batches run, each kept as soon as it is there."""

from __future__ import annotations

import csv
import io
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from study.bench import pipeline_ranks
from study.bench.gpus import gpu_bytes, gpu_name
from study.bench.pipeline_ranks import Size
from study.bench.pipeline_table import Asked, Found, found_of
from study.bench.scratch import scratch_folder
from study.storage.files import write_atomic, write_json
from study.storage.shapes import FLAG, OBJECT, Shape, object_list, read_record, warn
from study.text import percent
from train.spec import mesh
from train.spec.accounting.step import sheet
from train.spec.config import ParallelConfig
from train.spec.from_mapping import read as read_from
from train.spec.pipeline_layout import micro_batches

RESULTS, TABLE = "measured.json", "measured.csv"
GIB = 1 << 30
KEPT = Shape(
    "what was measured of pipelines",
    {"about": OBJECT, "ended": FLAG, "measured": object_list(Shape(""), "a list of what pairs did")},
    remedy="all is measured anew",
)


@dataclass(frozen=True)
class Left:
    """A pair of schedule and micro-batches that has no row, and why."""

    schedule: str
    micro_batches: int
    why: str


@dataclass(frozen=True)
class Measured:
    """What was measured, and what was left out."""

    found: Sequence[Found]
    left: Sequence[Left]


def size_of(backend: str, width: int | None, layers: int | None, length: int | None) -> Size:
    """Return what is trained: as given, else what suits the device (pipeline_ranks)."""
    usual = pipeline_ranks.ON_GPUS if backend == "nccl" else pipeline_ranks.ON_CPU
    size = replace(
        usual,
        width=usual.width if width is None else width,
        layers=usual.layers if layers is None else layers,
        length=usual.length if length is None else length,
    )
    if size.width % size.head:
        raise ValueError(f"width={size.width} is not allowed: a multiple of {size.head}, the width of a head")
    return size


def pairs(asked: Asked) -> Iterator[tuple[ParallelConfig, int]]:
    """Yield each layout with each number of micro-batches that it takes."""
    for schedule in asked.schedules:
        layout = asked.layout(schedule)
        for count in dict.fromkeys(micro_batches(layout, wanted) for wanted in asked.micro_batches):
            yield layout, count


def refused(layout: ParallelConfig, count: int, size: Size, memory: int | None) -> str | None:
    """Return why a pair cannot run, None where it can. memory: of a GPU [bytes], None where it is not known."""
    try:
        config = pipeline_ranks.config_of(layout, count, Path("nowhere"), size)  # refuses what this torch cannot run
    except ValueError as error:
        return str(error)
    if memory is None:
        return None
    needed = sheet(config, mesh.axes(config.parallel, layout.pp), size.device).needed
    if needed <= memory:
        return None
    return (
        f"a rank needs {needed / GIB:.1f} GiB by train.spec.accounting, and a GPU has {memory / GIB:.1f}: try fewer "
        f"micro_batches, or less than width={size.width} and length={size.length}"
    )


def measure(asked: Asked, backend: str, size: Size, out: Path) -> Measured:
    """Run the trainer with each pair that can run and read its traces; say each on stderr and keep it in `out`.

    What an earlier command with the same words found, and did not come to its end, is not measured again. A pair that
    fails is left out, with its ranks' words.
    """
    memory = gpu_bytes() if backend == "nccl" else None
    every = list(pairs(asked))
    left = [Left(one.pp_schedule, count, why) for one, count in every if (why := refused(one, count, size, memory))]
    about = about_of(asked, backend, size)
    names = [_name(*pair) for pair in every]
    found = [one for one in earlier(out, about) if (one.schedule, one.micro_batches) in names]
    without = {(one.schedule, one.micro_batches) for one in left} | {(one.schedule, one.micro_batches) for one in found}
    due = [pair for pair in every if _name(*pair) not in without]
    for one in left:
        _log(f"{one.schedule}, {one.micro_batches} micro-batches: left out: {one.why}")
    known = f", {len(found)} known from a command that did not end" if found else ""
    _log(f"{len(due)} of {len(every)} pairs to measure{known}; each is kept in {out / RESULTS}")
    with scratch_folder() as folder:
        if due:
            pipeline_ranks.write_corpus(folder, asked.pp, max(count for _, count in due), size)
        for number, (layout, count) in enumerate(due, 1):
            began = time.monotonic()
            try:
                found.append(found_of(layout, count, pipeline_ranks.measure(layout, count, folder, size)))
            except ValueError as error:
                left.append(Left(layout.pp_schedule, count, str(error)))
                _log(f"{number} of {len(due)}: {error}")
                continue
            keep(out, about, found, ended=False)
            _log(f"{number} of {len(due)}: {sentence(found[-1], time.monotonic() - began)}")
    found.sort(key=lambda one: names.index((one.schedule, one.micro_batches)))
    if found:
        keep(out, about, found, ended=True)
    return Measured(found, left)


def _name(layout: ParallelConfig, count: int) -> tuple[str, int]:
    return layout.pp_schedule, count


def about_of(asked: Asked, backend: str, size: Size) -> dict[str, Any]:
    """Return what measured pairs have in common: only such stand in one table."""
    gpus = f"{asked.pp} x {gpu_name() or 'GPU'}" if backend == "nccl" else platform.machine()
    return {
        "backend": backend,
        "pp": asked.pp,
        "stages": asked.stages,
        "size": asdict(size),
        "machine": gpus,
        "torch": version("torch"),
    }


def earlier(out: Path, about: Mapping[str, Any]) -> list[Found]:
    """Return the pairs that a command of the same kind measured which did not come to its end."""
    path = out / RESULTS
    known = read_record(path, KEPT) or {}
    if known.get("ended") or known.get("about") != about:
        return []
    try:
        return [read_from(Found, one) for one in known.get("measured") or ()]
    except (ValueError, OverflowError) as error:
        warn(path, KEPT, str(error))
        return []


def keep(out: Path, about: Mapping[str, Any], found: Sequence[Found], ended: bool) -> None:
    """Write what was measured; ended: all that was asked for was."""
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / RESULTS, {"about": about, "ended": ended, "measured": [asdict(one) for one in found]})
    text = io.StringIO()
    writer = csv.DictWriter(text, [one.name for one in fields(Found)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(one) for one in found)
    write_atomic(out / TABLE, text.getvalue())


def sentence(found: Found, seconds: float) -> str:
    """Return what is known of one schedule and number of micro-batches, and how long it took to find out [s]."""
    measured, simulated = percent(found.idle_share, 1), percent(found.simulated_share, 1)
    return (
        f"{found.schedule}, {found.micro_batches} micro-batches: {measured} idle, simulated {simulated}, "
        f"{percent(found.formula_share, 1)} by (p-1)/(m+p-1); step {found.step_ms:.4g} ms, simulated "
        f"{found.simulated_ms:.4g} ms ({seconds:.0f} s)"
    )


def _log(line: str) -> None:
    """Tell of progress: results alone are on stdout."""
    print(line, file=sys.stderr, flush=True)
