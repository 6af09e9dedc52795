"""SLURM as an executor: what is asked of it goes to the module that knows the command."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from study.executors.base import Executor, JobRequest, RankInfo, Runner
from study.executors.jobs import JobRun, Lookup, QueueReason, QueueView
from study.executors.slurm import query

if TYPE_CHECKING:
    from study.config.schema import ClusterConfig
    from study.executors.slurm.limits import Limits
    from study.executors.slurm.nodes import Site
    from study.failures.kinds import Kind
    from study.records.ledger import Batch


def executor(runner: Runner | None = None) -> Executor:
    """Return SLURM, asked by its commands."""
    return Slurm(runner or query.run)


@dataclass(frozen=True)
class Slurm(Executor):
    """Job arrays by sbatch; squeue, sacct and sinfo say what became of them."""

    runner: Runner
    name = "slurm"
    title = "SLURM"
    command = "sbatch"
    detached = True
    allocates = True
    dependencies = True

    def render(self, request: JobRequest) -> str:
        """Return the sbatch script."""
        from study.executors.slurm import sbatch

        return sbatch.render(request)

    def submit(self, request: JobRequest, script: str) -> str:
        """Submit by sbatch."""
        from study.executors.slurm import sbatch

        return sbatch.submit(request, script, self.runner)

    def find(self, name: str, since: float) -> Lookup:
        """Look for the name in squeue, then in sacct."""
        return query.find_by_name(name, since, self.runner)

    def query(self, ids: Sequence[str]) -> QueueView:
        """Ask squeue and sacct."""
        return query.query_jobs(ids, self.runner)

    def queue(self, ids: Sequence[str]) -> QueueView:
        """Ask squeue alone."""
        return query.read_squeue(self.runner(query.squeue_command(ids)))

    def cancel(self, indices: Mapping[str, Iterable[int]]) -> None:
        """Cancel by one scancel."""
        from study.executors.slurm import sbatch

        sbatch.cancel(indices, self.runner)

    def stop(self, ids: Sequence[str]) -> None:
        """Cancel what waits, and send SIGTERM to what runs."""
        # In this order: one that begins in between is told as well.
        pending = self.runner(["scancel", "--state=PENDING", *ids])
        answer = self.runner(["scancel", "--full", "--signal=TERM", *ids])
        if answer.code is None or pending.code is None:
            raise ValueError(f"scancel gave no answer ({answer.error or pending.error}): run the command again")

    def requeue(self, job_id: str) -> bool:
        """Requeue by scontrol, which kills the job that asks.

        That may kill scontrol before it has its answer. The queue then says whether the job was requeued.
        """
        code = self.runner(["scontrol", "requeue", job_id]).code
        if code is not None and code >= 0:
            return code == 0
        job = query.read_squeue(self.runner(query.squeue_command([job_id]))).jobs.get(job_id)
        return job is not None and job.word != "RUNNING"

    def site(self, memory: Path | None = None, now: float | None = None) -> Site:
        """Ask sinfo, scontrol and sacctmgr."""
        from study.executors.slurm import site

        return site.read_site(self.runner, memory, now)

    def limits(self, memory: Path, now: float) -> Limits:
        """Ask squeue, sdiag, scontrol and sacctmgr."""
        from study.executors.slurm import site

        return site.read_limits(self.runner, memory, now)

    def rank_info(self, environment: Mapping[str, str], world: int = 1) -> RankInfo:
        """Return what srun's variables say."""
        from study.executors.slurm import variables

        return variables.rank_info(environment)

    def python_job(
        self, words: Sequence[str], cluster: ClusterConfig, environment: Mapping[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """Return an srun: within a job, as this command may be, it would make a step of that, did it know of it."""
        from study.executors.slurm import foreground

        return foreground.srun_command(words, cluster), query.clean_environment(environment)

    def explain(self, reason: str) -> QueueReason:
        """Return what squeue's reason means."""
        from study.executors.slurm import queue_reasons

        return queue_reasons.explain(reason)

    def job_names(self, ids: Iterable[str], others: Iterable[str] = ()) -> str:
        """Return jobs as scontrol and scancel take them, arrays by their own id."""
        from study.executors.slurm import queue_reasons

        return queue_reasons.jobs(ids, others)

    def estimate(self, script: str) -> str:
        """Ask sbatch --test-only."""
        from study.executors.slurm import start_estimate

        return start_estimate.estimate(script, self.runner)

    def accounting(self, batches: Sequence[Batch]) -> tuple[list[JobRun] | None, tuple[str, ...]]:
        """Ask sacct, with requeued jobs' earlier runs."""
        from study.executors.slurm import accounting

        return accounting.runs(batches, self.runner)

    def earlier_start(self, job_id: str, sleep: Callable[[float], None] = time.sleep) -> Kind | None:
        """Ask sacct for some seconds: it may hear of a start's end after the next has begun."""
        from study.executors.slurm import accounting

        return accounting.earlier_start(job_id, self.runner, sleep)

    def preempts(self, job_id: str) -> bool:
        """Ask scontrol."""
        return query.preempts(self.runner(["scontrol", "show", "job", "--oneliner", job_id]))

    def node_states(self, nodes: Sequence[str]) -> dict[str, str]:
        """Ask sinfo."""
        answer = self.runner(["sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N %T"])
        pairs = (line.split() for line in answer.out.splitlines()) if answer.code == 0 else ()
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[0] in nodes}
