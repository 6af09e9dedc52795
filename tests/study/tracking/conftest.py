"""Shared by the tracking tests: one database template a test session, because MLflow takes seconds to make one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import pytest

from study.tracking.mlflow_store import ENVIRONMENT
from tests.environment import python_path
from tests.study.support.studies import SYNCER
from tests.warm import Started, warm

REPOSITORY = Path(__file__).parents[3]
BEHIND_A_PROXY = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "example.org"}
"""As on many login nodes; nobody answers at that port."""
Start = Callable[..., Started]


@pytest.fixture(autouse=True)
def no_secrets_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    # MLflow looks at this one and then refuses writes in sessions that it did not mark, in tests only.
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)


def begun(module: str, *words: str, cwd: Path) -> Started:
    env = {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1", **BEHIND_A_PROXY}
    return warm(*SYNCER, **ENVIRONMENT, MLFLOW_LOGGING_LEVEL="ERROR").start(module, *words, cwd=cwd, env=env)


def creating(path: Path, artifacts: str) -> Started:
    """Start a process that makes a database, and prints whether it did."""
    return begun("tests.study.support.creating", str(path), artifacts, cwd=REPOSITORY)


@pytest.fixture(scope="session")
def template(session_folder: Path) -> Path:
    path = session_folder / "template" / "mlflow.db"
    with filelock.FileLock(path.parent.with_suffix(".lock")):
        if not path.exists():
            said, trouble = creating(path, f"file://{path.parent}").communicate()
            assert said == "True\n", trouble
            assert [p.name for p in path.parent.iterdir()] == ["mlflow.db"]
    return path


@pytest.fixture
def database(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(template, tmp_path / "mlflow.db"))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `python -m study.tracking sync ...` in a process that ends with the test."""
    started: list[Started] = []

    def begin(*arguments: object) -> Started:
        started.append(begun("study.tracking", "sync", *map(str, arguments), cwd=tmp_path))
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
