"""A process that has imported and collected all tests once; each trial is a fork of it that swaps a mutant's code."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType
from typing import Any

from benchmarks._reach import Reach, functions
from benchmarks._swap import ROOT, Live, entered, pairs
from benchmarks._trial import GRACE_SECONDS, Children, Instead, allow, pytest_options

LONGEST_SECONDS = 2.0
"""What a test is thought to take before it is known: one that takes some 30 CPU seconds by itself is left out."""
ANEW = 3
"""Exit code: the mutant cannot be swapped in."""
LONGEST_REASON = 2000
"""So many characters of what pytest printed are shown where it collects nothing."""
FAILED = 10
"""Exit code of a fork whose first test fails; one more for each test before it."""


@dataclass(frozen=True)
class Task:
    """Tests with their seconds, and the module's source that they run with, until one fails.

    Without a module it is one test, and what it takes and enters is written to OUT.
    """

    tests: tuple[tuple[str, float], ...]
    path: str = ""
    source: str = ""
    out: str = ""

    @property
    def cpu(self) -> float:
        """How many CPU seconds all may take."""
        return GRACE_SECONDS + 10.0 * sum(seconds for _, seconds in self.tests)


@dataclass(frozen=True)
class Found:
    """What was collected: the names of the tests, the files that cannot be, and the functions that ran on import."""

    tests: tuple[str, ...]
    lost: tuple[str, ...]
    on_import: dict[str, frozenset[str]]


class Collected:
    """The process, as its parent sees it: tasks go in, exit codes come out.

    Raises RuntimeError with the end of what pytest printed where it collects nothing.
    """

    def __init__(self, files: Sequence[str]) -> None:
        here, there = multiprocessing.Pipe()
        with tempfile.TemporaryFile() as printed:
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    here.close()
                    _serve(files, there, printed.fileno())
                finally:
                    os._exit(0)
            there.close()
            self._pipe = here
            self._numbers = 0
            try:
                self.found: Found = self._pipe.recv()
            except EOFError:
                self.close()
                printed.seek(0)
                said = printed.read().decode(errors="replace").strip()
                raise RuntimeError(f"pytest did not collect the tests:\n{said[-LONGEST_REASON:]}") from None

    def ask(self, task: Task) -> int:
        """Begin a task; its number comes with its answer."""
        self._numbers += 1
        self._pipe.send((self._numbers, task))
        return self._numbers

    def heard(self, seconds: float = 0.0) -> list[tuple[int, int | None]]:
        """Return what has ended, after so many seconds at most: 0 if all passed, None if they took too long."""
        out: list[tuple[int, int | None]] = []
        while self._pipe.poll(0.0 if out else seconds):
            out.append(self._pipe.recv())
        return out

    def close(self) -> None:
        """End it."""
        self._pipe.close()
        os.waitpid(self.pid, 0)

    def reach(self, names: Sequence[str], processes: int, tell: Callable[[Reach], None]) -> None:
        """Tell what each test enters, run by itself; of one that fails or skips then, that it enters nothing."""
        waiting, running = list(reversed(names)), dict[int, tuple[str, Path]]()
        with tempfile.TemporaryDirectory(prefix="reach-") as folder:
            while waiting or running:
                while waiting and len(running) < processes:
                    name, out = waiting.pop(), Path(folder) / f"{len(waiting)}.json"
                    running[self.ask(Task(((name, LONGEST_SECONDS),), out=str(out)))] = name, out
                for number, code in self.heard(1.0):
                    name, out = running.pop(number)
                    seconds, names_entered = json.loads(out.read_text(encoding="utf-8")) if code == 0 else (0.0, {})
                    tell(Reach(name, seconds, names_entered))


def _serve(files: Sequence[str], pipe: Connection, printed: int) -> None:
    import pytest

    _redirect(os.open(os.devnull, os.O_RDONLY), 0)
    _redirect(printed, 1, 2)
    with ExitStack() as importing:
        codes = set[CodeType]()
        importing.enter_context(entered(codes))
        pytest.main([*pytest_options(), *files], plugins=[_Server(pipe, codes, importing)])


def _redirect(file: int, *streams: int) -> None:
    for stream in streams:
        os.dup2(file, stream)


class _Server:
    """A plugin of pytest: instead of running the tests it answers tasks, until its parent goes."""

    def __init__(self, pipe: Connection, codes: set[CodeType], importing: ExitStack) -> None:
        self._pipe, self._codes, self._importing = pipe, codes, importing
        self._lost: list[str] = []

    def pytest_collectreport(self, report: Any) -> None:
        """Note files that cannot be collected."""
        if report.failed:
            self._lost.append(report.nodeid)

    def pytest_runtestloop(self, session: Any) -> bool:
        """Answer tasks."""
        _redirect(os.open(os.devnull, os.O_WRONLY), 1, 2)  # what thousands of trials print would fill the disk
        self._importing.close()
        live = Live(self._codes)
        gc.freeze()  # forks share what is never looked through
        items = {item.nodeid: item for item in session.items}
        on_import = {path: frozenset(names) for path, names in live.on_import.items()}
        self._pipe.send(Found(tuple(items), tuple(self._lost), on_import))
        children = Children()
        try:
            while True:
                while self._pipe.poll(0.003 if len(children) else 1.0):
                    number, task = self._pipe.recv()
                    children.start(number, partial(_run, session.config, items, live, task), task.cpu)
                for answer in children.ended():
                    self._pipe.send(answer)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            children.close()
        return True


def _run(config: Any, items: dict[str, Any], live: Live, task: Task) -> int:
    """Run a task in a fork, and return its exit code."""
    if task.path:
        instead = Instead(task.path, task.source)
        sys.meta_path.insert(0, instead)  # for who imports it later
        if instead.name in sys.modules:
            changed = pairs((ROOT / task.path).read_text(encoding="utf-8"), task.source)
            if changed is None or not live.swap(task.path, changed):
                return ANEW
    watch, codes = _Watch(), set[CodeType]()
    config.pluginmanager.register(watch)
    following = [*(items[name] for name, _ in task.tests[1:]), None]
    with entered(codes) if task.out else nullcontext():
        for at, ((name, seconds), after) in enumerate(zip(task.tests, following, strict=True)):
            allow(GRACE_SECONDS + 10.0 * seconds)
            items[name].ihook.pytest_runtest_protocol(item=items[name], nextitem=after)
            if "failed" in watch.outcomes or (task.out and "skipped" in watch.outcomes):
                return FAILED + min(at, 255 - FAILED)
    if task.out:
        Path(task.out).write_text(json.dumps([sum(os.times()[:4]), functions(codes)]), encoding="utf-8")
    return 0


class _Watch:
    """A plugin of pytest: how the tests end."""

    def __init__(self) -> None:
        self.outcomes = set[str]()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note it."""
        self.outcomes.add(report.outcome)
