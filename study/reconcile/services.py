"""What the step uses of the world outside the study's folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from study.executors.base import Runner
from study.executors.slurm import query


def _print(text: str) -> None:
    print(text, flush=True)


@dataclass(frozen=True)
class Services:
    """The scheduler's commands, a clock [s since 1970], and where messages go."""

    runner: Runner = query.run
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    say: Callable[[str], None] = _print
