"""What SLURM's variables say of the process that has them: job, restart, rank, nodes, memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from study.executors.base import RankInfo


def rank_info(environment: Mapping[str, str]) -> RankInfo:
    """Return which process of which job has these variables: one of a step's tasks, each of which is a rank."""
    job = environment.get("SLURM_ARRAY_JOB_ID") or environment.get("SLURM_JOB_ID", "0")
    task = environment.get("SLURM_ARRAY_TASK_ID")
    return RankInfo(
        "slurm",
        job if task is None else f"{job}_{task}",
        restart=int(environment.get("SLURM_RESTART_COUNT", "0")),
        rank=int(environment.get("SLURM_PROCID", "0")),
        world=int(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS", "1")),
        local_rank=int(environment.get("SLURM_LOCALID", "0")),
        nodes=_nodes(environment.get("SLURM_JOB_NODELIST", "")),
        index=int(task or 0),
        memory_gb=memory_gb(environment),
    )


def memory_gb(environment: Mapping[str, str]) -> float | None:
    """Return the memory that SLURM gave this job on each of its nodes [GB]; None where it does not say."""
    node, cpu = environment.get("SLURM_MEM_PER_NODE", ""), environment.get("SLURM_MEM_PER_CPU", "")
    cores = environment.get("SLURM_CPUS_ON_NODE", "")
    if node.isdigit() and int(node):
        return round(int(node) / 1024, 3)
    return round(int(cpu) * int(cores) / 1024, 3) if cpu.isdigit() and cores.isdigit() else None


def _nodes(text: str) -> tuple[str, ...]:
    if "[" not in text:
        return tuple(name for name in text.split(",") if name)
    from submitit.slurm.slurm import SlurmJobEnvironment

    return tuple(SlurmJobEnvironment().hostnames)
