"""Shared by the tracking tests: one database template a test session, because MLflow takes seconds to make one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import pytest

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def no_secrets_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    # MLflow looks at this one and then refuses writes in sessions that it did not mark, in tests only.
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)


@pytest.fixture(scope="session")
def template(session_folder: Path) -> Path:
    path = session_folder / "template" / "mlflow.db"
    with filelock.FileLock(path.parent.with_suffix(".lock")):
        if not path.exists():
            code = "import sys; from pathlib import Path; from study.tracking.database import create_database as c; "
            code += "assert c(Path(sys.argv[1]), sys.argv[2])"
            subprocess.run([sys.executable, "-c", code, str(path), f"file://{path.parent}"], check=True, cwd=REPOSITORY)
            assert [p.name for p in path.parent.iterdir()] == ["mlflow.db"]
    return path


@pytest.fixture
def database(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(template, tmp_path / "mlflow.db"))


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `python -m study.tracking sync ...` in a process that ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: object, **environment: str) -> subprocess.Popen[str]:
        line = [sys.executable, "-m", "study.tracking", "sync", *map(str, arguments)]
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **environment}
        process = subprocess.Popen(
            line, cwd=tmp_path, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
