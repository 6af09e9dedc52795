"""Runs as processes of this machine: as many at once as there are slots, longest first."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from study.executors.base import Executor, JobRequest, RankInfo, Runner
from study.executors.jobs import Lookup, LookupAnswer, QueueView
from study.process import code_snapshot, code_version
from study.process.children import Started, job_environment, python, spawn
from study.process.warm_process import WarmProcess
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
        if cluster.points_per_job is not None:
            raise ValueError(
                f"cluster.points_per_job={cluster.points_per_job} is for SLURM: here set cluster.points_per_job=null; "
                "runs follow each other in each of cluster.slots anyway"
            )
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


@dataclass(frozen=True)
class _Slot:
    """A process that advances one key after the other, and what it has in common with those that may follow."""

    process: WarmProcess
    copy: Path | None
    code: str


class LocalSlots:
    """The processes that this one has started to advance keys. They get SIGTERM when it dies in any way.

    A slot's process stays for the next key (`study.job.slot`), except where `cluster.warm` is false: then each key has
    a `study.job`.
    """

    def __init__(self, folder: StudyFolder, count: int) -> None:
        self._folder = folder
        self.count = count
        self._running: dict[str, tuple[Started, _Slot | None]] = {}
        self._idle: list[_Slot] = []

    @property
    def running(self) -> frozenset[str]:
        """Keys whose process runs now."""
        return frozenset(self._running)

    def start(self, key: str, batch: ledger.Batch) -> None:
        """Have a process advance this key. ValueError where the copy of the code that it is to run is gone."""
        self._folder.jobs.mkdir(parents=True, exist_ok=True)
        copy = code_snapshot.source(self._folder, batch.resources.get("code"), batch.code)
        index = batch.keys.index(key)
        if batch.resources.get("warm", True):
            self._running[key] = self._in_a_slot(json.dumps({"name": batch.name, "index": index}).encode(), copy)
            return
        words = [str(self._folder.path.absolute()), "--name", batch.name, "--index", str(index)]
        log = self._folder.jobs / LOG
        command = [*python(copy), "-m", "study.job", *words]
        self._running[key] = spawn(command, job_environment(os.environ, copy), log, log), None

    def _in_a_slot(self, text: bytes, copy: Path | None) -> tuple[Started, _Slot]:
        """Give a key to a slot that is idle, or to a new one."""
        code = code_version.stamp()  # a warm process has the code as it was when it started
        while self._idle:
            slot = self._idle.pop()
            served = slot.process.send_next(text) if (slot.copy, slot.code) == (copy, code) else None
            if served is not None:
                return served, slot
            _end([slot])
        log = self._folder.jobs / LOG
        command = [*python(copy), "-m", "study.job.slot", str(self._folder.path.absolute())]
        slot = _Slot(WarmProcess(command, job_environment(os.environ, copy), log, log), copy, code)
        return slot.process.send_first(text), slot

    def reap(self) -> dict[str, int]:
        """Return the keys that have ended since the last call, with the exit code of each."""
        ended = {key: code for key, (p, _) in self._running.items() if (code := p.poll()) is not None}
        for key in ended:
            _, slot = self._running.pop(key)
            if slot is not None:
                self._idle.append(slot)
        return ended

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to every running process; SIGTERM lets it write a checkpoint and end."""
        for process, _ in self._running.values():
            if process.poll() is None:
                process.send_signal(number)

    def close(self) -> None:
        """End the processes that advance nothing."""
        _end(self._idle)
        self._idle.clear()


def _end(slots: Sequence[_Slot]) -> None:
    for slot in slots:
        slot.process.close()
    for slot in slots:
        slot.process.wait()


def write_batch(
    folder: StudyFolder,
    keys: Sequence[str],
    code: str | None,
    resources: Mapping[str, Any] | None = None,
    before: Sequence[ledger.Event] = (),
) -> str:
    """Write down that these keys are to be run on this machine, by whoever holds the controller's lock; return a name.

    `resources` may have `tasks`, the processes of each run (without it a run gets what its mesh needs), and `code`.
    before: events that go with it, all of them or none.
    """
    name = f"local.{uuid.uuid4().hex[:10]}"
    about = dict(resources or {})
    asked = {"executor": LOCAL, "keys": list(keys), "resources": about, "code": code}
    intent, sent = {"event": "intent", "name": name, **asked}, {"event": "submitted", "name": name, "job_id": LOCAL}
    ledger.extend(folder, [*before, intent, sent])
    return name
