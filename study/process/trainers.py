"""How trainers are started: a process for each attempt, or one that stays for attempts that follow each other.

The one that stays (`train.serve`) imports torch, meets the GPU and loads compiled code once. It is as good as a fresh
one or it is gone: whatever an attempt ends with but 0 or a divergence ends it with that exit code, and it goes where
the next attempt needs another process, or something of the last one is left in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from study.process import code_version
from study.process.children import Started, interpreter, spawn, trainer_command
from study.process.warm_process import MAX_REQUEST, WarmProcess


@dataclass(frozen=True)
class TrainerStart:
    """What a trainer is given; `until` [tokens], None: its budget. inherit: descriptors that it holds until its end."""

    config: Path
    until: int | None
    environment: Mapping[str, str]
    stdout: Path
    stderr: Path
    inherit: tuple[int, ...] = ()

    @property
    def command(self) -> list[str]:
        """The command of a process of its own."""
        return trainer_command(self.config, self.until)


class Trainers(Protocol):
    """Starts trainers of one process."""

    def start(self, wanted: TrainerStart) -> Started:
        """Start one."""

    def close(self) -> None:
        """End what stays."""


class FreshTrainers:
    """A process for each attempt."""

    def start(self, wanted: TrainerStart) -> Started:
        """Start one."""
        return spawn(wanted.command, wanted.environment, wanted.stdout, wanted.stderr, wanted.inherit)

    def close(self) -> None:
        """Do nothing: they have ended."""


FRESH = FreshTrainers()


def trainers(warm: object) -> Trainers:
    """Return how a process starts the trainers of points that it takes one after the other."""
    return WarmTrainers() if warm else FRESH


class WarmTrainers:
    """At most one process, which trains one attempt after the other; where STUDY_TRAINER is set each has its own."""

    def __init__(self) -> None:
        self._process: WarmProcess | None = None
        self._code = ""
        self._ending: list[WarmProcess] = []

    def start(self, wanted: TrainerStart) -> Started:
        """Start one, in the warm process if that is as good as a fresh one."""
        request = {
            "arguments": wanted.command[-2 if wanted.until is None else -4 :],
            "environment": dict(wanted.environment),
            "folder": str(Path.cwd()),
        }
        text = json.dumps(request).encode()
        if os.environ.get("STUDY_TRAINER") or len(text) > MAX_REQUEST:
            return FRESH.start(wanted)
        code = code_version.stamp()  # a warm process has the code as it was when it started
        with wanted.stdout.open("ab") as out, wanted.stderr.open("ab") as err:
            descriptors = (out.fileno(), err.fileno(), *wanted.inherit)
            if self._process is not None:
                served = self._process.send_next(text, descriptors) if code == self._code else None
                if served is not None:
                    return served
                self._retire()
            command = [*interpreter(), "-m", "train.serve"]
            self._process, self._code = WarmProcess(command, wanted.environment, wanted.stdout, wanted.stderr), code
            return self._process.send_first(text, descriptors)

    def close(self) -> None:
        """End the process and wait for that."""
        self._retire()
        for one in self._ending:
            one.wait()
        self._ending.clear()

    def _retire(self) -> None:
        if self._process is not None:
            self._process.close()
            self._ending = [one for one in (*self._ending, self._process) if one.process.poll() is None]
            self._process = None
