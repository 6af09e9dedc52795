"""What the step uses of the world outside the study's folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from study.executors import load
from study.executors.base import Executor, Runner


def _print(text: str) -> None:
    print(text, flush=True)


@dataclass(frozen=True)
class Services:
    """What runs the schedulers' commands (None: each as it does), a clock [s since 1970], and where messages go."""

    runner: Runner | None = None
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    report: Callable[[str], None] = _print

    def executor(self, name: str) -> Executor:
        """Return an executor by its name."""
        return load(name, self.runner)
