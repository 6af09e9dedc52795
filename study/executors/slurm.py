"""SLURM through submitit: one job array per resource shape, whose tasks are `python -m study.job`.

submitit writes the script, calls sbatch and reads the job id. Its private parts that we rely on are used here only:
`_make_sbatch_string` renders (also where SLURM is not installed, for a dry run) and `_submit_command` submits our own
command, so that there are no pickles and an array is complete the moment that sbatch returns.
"""

from __future__ import annotations

import os
import re
import shlex
import site
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.slurm.slurm import _make_sbatch_string

from study.executors import query
from study.layout import StudyFolder
from study.resources import Shape

ARRAY_LIMIT = 1000
"""Points of one array: what SLURM's default MaxArraySize of 1001 allows, in whole thousands."""
SBATCH_SECONDS = 60
PEERS_WAIT_SECONDS = 60
SCRUBBED = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI_", "PMIX_", "PMI2_")
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_TIME_FORMAT")

class SchedulerError(ValueError):
    """SLURM refused a submission or gave no answer. `ambiguous`: it may have been submitted all the same."""

    def __init__(self, message: str, ambiguous: bool) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous


class ArrayExecutor(submitit.SlurmExecutor):
    """Submits a finished script; submitit's pickles, and its links beside the scripts, are not needed."""

    def __init__(self, folder: Path, script: str) -> None:
        try:
            super().__init__(folder)
        except RuntimeError:
            raise SchedulerError(
                "cluster.executor=slurm, but srun is not on PATH: run this on a login node, or take cluster=local",
                False,
            ) from None
        self._script = script

    def submit_script(self) -> str:
        """Submit and return the array's job id. Raises SchedulerError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            return str(self._submit_command("").job_id)
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            said = _last_line(str(error))
            raise SchedulerError(f"sbatch failed: {said}", not refused(str(error))) from error

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self._script

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        scrub = [part for name in scrubbed(os.environ) for part in ("-u", name)]
        return ["env", *scrub, "timeout", str(SBATCH_SECONDS), "sbatch", str(submission_file_path)]

    def _write_job_id(self, job_id: str, uid: str) -> None:
        (Path(self.folder) / f".submission_file_{uid}.sh").unlink(missing_ok=True)


def batch_name(study: str, token: str | None = None) -> str:
    """Return a job name that is unique for ever, by which a submission can be looked up."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', study)[:60]}.{token or uuid.uuid4().hex[:10]}"


def chunks(keys: Sequence[str], limit: int = ARRAY_LIMIT) -> Iterator[tuple[str, ...]]:
    """Yield the arrays that many keys become. Each counts from 0 again, for it is the index that is capped."""
    for start in range(0, len(keys), limit):
        yield tuple(keys[start : start + limit])


def array_limit(runner: query.Runner = query.run) -> int:
    """Return how many tasks one array may have here; the default limit where SLURM does not say."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", runner(["scontrol", "show", "config"]).out, re.MULTILINE)
    return max(1, min(ARRAY_LIMIT, int(found[1]))) if found else ARRAY_LIMIT


def render(
    folder: StudyFolder,
    shape: Shape,
    name: str,
    count: int,
    parallel: int | None = None,
    *,
    module: str = "study.job",
) -> str:
    """Return the exact sbatch script of an array of `count` jobs, at most `parallel` at once. Needs no SLURM.

    Each task runs `python -m study.job`, or another module that takes the study's folder and --name.
    """
    python = shape.python or sys.executable
    job = [*shape.prefix, python, "-u", "-m", module, str(folder.path.absolute()), "--name", name]
    extra: dict[str, Any] = {"export": "ALL", "requeue": True, "reservation": shape.reservation, "nice": shape.nice}
    if shape.dependency:
        # Without it a job whose parent failed would wait for ever.
        extra |= {"dependency": shape.dependency, "kill-on-invalid-dep": "yes"}
    extra |= {option: value or True for option, value in shape.sbatch}
    containers = [("--container-image", shape.container_image), ("--container-mounts", shape.container_mounts)]
    memory = shape.job_mem_gb
    return str(
        _make_sbatch_string(
            command=shlex.join(job),
            folder=folder.jobs.absolute(),
            job_name=name,
            map_count=count,
            array_parallelism=parallel or count,
            time=shape.time_minutes,
            nodes=shape.nodes,
            ntasks_per_node=shape.tasks_per_node,
            cpus_per_task=shape.job_cpus_per_task,
            gpus_per_node=shape.job_gpus_per_node or None,
            mem=None if memory is None else f"{round(memory * 1024)}M",
            partition=shape.partition,
            account=shape.account,
            qos=shape.qos,
            constraint=shape.constraint,
            exclude=shape.exclude,
            # A job shorter than the notice would be told to stop as it starts: at most a quarter of its time.
            signal_delay_s=min(shape.signal_seconds, 15 * shape.time_minutes),
            setup=[*_import_path(), *shape.setup] or None,
            stderr_to_stdout=True,
            wckey=None,  # type: ignore[arg-type] # null leaves it out; submitit's own default is refused by some sites
            srun_args=[
                "--kill-on-bad-exit=1",
                f"--wait={PEERS_WAIT_SECONDS}",
                "--open-mode=append",
                # srun does not take this over from sbatch since SLURM 22.05.
                f"--cpus-per-task={shape.job_cpus_per_task}",
                *[f"{option}={value}" for option, value in containers if value],
            ],
            additional_parameters={option: value for option, value in extra.items() if value is not None},
        )
    )


def submit(folder: StudyFolder, script: str) -> str:
    """Submit a rendered script and return its job id. Raises SchedulerError."""
    return ArrayExecutor(folder.jobs.absolute(), script).submit_script()


def cancel(indices: Mapping[str, Iterable[int]], runner: query.Runner = query.run) -> None:
    """Cancel these tasks of these arrays (by job id) with one scancel. Raises SchedulerError."""
    ids = [f"{job_id}_[{query.compress(places)}]" for job_id, places in indices.items()]
    answer = runner(["scancel", *ids])
    if answer.code != 0:
        raise SchedulerError(f"scancel failed: {answer.error or 'no answer'}", True)


def scrubbed(environment: Iterable[str]) -> list[str]:
    """Return the inherited variables that a submission must not see: inside a job they would change what it asks."""
    return sorted(name for name in environment if name.startswith(SCRUBBED) and name not in KEPT)


def refused(said: str) -> bool:
    """Whether sbatch's words mean that SLURM said no, rather than that nobody knows."""
    unsure = (
        "timed out",
        "Unable to contact",
        "Connection",
        "communication",
        "Zero Bytes",
        "Slurm temporarily",
        "busy",
    )
    return "error" in said and not any(word.lower() in said.lower() for word in unsure)


def _import_path() -> list[str]:
    """Return the line that makes this package importable in a job, unless it is installed for this Python."""
    root = str(Path(__file__).resolve().parents[2])
    if root in site.getsitepackages():
        return []
    return [f"export PYTHONPATH={shlex.quote(root)}${{PYTHONPATH:+:$PYTHONPATH}}"]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("sbatch:")]
    return (said or lines or ["no answer"])[-1]
