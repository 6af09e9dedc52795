"""SLURM: one job array per resource shape, whose tasks are `python -m study.job`; single jobs where none are taken.

submitit renders the script; of its private parts only `_make_sbatch_string` is relied on, and here only. Submitting a
finished script ourselves leaves no pickles: an array is complete the moment that sbatch returns.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from submitit.slurm.slurm import _make_sbatch_string

from study.executors.base import JobRequest, Runner, SubmitError
from study.executors.slurm import limits, query, refusal
from study.process import code_snapshot, code_version
from study.storage.files import write_atomic

PEERS_WAIT_SECONDS = 60


def render(request: JobRequest) -> str:
    """Return the exact sbatch script of a request. Needs no SLURM."""
    shape, copy = request.shape, request.copy
    python = shape.python or sys.executable
    job = [*shape.prefix, python, *code_version.python_options(copied=copy is not None), "-m", *request.command]
    again = "requeue" if shape.requeue else "no-requeue"
    extra: dict[str, Any] = {"export": "ALL", again: True, "reservation": shape.reservation, "nice": shape.nice}
    if shape.dependency:
        # Without it a job whose parent failed would wait for ever.
        extra |= {"dependency": shape.dependency, "kill-on-invalid-dep": "yes"}
    extra |= {option: value or True for option, value in shape.sbatch}
    containers = [("--container-image", shape.container_image), ("--container-mounts", shape.container_mounts)]
    memory = shape.job_mem_gb
    return str(
        _make_sbatch_string(
            command=shlex.join(job),
            folder=request.folder.jobs.absolute(),
            job_name=request.name,
            map_count=request.count,
            array_parallelism=request.parallel or request.count or 1,
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
            setup=[*_import_path(copy), *shape.setup] or None,
            stderr_to_stdout=True,
            wckey=None,  # type: ignore[arg-type] # null leaves it out; submitit's own default is refused by some sites
            srun_args=[
                "--kill-on-bad-exit=1",
                f"--wait={PEERS_WAIT_SECONDS}",
                "--export=ALL",  # said, since SLURM_EXPORT_ENV or SRUN_EXPORT would else decide
                "--open-mode=append",
                # srun does not take this over from sbatch since SLURM 22.05.
                f"--cpus-per-task={shape.job_cpus_per_task}",
                *[f"{option}={value}" for option, value in containers if value],
            ],
            additional_parameters={option: value for option, value in extra.items() if value is not None},
        )
    )


def submit(request: JobRequest, script: str, runner: Runner = query.run) -> str:
    """Submit the script of a request, kept as `jobs/NAME.sh`, and return its job id. Raises SubmitError."""
    request.folder.jobs.mkdir(parents=True, exist_ok=True)
    path = request.folder.jobs / f"{request.name}.sh"
    write_atomic(path, script)
    answer = runner(["sbatch", str(path)])
    found = re.search(r"Submitted batch job (\d+)", answer.out) if answer.code == 0 else None
    if found:
        return found[1]
    if answer.code is None and "not found" in answer.error:
        raise SubmitError(
            "cluster.executor=slurm, but sbatch is not on PATH: run this on a login node, or take cluster=local", False
        )
    said = _last_line(answer.error or answer.out)
    full = limits.is_limit(answer.error)
    no = not full and refusal.refused(answer.error)
    keys = refusal.blamed(answer.error, request.shape) if no else ""
    what = f": {keys}: change it and run the command again" if keys else ""
    raise SubmitError(f"sbatch failed: {said}{what}", ambiguous=not (full or no), full=full)


def cancel(indices: Mapping[str, Iterable[int]], runner: Runner = query.run) -> None:
    """Cancel these tasks of these arrays (by job id), or jobs without any, by one scancel. Raises SubmitError."""
    ids = [f"{job_id}_[{said}]" if (said := query.compress(places)) else job_id for job_id, places in indices.items()]
    answer = runner(["scancel", *ids])
    if answer.code != 0:
        raise SubmitError(f"scancel failed: {answer.error or 'no answer'}", True)


def _import_path(copy: Path | None) -> list[str]:
    """Return the line that makes this package importable in a job, unless it is installed for this Python.

    From a copy of the code only its packages come: what else lies in the working directory and in the checkout is
    found as it is without one.
    """
    folders = [shlex.quote(folder) for folder in code_snapshot.import_path(copy)]
    if not folders:
        return []
    if copy is not None:
        folders.insert(1, '"$PWD"')
    return [f"export PYTHONPATH={':'.join(folders)}${{PYTHONPATH:+:$PYTHONPATH}}"]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("sbatch:")]
    return (said or lines or ["no answer"])[-1]
