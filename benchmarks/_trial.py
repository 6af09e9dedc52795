"""Trials in processes of their own: forks with limits, and a module loaded from another source than its file's."""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks._swap import ROOT

OF_OTHERS = (
    "hypothesis", "numpy", "pytest", "yaml", "torch", "torch.distributed.tensor", "torch.optim", "scipy.optimize",
    "scipy.stats", "scipy.special", "scipy.linalg", "pandas", "matplotlib.figure", "statsmodels.api", "submitit",
    "hydra", "optuna",
)  # fmt: skip
"""What tests import of others: imported once, before the processes are forked; one that is absent is left out."""
GRACE_SECONDS = 10.0
"""CPU seconds that a test may take besides ten times what it took: a loop that never ends is a timeout after that."""
PATIENCE = 20.0
"""Wall seconds for each CPU second of a limit: other processes may have the cores."""
MOST_BYTES = 6 * 2**30
"""What a trial may allocate besides what it begins with."""


class Instead(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from another source."""

    def __init__(self, path: str, source: str) -> None:
        self.name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self._path, self._source = ROOT / path, source

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> Any:
        """Return the spec of the module that is replaced; None for others."""
        del path, target
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Leave it to the import system."""
        del spec

    def exec_module(self, module: ModuleType) -> None:
        """Run the other source."""
        exec(compile(self._source, str(self._path), "exec", dont_inherit=True), vars(module))


def preload() -> None:
    """Import what the tests need of others, once: every trial's process is a fork of this one."""
    for name in OF_OTHERS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def pytest_options() -> list[str]:
    """Return what pytest is told each time: stop at the first failure is not among it."""
    # Captured output goes through one file, which forks would share: there is none.
    words = ["-q", "--no-header", "--capture=no", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hydra_pytest"]
    return [
        *words,
        "-p",
        "no:anyio",
        "-m",
        "not slow and not slurm",
        "-o",
        "addopts=",
        "--continue-on-collection-errors",
    ]


def anew(path: str, source: str, groups: Sequence[Sequence[str]]) -> int:
    """Run tests, a call of pytest for each group, with a module that is imported from another source; 0 if all pass."""
    import pytest

    sys.meta_path.insert(0, Instead(path, source))
    for tests in groups:
        code = int(pytest.main(["-x", *pytest_options(), *tests]))
        if code != 0:
            return code
    return 0


@dataclass(frozen=True)
class _Child:
    pid: int
    scratch: Path
    until: float


class Children:
    """Functions that run in forks, silent, each with a folder for its files; by a number that the caller gives.

    A function ends as its exit code says, and as None if it took too long. What it started ends with it.
    """

    def __init__(self) -> None:
        self._running: dict[int, _Child] = {}

    def __len__(self) -> int:
        return len(self._running)

    def start(self, number: int, what: Callable[[], int], cpu: float) -> None:
        """Run it with a limit of CPU seconds, and of PATIENCE times as many seconds."""
        scratch = Path(tempfile.mkdtemp(prefix="mutant-"))
        pid = os.fork()
        if pid == 0:
            _child(what, scratch, cpu)
        self._running[number] = _Child(pid, scratch, time.monotonic() + PATIENCE * cpu)

    def ended(self) -> list[tuple[int, int | None]]:
        """Return the exit codes of those that have ended since."""
        return [(number, code) for number in list(self._running) for code in self._ended(number)]

    def close(self) -> None:
        """End those that still run."""
        for number, child in list(self._running.items()):
            self._running[number] = _Child(child.pid, child.scratch, 0.0)
            self._ended(number)

    def _ended(self, number: int) -> list[int | None]:
        child = self._running[number]
        done, status = os.waitpid(child.pid, os.WNOHANG)
        late = time.monotonic() > child.until
        if not done and not late:
            return []
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        if not done:
            os.waitpid(child.pid, 0)
        del self._running[number]
        shutil.rmtree(child.scratch, ignore_errors=True)
        code = os.waitstatus_to_exitcode(status) if done else None
        return [None if code == -signal.SIGXCPU else code]


def _child(what: Callable[[], int], scratch: Path, cpu: float) -> None:
    ended = 70
    try:
        os.setpgid(0, 0)
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(scratch)
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        allow(cpu)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, resource.RLIM_INFINITY))
        ended = what()
    finally:
        os._exit(ended)


def allow(cpu: float) -> None:
    """Let this process take so many CPU seconds from now on."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    until = int(usage.ru_utime + usage.ru_stime + cpu) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))
