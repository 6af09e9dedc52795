"""What a job finds out about an interruption whose cause it does not know from its signals."""

from __future__ import annotations

from dataclasses import replace

from study.executors.base import Executor
from study.failures.kinds import INTERRUPTED, Ending, Kind
from study.job.attempt import TrainerExit
from study.process.children import FORWARDED, Signals

SIGNAL_SECONDS = 2.0
"""How much later than its trainer a job may get SLURM's signal [s]: processes are signalled one after the other."""


def wait_for_signal(ran: TrainerExit, signals: Signals, executor: Executor) -> None:
    """Wait for the signal that ended a trainer, where the job has not had it yet.

    It ended by itself, or of the signal where its handlers were not in place.
    """
    if executor.detached and (ran.returncode == INTERRUPTED or -ran.returncode in FORWARDED):
        signals.wait(SIGNAL_SECONDS)


def ask_scheduler(ending: Ending, executor: Executor, job_id: str) -> Ending:
    """Return an interruption as a preemption where the scheduler says so.

    With a grace time, SLURM's first signal of a preemption is SIGTERM, which scancel sends as well.
    """
    if ending.kind == Kind.INTERRUPTED and executor.detached and executor.preempts(job_id):
        return replace(ending, kind=Kind.PREEMPTED)
    return ending
