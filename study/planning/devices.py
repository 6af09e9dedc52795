"""Whether runs that want a GPU can have one, and make use of it: before anything is prepared, submitted or started."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from study.config.schema import ClusterConfig
from study.executors import load
from study.planning.estimate import on_gpu
from study.text import counted
from train.spec.config import RunConfig
from train.spec.device_choices import is_short

FILES = ("nvidia[0-9]*", "kfd", "dxg")
"""What drivers of GPUs (NVIDIA, AMD, those of a Windows host) make in /dev."""
ASKING = ("gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "tres-per-task", "exclusive")
"""Options of sbatch by which a job gets GPUs without cluster.gpus_per_node."""


def check(pairs: Iterable[tuple[ClusterConfig, RunConfig]], here: bool | None = None) -> None:
    """Raise ValueError where a run with runtime.device=cuda will find no GPU. `here`: whether this machine has one."""
    for cluster, run in pairs:
        if run.runtime.device != "cuda":
            continue
        if load(cluster.executor).allocates:
            asked = {name.replace("_", "-") for name in cluster.sbatch or {}}
            if not (cluster.gpus_per_node or asked & set(ASKING)):
                raise ValueError(
                    "runtime.device=cuda, but cluster.gpus_per_node=0 asks SLURM for no GPU: give it, or take "
                    "cluster.auto=[gpus] (in a search with search.shape=jobs), or runtime.device=auto"
                )
        elif not (has_gpu(os.environ) if here is None else here):
            raise ValueError(
                "runtime.device=cuda, but this machine shows no GPU (nothing in /dev, or CUDA_VISIBLE_DEVICES hides "
                "it): take runtime.device=auto or cpu, or a cluster that has one"
            )


def slow(pairs: Iterable[tuple[ClusterConfig, RunConfig]]) -> list[str]:
    """Return a line for people where runs that are long enough to matter would train on GPUs in fp32; else none."""
    runs = [run for cluster, run in pairs if on_gpu(run, cluster) and not is_short(run)]
    count = sum(run.precision.name == "fp32" for run in runs)
    if not count:
        return []
    which = "All points" if count == len(runs) else counted(count, "point")
    return [f"{which} would train in fp32 on GPUs; precision=bf16 is faster (it is part of a point: these are others)."]


def has_gpu(environment: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Return whether a GPU is to be seen here, without asking its driver, which takes seconds."""
    if environment.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    return any(True for name in FILES for _ in devices.glob(name))
