"""A command that runs Python as a SLURM job of one process and waits for it: srun."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence

from study.config.schema import ClusterConfig
from study.executors import job_spec_of

NOT_FOR_SRUN = frozenset({
    "batch", "export-file", "get-user-env", "gid", "ignore-pbs", "kill-on-invalid-dep", "nodefile", "parsable", "uid",
    "begin", "deadline", "hold", "input", "cpus-per-gpu", "mem-per-gpu", "ntasks-per-core", "ntasks-per-gpu",
    "ntasks-per-socket", "tres-per-task",
})  # fmt: skip
"""Options of sbatch that srun does not know, that are about when a run starts, its ranks, its input or its GPUs."""


def srun_command(words: Sequence[str], cluster: ClusterConfig) -> list[str]:
    """Return the command that runs Python with these words as a job of one process, with a run's cores and no GPU.

    Of cluster.sbatch it takes what is not about GPUs, ranks, when to start, or of sbatch alone.
    """
    asked = {
        "partition": cluster.partition, "account": cluster.account, "qos": cluster.qos,
        "constraint": cluster.constraint, "exclude": cluster.exclude, "reservation": cluster.reservation,
        "mem": None if cluster.mem_gb is None else f"{round(cluster.mem_gb * 1024)}M",
        "container-image": cluster.container_image, "container-mounts": cluster.container_mounts, "nice": cluster.nice,
    }  # fmt: skip
    python = shlex.join([*cluster.prefix, cluster.python or sys.executable, *words])
    return [
        *("srun", "--job-name=prepare-data", "--nodes=1", "--ntasks=1", f"--cpus-per-task={cluster.cpus_per_task}"),
        *(f"--time={cluster.time_minutes}", "--export=ALL", "--quit-on-interrupt"),
        *(f"--{name}={value}" for name, value in asked.items() if value is not None),
        *(f"--{name}={value}" if value else f"--{name}" for name, value in _sbatch_options(cluster)),
        *("bash", "-c", "\n".join([*cluster.setup, f"exec {python}"])),
    ]


def _sbatch_options(cluster: ClusterConfig) -> Iterator[tuple[str, str]]:
    """Yield the options of cluster.sbatch that such a job takes, with their values; a flag has ''."""
    for name, value in job_spec_of(cluster).sbatch:
        if name == "gres":
            other = [part for part in value.split(",") if not part.removeprefix("gres/").startswith("gpu")]
            yield from [(name, ",".join(other))] if other else []
        elif name not in NOT_FOR_SRUN and not name.startswith("gpu"):
            yield name, value
