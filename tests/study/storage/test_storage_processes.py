from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from study.executors.prepare_data import SCRATCH, is_left
from study.storage.processes import has_ended, started

HERE = os.uname().nodename
needs_proc = pytest.mark.skipif(started(os.getpid()) is None, reason="no /proc here")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def die(process: subprocess.Popen[bytes]) -> None:
    """Kill it, and leave it as a process is left that nobody asks for its exit code."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


@needs_proc
def test_one_that_nobody_waits_for_has_ended(child: subprocess.Popen[bytes]) -> None:
    """Orphans stay so in a container whose first process is no init."""
    assert not has_ended(HERE, str(child.pid))
    assert started(child.pid) is not None
    die(child)
    assert has_ended(HERE, str(child.pid))
    assert started(child.pid) is None
    child.wait()
    assert has_ended(HERE, str(child.pid))
    assert started(child.pid) is None


@needs_proc
def test_what_it_left_of_a_preparation_is_left(child: subprocess.Popen[bytes], tmp_path: Path) -> None:
    scratch = tmp_path / f"{SCRATCH}{HERE}-{child.pid}-abcd1234"
    scratch.mkdir()
    assert not is_left(scratch)
    die(child)
    assert is_left(scratch)


def test_of_other_machines_and_names_nothing_is_known() -> None:
    assert not has_ended("elsewhere", "999999999")
    assert not has_ended(HERE, "x")


def test_a_number_that_no_process_has_is_of_one_that_ended() -> None:
    assert has_ended(HERE, "9" * 30)
