"""A slot of this machine, `python -m study.job.slot runs/STUDY FD`: it advances one point after the other.

Whoever started it names batches and places in them through the socket FD, and is told the exit codes of study.job. Any
point that neither completes nor diverges ends it with that exit code, and so does a signal.
"""

from __future__ import annotations

import json
import select
import socket
import sys
from contextlib import closing
from pathlib import Path

from study.failures.kinds import DIVERGED
from study.job.__main__ import NOT_WANTED, run
from study.process.children import Signals
from study.process.trainers import Trainers, WarmTrainers
from study.process.warm_process import BEGUN, MAX_REQUEST
from study.records import ledger
from study.storage.layout import StudyFolder

LOOK_SECONDS = 0.5
STAYS = (0, DIVERGED)


def main(arguments: list[str] | None = None) -> int:
    """Advance what is asked for until nothing more is; return the exit code of the last point."""
    folder, descriptor = sys.argv[1:] if arguments is None else arguments
    signals = Signals()
    signals.install()
    with socket.socket(fileno=int(descriptor)) as connection, closing(WarmTrainers()) as trainers:
        connection.set_inheritable(False)
        while (asked := _asked(connection, signals)) is not None:
            connection.send(BEGUN)
            code = run_point(StudyFolder(Path(folder).absolute()), *asked, signals, trainers)
            if code not in STAYS or signals.received:
                return code
            connection.send(str(code).encode())
    return 0


def _asked(connection: socket.socket, signals: Signals) -> tuple[str, int] | None:
    """Return the batch and the place in it that are wanted next; None where nothing is, or a signal has come."""
    while not signals.received:
        if select.select([connection], [], [], LOOK_SECONDS)[0]:
            said = connection.recv(MAX_REQUEST)
            return None if not said else (json.loads(said)["name"], int(json.loads(said)["index"]))
    return None


def run_point(study: StudyFolder, name: str, index: int, signals: Signals, trainers: Trainers) -> int:
    """Advance a point by its place in a batch; return the exit code."""
    state = ledger.read(study)
    batch = state.batches.get(name)
    if batch is None or not 0 <= index < len(batch.keys):
        print(f"{study.ledger} has no batch {name!r} with index {index}", file=sys.stderr)
        return NOT_WANTED
    return run(study, state, batch, batch.keys[index], signals, trainers=trainers)


if __name__ == "__main__":
    sys.exit(main())
