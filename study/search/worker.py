"""A search's worker, `python -m study.search.worker runs/STUDY --name POOL`: it claims, advances, tells, claims again.

Any number may run, come and go at any time: they meet only in the study's event log. A worker ends when nothing is
left, or at a signal, after the trainer has saved its checkpoint; its unit then goes to another. Exit codes: 0 nothing
left, 75 told to stop.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import sys
import time
from pathlib import Path

from study import ledger
from study.files import read_json
from study.job import HELD, Work, find_config, lead
from study.layout import RunFolder, StudyFolder
from study.place import Place, local_world
from study.search.claims import Lease, Office
from study.search.state import Claim
from study.supervise import DIVERGED, INTERRUPTED, Signals

IDLE_SECONDS = 2.0


def main(arguments: list[str] | None = None) -> int:
    """Work until nothing is left, or until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m study.search.worker", description="Advance trials of a search.")
    parser.add_argument("folder", type=Path, help="the study's folder")
    parser.add_argument("--name", required=True, help="the pool's name in the ledger")
    given = parser.parse_args(arguments)
    signals = Signals()
    signals.install()
    office = Office.of(StudyFolder(given.folder.absolute()))
    worker = f"{given.name}/{socket.gethostname()}/{_job()}"
    while not signals.received:
        claim = office.claim(worker)
        if claim is not None:
            advance(office, claim, given.name, signals)
        elif office.search.over:
            print("nothing left to do", flush=True)
            return 0
        else:
            time.sleep(IDLE_SECONDS)
    return INTERRUPTED


def advance(office: Office, claim: Claim, pool: str, signals: Signals) -> None:
    """Advance a claimed trial to the end of its unit and write down what came of it."""
    unit, folder = claim.unit, office.folder
    batch = ledger.Batch(name=pool, executor="local", keys=(claim.key,), time=claim.time)
    world = local_world(find_config(folder, claim.key).get("parallel") or {}, 1)
    place = Place("local", _job(), world=world, nodes=(socket.gethostname(),))
    until = unit.until if unit.until < office.settings.R else None
    print(f"trial {unit.trial} ({claim.key}) to {unit.until:,} tokens", flush=True)
    with Lease(folder, claim, office.settings.lease):
        code = lead(Work(folder, batch, claim.key, place, until), signals)
    run = folder.run(claim.key)
    if code == 0 and (value := value_at(run, unit.until)) is not None:
        held = office.tell(claim, "reached", value=value)
    elif code == DIVERGED:
        held = office.tell(claim, "reached", "diverged", value=math.inf)
    elif code in (INTERRUPTED, HELD):
        held = office.tell(claim, "lost", "told to stop" if signals.received else "the run was held or interrupted")
    else:
        why = "it ended without a validation loss" if code == 0 else f"its attempt ended with exit code {code}"
        held = office.tell(claim, "failed", why)
    if not held:
        print(
            f"trial {unit.trial}: the claim was given up meanwhile; what was trained stays in its checkpoint",
            flush=True,
        )


def value_at(run: RunFolder, resource: int) -> float | None:
    """Return the validation loss [nats per token] of the first validation at or after `resource` tokens; None without.

    A loss that is not finite is written as null, or not at all: a run's outcome then says that it diverged.
    """
    outcome = read_json(run.outcome)
    if outcome is not None and outcome.get("state") == "diverged":
        return math.inf
    try:
        text = run.metrics.read_text(encoding="utf-8")
    except OSError:
        return None
    for line in text.split("\n")[:-1]:
        record = json.loads(line)
        if record["kind"] == "validation" and record["tokens"] >= resource:
            return float(record["metrics"]["loss"])
    return None


def _job() -> str:
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{array}_{task}"
    return os.environ.get("SLURM_JOB_ID") or f"local-{os.getpid()}"


if __name__ == "__main__":
    sys.exit(main())
