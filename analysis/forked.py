"""Work on several cores: forks of this process share the items, which need not be pickled as results must."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn, TypeVar

from train.spec.interrupts import deferred

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST = 255
"""Items whose places fit into a byte each."""


def cores() -> int:
    """Return how many processes may work for this one: its cores; one where forks are not safe.

    They are not beside other threads, whose locks a fork keeps as they are, and in the libraries of other systems.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return 1
    return len(os.sched_getaffinity(0))


def each(function: Callable[[Item], Result], items: Sequence[Item], processes: int) -> list[Result]:
    """Return the function's result for every item, in their order, worked out by so many processes at most.

    What a fork could not do, this process does itself: an exception is raised here. Ctrl-C ends the forks as well.
    """
    count = min(processes, len(items))
    if count <= 1 or len(items) > MOST:
        return [function(item) for item in items]
    places, refill = os.pipe()
    os.write(refill, bytes(range(len(items))))
    os.close(refill)  # an empty pipe is then the end
    children: list[tuple[int, int]] = []
    found: dict[int, Result] = {}
    try:
        for _ in range(count):
            with deferred():  # until the fork is known; it never leaves the block, so that this process ends it
                children.append(_fork(function, items, places))
        for _, answers in children:
            with open(answers, "rb", closefd=False) as file:
                told = file.read()
            with suppress(EOFError, pickle.UnpicklingError):  # it ended before it had told all
                found |= pickle.loads(told)
    finally:
        try:
            _end(children)
        except KeyboardInterrupt:  # it came as this began
            _end(children)
            raise
        finally:
            os.close(places)
    return [found[place] if place in found else function(item) for place, item in enumerate(items)]


def _fork(function: Callable[[Item], Result], items: Sequence[Item], places: int) -> tuple[int, int]:
    """Start a fork that takes the next place whenever it is free; return its pid and where its answers come from."""
    answers, end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads that a BLAS keeps, which mind forks
        child = os.fork()
    if child == 0:
        _work(function, items, places, end)
    os.close(end)
    return child, answers


def _end(children: list[tuple[int, int]]) -> None:
    """End the forks; those that have been are no longer in the list."""
    with deferred():
        while children:
            child, answers = children.pop()
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(answers)


def _work(function: Callable[[Item], Result], items: Sequence[Item], places: int, end: int) -> NoReturn:
    """Tell the results of the items whose places are free, and end without what this process would do at its end."""
    gc.disable()  # or the memory of all modules is copied
    found: dict[int, Result] = {}
    with suppress(BaseException):
        while place := os.read(places, 1):
            with suppress(Exception):
                found[place[0]] = function(items[place[0]])
        told = pickle.dumps(found)
        with open(end, "wb") as file:
            file.write(told)
    os._exit(0)
