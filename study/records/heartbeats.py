"""Heartbeats of a run's ranks: reading them, and which rank is slow."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from study.records.shapes import BEAT
from study.storage.files import read_json
from study.storage.shapes import wrong

SLOW = 1.5
"""A rank is slow whose own part of a step takes so many times the median of all ranks."""
NOISE_SECONDS = 0.005
"""Differences below this are noise [s]."""


@dataclass(frozen=True)
class Beat:
    """What a rank said last of itself; see train.runtime.heartbeat. Times in seconds."""

    beats: int
    step: int = 0
    phase: str = ""
    allow: float = 0.0
    median: float | None = None
    own: float | None = None
    where: str = ""
    time: float = 0.0


def read_beat(path: Path) -> Beat | None:
    """Return a rank's last beat; None where there is none, or it is being written."""
    said = read_json(path)
    if said is None or wrong(said, BEAT):
        return None
    return Beat(
        said["beats"],
        said["step"],
        said["phase"],
        float(said["allow"]),
        said.get("median"),
        said.get("own"),
        said.get("where") or "",
        float(said.get("time") or 0.0),
    )


def slow_rank(beats: Sequence[Beat | None]) -> str | None:
    """Return words that name the slowest rank and its node; None where no rank takes SLOW times the median.

    Compared is the time of a step that a rank does not spend waiting, so that only the slow rank looks slow.
    """
    own = {rank: beat.own for rank, beat in enumerate(beats) if beat is not None and beat.own is not None}
    if len(own) < 2 or len(own) < len(beats):
        return None
    rank = max(own, key=lambda r: own[r])
    usual = statistics.median_low(own.values())
    if own[rank] < SLOW * usual or own[rank] - usual < NOISE_SECONDS:
        return None
    beat = beats[rank]
    where = f" on {beat.where}" if beat and beat.where else ""
    return f"rank {rank}{where} takes {own[rank] / max(usual, 1e-9):.1f} x the median of {len(own)} ranks"
