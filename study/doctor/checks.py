"""What can be found out without a job: from the scheduler, file systems, the tracking server. Each answer a Check."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import study
from study.executors.base import Answer, Limit, Runner
from study.executors.slurm import limits, nodes, query
from study.executors.slurm import site as room
from study.storage import mounts
from study.storage.files import RunLock
from study.tracking.server import why_no_answer

NETWORK = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cephfs", "fuse.juicefs", "wekafs", "9p", "smb3", "cifs")


class CheckState(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    """It works, with a limit."""
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: CheckState
    said: str
    found: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Slurm:
    """A cluster by its own commands; None or empty where they do not say. `sacct`: whether it answers."""

    name: str = ""
    version: str = ""
    site: nodes.Site = field(default_factory=nodes.Site)
    gpus: Mapping[str, int] = field(default_factory=dict)
    caps: tuple[Limit, ...] = ()
    max_array: int | None = None
    account: str | None = None
    requeue: bool | None = None
    sacct: bool = False

    @property
    def partition(self) -> str | None:
        """The default partition, else the first one."""
        defaults = [n.partition for n in self.site.nodes if n.default]
        return next(iter(defaults or [n.partition for n in self.site.nodes]), None)


def ask(runner: Runner | None, memory: Path) -> tuple[Slurm | None, list[Check]]:
    """Ask the scheduler everything that a submission rests on; None where there is no SLURM here."""
    runner = runner or query.run
    version = runner(["sbatch", "--version"])
    if version.code != 0:
        why = (
            "there is no sbatch on PATH"
            if version.code is None
            else (version.error.splitlines() or ["sbatch gives no answer"])[-1]
        )
        return None, [Check("slurm", CheckState.SKIPPED, f"{why}: runs are processes of this machine (cluster=local)")]
    config = runner(["scontrol", "show", "config"])
    site = nodes.read_nodes(runner)
    looked = room.read_limits(runner, memory, time.time())
    history = runner(["sacct", "-n", "-X", "-P", "--format=JobID", "--starttime=now-1hour"])
    said = dict(re.findall(r"^(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", config.out, re.MULTILINE))
    user = getpass.getuser()
    mine = [a for a in looked.accounts.associations if a.user.partition("(")[0] == user]
    default = next((a for a in mine if a.default), mine[0] if len(mine) == 1 else None)
    found = Slurm(
        name=said.get("ClusterName", ""),
        version=version.out.strip().removeprefix("slurm-wlm ").removeprefix("slurm "),
        site=site,
        gpus=gpu_types(runner(["sinfo", "--noheader", "--exact", "--all", "--format=%D|%G"]).out),
        caps=tuple(limits.caps(looked, limits.Asked(user))),
        max_array=looked.controller.max_array,
        account=default.account if default else None,
        requeue={"1": True, "0": False}.get(said.get("JobRequeue", "")),
        sacct=history.code == 0,
    )
    checks = [
        Check(
            "slurm",
            CheckState.OK if config.code == 0 else CheckState.FAILED,
            f"{found.name or 'a cluster'}, SLURM {found.version}",
        ),
        _nodes(site),
        *_limits(found, looked.problem),
        _sacct(history),
        _requeue(found.requeue),
    ]
    return found, checks


def gpu_types(text: str) -> dict[str, int]:
    """Return how many GPUs of each type the nodes have, from sinfo's `%D|%G`; a GPU without a type counts as `gpu`."""
    counts: dict[str, int] = {}
    for line in text.splitlines():
        count, _, gres = line.strip().partition("|")
        for part in re.sub(r"\([^)]*\)", "", gres).split(","):
            match = re.fullmatch(r"gpu(?::([\w.-]*[A-Za-z][\w.-]*))?(?::(\d+))?", part.strip())
            if match and count.strip().isdigit():
                name = match[1] or "gpu"
                counts[name] = counts.get(name, 0) + int(count) * int(match[2] or 1)
    return counts


def machine() -> Check:
    """Return what this machine has: cores, memory [GB], GPUs, Python."""
    import psutil

    cores, memory = len(os.sched_getaffinity(0)), psutil.virtual_memory().total / 1e9
    gpus = _local_gpus()
    found = {"cores": cores, "memory_gb": round(memory, 1), "gpus": gpus, "python": sys.version.split()[0]}
    said = (
        f"{cores} cores, {memory:.0f} GB, {len(gpus)} GPUs{f' ({gpus[0]})' if gpus else ''}, Python {found['python']}"
    )
    return Check("this machine", CheckState.OK, said, found)


def file_system(folder: Path) -> Check:
    """Try out the folder of all studies: type, free space, atomic rename, an fsync's time, a lock between processes."""
    folder.mkdir(parents=True, exist_ok=True)
    kind, free = mounts.file_system(folder), shutil.disk_usage(folder).free
    trial = folder / f".doctor.{os.getpid()}"
    try:
        trial.mkdir()
        began = time.perf_counter()
        for number in range(10):
            staged = trial / "staged"
            with staged.open("w") as file:
                file.write(str(number))
                file.flush()
                os.fsync(file.fileno())
            staged.replace(trial / "file")
        each = (time.perf_counter() - began) / 10
        held = lock_is_seen(trial / "lock")
    except OSError as error:
        return Check("runs folder", CheckState.FAILED, f"{folder}: {error}", {"folder": str(folder), "type": kind})
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    found = {"folder": str(folder.absolute()), "type": kind, "free_bytes": free, "write_seconds": each, "locks": held}
    said = f"{kind}, {free / 1e9:,.0f} GB free, {1000 * each:.1f} ms a durable write"
    if not held:
        return Check(
            "runs folder", CheckState.FAILED, f"{said}; a lock held by one process is not seen by another", found
        )
    if free < 10e9:
        return Check("runs folder", CheckState.WARNING, f"{said}: little room for checkpoints", found)
    return Check("runs folder", CheckState.OK, f"{said}; locks hold between processes", found)


def lock_is_seen(path: Path) -> bool:
    """Return whether another process of this machine finds the lock of a run held."""
    lock = RunLock(path)
    if not lock.acquire():
        return False
    try:
        program = "import sys; from pathlib import Path; from study.storage.files import RunLock; "
        program += "sys.exit(RunLock(Path(sys.argv[1])).acquire())"
        root = str(Path(study.__file__).resolve().parents[1])
        done = subprocess.run(
            [sys.executable, "-c", program, str(path)], check=False, cwd=root, timeout=60, capture_output=True
        )
        return done.returncode == 0
    finally:
        lock.close()


def tracking(uri: str) -> Check:
    """Return whether the tracking store can be reached: a server answers, a database file can be written."""
    from study.config.tracking_uri import is_server, resolve, shown, sqlite_file

    try:
        address = resolve(uri, Path.cwd())
    except ValueError as error:
        return Check("tracking", CheckState.FAILED, str(error))
    found = {"store": shown(address)}
    if is_server(address):
        said = why_no_answer(address)
        return Check(
            "tracking", CheckState.FAILED if said else CheckState.OK, said or f"{shown(address)} answers", found
        )
    database = sqlite_file(address)
    if database is None:
        return Check(
            "tracking", CheckState.SKIPPED, f"{shown(address)} is a database server: the first sync tries it", found
        )
    kind = mounts.file_system(database.parent)
    if not os.access(database.parent, os.W_OK):
        return Check("tracking", CheckState.FAILED, f"{database.parent} cannot be written to", found)
    if kind in NETWORK:
        said = f"{database} lies on {kind}, where SQLite's locks may not hold: take a local disk or an MLflow server"
        return Check("tracking", CheckState.WARNING, said, found)
    return Check("tracking", CheckState.OK, f"{shown(address)} can be written to (only this machine writes it)", found)


def _nodes(site: nodes.Site) -> Check:
    if not site.nodes:
        return Check("partitions", CheckState.FAILED, site.problem or "sinfo names no nodes")
    names = list(dict.fromkeys(n.partition for n in site.nodes))
    said = "; ".join(_partition(name, [n for n in site.nodes if n.partition == name]) for name in names)
    found = {"partitions": [vars(n) | {"features": sorted(n.features)} for n in site.nodes]}
    return Check(
        "partitions",
        CheckState.OK if site.complete else CheckState.WARNING,
        said + (f" ({site.problem})" * bool(site.problem)),
        found,
    )


def _partition(name: str, those: list[nodes.Nodes]) -> str:
    count = sum(n.count for n in those)
    each = "/".join(
        dict.fromkeys(f"{n.cores} cores {n.mem_gb:.0f} GB" + f" {n.gpus} GPUs" * bool(n.gpus) for n in those)
    )
    limit = those[0].minutes
    time_limit = "no time limit" if limit is None else f"{limit} min" if limit < 120 else f"{limit / 60:g} h"
    return f"{name}{'*' if those[0].default else ''}: {count} nodes of {each}, {time_limit}"


def _limits(found: Slurm, problem: str) -> Iterator[Check]:
    about = {
        "max_array": found.max_array,
        "account": found.account,
        "caps": [{"what": c.what, "most": c.most, "used": c.used} for c in found.caps],
    }
    parts = _arrays(found.max_array)
    parts += [f"{cap.what}: {cap.most:,} ({cap.used:,} used)" for cap in found.caps]
    parts += [f"account {found.account}"] if found.account else []
    if problem:
        yield Check("limits", CheckState.WARNING, problem, about)
    else:
        yield Check("limits", CheckState.OK, "; ".join(parts) or "none are said", about)
    if found.gpus:
        said = ", ".join(f"{count} x {name}" for name, count in found.gpus.items())
        yield Check("gpus", CheckState.OK, said, {"types": dict(found.gpus)})
    elif found.site.nodes:
        yield Check("gpus", CheckState.OK, "no node has any", {"types": {}})


def _arrays(most: int | None) -> list[str]:
    if most is None:
        return []
    return [f"arrays of up to {most - 1:,}"] if most > 1 else ["no arrays: jobs are submitted one by one"]


def _sacct(history: Answer) -> Check:
    if history.code == 0:
        return Check("sacct", CheckState.OK, "answers: ends of jobs and cost are read from it", {"answers": True})
    said = (history.error or "no answer").splitlines()[0]
    return Check(
        "sacct", CheckState.WARNING, f"{said}: ends and cost are read from the run folders", {"answers": False}
    )


def _requeue(allowed: bool | None) -> Check:
    if allowed is None:
        return Check(
            "requeue", CheckState.WARNING, "SLURM does not say whether jobs may requeue themselves", {"allowed": None}
        )
    said = "jobs may requeue themselves" if allowed else "is off here: what was preempted is submitted anew"
    return Check("requeue", CheckState.OK if allowed else CheckState.WARNING, said, {"allowed": allowed})


def _local_gpus() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    answer = query.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return [line.strip() for line in answer.out.splitlines() if line.strip()] if answer.code == 0 else []
