"""A search's worker, `python -m study.workers.worker runs/STUDY --name BATCH`: it claims units and advances them.

Workers may start and end at any time: they share nothing but the study's event log. A worker ends when no unit is left,
or at a signal, after the trainer has saved its checkpoint; its unit then goes to another. Where its batch was submitted
for one unit it advances that and ends. A worker may be several tasks of SLURM: the first decides, the others take part.
Exit codes: 0 nothing left, 75 told to stop, 77 its unit is not wanted any more; for one unit, those of study.job.
"""

from __future__ import annotations

import argparse
import math
import os
import socket
import sys
import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from analysis.inputs import recorded
from study.executors import load
from study.executors.base import RankInfo
from study.executors.local import LOCAL
from study.failures.kinds import DIVERGED, HELD, INTERRUPTED, AttemptState, Kind
from study.failures.retry_policy import TOLD
from study.job.__main__ import NOT_WANTED, run_first_rank, run_other_rank
from study.job.attempt import JobContext
from study.job.disk_room import left_unstarted
from study.planning.ranks import local_world
from study.process.children import Signals
from study.process.trainers import FRESH, Trainers, trainers
from study.records import checkpoints, ledger
from study.records.attempts import latest_attempt
from study.records.ledger import UNIT
from study.records.point import find_point
from study.records.shapes import RUN_OUTCOME
from study.search import pins
from study.search.leases import Lease
from study.search.state import Claim
from study.search.trial_queue import JOB, TrialQueue
from study.storage import room_taken
from study.storage.layout import RunFolder, StudyFolder
from study.storage.shapes import read_record
from study.workers import disk_room, unit_jobs
from study.workers.rank_sync import RankSync
from sweeps.history import How

IDLE_SECONDS = 2.0


@dataclass(frozen=True)
class Ending:
    """How a unit ended, and why.

    value: of the trial, where it was reached [nats per token], when the run stood at `tokens`. kind: of a bad end
    (study.failures.kinds); stops: what it met, every other trial would meet as well.
    """

    how: How
    why: str = ""
    value: float | None = None
    tokens: int | None = None
    kind: Kind = Kind.NONE
    stops: bool = False


@dataclass(frozen=True)
class Worker:
    """One process of a worker: its study, its batch in the ledger, its place among the ranks of its job."""

    queue: TrialQueue
    batch: ledger.Batch
    rank_info: RankInfo
    ranks: RankSync
    signals: Signals
    trainers: Trainers = FRESH

    def work(self, key: str, claim: int, until: int | None) -> JobContext:
        """Return what `study.job` advances for a claim."""
        rank_info = self.rank_info
        if rank_info.starts_ranks:  # it starts the ranks of a trial itself, as many as that needs
            rank_info = replace(
                rank_info, world=local_world(find_point(self.queue.folder, key).raw.get("parallel") or {}, 1)
            )
        batch = replace(self.batch, executor=rank_info.executor, keys=(key,))
        return JobContext(self.queue.folder, batch, key, rank_info, until, unit=claim, trainers=self.trainers)


def main(arguments: list[str] | None = None) -> int:
    """Run a worker until no unit is left or a signal stops it."""
    parser = argparse.ArgumentParser(prog="python -m study.workers.worker", description="Advance trials of a search.")
    parser.add_argument("folder", type=Path, help="the study's folder")
    parser.add_argument("--name", required=True, help="the batch's name in the ledger")
    given = parser.parse_args(arguments)
    signals = Signals()
    signals.install()
    folder = StudyFolder(given.folder.absolute())
    known = ledger.read(folder).batches.get(given.name)
    rank_info = here(LOCAL if known is None else known.executor)
    batch = known or ledger.Batch(given.name, rank_info.executor, (), time.time())
    worker = Worker(TrialQueue.of(folder), batch, rank_info, RankSync(folder, rank_info), signals)
    if UNIT in batch.resources:
        return one(worker)
    if not rank_info.first:
        return follow(worker)
    with closing(trainers(batch.resources.get("warm", True))) as started:
        return pool(replace(worker, trainers=started))


def here(executor: str) -> RankInfo:
    """Return which rank this is: one of several tasks of a job, or a process that starts its ranks itself."""
    info = load(executor).rank_info(os.environ)
    return info if info.world > 1 else RankInfo(LOCAL, info.job_id, nodes=(socket.gethostname(),), starts_ranks=True)


def pool(worker: Worker) -> int:
    """Claim and advance units until none is left: the first rank of a worker."""
    queue, name = worker.queue, f"{worker.batch.name}/{socket.gethostname()}/{worker.rank_info.job_id}"
    claim: Claim | None = None
    queue.warm_up()
    while claim is not None or not worker.signals.received:
        claim = claim or queue.claim(name)
        if claim is not None and not disk_room.take_or_wait(queue, claim, worker.signals):
            claim = None
        elif claim is not None:
            claim = Advance(worker, claim, name).run()
        elif queue.search.over:
            print("nothing left to do", flush=True)
            pins.release_all(queue.folder, queue.search)
            worker.ranks.leave(0)
            return 0
        else:
            time.sleep(IDLE_SECONDS)
    worker.ranks.leave(INTERRUPTED)
    return INTERRUPTED


def follow(worker: Worker) -> int:
    """Take part in what the first rank decides until it ends: every other rank of a worker."""
    ranks = worker.ranks
    while (decision := ranks.next(lambda: bool(worker.signals.received))) is not None:
        if decision.over is not None:
            return decision.over
        work = worker.work(decision.key, decision.claim, decision.until)
        run_other_rank(work, worker.signals, partial(ranks.given_up, decision))
    return INTERRUPTED


def one(worker: Worker) -> int:
    """Advance the unit that this job was submitted for, then see to it that the next ones are submitted."""
    queue = worker.queue
    unit = _unit(worker)
    found = [c for c in queue.search.claims.values() if c.worker == f"{JOB}{unit}"]
    if unit is None or not found:
        print(f"{worker.batch.name}: nothing to do: its unit was given up, or it is over", file=sys.stderr)
        return NOT_WANTED
    claim = found[0]
    if queue.search.stopped:  # while this job was on its way, so that nobody could cancel it
        if worker.rank_info.first:
            with queue.transaction():
                if queue.search.is_current(claim.number, claim.unit.trial):
                    queue.give_up(claim, "the search was stopped", 0.0, begun=False)
        print(f"{worker.batch.name}: nothing to do: the search was stopped", file=sys.stderr)
        return NOT_WANTED
    if not worker.rank_info.first:
        return run_other_rank(worker.work(claim.key, claim.number, _until(queue, claim)), worker.signals)
    if left_unstarted(worker.work(claim.key, claim.number, None), ledger.read(queue.folder), unit):
        return NOT_WANTED
    advance = Advance(worker, claim)
    advance.run()
    unit_jobs.advance_at_end(queue.folder)
    return advance.code


def _unit(worker: Worker) -> str | None:
    """Return the unit of this job; None where it belongs to another batch by now, this one having been given up."""
    keys, name = worker.batch.keys, worker.batch.name
    if not keys:  # an earlier version submitted each as a batch that has its name
        return name
    unit = keys[int(os.environ.get("SLURM_ARRAY_TASK_ID") or 0)]
    return unit if ledger.read(worker.queue.folder).current.get(unit) == name else None


class Advance:
    """Units of one run that one trainer process advances in turn: each is recorded, and the next one claimed.

    A trainer that has paused goes on if the next unit is of its own run; else it ends, and that unit is left to the
    worker. name: of the worker, to claim more; None: this unit only.
    """

    def __init__(self, worker: Worker, claim: Claim, name: str | None = None) -> None:
        self._worker, self._claim, self._name = worker, claim, name
        self._queue, self._run = worker.queue, worker.queue.folder.run(claim.key)
        self._next: Claim | None = None
        self._recorded = False
        self._warm = False
        self._trained = _training(self._run) or 0.0
        settings = worker.queue.settings
        leased = name is not None
        self._lease = Lease(
            worker.queue.folder, claim, settings.lease, self._limit(claim), worker.signals.pass_on, beating=leased
        )
        self.code = 0

    def run(self) -> Claim | None:
        """Advance to the end of the last unit, write down what came of each; return a claim of another run, if any."""
        worker, claim = self._worker, self._claim
        until = _until(self._queue, claim)
        print(f"trial {claim.unit.trial} ({claim.key}) to {claim.unit.until:,} tokens", flush=True)
        worker.ranks.begin(claim.key, claim.number, until)
        work = worker.work(claim.key, claim.number, until)
        with self._lease:
            self.code = run_first_rank(
                replace(work, next_target=self._next_target if self._name else None), worker.signals
            )
            if not self._recorded:
                self._record_end(self.code)
        room_taken.give_back(work.study, work.key)
        worker.ranks.end()
        return self._next

    def _next_target(self) -> int | None:
        """Record the unit that the trainer has paused at; return the tokens to train on to, None where it ends."""
        if self._worker.signals.received or value_at(self._run, self._claim.unit.until) is None:
            return None
        self._record_end(0)
        assert self._name is not None
        found = self._queue.claim(self._name)
        if found is None or found.key != self._claim.key:
            self._next = found
            if found is not None:
                self._lease.pass_to(found, None)
            return None
        print(f"trial {found.unit.trial} goes on to {found.unit.until:,} tokens", flush=True)
        self._claim, self._recorded, self._warm = found, False, True
        self._lease.pass_to(found, self._limit(found))
        return found.unit.until

    def _record_end(self, code: int) -> None:
        """Write down how the present unit ended."""
        worker, queue, claim, lease = self._worker, self._queue, self._claim, self._lease
        end = ending(worker, claim, code, lease.used_up)
        if end.how == "reached" and end.tokens is not None:
            pins.keep(queue.folder, queue.search, claim.key, end.tokens)
        trained = _training(self._run)
        self._recorded = True
        held = queue.record_end(
            claim, end.how, end.why, end.value,
            tokens=end.tokens,
            seconds=lease.seconds,
            training=None if trained is None else trained - self._trained,
            marks={"limited": lease.used_up and end.how == "lost", "warm": self._warm},
            kind=end.kind,
        )  # fmt: skip
        if end.stops:
            queue.record_control("stopped", end.why)
            print(f"the search is stopped: {end.why}", file=sys.stderr, flush=True)
        self._trained = trained or 0.0
        if held:
            pins.release(queue.folder, queue.search, claim)
        else:
            what = "the claim was given up meanwhile; what was trained stays in its checkpoint"
            print(f"trial {claim.unit.trial}: {what}", flush=True)

    def _limit(self, claim: Claim) -> float | None:
        return None if claim.reserved is None else claim.reserved / self._queue.settings.devices


def ending(worker: Worker, claim: Claim, code: int, used_up: bool) -> Ending:
    """Return how a unit ended; of a bad end what the study's policy makes of it."""
    run = worker.queue.folder.run(claim.key)
    found = value_at(run, claim.unit.until)
    if code == 0 and found is not None:
        return Ending("reached", "", *found)
    if code == DIVERGED:
        return Ending("reached", "diverged", math.inf)
    if used_up:
        return Ending("lost", "the device time set aside for it was used up")
    kind = Kind.NO_OUTCOME if code == 0 else Kind.HELD if code == HELD else _kind(run) or Kind.UNKNOWN
    said = "it ended without a validation loss" if code == 0 else f"exit code {code} ({kind})"
    then = worker.queue.verdict(claim, Kind.INTERRUPTED if code == INTERRUPTED and kind == Kind.UNKNOWN else kind)
    if then.gives_up:
        return Ending("failed", f"{said}: {then.why}", kind=kind)
    if then.stops_all:
        return Ending("lost", f"{kind}: {then.why}", stops=True)
    return Ending("lost", then.why, kind=Kind.NONE if then.why == TOLD else kind)


def value_at(run: RunFolder, resource: int) -> tuple[float, int | None] | None:
    """Return the first validation at or after `resource` tokens: its loss [nats per token] and tokens; None without.

    Of the path that the run took, where it went back after a spike.
    A loss that is not finite is written as null, or not at all: a run's outcome then says that it diverged.
    """
    outcome = read_record(run.outcome, RUN_OUTCOME)
    if outcome is not None and outcome.get("state") == AttemptState.DIVERGED:
        return math.inf, None
    for record in recorded.read(run.metrics, "validation"):
        if record["tokens"] >= resource:
            loss = record["metrics"].get("loss")
            return math.inf if loss is None else float(loss), int(record["tokens"])
    return None


def _until(queue: TrialQueue, claim: Claim) -> int | None:
    return claim.unit.until if claim.unit.until < queue.settings.R else None


def _kind(run: RunFolder) -> Kind:
    """Return the kind of end that the latest attempt had; NONE where it wrote none."""
    attempt = latest_attempt(run)
    return Kind.NONE if attempt is None or attempt.ended is None else Kind(attempt.ended.get("kind") or "")


def _training(run: RunFolder) -> float | None:
    """Return how long a run has trained and validated so far [s]; None where its checkpoints do not say."""
    saved = checkpoints.saved(run)
    seconds = saved[-1].seconds if saved else {}
    return seconds["train"] + seconds.get("validation", 0.0) if "train" in seconds else None


if __name__ == "__main__":
    sys.exit(main())
