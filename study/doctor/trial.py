"""The test job: two ranks that look around where runs will run. On SLURM as a job, else on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from study.config.tracking_uri import is_server
from study.doctor.checks import Check, CheckState
from study.doctor.probe import LETTER, LOCK, SURROUNDINGS
from study.executors.base import JobRequest, SubmitError
from study.executors.job_spec import JobSpec
from study.executors.jobs import JobState
from study.executors.slurm import query
from study.process.children import job_environment
from study.storage.files import RunLock, last_lines, write_json
from study.storage.layout import StudyFolder
from study.storage.shapes import read_record
from study.text import duration

MODULE = "study.doctor.probe"
POLL_SECONDS = 1.0
MAX_POLL_SECONDS = 10.0
Report = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """Result of a test job: what each rank found, how long it waited and ran [s], why it failed."""

    ranks: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    job_id: str = ""
    waited: float = 0.0
    ran: float = 0.0
    problem: str = ""


def on_slurm(folder: Path, shape: JobSpec, tracking: str, seconds: float, report: Report) -> Trial:
    """Submit the test job and wait for it, at most `seconds`; it is cancelled where it takes longer, or at Ctrl-C."""
    from study.executors.slurm import sbatch

    study = StudyFolder(folder)
    lock = _prepare(folder, tracking)
    request = JobRequest(study, shape, f"doctor.{uuid.uuid4().hex[:10]}", None, module=MODULE)
    try:
        job_id = sbatch.submit(request, sbatch.render(request))
    except SubmitError as error:
        lock.close()
        return Trial(problem=str(error))
    over = False
    try:
        trial, over = _wait(folder, job_id, shape.tasks, seconds, report)
        return trial
    finally:
        lock.close()
        if not over:
            query.run(["scancel", job_id])


def here(folder: Path, tracking: str, world: int = 2) -> Trial:
    """Run the same as processes of this machine."""
    lock = _prepare(folder, tracking)
    began = time.monotonic()
    command = [sys.executable, "-m", MODULE, str(folder), "--name", "doctor"]
    ranks = [{"DOCTOR_RANK": str(rank), "DOCTOR_WORLD": str(world)} for rank in range(world)]
    with (folder / "local.log").open("wb") as log:
        started = [
            subprocess.Popen(command, env=job_environment(os.environ) | rank, stdout=log, stderr=log) for rank in ranks
        ]
        for process in started:
            process.wait()
    lock.close()
    found = _read(folder, world)
    problem = "" if len(found) == world else "; ".join(last_lines(folder / "local.log")[-2:])
    return Trial(found, waited=0.0, ran=time.monotonic() - began, problem=problem)


def checks_of(trial: Trial, login: str) -> list[Check]:
    """Return what a test job's findings mean. `login`: the host that it was started from. Pure."""
    about = {"job_id": trial.job_id, "waited_seconds": trial.waited, "ran_seconds": trial.ran}
    if trial.problem or not trial.ranks:
        return [Check("test job", CheckState.FAILED, trial.problem or "it wrote nothing", about)]
    hosts = sorted({str(rank["host"]) for rank in trial.ranks})
    where = f"on {','.join(sorted({str(rank['node']) for rank in trial.ranks}))}"
    waited = f"waited {duration(trial.waited)}, " if trial.job_id else ""
    checks = [Check("test job", CheckState.OK, f"{where}: {waited}ran {duration(trial.ran)}", about | {"hosts": hosts})]
    checks += [_shared(trial, login, hosts)] if trial.job_id else []
    checks.append(_torch(trial))
    tracking = [rank["tracking"] for rank in trial.ranks if rank.get("tracking") is not None]
    if tracking:
        bad = [said for said in tracking if said]
        said = f"from a node {bad[0]}: runs do not need it, the login node sends" if bad else "reachable from nodes too"
        checks.append(Check("tracking, nodes", CheckState.WARNING if bad else CheckState.OK, said))
    missing = [n for n, key in (("scontrol", "scontrol"), ("py-spy", "py_spy")) if not all(r[key] for r in trial.ranks)]
    what = {"scontrol": "jobs are submitted anew instead of requeued", "py-spy": "hangs show no Python stacks"}
    if missing and trial.job_id:
        said = "; ".join(f"no {name} there: {what[name]}" for name in missing)
        checks.append(Check("tools, nodes", CheckState.WARNING, said, {"missing": missing}))
    return checks


def _shared(trial: Trial, login: str, hosts: Sequence[str]) -> Check:
    kinds = sorted({str(rank["type"]) for rank in trial.ranks})
    found = {
        "types": kinds,
        "letter": [r["sees_letter"] for r in trial.ranks],
        "lock": [r["lock_held"] for r in trial.ranks],
    }
    name = "shared files"
    if not all(rank["sees_letter"] for rank in trial.ranks):
        return Check(
            name,
            CheckState.FAILED,
            "a node does not see what the login node wrote: give --runs on shared storage",
            found,
        )
    if not all(rank["lock_held"] for rank in trial.ranks):
        said = f"locks do not hold between nodes ({', '.join(kinds)}): two jobs could advance one run"
        return Check(name, CheckState.FAILED, said, found)
    same = " (the nodes are this host)" if list(hosts) == [login] else ""
    return Check(name, CheckState.OK, f"seen from the nodes, locks hold between them{same}", found)


def _torch(trial: Trial) -> Check:
    failed = [rank for rank in trial.ranks if rank["torch_code"]]
    if failed:
        said = str(failed[0]["torch_error"]).strip() or f"exit code {failed[0]['torch_code']}"
        return Check("torch", CheckState.FAILED, said)
    found = next((rank["torch"] for rank in trial.ranks if rank.get("torch")), None) or {}
    speed = f", all-reduce {found['gb_per_s']:.2g} GB/s" if found.get("gb_per_s") else ""
    talk = f"; {found.get('ranks')} ranks over {found['backend']}{speed}" if found.get("backend") else ""
    return Check("torch", CheckState.OK, f"{found.get('torch')} on {found.get('device')}{talk}", found)


def _prepare(folder: Path, tracking: str) -> RunLock:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / LETTER, {"from": os.uname().nodename, "tracking": tracking if is_server(tracking) else ""})
    lock = RunLock(folder / LOCK)
    lock.acquire()
    return lock


def _wait(folder: Path, job_id: str, world: int, seconds: float, report: Report) -> tuple[Trial, bool]:
    """Return what the job found and whether it has ended; says how it stands while it goes on."""
    began, started, told, pause = time.monotonic(), None, "", POLL_SECONDS
    while True:
        found = _read(folder, world)
        now = time.monotonic()
        if len(found) == world:
            first = started or now
            return Trial(found, job_id, first - began, now - first), True
        job = next(iter(query.query_jobs([job_id]).jobs.values()), None)
        state = job.state if job is not None else JobState.UNKNOWN
        if state == JobState.RUNNING and started is None:
            started, pause = now, POLL_SECONDS
        standing = f"test job {job_id}: {state}" + (f" ({job.reason})" if job is not None and job.reason else "")
        if standing != told:
            told = standing
            report(f"{standing}, {duration(now - began)}")
        if job is not None and job.over:
            log = last_lines(folder / "jobs" / f"{job_id}_0_log.out")[-3:]
            found = _read(folder, world)
            problem = "" if len(found) == world else f"{standing}: {'; '.join(log) or 'it printed nothing'}"
            return Trial(found, job_id, (started or now) - began, now - (started or now), problem), True
        if now - began > seconds:
            return Trial(found, job_id, problem=f"{standing} after {duration(seconds)}: cancelled (--seconds)"), False
        time.sleep(pause)
        pause = min(MAX_POLL_SECONDS, pause * 1.2)


def _read(folder: Path, world: int) -> list[dict[str, Any]]:
    found = (read_record(folder / f"rank-{rank}.json", SURROUNDINGS) for rank in range(world))
    return [one for one in found if one is not None]
