"""`python -m study bench pipeline`: what each pipeline schedule leaves idle, by micro-batches; with pictures."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from analysis.text import commandline
from analysis.text.commandline import Key
from study.bench import pipeline_measured
from study.bench.comm_settings import BACKENDS, backend_of, gpu_count
from study.bench.pipeline_table import (
    Asked,
    Row,
    best,
    check,
    full_from,
    measured_table,
    rows,
    sentences,
    table,
    timeline,
)
from study.planning.timeline_picture import draw, lane
from study.storage.files import write_atomic
from train.spec.pipeline_layout import SCHEDULES, STAGES

PURPOSE = "Compare pipeline schedules by simulation: step time, idle share, micro-batches waiting in memory."


def _counts(key: Key, text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(commandline.count(key, part) for part in text.strip("[]").split(",")))
    except ValueError:
        raise ValueError(
            f"{key.name}={text}: whole numbers, 1 or more, separated by commas are needed ({key.help})"
        ) from None


def _schedules(key: Key, text: str) -> tuple[str, ...]:
    one = Key(key.name, key.help, choices=tuple(SCHEDULES))
    return tuple(dict.fromkeys(one.value(part) for part in text.strip("[]").split(",")))


OF_THE_MODEL = ("backend", "width", "layers", "length")
"""Keys that say something only with measure=yes."""
KEPT = "reports/bench/pipeline"
KEYS = (
    Key("pp", "ranks of the pipeline", 4, commandline.count),
    Key("micro_batches", "numbers of micro-batches of one step", (2, 4, 8, 16, 32), _counts),
    Key("schedules", "parallel.pp_schedule to compare", tuple(SCHEDULES), _schedules),
    Key("stages", "stages of one rank, for interleaved and zb1p (parallel.pp_stages)", STAGES, commandline.count),
    Key("forward_ms", "forward pass of one micro-batch through all layers of a rank [ms]", 1.0, commandline.number),
    Key("backward_ms", "backward pass of the same [ms]", 2.0, commandline.number),
    Key("weight_ms", "part of backward_ms that computes gradients of weights [ms]; default: half", None,
        commandline.number),
    Key("message_ms", "sending one micro-batch's activations to the next rank [ms]; default: 0", 0.0,
        commandline.not_negative),
    Key("measure", "yes: also train a small model on pp processes of this machine and read its traces",
        False, commandline.switch),
    Key("backend", "gloo: train it on the CPU, nccl: on pp GPUs; default: nccl where there are so many", None,
        choices=BACKENDS),
    Key("width", "of the measured model; default: 256 on the CPU, 4096 on GPUs", None, commandline.count),
    Key("layers", "of the measured model, at least one a stage; default: 8", None, commandline.count),
    Key("length", "tokens of its sequences, one a micro-batch; default: 128 on the CPU, 8192 on GPUs", None,
        commandline.count),
    Key("out", "folder for pipeline.csv, a picture timeline-mM.svg for each number M of micro-batches, and with "
        f"measure=yes {pipeline_measured.RESULTS} and {pipeline_measured.TABLE}, which are kept in {KEPT} without it"),
)  # fmt: skip


def _check_measured(given: Mapping[str, Any], pp: int) -> None:
    """Raise ValueError for keys of the measured model without it, and for layers that are too few for the ranks."""
    said = [name for name in OF_THE_MODEL if given[name] is not None]
    if said and not given["measure"]:
        raise ValueError(
            f"{said[0]}={given[said[0]]} is of the measured model: add measure=yes, or leave {said[0]}= out"
        )
    if (layers := given["layers"]) is not None and layers < pp:
        raise ValueError(f"layers={layers} is not allowed with pp={pp}: each rank has at least one layer")


def run(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Do what the key=value words ask for; return it as lines of text and as fields of the JSON object.

    Raises ValueError, naming key and value, for what cannot be compared.
    """
    given = commandline.parse(words, KEYS)
    asked = asked_of(given)
    check(asked)
    _check_measured(given, asked.pp)
    backend = _backend(given["backend"], asked.pp, gpu_count()) if given["measure"] else None
    size = pipeline_measured.size_of(backend or "gloo", given["width"], given["layers"], given["length"])
    found = rows(asked)
    written = write(asked, found, Path(given["out"])) if given["out"] else []
    kept = Path(given["out"] or KEPT)
    seen = pipeline_measured.measure(asked, backend, size, kept) if backend else pipeline_measured.Measured((), ())
    lines = [
        f"{asked.pp} ranks, forward {asked.forward_ms:g} ms, backward {asked.backward_ms:g} ms a micro-batch and rank, "
        f"message {asked.message_ms:g} ms",
        "",
        *table(found),
        "",
        *sentences(asked, found),
        *map(str, written),
    ]
    if seen.found:
        about = (
            f"idle share on {asked.pp} processes of this machine ({backend}): in the median of every other step, and "
            "simulated with what passes and messages took in the steps between, as it varies"
        )
        lines += ["", about, "", *measured_table(seen.found)]
    lines += [f"{one.schedule} with {one.micro_batches} micro-batches was left out: {one.why}" for one in seen.left]
    said = {
        "what": "pipeline",
        "asked": asdict(asked),
        "rows": [asdict(row) for row in found],
        "best": {str(row.micro_batches): row.schedule for row in best(found)},
        "full_from": full_from(found),
        "files": [str(path) for path in written],
        "backend": backend,
        "measured": [asdict(one) for one in seen.found],
        "left_out": [asdict(one) for one in seen.left],
    }
    return lines, said


def asked_of(given: Mapping[str, Any]) -> Asked:
    """Return what the values of the keys ask for."""
    return Asked(**{one.name: given[one.name] for one in fields(Asked)})


def _backend(given: str | None, ranks: int, gpus: int) -> str:
    """Return the backend of so many ranks; ValueError where there are not the GPUs for it."""
    backend = backend_of(given, gpus, least=ranks)
    if backend == "nccl" and gpus < ranks:
        has = f"this machine shows {gpus} GPUs" if gpus else "this machine shows no GPU"
        raise ValueError(f"backend=nccl is not allowed with pp={ranks}: {has}; use backend=gloo")
    return backend


def write(asked: Asked, found: Sequence[Row], folder: Path) -> list[Path]:
    """Write the table as CSV and a picture for each number of micro-batches; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    out = io.StringIO()
    writer = csv.DictWriter(out, [one.name for one in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in found)
    files = {folder / "pipeline.csv": out.getvalue()}
    files |= {folder / f"timeline-m{count}.svg": picture(asked, found, count) for count in asked.micro_batches}
    for path, text in files.items():
        write_atomic(path, text)
    return list(files)


def picture(asked: Asked, found: Sequence[Row], count: int) -> str:
    """Return the timelines of all schedules with one number of micro-batches, as SVG text."""
    lanes = [
        lane(row.schedule, timeline(asked, row.schedule, count), row.waiting)
        for row in found
        if row.micro_batches == count
    ]
    return draw(f"{asked.pp} pipeline ranks, {count} micro-batches: one step, simulated", lanes)
