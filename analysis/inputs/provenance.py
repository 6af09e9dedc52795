"""Where a study's runs come from, by the study's own records: code, machines, time, tokens. What they lack is absent.

Standard library only; the records are those of a study's folder (points, ledger, attempts, outcomes, code versions).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Code:
    """A version of the code that attempts ran: its commit, and the hash of what was changed since, "" for nothing."""

    commit: str
    changed: str


@dataclass(frozen=True)
class Provenance:
    """What a study's records say of its runs.

    machines: hosts of the attempts. devices: kinds or names of what trained, with the number of runs. jobs: number of
    jobs, by scheduler. gpu_hours, core_hours: by the attempts' clocks, a job with GPUs in GPU-hours, others in
    core-hours, as `python -m study cost` counts them; None where a job's shape is not recorded. tokens, flops: trained
    by the runs with an outcome, a branch without what it took from its parent. began, ended: of the first and the last
    attempt [seconds since 1970]. versions: of torch and Python.
    """

    code: tuple[Code, ...] = ()
    machines: tuple[str, ...] = ()
    devices: Mapping[str, int] | None = None
    jobs: Mapping[str, int] | None = None
    attempts: int = 0
    gpu_hours: float | None = None
    core_hours: float | None = None
    tokens: float | None = None
    flops: float | None = None
    began: float | None = None
    ended: float | None = None
    versions: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Attempt:
    """An attempt by its own files: what job it was of, on which host, with which code, from when to when."""

    batch: str
    job: tuple[str, str, str]
    host: str
    code: str
    executor: str
    threads: int
    began: float
    ended: float | None


def read(folder: Path) -> Provenance | None:
    """Return what a study's folder says of its runs; None where the folder is no study or nothing has run."""
    points = {point["key"]: point for point in _lines(folder / "points.jsonl") if "key" in point}
    attempts = [one for key, point in points.items() for one in _attempts(folder / key, point)]
    outcomes = [found for key in points if (found := _json(folder / key / "outcome.json")) is not None]
    if not attempts and not outcomes:
        return None
    batches = {str(e.get("name")): e for e in _lines(folder / "ledger.jsonl") if e.get("event") == "intent"}
    gpu, core = hours(attempts, batches)
    jobs: dict[str, set[tuple[str, str, str]]] = defaultdict(set)
    for one in attempts:
        jobs[one.executor].add(one.job)
    ended = [one.ended for one in attempts if one.ended is not None]
    versions = {f"torch {o['torch']}" for o in outcomes if o.get("torch")}
    codes = [_json(folder / "code" / f"{name}.json") or {} for name in sorted({a.code for a in attempts if a.code})]
    versions |= {f"Python {c['python']}" for c in codes if c.get("python")}
    return Provenance(
        code=tuple(dict.fromkeys(_code(one.code) for one in attempts if one.code)),
        machines=tuple(sorted({one.host for one in attempts if one.host})),
        devices=_counted(str(o.get("device_name") or o.get("device") or "") for o in outcomes),
        jobs={name: len(several) for name, several in sorted(jobs.items()) if name} or None,
        attempts=len(attempts),
        gpu_hours=gpu,
        core_hours=core,
        tokens=_sum(_own_tokens(o) for o in outcomes),
        flops=_sum(o.get("flops_own", o.get("flops")) for o in outcomes),
        began=min((one.began for one in attempts), default=None),
        ended=max(ended, default=None),
        versions=tuple(sorted(versions)),
    )


def hours(attempts: Iterable[_Attempt], batches: Mapping[str, Record]) -> tuple[float | None, float | None]:
    """Return GPU-hours and core-hours of all attempts, None where no job has such devices or its shape is not known.

    Attempts of one job hold it together, from the first one's start to the last one's end.
    """
    spans: dict[tuple[str, str, str], list[_Attempt]] = defaultdict(list)
    for one in attempts:
        if one.ended is not None:
            spans[one.job].append(one)
    used: dict[str, float] = {}
    for several in spans.values():
        batch = batches.get(several[0].batch)
        if batch is None:
            return None, None
        unit, count = _devices(batch, several[0].threads)
        seconds = max(one.ended or one.began for one in several) - min(one.began for one in several)
        used[unit] = used.get(unit, 0.0) + seconds * count / 3600
    return used.get("gpu"), used.get("core")


def _devices(batch: Record, threads: int) -> tuple[str, int]:
    """Return in what a job of a batch is counted, and how many of it a job holds."""
    shape: Record = batch.get("resources") or {}
    if batch.get("executor") == "local":
        return "core", max(1, int(shape.get("tasks") or 1)) * threads
    nodes, pack = int(shape.get("nodes") or 1), int(shape.get("pack") or 1)
    gpus = nodes * int(shape.get("gpus_per_node") or 0) * (pack if shape.get("pack_gpus", "own") == "own" else 1)
    if gpus:
        return "gpu", gpus
    return "core", nodes * int(shape.get("tasks_per_node") or 1) * int(shape.get("cpus_per_task") or 1) * pack


def _attempts(run: Path, point: Record) -> list[_Attempt]:
    found = []
    threads = int(((point.get("config") or {}).get("runtime") or {}).get("threads") or 1)
    folders = run / "attempts"
    for path in sorted(folders.iterdir()) if folders.is_dir() else ():
        job = _json(path / "job.json")
        if job is None or "started" not in job:
            continue
        over = _json(path / "outcome.json") or {}
        batch = str(job.get("name", ""))
        found.append(
            _Attempt(
                batch=batch,
                job=(str(job.get("job_id", "")), str(job.get("restart") or 0), batch),
                host=str(job.get("host") or ""),
                code=str(job.get("code") or ""),
                executor=str(job.get("executor") or ""),
                threads=threads,
                began=float(job["started"]),
                ended=None if over.get("ended") is None else float(over["ended"]),
            )
        )
    return found


def _code(name: str) -> Code:
    """Return a code version by its name, "<commit>-<hash of what was changed>" or "<commit>-clean"."""
    commit, _, changed = name.rpartition("-")
    return Code(commit or name, "" if changed == "clean" else changed)


def _own_tokens(outcome: Record) -> float | None:
    """Return the tokens that a run trained on itself: a branch has its parent's in `tokens`, not in `flops_own`."""
    tokens, flops, own = (outcome.get(name) for name in ("tokens", "flops", "flops_own"))
    if tokens is None or not flops or own is None:
        return tokens
    return float(tokens) * float(own) / float(flops)


def _sum(values: Iterable[Any]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return sum(known) if known else None


def _counted(names: Iterable[str]) -> Mapping[str, int] | None:
    counts: dict[str, int] = {}
    for name in names:
        if name:
            counts[name] = counts.get(name, 0) + 1
    return counts or None


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file's whole lines; those that are none are left out."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [found for line in lines if (found := _parsed(line)) is not None]


def _json(path: Path) -> dict[str, Any] | None:
    try:
        return _parsed(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
