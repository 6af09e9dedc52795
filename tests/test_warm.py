"""Processes that are forks of a warm one take signals as fresh ones do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import psutil
import pytest

from tests.environment import python_path
from tests.study.support.studies import LIMIT_SECONDS
from tests.warm import SHARED, Process, Warm, warm

ROOT = Path(__file__).parents[1]
TIMES = 20
ENVIRONMENT = {"PYTHONPATH": python_path(), "PATH": os.environ["PATH"]}


def test_ctrl_c_right_after_the_start_is_not_lost() -> None:
    warmed = warm("study.commands.status")
    for _ in range(TIMES):
        process = warmed.start("tests.asleep", cwd=ROOT, env=ENVIRONMENT)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode != 0
        assert "KeyboardInterrupt" in said


def test_the_process_that_forks_outlives_ctrl_c() -> None:
    warmed = warm("study.commands.status")
    os.kill(warmed.pid, signal.SIGINT)
    process = warmed.start("study", "--help", cwd=ROOT, env=ENVIRONMENT)
    assert "all studies" in process.communicate(timeout=LIMIT_SECONDS)[0]
    assert process.returncode == 0


def test_a_signal_to_one_that_has_ended_is_no_error() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    reading, _ = os.pipe()  # nobody has said yet that it ended
    with tempfile.TemporaryFile("w+") as out:
        Process(["gone"], gone.pid, out, out, reading).send_signal(signal.SIGINT)


def test_threads_that_ask_at_once_share_one_process(tmp_path: Path) -> None:
    """Two were made once, and the one that nobody kept ended its forks."""
    together = Barrier(4)

    def ask(year: int) -> tuple[Warm, str, int]:
        together.wait()
        warmed = warm("calendar", MEETING=tmp_path.name)
        process = warmed.start("calendar", str(year), cwd=tmp_path, env=dict(os.environ))
        return warmed, process.communicate(timeout=120)[0], process.wait()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ask, range(2001, 2005)))
    assert len({id(warmed) for warmed, _, _ in found}) == 1
    assert [(said.split()[0], code) for _, said, code in found] == [(str(year), 0) for year in range(2001, 2005)]


def test_processes_that_ask_for_the_same_share_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SHARED, str(tmp_path / "shared"))

    def year(asked: Warm) -> str:
        return asked.start("calendar", "2001", cwd=tmp_path, env=dict(os.environ)).communicate(timeout=120)[0][:40]

    first, second, other = (Warm(names, {}) for names in (["calendar"], ["calendar"], ["calendar", "json"]))
    assert first.pid != second.pid
    importer = psutil.Process(first.pid).parent()
    assert importer is not None
    assert importer == psutil.Process(second.pid).parent() != psutil.Process(other.pid).parent()
    assert year(first) == year(second) == year(other) != ""
    del first  # as when its process ends: what others have goes on, and who asks later has one of its own
    psutil.wait_procs([importer], timeout=120)
    assert not importer.is_running()
    assert year(second) == year(Warm(["calendar"], {})) != ""


def test_what_cannot_be_imported_is_said_with_or_without_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        with pytest.raises(AssertionError, match=r"'no_such_module'.* cannot be imported: exit code 1"):
            Warm(["no_such_module"], {})
        monkeypatch.setenv(SHARED, str(tmp_path / "shared"))


def test_a_pytest_that_a_worker_starts_is_no_worker() -> None:
    environment = {**os.environ, "PYTEST_XDIST_WORKER": "gw0", "PYTEST_XDIST_WORKER_COUNT": "2"}
    words = ["-p", "no:cacheprovider", "-q", "tests/test_warm.py", "-k", "that_has_ended"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
