"""A search's worker, `python -m study.search.worker runs/STUDY --name BATCH`: it claims, advances, tells, claims again.

Any number may run, come and go at any time: they meet only in the study's event log. A worker ends when nothing is
left, or at a signal, after the trainer has saved its checkpoint; its unit then goes to another. Where its batch was
submitted for one unit it advances that and ends. A worker may be several tasks of SLURM: the first decides, the others
join. Exit codes: 0 nothing left, 75 told to stop, 77 its unit is not wanted any more; for one unit, those of study.job.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from study import checkpoints, ledger
from study.classify import DIVERGED, INTERRUPTED
from study.files import read_json
from study.job import HELD, NOT_WANTED, Work, find_config, join, lead
from study.layout import RunFolder, StudyFolder
from study.place import Place, find_place, local_world
from study.search import jobs, pins
from study.search.claims import JOB, Lease, Office
from study.search.crew import Crew
from study.search.jobs import UNIT
from study.search.state import Claim
from study.supervise import Signals

IDLE_SECONDS = 2.0


@dataclass(frozen=True)
class Worker:
    """One process of a worker: its study, its batch in the ledger, its place among the ranks of its job."""

    office: Office
    batch: ledger.Batch
    place: Place
    crew: Crew
    signals: Signals

    def work(self, key: str, claim: int, until: int | None) -> Work:
        """Return what `study.job` advances for a claim."""
        place = self.place
        if place.executor == "local":  # it starts the ranks of a trial itself, as many as that needs
            place = replace(place, world=local_world(find_config(self.office.folder, key).get("parallel") or {}, 1))
        batch = replace(self.batch, executor=place.executor, keys=(key,))
        return Work(self.office.folder, batch, key, place, until, unit=claim)


def main(arguments: list[str] | None = None) -> int:
    """Work until nothing is left, or until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m study.search.worker", description="Advance trials of a search.")
    parser.add_argument("folder", type=Path, help="the study's folder")
    parser.add_argument("--name", required=True, help="the batch's name in the ledger")
    given = parser.parse_args(arguments)
    signals = Signals()
    signals.install()
    folder = StudyFolder(given.folder.absolute())
    place = here()
    batch = ledger.read(folder).batches.get(given.name) or ledger.Batch(given.name, place.executor, (), time.time())
    worker = Worker(Office.of(folder), batch, place, Crew(folder, place), signals)
    if UNIT in batch.resources:
        return one(worker)
    return pool(worker) if place.first else follow(worker)


def here() -> Place:
    """Return this process's place: one of several tasks of a SLURM job, or a process that starts its ranks itself."""
    if int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1) > 1:
        return find_place("slurm", os.environ)
    return Place("local", _job(), nodes=(socket.gethostname(),))


def pool(worker: Worker) -> int:
    """Claim and advance units until none is left: the first rank of a worker."""
    office, name = worker.office, f"{worker.batch.name}/{socket.gethostname()}/{_job()}"
    while not worker.signals.received:
        claim = office.claim(name)
        if claim is not None:
            advance(worker, claim)
        elif office.search.over:
            print("nothing left to do", flush=True)
            pins.release_all(office.folder, office.search)
            worker.crew.leave(0)
            return 0
        else:
            time.sleep(IDLE_SECONDS)
    worker.crew.leave(INTERRUPTED)
    return INTERRUPTED


def follow(worker: Worker) -> int:
    """Join what the first rank decides until it ends: every other rank of a worker."""
    crew = worker.crew
    while (turn := crew.next(lambda: bool(worker.signals.received))) is not None:
        if turn.over is not None:
            return turn.over
        join(worker.work(turn.key, turn.claim, turn.until), worker.signals, lambda turn=turn: crew.given_up(turn))  # type: ignore[misc]
    return INTERRUPTED


def one(worker: Worker) -> int:
    """Advance the unit that this job was submitted for, then see to it that the next ones are submitted."""
    office = worker.office
    found = [c for c in office.search.claims.values() if c.worker == f"{JOB}{worker.batch.name}"]
    if not found:
        print(f"{worker.batch.name}: nothing to do: its unit was given up, or it is over", file=sys.stderr)
        return NOT_WANTED
    claim = found[0]
    if not worker.place.first:
        return join(worker.work(claim.key, claim.number, _until(office, claim)), worker.signals)
    code = advance(worker, claim, leased=False)
    jobs.advance_quietly(office.folder)
    return code


def advance(worker: Worker, claim: Claim, leased: bool = True) -> int:
    """Advance a claimed trial to the end of its unit and write down what came of it; return the attempt's exit code."""
    office, unit = worker.office, claim.unit
    run, until = office.folder.run(claim.key), _until(office, claim)
    print(f"trial {unit.trial} ({claim.key}) to {unit.until:,} tokens", flush=True)
    limit = None if claim.reserved is None else claim.reserved / office.settings.devices
    before = _training(run)
    worker.crew.begin(claim.key, claim.number, until)
    lease = Lease(office.folder, claim, office.settings.lease, limit, worker.signals.pass_on, beating=leased)
    with lease:
        code = lead(worker.work(claim.key, claim.number, until), worker.signals)
        seconds = lease.seconds
    worker.crew.end()
    how, why, value, tokens = ending(worker, claim, code, lease.used_up)
    if how == "reached" and tokens is not None:
        pins.keep(office.folder, office.search, claim.key, tokens)
    after = _training(run)
    training = None if after is None else after - (before or 0.0)
    limited = lease.used_up and how == "lost"
    held = office.tell(claim, how, why, value, tokens=tokens, seconds=seconds, training=training, limited=limited)
    if held:
        pins.release(office.folder, office.search, claim)
    else:
        what = "the claim was given up meanwhile; what was trained stays in its checkpoint"
        print(f"trial {unit.trial}: {what}", flush=True)
    return code


def ending(worker: Worker, claim: Claim, code: int, used_up: bool) -> tuple[str, str, float | None, int | None]:
    """Return how a unit ended and why, its value, and the tokens at which the run stood then."""
    found = value_at(worker.office.folder.run(claim.key), claim.unit.until)
    if code == 0 and found is not None:
        return "reached", "", *found
    if code == DIVERGED:
        return "reached", "diverged", math.inf, None
    if used_up:
        return "lost", "the device time set aside for it was used up", None, None
    if code in (INTERRUPTED, HELD):
        told = bool(worker.signals.received)
        return "lost", "told to stop" if told else "the run was held or interrupted", None, None
    return "failed", "it ended without a validation loss" if code == 0 else f"exit code {code}", None, None


def value_at(run: RunFolder, resource: int) -> tuple[float, int | None] | None:
    """Return the first validation at or after `resource` tokens: its loss [nats per token] and tokens; None without.

    A loss that is not finite is written as null, or not at all: a run's outcome then says that it diverged.
    """
    outcome = read_json(run.outcome)
    if outcome is not None and outcome.get("state") == "diverged":
        return math.inf, None
    try:
        text = run.metrics.read_text(encoding="utf-8")
    except OSError:
        return None
    for line in text.split("\n")[:-1]:
        record = json.loads(line)
        if record["kind"] == "validation" and record["tokens"] >= resource:
            return float(record["metrics"]["loss"]), int(record["tokens"])
    return None


def _until(office: Office, claim: Claim) -> int | None:
    return claim.unit.until if claim.unit.until < office.settings.R else None


def _training(run: RunFolder) -> float | None:
    """Return how long a run has trained and validated so far [s]; None where its checkpoints do not say."""
    saved = checkpoints.saved(run)
    seconds = saved[-1].seconds if saved else {}
    return seconds["train"] + seconds.get("validation", 0.0) if "train" in seconds else None


def _job() -> str:
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{array}_{task}"
    return os.environ.get("SLURM_JOB_ID") or f"local-{os.getpid()}"


if __name__ == "__main__":
    sys.exit(main())
