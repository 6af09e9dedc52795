"""Runs as processes of this machine: as many at once as there are slots, longest first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from study import code_version, frozen, ledger
from study.config import ClusterConfig
from study.layout import StudyFolder
from study.lineage import own_flops
from study.place import local_world
from study.point import Point
from study.supervise import spawn
from train.spec.config import RunConfig


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
        copy = frozen.source(self._folder, batch.resources.get("code"), batch.code)
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


def slot_count(cluster: ClusterConfig, runs: Iterable[RunConfig]) -> int:
    """Return how many runs fit at once: as said, or by `runtime.threads` cores for each process of a run."""
    if cluster.slots is not None:
        if cluster.slots < 1:
            raise ValueError(f"cluster.slots={cluster.slots} is not allowed: it takes 1 or more, or null")
        return cluster.slots
    cores = max((run.runtime.threads * local_world(asdict(run.parallel), tasks(cluster)) for run in runs), default=1)
    return max(1, len(os.sched_getaffinity(0)) // max(1, cores))


def tasks(cluster: ClusterConfig) -> int:
    """Return how many processes of one run the cluster section asks for."""
    return cluster.nodes * cluster.tasks_per_node


def estimated_flops(config: RunConfig) -> float:
    """Return the training FLOPs that a run spends itself, for ordering and for the time left."""
    return own_flops(config) if config.budget.tokens else 0.0


def longest_first(keys: Sequence[str], points: Mapping[str, Point]) -> list[str]:
    """Return the keys by falling compute, so that no long run is left alone at the end; ties keep their order."""
    return sorted(keys, key=lambda key: -estimated_flops(points[key].config) if key in points else 0.0)


def python(copy: Path | None = None) -> list[str]:
    """Return how Python is started for a local run of the checkout, or of a copy of the code and nothing beside it."""
    return [sys.executable, *code_version.python_options(copied=copy is not None)]


def job_environment(environment: Mapping[str, str], copy: Path | None = None) -> dict[str, str]:
    """Return the environment of a local run: this one, with this package importable from any directory.

    copy: of the code, which then is imported; what else the working directory and the checkout hold comes after it.
    """
    home = [] if copy is None else [str(copy), str(Path.cwd())]
    folders = [*home, str(code_version.home()), environment.get("PYTHONPATH")]
    return {**environment, "PYTHONPATH": os.pathsep.join(folder for folder in folders if folder)}
