"""Which lines each test reaches, and how long it takes: a mutant is worth the tests that reach its line only."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from benchmarks._trial import ROOT, in_a_process, pytest_options

LIMIT_SECONDS = 240.0
"""A file of tests that takes longer is left out."""
Spans = dict[str, list[tuple[int, int]]]
"""First and last line of each function that was entered, by file relative to the root."""


@dataclass(frozen=True)
class Reach:
    """A test that passes: its name for pytest, its seconds, and the functions that it enters."""

    test: str
    seconds: float
    spans: Spans

    def enters(self, path: str, line: int) -> bool:
        """Say whether it enters a function that holds this line."""
        return any(first <= line <= last for first, last in self.spans.get(path, ()))


def chosen(known: Iterable[Reach], files: Sequence[str], path: str, line: int, seconds: float) -> list[Reach]:
    """Return the quickest tests of these files or folders that enter the line's function, up to so many seconds.

    Of a line that runs when its module is imported, the tests that enter anything of the module. At least one, if any.
    """
    among = [one for one in known if any(one.test.startswith((f"{file}::", f"{file}/")) for file in files)]
    fit = [one for one in among if one.enters(path, line)] or [one for one in among if path in one.spans]
    fit.sort(key=lambda one: one.seconds)
    total = 0.0
    taken: list[Reach] = []
    for one in fit:
        total += one.seconds
        if taken and total > seconds:
            break
        taken.append(one)
    return taken


def by_file(tests: Iterable[Reach]) -> list[tuple[str, ...]]:
    """Return the tests' names, file by file, the quickest file first: most mutants fall to the first."""
    files: dict[str, list[Reach]] = defaultdict(list)
    for one in tests:
        files[one.test.partition("::")[0]].append(one)
    quickest = sorted(files.values(), key=lambda group: sum(one.seconds for one in group))
    return [tuple(one.test for one in group) for group in quickest]


def reach(file: str) -> tuple[list[Reach], str]:
    """Return what the tests of a file reach, and a word on those that are left out (empty: none is).

    Each runs twice, in another order the second time: a test that fails by itself, or skips, notices nothing.
    """
    first, said = _passing((file,), traced=True)
    second, _ = _passing([name for name, _, _ in sorted(first, key=lambda one: one[1])], traced=False)
    seconds = {name: took for name, took, _ in second}
    lost = len(first) - len(seconds)
    words = [said] if said else []
    if lost:
        words.append(f"{lost} pass in their own order only")
    return [Reach(name, seconds[name], spans) for name, _, spans in first if name in seconds], "; ".join(words)


def _passing(tests: Sequence[str], *, traced: bool) -> tuple[list[tuple[str, float, Spans]], str]:
    if not tests:
        return [], ""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        in_a_process(lambda: _record(tests, Path(out.name), traced=traced), limit=LIMIT_SECONDS)
        text = Path(out.name).read_text(encoding="utf-8")
    if not text:
        return [], "cannot be collected here, or never ended"
    answer = json.loads(text)
    said = f"{len(answer['failed'])} fail or skip here" if answer["failed"] else ""
    if not answer["passed"] and not answer["failed"]:
        said = "cannot be collected here"
    return [(name, took, spans) for name, took, spans in answer["passed"]], said


def _record(tests: Sequence[str], out: Path, *, traced: bool) -> int:
    import pytest

    recorder = _Recorder(traced)
    with tempfile.TemporaryDirectory(prefix="reach-") as scratch:
        pytest.main([*pytest_options(Path(scratch) / "tests"), *tests], plugins=[recorder])
    out.write_text(json.dumps({"passed": recorder.passed(), "failed": sorted(recorder.failed)}), encoding="utf-8")
    return 0


class _Recorder:
    """A plugin of pytest: what each test took and entered."""

    def __init__(self, traced: bool) -> None:
        self._traced = traced
        self._took: dict[str, tuple[float, Spans]] = {}
        self.failed: set[str] = set()

    def passed(self) -> list[tuple[str, float, Spans]]:
        return [(name, *what) for name, what in self._took.items() if name not in self.failed]

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the tests that fail or skip apart."""
        if report.outcome != "passed":
            self.failed.add(report.nodeid)

    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> bool:
        """Run one test as pytest does, with its entered functions."""
        from _pytest.runner import runtestprotocol

        begin, codes = time.monotonic(), set[CodeType]()
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        if self._traced:
            with _entered(codes):
                runtestprotocol(item, nextitem=nextitem)
        else:
            runtestprotocol(item, nextitem=nextitem)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        self._took[item.nodeid] = (time.monotonic() - begin, _spans(codes))
        return True


def _spans(codes: Iterable[CodeType]) -> Spans:
    spans: Spans = defaultdict(list)
    for code in codes:
        path = os.path.relpath(code.co_filename, ROOT)
        if path.startswith(("..", ".venv", "tests")) or not path.endswith(".py"):
            continue
        last = max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)
        spans[path].append((code.co_firstlineno, last))
    return spans


@contextmanager
def _entered(codes: set[CodeType]) -> Generator[None]:
    """Collect the code of every function that is entered."""
    if sys.version_info >= (3, 12):
        watch, tool = sys.monitoring, 4
        watch.use_tool_id(tool, "reach")

        def start(code: CodeType, _offset: int) -> Any:
            codes.add(code)
            return watch.DISABLE

        watch.register_callback(tool, watch.events.PY_START, start)
        watch.set_events(tool, watch.events.PY_START)
        watch.restart_events()
        try:
            yield
        finally:
            watch.set_events(tool, 0)
            watch.free_tool_id(tool)
    else:

        def call(frame: FrameType, _event: str, _argument: object) -> None:
            codes.add(frame.f_code)

        before = sys.gettrace()
        sys.settrace(call)
        try:
            yield
        finally:
            sys.settrace(before)
