"""Runs as processes of this machine: as many at once as there are slots, longest first."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from study.executors.base import Executor, JobRequest, RankInfo, Runner
from study.executors.jobs import Lookup, LookupAnswer, QueueView
from study.process import code_snapshot
from study.process.children import job_environment, python, spawn
from study.records import ledger
from study.storage.layout import StudyFolder

if TYPE_CHECKING:
    from study.config.schema import ClusterConfig

LOCAL = "local"
"""Its name, and the job id of all that it was given."""
LOG = "local.log"


def executor(runner: Runner | None = None) -> Executor:
    """Return the executor of this machine's processes, which needs no `runner`."""
    return Local()


class Local(Executor):
    """Jobs that the command which stays with the study starts in its slots, one process a run."""

    name = LOCAL
    title = "this machine"
    detached = False
    allocates = False

    def check(self, cluster: ClusterConfig) -> None:
        """Raise ValueError for points that are to share a job."""
        if cluster.pack > 1:
            raise ValueError(
                f"cluster.pack={cluster.pack} is for SLURM: here set cluster.pack=1, and cluster.slots to as many as "
                "run at once"
            )

    def render(self, request: JobRequest) -> str:
        """Return the command of the first run."""
        words = [*python(request.copy), "-m", *request.command]
        return shlex.join([*words, "--index", "0"] if request.module == "study.job" else words)

    def submit(self, request: JobRequest, script: str) -> str:
        """Return the id that all have: whoever holds the controller's lock starts them by what the ledger says."""
        return LOCAL

    def find(self, name: str, since: float) -> Lookup:
        """Return that it is there: a run of this machine is submitted by being written down."""
        return Lookup(LookupAnswer.FOUND, LOCAL)

    def query(self, ids: Sequence[str]) -> QueueView:
        """Return nothing: what runs here is seen by its process."""
        return QueueView()

    def cancel(self, indices: Mapping[str, Iterable[int]]) -> None:
        """Do nothing: a process is told by a signal (study.watch.follow.terminate)."""

    def rank_info(self, environment: Mapping[str, str], world: int = 1) -> RankInfo:
        """Return the process of this host that starts all ranks of its run."""
        nodes = (socket.gethostname(),)
        return RankInfo(LOCAL, f"local-{os.getpid()}", world=world, nodes=nodes, starts_ranks=True)

    def log(self, folder: StudyFolder, batch: ledger.Batch, key: str) -> Path:
        """Return the log that all runs of this machine share."""
        return folder.jobs / LOG


class LocalSlots:
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
        log = self._folder.jobs / LOG
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
    ledger.append(folder, "intent", name=name, executor=LOCAL, keys=list(keys), resources=about, code=code)
    ledger.append(folder, "submitted", name=name, job_id=LOCAL)
    return name
