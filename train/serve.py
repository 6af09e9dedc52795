"""`python -m train.serve FD`: one run after the other in one process, each as `python -m train.run` trains it.

Whoever started it hands it attempts through the socket FD and is told when each has begun and how it ended. Only a run
that has reached its target or diverged is followed by another here, and only if that needs the same of a process and
nothing of the first one is left in it. Anything else ends this process, as it would have ended the run's own.

A request is JSON (`arguments` of train.run, `environment`, `folder`) with descriptors: standard output, standard error,
and others that are held until the run has ended. Answers are `begun` and the exit code.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train import run
from train.runtime.console import let_go
from train.runtime.signals import STOPPING, StopFlag
from train.spec.config import ProfileConfig, RunConfig
from train.spec.frozen_run import load

if TYPE_CHECKING:
    from train.runtime.leftovers import Before

MOST, DESCRIPTORS = 1 << 17, 8
"""Size of a request [bytes], nearly all of it an environment, and the descriptors that come with it."""
BEGUN = b"begun"
STAYS = (run.REACHED, run.DIVERGED)
IDLE_SECONDS = 120.0
"""A process that nobody needs gives its memory back after this long [s]."""
OF_AN_ATTEMPT = frozenset({"HEARTBEAT", "HEARTBEAT_WHERE", "PAUSE", "CODE_VERSION"})
"""Variables that say nothing of the process."""
OF_THE_PROCESS = ("compile", "memory", "precision", "profile", "runtime")
"""Sections that runs of one process have in common."""
OF_THE_GRAPHS = ("model", "data", "batch", "parallel")
"""Sections by which compiled graphs differ, beside those."""


@dataclass(frozen=True)
class Attempt:
    """A run to be trained, and what it is given."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    descriptors: tuple[int, ...] = ()

    @property
    def config(self) -> Path:
        """The run's config.yaml."""
        return Path(self.folder, self.arguments[self.arguments.index("--config") + 1])


def suits(before: Attempt, ran: RunConfig, asked: Attempt, wanted: RunConfig) -> bool:
    """Whether a process that has trained one attempt is what a fresh one would be to the next."""
    if ran.profile != ProfileConfig() or ran.memory.checkpointing == "budget":  # which measures the peak of a process
        return False
    if before.folder != asked.folder or _lasting(before.environment) != _lasting(asked.environment):
        return False
    return all(getattr(ran, name) == getattr(wanted, name) for name in OF_THE_PROCESS)


def same_graphs(ran: RunConfig, wanted: RunConfig) -> bool:
    """Whether what was compiled for one run serves another; as CUDA graphs it holds memory of the first."""
    if ran.compile.cuda_graphs:
        return False
    return all(asdict(getattr(ran, name)) == asdict(getattr(wanted, name)) for name in OF_THE_GRAPHS)


def _lasting(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in OF_AN_ATTEMPT}


def serve(connection: socket.socket) -> int:
    """Train what is asked for; return the exit code of this process."""
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in STOPPING}
    before: Before | None = None
    last: tuple[Attempt, RunConfig] | None = None
    while (asked := _asked(connection)) is not None:
        started, flag = time.perf_counter(), StopFlag()
        wanted = _config(asked)
        if last is not None:
            if wanted is None or not suits(*last, asked, wanted):
                return run.REACHED
            if "torch._dynamo" in sys.modules and not same_graphs(last[1], wanted):
                sys.modules["torch"].compiler.reset()
        connection.send(BEGUN)
        flag.install()
        _turn(asked)
        if wanted is not None and before is None:
            before = _before(handlers)
        code = run.main(list(asked.arguments), flag, started)
        if code not in STAYS or wanted is None or before is None:
            return code
        _let_go_of(asked)
        connection.send(str(code).encode())
        if before.restore(asked.config.parent) is not None:
            return code
        last = asked, wanted
    return run.REACHED


def _asked(connection: socket.socket) -> Attempt | None:
    """Return what is to be trained next; None where nothing more is, or not for a while."""
    if not select.select([connection], [], [], IDLE_SECONDS)[0]:
        return None
    text, descriptors, _, _ = socket.recv_fds(connection, MOST, DESCRIPTORS)
    if not text:
        return None
    said: dict[str, Any] = json.loads(text)
    return Attempt(tuple(said["arguments"]), said["environment"], said["folder"], tuple(descriptors))


def _config(asked: Attempt) -> RunConfig | None:
    """Return the config of an attempt; None where it has no valid one, which the run itself tells."""
    try:
        return load(asked.config)
    except (ValueError, OSError):
        return None


def _before(handlers: Mapping[int, Any]) -> Before:
    """Return what this process is before its first run; this imports torch."""
    gc.disable()  # what is imported stays: to look for garbage in it takes a sixth of the time
    from train.runtime.leftovers import Before

    return Before(handlers)


def _turn(asked: Attempt) -> None:
    """Be what an attempt's own process would be: its environment, folder and output."""
    os.environ.clear()
    os.environ.update(asked.environment)
    os.chdir(asked.folder)
    for number, descriptor in zip((1, 2), asked.descriptors, strict=False):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _let_go_of(asked: Attempt) -> None:
    """Write what is buffered, and close what the attempt was given."""
    let_go()
    ctypes.CDLL(None).fflush(None)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    for descriptor in (nowhere, *asked.descriptors[2:]):
        os.close(descriptor)


def main() -> int:
    """Serve at the socket that the command line names."""
    if len(sys.argv) != 2 or not sys.argv[1].isdecimal():
        from train.spec.interrupts import no_command

        no_command("train.serve", "jobs start it by themselves to train several points in one process")
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        connection.set_inheritable(False)
        return serve(connection)


if __name__ == "__main__":
    ended = main()
    let_go()
    sys.exit(ended)
