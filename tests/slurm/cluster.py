"""A throwaway SLURM cluster on this host: slurmctld, slurmdbd on MariaDB, munged and several slurmd as plain processes.

Everything lies in one temporary folder and on ports of its own, so clusters can run side by side; nothing outlives the
process that started it, also when that process is killed outright.
"""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import filelock
import psutil

from tests.slurm.install import search_path
from tests.slurm.settings import Settings, free_ports, parent_folder
from tests.slurm.supervisor import OWNERS, READY, REQUEST, read_request, sweep

REPOSITORY = Path(__file__).resolve().parents[2]
TRIES = 3
LIMIT_SECONDS = 900.0
"""What takes seconds is waited for so long: a machine that is busy elsewhere or syncs slowly is not wrong."""


class ClusterError(RuntimeError):
    """The throwaway cluster did not start, or a command on it failed."""


@dataclass(frozen=True)
class JobState:
    """One job (or array task) as sacct or squeue names it: "12_3", "RUNNING", "0:0"."""

    job_id: str
    state: str
    exit_code: str
    name: str
    nodes: str

    @property
    def end(self) -> bool:
        """Whether the job has ended, in whatever way."""
        return self.state.split(" ")[0] not in ("PENDING", "RUNNING", "REQUEUED", "COMPLETING", "SUSPENDED")


class ThrowawayCluster:
    """A running cluster as a context manager: `with ThrowawayCluster() as cluster: cluster.call("sinfo")`."""

    def __init__(
        self, nodes: int = 4, cpus_per_node: int = 2, extra: tuple[str, ...] = (), gpus_per_node: int = 0
    ) -> None:
        self.node_count = nodes
        self.cpus_per_node = cpus_per_node
        self.extra = extra
        self.gpus_per_node = gpus_per_node
        self.start_seconds = 0.0
        self._settings: Settings | None = None
        self._supervisor: subprocess.Popen[str] | None = None
        self._hold = -1

    @property
    def settings(self) -> Settings:
        """Settings of the running cluster."""
        assert self._settings is not None, "the cluster is not running"
        return self._settings

    @property
    def folder(self) -> Path:
        """Folder that holds all of the cluster, removed with it."""
        return self.settings.folder

    @property
    def supervisor_pid(self) -> int:
        """Process id of the daemons' parent."""
        assert self._supervisor is not None, "the cluster is not running"
        return self._supervisor.pid

    @property
    def environment(self) -> dict[str, str]:
        """The one variable that points every SLURM command at this cluster."""
        return {"SLURM_CONF": str(self.settings.slurm_conf)}

    def full_environment(self, **more: str) -> dict[str, str]:
        """Return this process's environment without variables of an outer SLURM job, pointed at this cluster."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        return kept | {"PATH": search_path()} | self.environment | more

    def start(self) -> Self:
        """Start everything; ClusterError with the ends of all logs if that fails three times."""
        problem = ""
        for _ in range(TRIES):
            problem = self._try_start()
            if not problem:
                return self
        raise ClusterError(f"the throwaway cluster did not start in {TRIES} tries: {problem}")

    def _try_start(self) -> str:
        ports = free_ports(3 + self.node_count)
        self._settings = Settings(
            folder=Path(tempfile.mkdtemp(prefix="slurm-", dir=parent_folder())),
            host=socket.gethostname().split(".")[0],
            user=getpass.getuser(),
            controller_port=ports[0],
            accounting_port=ports[1],
            database_port=ports[2],
            node_ports=tuple(ports[3:]),
            password=secrets.token_hex(12),
            cpus_per_node=self.cpus_per_node,
            extra=self.extra,
            gpus_per_node=self.gpus_per_node,
        )
        (self.folder / REQUEST).write_text(json.dumps(asdict(self._settings), default=str), encoding="utf-8")
        os.mkfifo(self.folder / OWNERS)
        # The reader first: a FIFO without one cannot be opened for writing without blocking.
        reader = os.open(self.folder / OWNERS, os.O_RDONLY | os.O_NONBLOCK)
        self._hold = os.open(self.folder / OWNERS, os.O_WRONLY | os.O_NONBLOCK)
        began = time.monotonic()
        self._supervisor = subprocess.Popen(
            [sys.executable, "-m", "tests.slurm.supervisor", str(self.folder)],
            stdin=reader,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env=os.environ | {"PATH": search_path()},
            start_new_session=True,
        )
        os.close(reader)
        assert self._supervisor.stdout is not None
        with self._supervisor.stdout as answers:
            answer = answers.readline()
        self.start_seconds = time.monotonic() - began
        problem = str(json.loads(answer).get("error", "")) if answer else "its supervisor ended"
        if problem:
            self.stop()
        return problem

    @classmethod
    def shared(cls, name: Path) -> Self:
        """Return the cluster that several processes share under a file's name: the first one starts it.

        It ends with the last of them, whichever that is and however it ends.
        """
        with filelock.FileLock(name.with_suffix(".lock")):
            one = cls()
            if not (name.exists() and one._join(Path(name.read_text(encoding="utf-8")))):
                one.start()
                name.write_text(str(one.folder), encoding="utf-8")
            return one

    def _join(self, folder: Path) -> bool:
        """Become one of the owners of a running cluster; False if there is none."""
        try:
            self._hold = os.open(folder / OWNERS, os.O_WRONLY | os.O_NONBLOCK)
            self._settings = read_request(folder)
            self.start_seconds = float((folder / READY).read_text(encoding="utf-8"))
        except OSError:
            self.stop()
            return False
        return True

    def stop(self) -> None:
        """Let go of the cluster; its last owner stops every daemon and job, and removes the folder."""
        if self._hold >= 0:
            os.close(self._hold)
        if self._supervisor is not None:
            try:
                self._supervisor.wait(timeout=20 if self._alone() else 0.1)
            except subprocess.TimeoutExpired:
                if self._alone():
                    self._supervisor.kill()
                    self._supervisor.wait()
            if self._supervisor.returncode is not None and self.folder.exists():
                sweep(self.folder)
        self._supervisor, self._settings, self._hold = None, None, -1

    def _alone(self) -> bool:
        """Return whether no other process holds the cluster: then its supervisor's standard input is at its end."""
        owners = self.folder / OWNERS
        for process in psutil.process_iter():
            try:
                files = [link.readlink() for link in Path(f"/proc/{process.pid}/fd").iterdir()]
                if process.pid != self.supervisor_pid and owners in files:
                    return False
            except OSError:
                continue
        return True

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def call(self, *command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        """Run a command against the cluster and return its standard output; ClusterError if it fails."""
        done = subprocess.run(
            command,
            check=False,
            cwd=cwd,
            env=env or self.full_environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
        if done.returncode != 0:
            raise ClusterError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def jobs(self, *selection: str) -> list[JobState]:
        """Return what accounting knows of jobs and array tasks (no steps), oldest first."""
        columns = "JobID,State,ExitCode,JobName%80,NodeList"
        wanted = selection or ("--starttime=now-1day",)
        text = self.call("sacct", "--noheader", "--parsable2", "--allocations", *wanted, f"--format={columns}")
        return [JobState(*line.split("|")) for line in text.splitlines() if line.count("|") == 4]

    def queue(self, *selection: str) -> list[JobState]:
        """Return the jobs that the controller holds, array tasks one by one; by default those that have not ended."""
        text = self.call("squeue", "--noheader", "--array", *selection, "--format=%i|%T||%j|%N")
        return [JobState(*line.split("|")) for line in text.splitlines()]


def wait_for(what: str, check: Callable[[], bool], seconds: float = LIMIT_SECONDS, every: float = 0.1) -> None:
    """Wait until `check` holds; AssertionError naming `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(every)
