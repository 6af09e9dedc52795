"""When an attempt that left no ending was last at work: one that was killed outright has no other clock."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress

from study.records.heartbeats import read_beat
from study.storage.files import read_json, tail
from study.storage.layout import AttemptFolder, RunFolder


def last_sign(run: RunFolder, attempt: AttemptFolder, started: float) -> float:
    """Return when an attempt without an ending last said something, by the times that it wrote [seconds since 1970].

    Files' own times are no clock: copying, restoring and purging change them. A later attempt's records do not count.
    """
    beats = (read_beat(path) for path in attempt.path.glob("beat.*"))
    said = [beat.time for beat in beats if beat is not None]
    if any(said):
        return max(said)
    job = read_json(run.attempt(int(attempt.path.name) + 1).job) or {}
    until = float(job.get("started") or math.inf)
    return max((at for at in _recorded(run) if started <= at < until), default=started)


def _recorded(run: RunFolder) -> Iterator[float]:
    """Yield the times of the last records of a run's metrics [seconds since 1970]."""
    for line in tail(run.metrics, 1 << 16).splitlines():
        with suppress(ValueError, TypeError, KeyError):
            yield float(json.loads(line)["time"])
