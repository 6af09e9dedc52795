"""Processes that share out independent tasks, and end with the one that started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

MOST = 32


def cores() -> int:
    """Return how many processes this one may keep busy (its CPU affinity, at most 32)."""
    affinity = getattr(os, "sched_getaffinity", None)
    return min(len(affinity(0)) if affinity else os.cpu_count() or 1, MOST)


class Workers:
    """A pool of `count` fresh processes, started when first needed; with one worker or one task, this process works.

    Processes are spawned, not forked: `tokenizers` has threads of its own, which a fork does not survive.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def run(
        self, work: Callable[[Task], Result], tasks: Sequence[Task], progress: Callable[[float], None]
    ) -> list[Result]:
        """Return ``[work(task) for task in tasks]``; `progress` gets the share that is done."""
        results = []
        progress(0.0)
        for number, result in enumerate(self._results(work, tasks), 1):
            results.append(result)
            progress(number / len(tasks))
        return results

    def _results(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        if self._count == 1 or len(tasks) <= 1:
            return map(work, tasks)
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._count, mp_context=context, initializer=_end_with_the_parent)
        return _named(self._pool.map(work, tasks))


def _named(results: Iterator[Result]) -> Iterator[Result]:
    try:
        yield from results
    except BrokenProcessPool:
        raise ValueError(
            "a process that prepared data was killed, probably for lack of memory: free some, or start again with "
            "fewer workers (--workers 1)"
        ) from None


def _end_with_the_parent() -> None:
    """Leave Ctrl-C to the parent, and end when it does, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
