"""What sacct remembers of jobs: every run of each, and how a requeued job's earlier start ended.

sacct is read with its duplicates, for a requeued job's earlier runs are hidden without them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence

from study.executors.base import Runner
from study.executors.jobs import JobRun
from study.failures.kinds import Kind, by_slurm
from study.records.ledger import Batch

FORMAT = "JobID,JobName,State,ElapsedRaw,AllocTRES,Start"
ALIVE = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "RESIZING", "STOPPED", "SIGNALING"})
FAILED = frozenset({"FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "DEADLINE"})
WAIT_SECONDS = (0.0, 1.0, 2.0, 4.0)
"""How long a requeued job waits before each time that it asks how its earlier start ended."""


def runs(batches: Sequence[Batch], runner: Runner) -> tuple[list[JobRun] | None, tuple[str, ...]]:
    """Return every run of these batches' jobs that sacct knows; None, and why, where it says nothing.

    Ids of jobs are used again in time: a record counts only under the name of the batch that has its id.
    """
    names = {str(batch.job_id): batch.name for batch in batches}
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(min(batch.time for batch in batches) - 86400))
    command = ["sacct", "-n", "-P", "-X", "--duplicates", f"--format={FORMAT}", f"--starttime={since}"]
    answer = runner([*command, f"--jobs={','.join(sorted(names))}"])
    if answer.code != 0:
        return None, (answer.error.splitlines()[-1] if answer.error else "sacct gave no answer",)
    found, bad = [], 0
    for line in answer.out.splitlines():
        try:
            one = _run(line, names)
        except ValueError:
            bad += 1
            continue
        if one is not None:
            found.append(one)
    return found, ((f"sacct: {bad} line(s) could not be read",) if bad else ())


def earlier_start(job_id: str, runner: Runner, sleep: Callable[[float], None]) -> Kind | None:
    """Return how a job's latest start but this one ended: preempted, node_failure, or None where sacct has neither.

    sacct may hear of a start's end after the next has begun: it is asked again for some seconds.
    """
    command = ["sacct", "-n", "-P", "-X", "--duplicates", "--format=State,Start", f"--jobs={job_id}"]
    for seconds in WAIT_SECONDS:
        sleep(seconds)
        answer = runner(command)
        if answer.code != 0:
            return None
        starts = [line.split("|")[0] for line in answer.out.splitlines() if line.count("|") == 1]
        ended = [word for word in starts if not re.match(r"(RUNNING|PENDING|COMPLETING)", word)]
        if ended:
            words = [word for word in ended if not word.startswith("REQUEUED")]
            kind = by_slurm(words[-1]) if words else None
            return kind if kind in (Kind.PREEMPTED, Kind.NODE_FAILURE) else None
    return None


def _run(line: str, names: Mapping[str, str]) -> JobRun | None:
    """Return the run in a line of sacct; None for one that never ran or is not ours. ValueError if not understood."""
    job_id, name, state, elapsed, tres, start = line.split("|")
    word = state.split(" ")[0].rstrip("+")
    if not re.fullmatch(r"[A-Z_]+", word):
        raise ValueError(line)
    if names.get(job_id.partition("_")[0]) != name or elapsed in ("", "0") or start in ("", "Unknown", "None"):
        return None
    said = {k: int(v) for k, _, v in (part.partition("=") for part in tres.split(",")) if v.isdigit()}
    began = time.mktime(time.strptime(start, "%Y-%m-%dT%H:%M:%S"))
    held = {"gpus": said.get("gres/gpu"), "cores": said.get("cpu")}
    return JobRun(job_id, began, float(int(elapsed)), **held, over=word not in ALIVE, failed=word in FAILED)
