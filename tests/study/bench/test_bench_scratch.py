"""The temporary folder of a measurement is gone after SIGTERM and Ctrl-C, and so are the ranks that wrote to it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from study.bench import scratch
from study.bench.scratch import PREFIX, scratch_folder
from tests.environment import python_path
from tests.late import pressed_as_it_begins
from tests.study.support.studies import wait_until

RANK = (
    "import os, pathlib, sys, time\n"
    "pathlib.Path(os.environ['PIDS'], str(os.getpid())).touch()\n"
    "folder = pathlib.Path(sys.argv[sys.argv.index('--config') + 1]).parent\n"
    "while True: (folder / f'{time.time()}.txt').touch(); time.sleep(0.001)"
)
"""A rank that says its number, and writes to the run's folder until it is ended."""
PIPELINE = ("pipeline", "measure=yes", "pp=2", "micro_batches=2", "schedules=gpipe")
STRATEGIES = ("strategies", "strategies=ddp", "model.width=64", "steps=8")


@pytest.mark.parametrize(
    ("words", "number", "code"),
    [
        (PIPELINE, signal.SIGTERM, -signal.SIGTERM),
        (PIPELINE, signal.SIGINT, 130),
        (STRATEGIES, signal.SIGTERM, -signal.SIGTERM),
    ],
    ids=["pipeline-SIGTERM", "pipeline-SIGINT", "strategies-SIGTERM"],
)
def test_a_command_that_is_ended_leaves_no_folder_and_no_rank(
    words: Sequence[str], number: signal.Signals, code: int, tmp_path: Path
) -> None:
    temporary, pids = tmp_path / "temporary", tmp_path / "pids"
    temporary.mkdir()
    pids.mkdir()
    environment = {**os.environ, "PYTHONPATH": python_path(), "TMPDIR": str(temporary), "PIDS": str(pids)}
    environment |= {"STUDY_TRAINER": shlex.join([sys.executable, "-c", RANK])}
    command = [sys.executable, "-m", "study", "bench", *words]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as started:
        try:
            wait_until("two ranks", lambda: len(list(pids.iterdir())) == 2)
            assert [path.name.startswith(PREFIX) for path in temporary.iterdir()] == [True]
            started.send_signal(number)
            _, said = started.communicate(timeout=60)
        finally:
            started.kill()
    assert started.returncode == code, said
    assert b"Traceback" not in said
    if number == signal.SIGINT:
        assert [line for line in said.splitlines() if b"interrupted" in line] == [said.splitlines()[-1]]
    assert not list(tmp_path.rglob("*.tmp")) and not list(tmp_path.rglob("measured.*")), "nothing was measured"
    assert not list(temporary.iterdir())
    assert not [path.name for path in pids.iterdir() if Path("/proc", path.name).exists()]


def test_the_folder_goes_with_an_exception_and_signals_are_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="no"), scratch_folder() as folder:
        (folder / "file").touch()
        assert signal.getsignal(signal.SIGTERM) is not before
        raise ValueError("no")
    assert not folder.exists() and signal.getsignal(signal.SIGTERM) is before


def test_the_folder_goes_also_where_ctrl_c_comes_as_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "deferred", pressed_as_it_begins())
    with pytest.raises(KeyboardInterrupt), scratch_folder() as folder:
        (folder / "file").touch()
    assert not folder.exists()
