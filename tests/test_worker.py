"""Workers of pytest-xdist begin with what test files import, and are otherwise what a fresh interpreter is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.processes import has_ended
from tests.study.support.studies import LIMIT_SECONDS, wait_until
from tests.worker import imported

WAITS = "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"


def started(folder: Path, code: str, **environment: str) -> subprocess.Popen[str]:
    """Start one as xdist does; those of the same session share what has imported."""
    command = [sys.executable, "-m", "tests.worker", str(folder / "workers"), "-u", "-c", code]
    pipe = subprocess.PIPE
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}  # what imports NumPy with more cannot fork
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


def ended(process: subprocess.Popen[str], given: str = "") -> tuple[int, str, str]:
    """Return its exit code and what it said."""
    said, failed = process.communicate(given, timeout=LIMIT_SECONDS)
    return process.returncode, said, failed


def test_it_runs_a_program_that_finds_modules_imported(session_folder: Path) -> None:
    code = "import sys; print(sys.argv, __name__, {'torch', 'scipy.stats'} <= {*sys.modules}, input()); sys.exit(3)"
    assert ended(started(session_folder, code), "a line")[:2] == (3, "['-c'] __main__ True a line\n")


def test_ctrl_c_is_the_workers(session_folder: Path) -> None:
    process = started(session_folder, WAITS)
    assert process.stdout is not None
    worker = psutil.Process(int(process.stdout.readline()))
    process.send_signal(signal.SIGINT)
    assert process.poll() is None
    worker.send_signal(signal.SIGINT)
    code, said, failed = ended(process)
    assert (code, said) == (1, "")
    assert "KeyboardInterrupt" in failed.splitlines()


def test_a_worker_ends_with_what_xdist_started(session_folder: Path) -> None:
    process = started(session_folder, WAITS)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    process.kill()
    ended(process)
    wait_until("the worker ended", lambda: has_ended(worker))


def test_where_a_module_cannot_be_imported_it_is_a_fresh_one(tmp_path: Path) -> None:
    (tmp_path / "csv.py").write_text("raise ImportError('is not whole')")
    process = started(tmp_path, "import sys; print('torch' in sys.modules, input())", PYTHONPATH=str(tmp_path))
    code, said, failed = ended(process, "a line")
    assert (code, said) == (0, "False a line\n")
    assert "ImportError: is not whole" in failed


def test_texts_of_programs_are_not_imported(tmp_path: Path) -> None:
    file = tmp_path / "test_one.py"
    file.write_text(
        '"""One,\nfrom here."""\nimport a.b\nfrom c import d\nimport pytest\n\ndef f():\n  """\nimport e\n"""\n'
    )
    assert imported([file]) == ["a.b", "c"]
