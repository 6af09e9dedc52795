"""A run's attempts as its folder shows them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.records import shapes
from study.storage.layout import ATTEMPTS, JOB, OUTCOME, AttemptFolder, RunFolder
from study.storage.processes import started
from study.storage.shapes import read_record


def claim(run: RunFolder) -> tuple[int, AttemptFolder]:
    """Return the next attempt's number and its new folder; no two processes get the same one."""
    run.attempts.mkdir(exist_ok=True)
    number = 1 + max((int(p.name) for p in run.attempts.iterdir() if p.name.isdigit()), default=0)
    while True:
        try:
            run.attempt(number).path.mkdir()
        except FileExistsError:
            number += 1
            continue
        return number, run.attempt(number)


def latest_attempt(run: RunFolder) -> Attempt | None:
    """Return the latest attempt that wrote its job.json; a folder without one belongs to a job that died."""
    return _latest(str(run.attempts))


def _latest(attempts: str) -> Attempt | None:
    try:
        names = os.listdir(attempts)  # noqa: PTH208 - see study.storage.layout.ATTEMPTS
    except OSError:
        return None
    for number in sorted(map(int, filter(str.isdigit, names)), reverse=True):
        job = read_record(f"{attempts}/{number}/{JOB}", shapes.JOB)
        if job is not None:
            return Attempt(number, job, read_record(f"{attempts}/{number}/{OUTCOME}", shapes.ATTEMPT_END))
    return None


def read_attempts(path: str) -> tuple[dict[str, Any] | None, Attempt | None]:
    """Return the outcome and the latest attempt of the run in a folder."""
    return read_record(f"{path}/{OUTCOME}", shapes.RUN_OUTCOME), _latest(f"{path}/{ATTEMPTS}")


def process_identity(pid: int) -> str | None:
    """Return what tells a living process from every other of this host: the boot, and its start in ticks after that.

    None where it has ended, or where there is no /proc. A time of day would not do: it moves when the clock is set.
    """
    since = started(pid)
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return None if since is None else f"{boot}:{since}"


def is_alive(job: Mapping[str, Any]) -> bool | None:
    """Return whether the process that job.json names lives; None where it belongs to another host."""
    if job.get("host") != socket.gethostname():
        return None
    if job.get("process") and job.get("pid"):
        return process_identity(int(job["pid"])) == str(job["process"])
    import psutil

    try:
        process = psutil.Process(int(job["pid"]))
        same = abs(process.create_time() - float(job["start_time"])) < 1.0
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except (psutil.Error, KeyError, ValueError):
        return False


@dataclass(frozen=True)
class Attempt:
    """The latest attempt of a run: its job.json, and its outcome.json where it has ended and could write one."""

    number: int
    job: Mapping[str, Any]
    ended: Mapping[str, Any] | None = None

    @property
    def batch(self) -> str:
        """The batch that it belongs to."""
        return str(self.job.get("name", ""))
