"""The parent of all daemons of one throwaway cluster: starts them, waits for its owner to go, removes every trace.

Run by tests.slurm.cluster with the cluster's folder, in which `request.json` says what to start and `owners` is a FIFO:
its reading end is standard input, every owner holds a writing end open. It answers one JSON line on standard output,
{"ready": seconds} or {"error": text}, and lives until the last owner is gone, which the kernel also notices of one that
was killed outright. Being a child subreaper it inherits every daemonised job process, so none can escape it.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.slurm.install import SYSTEM_PATH
from tests.slurm.settings import (
    CGROUP_CONF,
    Settings,
    database_options,
    database_users,
    gres_conf,
    slurm_conf,
    slurmdbd_conf,
)

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
START_SECONDS = 600.0
MARK = "THROWAWAY_SLURM"
REQUEST, OWNERS, READY = "request.json", "owners", "ready"


class StartError(Exception):
    """A daemon did not come up."""


def _die_with_parent() -> None:
    """In a daemon, before exec: be killed with the supervisor, should that itself be killed outright."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class Daemons:
    """The daemons of one cluster, in the order of their start."""

    settings: Settings
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Environment of every daemon: a clean one, so that nothing of the owner leaks into jobs."""
        conf = {"SLURM_CONF": str(self.settings.slurm_conf), MARK: str(self.settings.folder)}
        return {"PATH": SYSTEM_PATH, "HOME": str(self.settings.folder), "LANG": "C.UTF-8", **conf}

    def spawn(self, name: str, *command: str) -> None:
        """Start a daemon in the foreground of its own session, its output going to log/<name>.out."""
        with (self.settings.logs / f"{name}.out").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                cwd=self.settings.folder,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 (the supervisor has one thread)
            )

    def call(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command to its end in the daemons' environment."""
        return subprocess.run(
            command,
            check=False,
            input=stdin,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
        )

    def wait(self, what: str, ready: Callable[[], bool]) -> None:
        """Wait until `ready`; StartError with the ends of all logs when a daemon dies or time runs out."""
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            dead = [name for name, process in self.processes.items() if process.poll() is not None]
            if dead or time.monotonic() > deadline:
                why = f"{', '.join(dead)} ended" if dead else f"not there after {START_SECONDS:.0f} s"
                raise StartError(f"{what}: {why}\n{self.tails()}")
            time.sleep(0.02)

    def tails(self) -> str:
        """Return the last lines of every log."""
        texts = []
        for path in sorted(self.settings.logs.glob("*")):
            if path.suffix == ".out" and path.with_suffix(".log").exists():
                continue  # a daemon with a log file says the same there
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]
            texts.append("\n".join([f"--- {path.name}", *lines]))
        return "\n".join(texts)


def listens(port: int) -> Callable[[], bool]:
    """Return a check that a process of this host listens on the TCP port, without connecting to it."""
    wanted = f":{port:04X} "

    def check() -> bool:
        tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
        rows = [row for table in tables if table.exists() for row in table.read_text().splitlines()[1:]]
        return any(wanted in row.split(" st ")[0][:30] and row.split()[3] == "0A" for row in rows)

    return check


def write_configuration(settings: Settings) -> None:
    """Write all configuration files and folders, and a fresh munge key."""
    for name in ("munge", "state", "log", *(f"spool/{node}" for node in settings.nodes)):
        (settings.folder / name).mkdir(parents=True)
    settings.slurm_conf.write_text(slurm_conf(settings), encoding="utf-8")
    (settings.folder / "cgroup.conf").write_text(CGROUP_CONF, encoding="utf-8")
    (settings.folder / "gres.conf").write_text(gres_conf(settings), encoding="utf-8")
    accounting = settings.folder / "slurmdbd.conf"
    accounting.touch(mode=0o600)
    accounting.write_text(slurmdbd_conf(settings), encoding="utf-8")
    users = settings.folder / "users.sql"
    users.touch(mode=0o600)
    users.write_text(database_users(settings), encoding="utf-8")
    key = settings.folder / "munge" / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))


def _bootstrap_database(daemons: Daemons) -> None:
    """Make MariaDB's system tables (about half a second)."""
    settings = daemons.settings
    # mariadb-install-db --user would change the owner of a plugin folder under /usr: the wrapper passes it on instead.
    wrapper = settings.folder / "mariadbd"
    server = shutil.which("mariadbd", path=SYSTEM_PATH)
    options = " ".join(database_options(settings))
    wrapper.write_text(f'#!/bin/sh\nexec {server} "$@" {options}\n', encoding="utf-8")
    wrapper.chmod(0o755)
    done = daemons.call(
        "env",
        f"MYSQLD_BOOTSTRAP={wrapper}",
        "mariadb-install-db",
        "--no-defaults",
        f"--datadir={settings.database}",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        "--skip-name-resolve",
    )
    if done.returncode != 0:
        raise StartError(f"mariadb-install-db failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def start(daemons: Daemons) -> None:
    """Start every daemon and wait for idle nodes."""
    settings = daemons.settings
    write_configuration(settings)
    munge = settings.munge_socket.parent
    files = [f"--{name}-file={munge}/{name}" for name in ("key", "pid", "seed", "log")]
    daemons.spawn("munged", "munged", "--foreground", "--force", f"--socket={settings.munge_socket}", *files)
    _bootstrap_database(daemons)
    daemons.spawn(
        "mariadbd",
        str(settings.folder / "mariadbd"),
        "--no-defaults",
        f"--datadir={settings.database}",
        f"--port={settings.database_port}",
        "--bind-address=127.0.0.1",
        f"--socket={settings.folder}/database.sock",
        f"--pid-file={settings.folder}/database.pid",
        f"--init-file={settings.folder}/users.sql",
    )
    daemons.wait("munged", settings.munge_socket.exists)
    daemons.wait("mariadbd", listens(settings.database_port))
    daemons.spawn("slurmdbd", "slurmdbd", "-D")
    daemons.wait("slurmdbd", listens(settings.accounting_port))
    added = daemons.call("sacctmgr", "--immediate", "add", "cluster", "throwaway")
    if added.returncode != 0:
        raise StartError(f"sacctmgr add cluster failed:\n{added.stdout}{added.stderr}\n{daemons.tails()}")
    daemons.spawn("slurmctld", "slurmctld", "-D", "-c")
    daemons.wait("slurmctld", listens(settings.controller_port))
    for node in settings.nodes:
        daemons.spawn(f"slurmd-{node}", "slurmd", "-D", "-N", node)

    def idle() -> bool:
        seen = daemons.call("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %t")
        return sum(line.endswith(" idle") for line in seen.stdout.splitlines()) == len(settings.nodes)

    daemons.wait("nodes", idle)


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=5)


def stop(daemons: Daemons) -> None:
    """Stop the scheduler, then the nodes with their jobs, then accounting; reap everything; remove the folder."""
    named = {name: process.pid for name, process in daemons.processes.items()}
    for prefix in ("slurmctld", "slurmd-"):
        _kill(
            [psutil.Process(pid) for name, pid in named.items() if name.startswith(prefix) and psutil.pid_exists(pid)]
        )
    services = {pid for name, pid in named.items() if name in ("slurmdbd", "mariadbd", "munged")}
    # A killed process's children come to the supervisor, so looking again finds what a first look missed.
    for keep in (services, set()):
        for _ in range(100):
            children = [child for child in psutil.Process().children(recursive=True) if child.pid not in keep]
            if not children:
                break
            _kill(children)
            _reap(keep)
    shutil.rmtree(daemons.settings.folder, ignore_errors=True)


def _reap(keep: set[int]) -> None:
    """Collect the exit states of ended children."""
    for child in psutil.Process().children():
        if child.pid not in keep:
            try:
                os.waitpid(child.pid, os.WNOHANG)
            except ChildProcessError:
                continue


def sweep(folder: Path) -> None:
    """Kill what a killed supervisor left behind and remove its folder; finds processes by their environment."""
    mine, conf = f"{MARK}={folder}".encode(), f"SLURM_CONF={folder}/slurm.conf".encode()
    left = []
    for process in psutil.process_iter():
        try:
            variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        job = conf in variables and any(one.startswith(b"SLURM_JOB_ID=") for one in variables)
        if mine in variables or job:
            left.append(process)
    _kill(left)
    shutil.rmtree(folder, ignore_errors=True)


def _serve(daemons: Daemons) -> None:
    """Stay until no owner is left or a signal comes, collecting the exit states of inherited processes."""
    while True:
        readable, _, _ = select.select([sys.stdin.fileno()], [], [], 1.0)
        if readable and not os.read(sys.stdin.fileno(), 4096):
            return
        _reap({process.pid for process in daemons.processes.values()})


def _on_signal(number: int, _frame: Any) -> None:
    raise SystemExit(128 + number)


def read_request(folder: Path) -> Settings:
    """Return the settings of the cluster in this folder."""
    given: Mapping[str, Any] = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    lists = {name: tuple(given[name]) for name in ("node_ports", "extra")}
    return Settings(**{**given, "folder": Path(given["folder"]), **lists})


def main(folder: Path) -> int:
    """Serve one cluster for as long as the owner lives."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _on_signal)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    daemons = Daemons(read_request(folder))
    began = time.monotonic()
    try:
        try:
            start(daemons)
        except StartError as error:
            print(json.dumps({"error": str(error)}), flush=True)
            return 1
        seconds = round(time.monotonic() - began, 2)
        (folder / READY).write_text(str(seconds), encoding="utf-8")
        print(json.dumps({"ready": seconds}), flush=True)
        _serve(daemons)
        return 0
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        stop(daemons)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
