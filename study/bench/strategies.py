"""`python -m study bench strategies`: DDP, FSDP1 and FSDP2 with the same model, data and seed, and what breaks them."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from study.bench import made_up, strategies_report
from study.bench.comm_settings import gpu_count
from study.bench.gpus import gpu_name
from study.bench.scratch import scratch_folder
from study.bench.strategies_failures import PLANTED, STARTS, Failure, Patient, failures, sick, undisturbed
from study.bench.strategies_report import Found
from study.bench.strategies_runs import Row, measure
from study.bench.strategies_settings import KEYS, Asked, asked_of, check_host
from study.config.single import composed
from study.storage.files import write_atomic, write_json
from study.storage.shapes import FLAG, TEXT, Shape, object_list, read_record, warn
from train.spec.from_mapping import read

PURPOSE = (
    "Train the same model with DDP, FSDP1 and FSDP2 on ranks of this machine: speed, memory, messages, failures.\n"
    "Keys and groups of a study (model=1b, precision=bf16, batch.tokens=65536) say what is trained."
)
PICTURE = "strategies.png"
_OF_A_STRATEGY = object_list(Shape("", {"strategy": TEXT}, ("strategy",)), "a list of what strategies did")
KEPT = Shape(
    "what was measured of strategies",
    {"interrupted": FLAG, "rows": _OF_A_STRATEGY, "failures": _OF_A_STRATEGY},
    remedy="all is measured anew",
)
__all__ = ["KEYS", "PURPOSE", "run"]


def run(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Do what the words ask for; return it as lines of text and as fields of the JSON object.

    Where Ctrl-C ended it, what was found until then, and `interrupted`. ValueError names key, value and what is
    allowed.
    """
    asked = asked_of(words, gpu_count(), composed)
    if asked.device == "cpu":  # a GPU that runs out of memory ends a run, a host takes other programs with it
        check_host(asked, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    rows, seen = earlier(asked)
    found = Found(machine(asked), versions(), load, today, rows, seen)

    def keep() -> None:  # whatever comes next may not end, or end this command
        save(asked, found, as_fields(asked, found) | {"interrupted": True}, words)

    interrupted = not _all(asked, rows, seen, keep)
    said = as_fields(asked, found) | {"interrupted": interrupted}
    files = [*save(asked, found, said, words), *picture(asked, found)] if rows else []
    lines = strategies_report.as_text(asked, found) if rows else ["nothing was measured"]
    lines += ["", *(f"wrote {path}" for path in files)] if files else []
    if interrupted:
        lines.append(f"interrupted: {len(rows)} of {len(asked.strategies)} strategies were measured, and are kept")
    return lines, said | {"files": [str(path) for path in files]}


def earlier(asked: Asked) -> tuple[list[Row], list[Failure]]:
    """Return what an earlier command found that was to do the same on this machine, and did not come to its end."""
    path = asked.out / "strategies.json"
    known = read_record(path, KEPT) or {}
    same = json.loads(json.dumps(_about(asked) | {"machine": machine(asked), "versions": versions()}))
    if not known.get("interrupted") or any(known.get(key) != value for key, value in same.items()):
        return [], []
    names = [strategy.name for strategy in asked.strategies]
    measured = {row["strategy"]: row for row in known.get("rows") or () if row.get("error") is None}
    first = list(itertools.takewhile(measured.__contains__, names))  # the first one is what others are compared with
    of = [one for one in known.get("failures") or () if asked.failures and one["strategy"] in first]
    try:
        return [read(Row, measured[name], name) for name in first], [read(Failure, one, "failures") for one in of]
    except (ValueError, OverflowError) as error:
        warn(path, KEPT, str(error))
        return [], []


def _all(asked: Asked, rows: list[Row], seen: list[Failure], keep: Callable[[], None]) -> bool:
    """Measure, then plant failures, adding what is found to the lists; return False where Ctrl-C ended it.

    keep: writes what is found so far; called after each strategy and failure.
    """
    names = ", ".join(strategy.name for strategy in asked.strategies)
    _log(f"{asked.ranks} ranks over {asked.backend}: {names}, {asked.all_steps} steps each")
    with scratch_folder() as root:
        try:
            made_up.write_corpus(root, asked.base.data.vocab_size, asked.batch * asked.all_steps)
            if rows:
                _log(f"{', '.join(row.strategy for row in rows)}: known from a command that did not end ({asked.out})")
            for strategy in asked.strategies[len(rows) :]:
                began = time.monotonic()
                rows.append(measure(asked, strategy, root, asked.out, _log))
                keep()
                _log(f"{strategy.name}: {time.monotonic() - began:.0f} s in all, kept in {asked.out}")
            if asked.failures:
                for one in _failures(asked, rows, seen, root):
                    seen.append(one)
                    keep()
                    _log(f"{one.strategy}, {one.failure}: {one.afterwards or one.happened}")
        except KeyboardInterrupt:
            return False
    return True


def _failures(asked: Asked, rows: Sequence[Row], seen: Sequence[Failure], root: Path) -> Iterator[Failure]:
    """Plant the failures that have not been seen, strategy by strategy, and yield them as they end."""
    patient, known = asked.patient(), {(one.strategy, one.failure) for one in seen}
    due = {
        strategy: (row, [failure for failure in PLANTED if (strategy.name, failure) not in known])
        for strategy, row in zip(asked.strategies, rows, strict=True)
        if row.error is None
    }
    count = sum(len(planted) for _, planted in due.values())
    _log(f"failures: {count}, at most {asked.limit:g} s each, {asked.limit * count / 60:.0f} min in all")
    if patient is not asked and count:
        made_up.write_corpus(root, patient.base.data.vocab_size, patient.batch * patient.all_steps)
    for strategy, (row, planted) in due.items():
        losses = row.losses
        if patient is not asked and planted:
            losses, done = undisturbed(patient, strategy, root)
            if done.failed is not None:
                yield from (one for one in sick(strategy, done) if one.failure in planted)
                continue
            usual = STARTS * done.seconds + 2 * asked.hang
            _log(f"{strategy.name}: {done.seconds:.0f} s undisturbed; about {usual:.0f} s for all of its failures")
        if planted:
            yield from failures(Patient(patient, strategy, root, losses), PLANTED.keys() - planted, _log)


def _about(asked: Asked) -> dict[str, Any]:
    """Return what says which runs were asked for."""
    base = asked.base
    shown = ("model", "data", "batch", "optim", "schedule", "precision", "memory", "compile")
    return {
        "backend": asked.backend,
        "ranks": asked.ranks,
        "steps": asked.steps,
        "run": {name: asdict(getattr(base, name)) for name in shown}
        | {"seed": base.seed, "micro_batch_sequences": base.parallel.micro_batch_sequences},
    }


def as_fields(asked: Asked, found: Found) -> dict[str, Any]:
    """Return the fields of the JSON object, but for files."""
    patient = asked.patient()
    caused = {name: asdict(getattr(patient.base, name)) for name in ("model", "data", "batch")}
    return {
        "what": "strategies",
        "machine": found.machine,
        "versions": found.versions,
        "load": found.load,
        "date": found.date,
        **_about(asked),
        "rows": [asdict(row) for row in found.rows],
        "parity": strategies_report.parity(found.rows),
        "most_apart": strategies_report.most_apart(found.rows),
        "bound": strategies_report.bound(asked),
        "failures": [asdict(one) for one in found.failures],
        "failures_run": caused | {"limit": asked.limit, "hang": asked.hang} if asked.failures else None,
        "problems": strategies_report.problems(asked, found),
    }


def save(asked: Asked, found: Found, said: dict[str, Any], words: Sequence[str]) -> list[Path]:
    """Write page, rows and JSON; return the files."""
    asked.out.mkdir(parents=True, exist_ok=True)
    page, rows, values = (asked.out / f"strategies.{end}" for end in ("md", "csv", "json"))
    command = f"python -m study bench strategies {shlex.join(words)}".strip()
    write_atomic(page, strategies_report.as_markdown(asked, found, PICTURE, command))
    write_atomic(rows, strategies_report.as_csv(found.rows))
    known = json.loads(json.dumps(said), parse_constant=lambda _: None)  # JSON has no word for what is no number
    write_json(values, known)
    return [page, rows, values]


def picture(asked: Asked, found: Found) -> list[Path]:
    """Draw what was measured, if anything was, and return the file."""
    if all(row.error is not None for row in found.rows):
        return []
    strategies_report.draw(asked, found.rows, asked.out / PICTURE)
    return [asked.out / PICTURE]


def machine(asked: Asked) -> str:
    """Return what there is to calculate with, as far as the system says it: GPUs, or the processor and its cores."""
    if asked.device == "cuda":
        return f"{asked.ranks} x {gpu_name() or 'GPU'}"
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def versions() -> str:
    """Return the versions of what computes."""
    return f"torch {version('torch')}, Python {platform.python_version()}"


def _log(line: str) -> None:
    """Tell of progress: results alone are on stdout."""
    print(line, file=sys.stderr, flush=True)
