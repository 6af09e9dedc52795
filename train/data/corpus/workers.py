"""Processes that share out independent tasks, and end with the one that started them."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from types import TracebackType
from typing import TypeVar

from train.spec import interrupts

Task = TypeVar("Task")
Result = TypeVar("Result")

MOST = 32


def cores() -> int:
    """Return how many processes this one may keep busy (its CPU affinity, at most 32)."""
    affinity = getattr(os, "sched_getaffinity", None)
    return min(len(affinity(0)) if affinity else os.cpu_count() or 1, MOST)


class KilledError(ValueError):
    """A process of the pool was killed; what others have finished is of use."""


class Workers:
    """A pool of `count` fresh processes, started when first needed; with one worker or one task, this process works.

    Processes are spawned, not forked: `tokenizers` has threads of its own, which a fork does not survive.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Yield the number of each task and its result, ``work(task)``, as they are done.

        Raises what `work` raises, and KilledError when one of the processes was killed.
        """
        if self.count == 1 or len(tasks) <= 1:
            yield from ((number, work(task)) for number, task in enumerate(tasks))
            return
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.count, mp_context=context, initializer=_end_with_the_parent)
        try:
            resource_tracker.ensure_running()  # which the pool would start, and let Ctrl-C through again
            with interrupts.held_back():  # submitting starts the processes
                numbers = {self._pool.submit(work, task): number for number, task in enumerate(tasks)}
            for future in as_completed(numbers):
                yield numbers.pop(future), future.result()
        except BrokenProcessPool:
            raise KilledError(
                "a process that prepared data was killed, probably for lack of memory: free some, or start again with "
                "fewer workers (--workers 1); what was finished is not done again"
            ) from None


def _end_with_the_parent() -> None:
    """Leave Ctrl-C to the parent, and end when it does, however it ends."""
    interrupts.left_to_the_parent()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
