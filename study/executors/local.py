"""Runs as processes of this machine: as many at once as there are slots, longest first."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from study.process import code_snapshot
from study.process.children import job_environment, python, spawn
from study.records import ledger
from study.storage.layout import StudyFolder


class Slots:
    """The `study.job` processes that this process has started. They get SIGTERM when it dies in any way."""

    def __init__(self, folder: StudyFolder, count: int) -> None:
        self._folder = folder
        self.count = count
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def running(self) -> frozenset[str]:
        """Keys whose process runs now."""
        return frozenset(self._running)

    def start(self, key: str, batch: ledger.Batch) -> None:
        """Start the process that advances this key. ValueError where the copy of the code that it is to run is gone."""
        self._folder.jobs.mkdir(parents=True, exist_ok=True)
        copy = code_snapshot.source(self._folder, batch.resources.get("code"), batch.code)
        words = [str(self._folder.path.absolute()), "--name", batch.name, "--index", str(batch.keys.index(key))]
        log = self._folder.jobs / "local.log"
        self._running[key] = spawn(
            [*python(copy), "-m", "study.job", *words], job_environment(os.environ, copy), log, log
        )

    def reap(self) -> dict[str, int]:
        """Return the keys whose process has ended since the last call, with its exit code."""
        ended = {key: code for key, p in self._running.items() if (code := p.poll()) is not None}
        for key in ended:
            del self._running[key]
        return ended

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to every running process; SIGTERM lets it write a checkpoint and end."""
        for process in self._running.values():
            if process.poll() is None:
                process.send_signal(number)


def write_batch(
    folder: StudyFolder, keys: Sequence[str], code: str | None, resources: Mapping[str, Any] | None = None
) -> str:
    """Write down that these keys are to be run on this machine, by whoever holds the controller's lock; return a name.

    `resources` may have `tasks`, the processes of each run (without it a run gets what its mesh needs), and `code`.
    """
    name = f"local.{uuid.uuid4().hex[:10]}"
    about = dict(resources or {})
    ledger.append(folder, "intent", name=name, executor="local", keys=list(keys), resources=about, code=code)
    ledger.append(folder, "submitted", name=name, job_id="local")
    return name
