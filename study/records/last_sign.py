"""A run's progress by its files, and the last sign of life of an attempt that was killed before it wrote its end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from analysis.inputs import recorded
from study.records.heartbeats import read_beat
from study.records.shapes import JOB, METRICS, TARGET
from study.storage.files import tail
from study.storage.layout import AttemptFolder, RunFolder
from study.storage.shapes import read_record, record_in, wrong


def last_metrics(run: RunFolder) -> dict[str, Any] | None:
    """Return the last whole training record of a run's metrics.

    After a rollback only one of the path that it began counts; until there is one, the run stands where that began.
    """
    stands: dict[str, Any] | None = None
    rollbacks: list[tuple[int, int]] = []
    for line in reversed(tail(run.metrics, 4096).split("\n")[:-1]):
        record = record_in(line, METRICS)
        if record is None:
            continue
        if record["kind"] == "train" and not recorded.abandoned(record, rollbacks):
            return record
        if record["kind"] == recorded.ROLLBACK and not wrong(record["metrics"], TARGET):
            found = recorded.goings_back([record])
            rollbacks += found
            if found and stands is None:
                stands = {"step": found[0][1], "tokens": int(record["metrics"].get("to_tokens") or 0)}
    return stands


def last_sign(run: RunFolder, attempt: AttemptFolder, started: float) -> float:
    """Return when an attempt without an ending last said something, by the times that it wrote [seconds since 1970].

    Files' own times are no clock: copying, restoring and purging change them. A later attempt's records do not count.
    """
    beats = (read_beat(path) for path in attempt.path.glob("beat.*"))
    said = [beat.time for beat in beats if beat is not None]
    if any(said):
        return max(said)
    job = read_record(run.attempt(int(attempt.path.name) + 1).job, JOB) or {}
    until = float(job.get("started") or math.inf)
    return max((at for at in _recorded(run) if started <= at < until), default=started)


def _recorded(run: RunFolder) -> Iterator[float]:
    """Yield the times of the last records of a run's metrics [seconds since 1970]."""
    for line in tail(run.metrics, 1 << 16).splitlines():
        record = record_in(line, METRICS)
        if record is not None and record.get("time") is not None:
            yield float(record["time"])
