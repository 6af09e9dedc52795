"""A study folder made by hand, and what a store must hold once it is synced."""

from __future__ import annotations

import json
import math
import sqlite3
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from study.records.metric_names import DERIVED, metric_name
from study.storage.layout import RunFolder, StudyFolder
from train.spec.config import RunConfig

T0 = 1_760_000_000.0
NAN = -0.123456789
LIMIT_SECONDS = 900.0
"""What takes a moment is waited for so long: a machine that is busy elsewhere or syncs slowly is not wrong."""
Row = tuple[str, str, float, int, int]


@dataclass(frozen=True)
class Made:
    """A study made for a test."""

    folder: StudyFolder
    keys: tuple[str, ...]

    def run(self, index: int) -> RunFolder:
        return self.folder.run(self.keys[index])


def key(index: int) -> str:
    return f"{index:012x}"


def make_study(path: Path, runs: int, uri: str | None = None) -> Made:
    """Make points, ledger and study.yaml; no run has started."""
    folder = StudyFolder(path)
    path.mkdir(parents=True)
    keys = tuple(key(i) for i in range(runs))
    lines = []
    for i, name in enumerate(keys):
        config = asdict(RunConfig())
        config["seed"] = i
        config["data"]["fingerprint"] = "123456789012"
        lines.append(json.dumps({"key": name, "config": config, "overrides": [f"seed={i}", "model.width=64"]}))
    folder.points.write_text("".join(line + "\n" for line in lines))
    intent = {
        "time": T0 + (hash(str(path)) % 1000) / 1000,
        "event": "intent",
        "name": "batch-1",
        "executor": "local",
        "keys": list(keys),
        "resources": {},
        "code": "0123abc-none",
    }
    folder.ledger.write_text(json.dumps(intent) + "\n")
    if uri is not None:
        folder.study.write_text(f"study: {{name: {path.name}}}\ntracking: {{enabled: true, uri: '{uri}'}}\n")
    return Made(folder, keys)


def start_run(run: RunFolder, attempt: int = 1, host: str = "elsewhere") -> None:
    folder = run.attempt(attempt)
    folder.path.mkdir(parents=True)
    run.config.write_text("seed: 1\nmodel: {width: 64}\n")
    job = {
        "name": "batch-1",
        "executor": "local",
        "job_id": f"local-{attempt}",
        "restart": 0,
        "nodes": [host],
        "pid": 1,
        "start_time": T0,
        "host": host,
        "started": T0 + attempt,
        "code": "0123abc-none",
    }
    folder.job.write_text(json.dumps(job))


def record(kind: str, step: int, **metrics: float) -> str:
    entry = {"kind": kind, "step": step, "tokens": step * 128, "time": round(T0 + step / 8, 3), "metrics": metrics}
    return json.dumps(entry) + "\n"


def rolled_back() -> list[str]:
    """Return the lines of a run that went from step 6 back to step 3 and from step 5 back to step 3 again.

    Losses say the path: 100 and more on those that were abandoned.
    """
    lines: list[str] = []

    def add(path: int, kind: str, step: int, **metrics: float) -> None:
        entry = {**json.loads(record(kind, step, **metrics)), "time": T0 + len(lines)}
        lines.append(json.dumps({**entry, **({"path": path} if path else {})}) + "\n")

    def steps(path: int, first: int, last: int, high: float) -> None:
        for step in range(first, last + 1):
            add(path, "train", step, loss=high + step)
            if step % 2 == 0:
                add(path, "validation", step, loss=high + step / 10)

    steps(0, 1, 3, 0.0)
    steps(0, 4, 6, 100.0)
    add(0, "spike", 6, loss_z=9.0)
    add(1, "rollback", 6, to_step=3.0, to_tokens=384.0)
    steps(1, 4, 5, 200.0)
    add(1, "spike", 5, loss_z=8.0)
    add(2, "rollback", 5, to_step=3.0, to_tokens=384.0)
    steps(2, 4, 8, 0.0)
    return lines


def lines_of(step: int) -> str:
    """Return what the trainer appends at a step: a training record, every fifth step also a validation."""
    text = record("train", step, loss=10.0 / step, lr=1e-3 * step, grad_norm=1.0 + step / 7)
    if step % 5 == 0:
        text += record("validation", step, loss=11.0 / step, bits_per_byte=3.0 / step)
    return text


def append(run: RunFolder, first: int, last: int) -> None:
    with run.metrics.open("a") as file:
        for step in range(first, last + 1):
            file.write(lines_of(step))


def end_attempt(run: RunFolder, state: str, attempt: int = 1, error: str = "") -> None:
    outcome = {
        "state": state,
        "exit_code": 0,
        "signal": None,
        "ended": T0 + 900,
        "seconds": 900.0 - attempt,
        "error": error,
    }
    run.attempt(attempt).outcome.write_text(json.dumps(outcome))


def outcome(state: str = "completed") -> dict[str, Any]:
    return {
        "format": 1,
        "state": state,
        "step": 100,
        "tokens": 12800,
        "flops": 123456789,
        "params": {"total": 10, "embedding": 2, "non_embedding": 8, "matmul": 9},
        "loss": {"validation_nats_per_token": 2.5, "validation_bits_per_byte": 1.25, "train_nats_per_token": 2.4},
    }


def complete(run: RunFolder, state: str = "completed", attempt: int = 1) -> None:
    run.outcome.write_text(json.dumps(outcome(state)))
    end_attempt(run, state, attempt)


def as_stored(value: float) -> float:
    """Return what MLflow stores: SQL knows no infinities. NaN, which equals nothing, becomes NAN here."""
    if math.isnan(value):
        return NAN
    return max(-sys.float_info.max, min(sys.float_info.max, value))


def expected(made: Made) -> list[Row]:
    """Return what the metrics table must hold for the spools as they are: point, name, value, unix ms, step.

    What the syncer works out by itself (metric_names.DERIVED) is left out, here and in `stored`.
    """
    rows: list[Row] = []
    for name in made.keys:
        path = made.folder.run(name).metrics
        seen: set[int] = set()
        for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else []:
            entry = json.loads(line)
            stamp, step = round(entry["time"] * 1000), entry["step"]
            values = {metric_name(entry["kind"], k): v for k, v in entry["metrics"].items()}
            if step not in seen:
                values["tokens"] = entry["tokens"]
            seen.add(step)
            rows += [(name, k, as_stored(float(v)), stamp, step) for k, v in values.items()]
    return sorted(rows)


def stored(database: Path, study: str, table: str = "metrics") -> list[Row]:
    """Return a metrics table as MLflow's database holds it, straight from SQL, with NAN for NaN."""
    query = f"""
        select t.value, m.key, m.value, m.timestamp, m.step, m.is_nan from {table} m
        join runs r on r.run_uuid = m.run_uuid and r.lifecycle_stage = 'active'
        join experiments e on e.experiment_id = r.experiment_id and e.name = ?
        join tags t on t.run_uuid = m.run_uuid and t.key = 'point_key'"""
    with closing(sqlite3.connect(f"file:{database}?mode=rw", uri=True)) as connection:
        rows = connection.execute(query, (study,)).fetchall()
    found = [row for row in rows if row[1] not in DERIVED]
    return sorted((k, name, NAN if nan else v, stamp, step) for k, name, v, stamp, step, nan in found)


def latest(rows: list[Row]) -> list[Row]:
    """Return the last value by step of every metric of every run."""
    last: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row[:2] not in last or (row[4], row[3]) > (last[row[:2]][4], last[row[:2]][3]):
            last[row[:2]] = row
    return sorted(last.values())


def wait_for(condition: Any, seconds: float = LIMIT_SECONDS, every: float = 0.05) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(every)
