"""Asking SLURM: one squeue and one sacct for many jobs, read strictly. Absence is not evidence."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from study.executors.base import Answer, Runner
from study.executors.jobs import Job, JobState, Lookup, LookupAnswer, QueueView

QUEUED = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
RUNNING = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
STATES: Mapping[str, JobState] = {
    **dict.fromkeys(QUEUED, JobState.QUEUED),
    **dict.fromkeys(RUNNING, JobState.RUNNING),
    "COMPLETED": JobState.COMPLETED,
    "FAILED": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "TIMEOUT": JobState.TIME_LIMIT,
    "DEADLINE": JobState.TIME_LIMIT,
    "CANCELLED": JobState.CANCELLED,
    "PREEMPTED": JobState.PREEMPTED,
    "NODE_FAIL": JobState.NODE_FAILURE,
    "BOOT_FAIL": JobState.NODE_FAILURE,
}
"""What SLURM's words mean; every other word means unknown."""
HELD = ("REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
"""States that say themselves why a job waits."""
SQUEUE_FIELDS = "%F|%K|%T|%r@%S|%j"
BEGIN_TIME = "BeginTime, StartTime="
"""How the reason begins of a job that may not start for a while; its time follows."""
SOON_SECONDS = 600.0
"""Jobs that SLURM requeues wait for their BeginTime too: for two minutes, as sites are set up."""
SACCT_FIELDS = "JobID,State,ExitCode,NodeList,JobName"
SECONDS, SBATCH_SECONDS = 30.0, 60.0
SCRUBBED = (
    "SLURM_",
    "SLURMD_",
    "SBATCH_",
    "SRUN_",
    "SALLOC_",
    "SQUEUE_",
    "SACCT_",
    "SCANCEL_",
    "SINFO_",
    "PMI_",
    "PMIX_",
    "PMI2_",
)
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
OF_A_JOB = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "TMPDIR")
"""What SLURM and its prologs set for one job alone: another job submitted from there must not have it."""


def run(command: Sequence[str]) -> Answer:
    """Run a SLURM command with a clean environment, a plain locale and a time limit."""
    environment, seconds = clean_environment(os.environ), SECONDS
    if command[0] == "sbatch":
        seconds = SBATCH_SECONDS  # and no locale of ours: a job has the environment of its sbatch
    else:
        environment |= {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            list(command), capture_output=True, timeout=seconds, env=environment, check=False, stdin=subprocess.DEVNULL
        )
    except (FileNotFoundError, PermissionError):  # the second where a folder of PATH may not be read
        return Answer(None, error=f"{command[0]}: command not found")
    except subprocess.TimeoutExpired:
        return Answer(None, error=f"{command[0]}: no answer in {seconds:.0f} s")
    return Answer(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace").strip())


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what a job that we may be in, or a user's habits, would change of a command."""
    inside = "SLURM_JOB_ID" in environment
    found = {
        name: value
        for name, value in environment.items()
        if (name in KEPT or not name.startswith(SCRUBBED)) and not (inside and name in OF_A_JOB)
    }
    if inside and "PYTHONPATH" in found:  # each job puts the same folders before those of the job that submitted it
        found["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(found["PYTHONPATH"].split(os.pathsep)))
    return found


def query_jobs(ids: Sequence[str], runner: Runner = run) -> QueueView:
    """Return the scheduler's view of these jobs (array ids), from one squeue and one sacct.

    squeue outranks sacct, whose records may lag; a sacct that is switched off is not a problem. Of a job that ended
    sacct knows the exit code, of one that waits squeue knows why.
    """
    if not ids:
        return QueueView()
    queue = read_squeue(runner(squeue_command(ids)))
    history = read_sacct(runner(["sacct", "-n", "-P", "-X", f"--format={SACCT_FIELDS}", f"--jobs={','.join(ids)}"]))
    jobs = dict(_ended_jobs(history, queue))
    known = {i: job.state for i, job in jobs.items()}
    jobs |= {i: job for i, job in queue.jobs.items() if job.alive or known.get(i) != job.state}
    problems = (*queue.problems, *history.problems)
    return QueueView(jobs, queue.complete and history.complete, problems, queue_complete=queue.complete)


def find_by_name(name: str, since: float, runner: Runner = run) -> Lookup:
    """Look a submission up by its unique name, in squeue and then in sacct from an hour before `since` on."""
    queue = read_squeue(
        runner(["squeue", "--noheader", "--all", "--states=all", f"--name={name}", f"--format={SQUEUE_FIELDS}"])
    )
    found = _named(queue, name)
    if found:
        return Lookup(LookupAnswer.FOUND, found)
    start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since - 3600))
    history = read_sacct(
        runner(["sacct", "-n", "-P", "-X", f"--format={SACCT_FIELDS}", f"--name={name}", f"--starttime={start}"])
    )
    found = _named(history, name)
    if found:
        return Lookup(LookupAnswer.FOUND, found)
    if queue.complete and history.complete:
        return Lookup(LookupAnswer.ABSENT)
    return Lookup(LookupAnswer.UNANSWERED, why="; ".join((*queue.problems, *history.problems)))


def squeue_command(ids: Sequence[str]) -> list[str]:
    """Return the squeue that lists every task of these arrays on a line of its own."""
    return [
        "squeue",
        "--noheader",
        "--all",
        "--array",
        "--states=all",
        f"--format={SQUEUE_FIELDS}",
        f"--jobs={','.join(ids)}",
    ]


def read_squeue(answer: Answer) -> QueueView:
    """Return the view in squeue's answer. A job that it does not know any more is an answer, not an error."""
    if answer.code != 0:
        if "Invalid job id" in answer.error:
            return QueueView()
        return QueueView({}, False, (_problem("squeue", answer),))
    return _read("squeue", answer.out, 5, _squeue_line)


def read_sacct(answer: Answer) -> QueueView:
    """Return the view in sacct's answer; where accounting is switched off, an empty one."""
    if answer.code != 0:
        if "accounting storage is disabled" in answer.error:
            return QueueView()
        return QueueView({}, False, (_problem("sacct", answer),))
    return _read("sacct", answer.out, 5, _sacct_line)


def expand(job_id: str) -> list[str]:
    """Return the ids that a job id stands for: `7_[1-3,9%4]` is 7_1, 7_2, 7_3 and 7_9. ValueError if it is no id."""
    if re.fullmatch(r"\d+(_\d+)?", job_id):
        return [job_id]
    ranges = re.fullmatch(r"(\d+)_\[([\d,\-:]+)(?:%\d+)?\]", job_id)
    if not ranges:
        raise ValueError(f"{job_id!r} is not a job id")
    return [f"{ranges[1]}_{index}" for part in ranges[2].split(",") for index in _range(part)]


def compress(indices: Iterable[int]) -> str:
    """Return sorted indices as SLURM writes them: 1-3,9."""
    parts: list[list[int]] = []
    for index in sorted(set(indices)):
        if parts and index == parts[-1][1] + 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _range(part: str) -> Iterator[int]:
    match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
    if not match:
        raise ValueError(f"{part!r} is not a range of array indices")
    first, last = int(match[1]), int(match[2] or match[1])
    if last - first > 10_000_000:
        raise ValueError(f"{part!r} is not a range of array indices")
    yield from range(first, last + 1, int(match[3] or 1))


class _Line(Protocol):
    def __call__(self, fields: Sequence[str]) -> tuple[list[str], Job]: ...


def _read(source: str, text: str, width: int, line_of: _Line) -> QueueView:
    """Read lines of `width` fields; a line that is not understood makes the view incomplete, nothing more."""
    jobs: dict[str, Job] = {}
    bad = 0
    lines = text.split("\n")
    if lines[-1]:
        bad += 1  # cut off in the middle: the last line cannot be trusted
    for line in lines[:-1]:
        if not line.strip():
            continue
        fields = [part.strip() for part in line.split("|")]
        try:
            if len(fields) != width:
                raise ValueError(line)
            ids, job = line_of(fields)
        except ValueError:
            bad += 1
            continue
        for job_id in ids:
            jobs[job_id] = job
    problems = (f"{source}: {bad} line(s) could not be read",) if bad else ()
    return QueueView(jobs, not bad, problems)


def _squeue_line(fields: Sequence[str]) -> tuple[list[str], Job]:
    array, index, word, reason, name = fields
    timed = re.fullmatch(r"(.*)@(N/A|[\d:T-]*)", reason)
    reason, start = timed.groups() if timed else (reason, "")
    if not re.fullmatch(r"\d+", array):
        raise ValueError(array)
    said = "" if reason == "None" else reason
    if said == "BeginTime" and _is_far(start):
        said = f"{BEGIN_TIME}{start}"
    job = Job(_state(word), word, said or (word if word in HELD else ""), name)
    if index in ("N/A", ""):
        return [array], job
    return expand(f"{array}_{index}" if index.isdigit() else f"{array}_[{index.strip('[]')}]"), job


def _is_far(start: str) -> bool:
    """Return whether a time of squeue's is more than some minutes away."""
    try:
        return time.mktime(time.strptime(start, "%Y-%m-%dT%H:%M:%S")) > time.time() + SOON_SECONDS
    except (ValueError, OverflowError):  # N/A, or none
        return False


def preempts(answer: Answer) -> bool:
    """Return whether `scontrol show job --oneliner` says that the job's present run is being preempted."""
    times = {name: re.search(rf"\b{name}=(\d\S+)", answer.out) for name in ("PreemptTime", "StartTime")}
    preempted, started = times["PreemptTime"], times["StartTime"]
    if answer.code != 0 or preempted is None or started is None:
        return False
    return preempted[1] >= started[1]  # an earlier run's time would be before this one's start


def _sacct_line(fields: Sequence[str]) -> tuple[list[str], Job]:
    job_id, word, exit_code, _, name = fields
    return expand(job_id), Job(_state(word), word, f"exit code {exit_code}", name)


def _state(word: str) -> JobState:
    """Return our word for SLURM's, which may carry more: `CANCELLED by 1000`, `COMPLETED+`."""
    match = re.match(r"[A-Z_]+", word)
    if not match:
        raise ValueError(word)
    return STATES.get(match[0], JobState.UNKNOWN)


def _ended_jobs(history: QueueView, queue: QueueView) -> Mapping[str, Job]:
    """Return sacct's jobs; one that it still calls alive while squeue does not know it any more is unknown."""
    if not queue.complete:
        return history.jobs
    return {
        job_id: Job(JobState.UNKNOWN, job.word, "accounting lags behind", job.name)
        if job.alive and job_id not in queue.jobs
        else job
        for job_id, job in history.jobs.items()
    }


def _named(view: QueueView, name: str) -> str | None:
    return next((job_id.partition("_")[0] for job_id, job in view.jobs.items() if job.name == name), None)


def _problem(command: str, answer: Answer) -> str:
    said = answer.error.splitlines()[-1] if answer.error else f"exit code {answer.code}"
    return said if said.startswith(command) else f"{command}: {said}"
