"""One trial: a module's source replaced by another in a process of its own, and the tests that run there."""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
OF_OTHERS = (
    "hypothesis", "numpy", "pytest", "yaml", "torch", "torch.distributed.tensor", "torch.optim", "scipy.optimize",
    "scipy.stats", "scipy.special", "scipy.linalg", "pandas", "matplotlib.figure", "statsmodels.api", "submitit",
    "hydra", "optuna",
)  # fmt: skip
"""What tests import of others: imported once, before the processes are forked; one that is absent is left out."""


class Instead(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from another source."""

    def __init__(self, path: str, source: str) -> None:
        self._name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self._path, self._source = ROOT / path, source

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> Any:
        """Return the spec of the module that is replaced; None for others."""
        del path, target
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Leave it to the import system."""
        del spec

    def exec_module(self, module: ModuleType) -> None:
        """Run the other source."""
        exec(compile(self._source, str(self._path), "exec"), vars(module))


def preload() -> None:
    """Import what the tests need of others, once: every trial's process is a fork of this one."""
    for name in OF_OTHERS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def pytest_options(scratch: Path) -> list[str]:
    """Return what pytest is told each time: stop at the first failure is not among it."""
    words = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return [*words, "-m", "not slow and not slurm", "-o", "addopts=", f"--basetemp={scratch}"]


def judge(path: str, source: str, groups: Sequence[Sequence[str]], limit: float) -> str:
    """Return what became of a mutant: killed, timeout, or survived. GROUPS: tests, one call of pytest each."""
    scratch = Path(tempfile.mkdtemp(prefix="mutant-"))
    try:
        code = in_a_process(lambda: _run(path, source, groups, scratch), limit)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return "timeout" if code is None else "survived" if code == 0 else "killed"


def _run(path: str, source: str, groups: Sequence[Sequence[str]], scratch: Path) -> int:
    import pytest

    sys.meta_path.insert(0, Instead(path, source))
    for tests in groups:
        code = int(pytest.main(["-x", *pytest_options(scratch / "tests"), *tests]))
        if code != 0:
            return code
    return 0


def in_a_process(what: Callable[[], int], limit: float) -> int | None:
    """Return the exit code of a function that runs in a fork, silent; None if it took longer than the limit, in s."""
    child = os.fork()
    if child == 0:
        ended = 70
        try:
            os.setpgid(0, 0)  # what it starts ends with it
            quiet = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(quiet, stream)
            ended = what()
        finally:
            os._exit(ended)
    until = time.monotonic() + limit
    code: int | None = None
    done = 0
    while not done and time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if done else None
        if not done:
            time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    if not done:
        os.waitpid(child, 0)
    return code
