"""A worker of pytest-xdist as a fork of one process that has imported what test files do, for all workers.

`python -m tests.worker FOLDER -u -c CODE`: what xdist starts where it would start an interpreter; conftest says so. The
folder is one that the workers of a session share. Imports are half of what a worker does before its first test.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from tests.warm import SHARED, warm

IMPORTED = re.compile(r"(?m)^(?:import ([\w.]+)|from ([\w.]+) import )")
FIRST = re.compile(r"(?m)^(?:def|class|@)")
"""Where the imports of a file end, and programs that stand in it as texts begin."""
PYTESTS = frozenset({"__future__", "_pytest", "conftest", "hypothesis", "pytest", "tests"})
"""What pytest imports itself, some of it with assertions that it rewrites, and what would import that."""


def imported(files: Iterable[Path]) -> list[str]:
    """Return the modules that test files import, but those that pytest has to import."""
    heads = (FIRST.split(file.read_text(encoding="utf-8"), maxsplit=1)[0] for file in files)
    found = {"".join(names) for head in heads for names in IMPORTED.findall(head)}
    return sorted(module for module in found if module.partition(".")[0] not in PYTESTS)


def run(folder: str, words: list[str]) -> int:
    """Run `python words…` in a fork with this process' standard streams; return its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # without a word: pytest has some
    environment = dict(os.environ)
    os.environ[SHARED] = folder
    modules = imported(Path(__file__).parent.rglob("test_*.py"))
    try:
        warmed = warm(*modules)
    except AssertionError:  # one cannot be imported: pytest says which, and where
        os.execve(sys.executable, [sys.executable, *words], environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker, which gets the same one, says what it does
    return warmed.stand_in("tests.worker", *words, cwd=Path.cwd(), env=environment)


def work(code: str) -> NoReturn:
    """Run a program as `python -c` does, in this fork."""
    sys.modules["__main__"] = main = ModuleType("__main__")
    sys.argv = ["-c"]
    exec(code, vars(main))
    sys.exit()


if __name__ == "__main__":
    if sys.argv[1:3] == ["-u", "-c"]:
        work(sys.argv[3])
    sys.exit(run(sys.argv[1], sys.argv[2:]))
