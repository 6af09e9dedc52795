"""Which tests are quick: those that start no process and cost less than a tenth of a second.

conftest marks them, and `pytest -m quick` runs them. A test is not quick if it is marked slow or slurm; if it, its
fixtures or a helper in tests/ that these name uses a module that starts processes; or if tests/not_quick.json names it,
where `python -m tests.cpu FILE --record` notes what was measured. Under `-m quick` one that starts a process fails.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, ClassVar

import pytest

RECORD = Path(__file__).with_name("not_quick.json")
MOST_SECONDS = 0.1
"""What a quick test costs of a core at most, where it was measured [s]."""
MODULES = ("subprocess", "multiprocessing", "pty", "tests.forked", "tests.warm", "torch.multiprocessing")
CALLS = frozenset({"fork", "posix_spawn", "forkpty", "Popen", "ProcessPoolExecutor", *MODULES})
EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"})


def recorded() -> frozenset[str]:
    """Return the tests, without parameters, that were measured to start a process or to take long."""
    return frozenset(json.loads(RECORD.read_text("utf-8")))


def function_of(test: str) -> str:
    """Return the name of a test without its parameters."""
    return test.partition("[")[0]


def is_quick(item: pytest.Item, known: frozenset[str]) -> bool:
    """Return whether a test is quick; known: those that are recorded not to be."""
    if any(item.get_closest_marker(name) for name in ("slow", "slurm")) or function_of(item.nodeid) in known:
        return False
    fixtures = getattr(item, "_fixtureinfo", None)
    definitions = fixtures.name2fixturedefs.values() if fixtures is not None else ()
    functions = [getattr(item, "function", None), *(found.func for several in definitions for found in several)]
    return not any(starts_processes(inspect.unwrap(one)) for one in functions if one is not None)


@cache
def starts_processes(found: object) -> bool:
    """Return whether a function or class of the tests uses what starts processes, itself or by others of the tests."""
    seen: set[object] = set()
    waiting = [found]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        if isinstance(one, ModuleType):
            if one.__name__ in MODULES:
                return True
            continue
        if getattr(one, "__module__", "") in MODULES:
            return True
        functions = [one] if isinstance(one, FunctionType) else _methods(one)
        for function in functions:
            names = set(_names(function.__code__))
            if names & CALLS:
                return True
            found_by_name = (function.__globals__.get(name) for name in names)
            used = (inspect.unwrap(one) if callable(one) else one for one in found_by_name)
            waiting += [thing for thing in used if isinstance(thing, ModuleType) or _of_tests(thing)]
    return False


def _methods(found: object) -> list[FunctionType]:
    return [one for one in vars(found).values() if isinstance(one, FunctionType)] if isinstance(found, type) else []


def _of_tests(found: object) -> bool:
    home = getattr(found, "__module__", None)
    is_code = isinstance(found, FunctionType | type)
    return is_code and isinstance(home, str) and (home.startswith("tests.") or home == "conftest" or "test_" in home)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


class Running:
    """The test that runs now, and what it has started; "" between tests."""

    test = ""
    started: ClassVar[list[str]] = []


def watch_processes(*, forbidden: bool = False) -> None:
    """Note what each test starts from now on; with `forbidden`, let it fail."""

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in EVENTS and Running.test:
            Running.started.append(event)
            if forbidden:
                said = f"{Running.test} counts as quick but starts a process ({event} {arguments[:2]})"
                raise RuntimeError(f"{said}: let `python -m tests.cpu --record` note it, see tests/quick.py")

    sys.addaudithook(hook)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Say which test runs."""
    Running.test = item.nodeid
    Running.started.clear()
    result = yield
    Running.test = ""
    return result
