from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from study.place import FIRST_PORT, PORTS, Place, find_place, first_free, rendezvous
from study.supervise import Ending, classify
from tests.study.execution.studies import environment, wait_until

TERM, KILL, USR2, SEGV = signal.SIGTERM, signal.SIGKILL, signal.SIGUSR2, signal.SIGSEGV


@pytest.mark.parametrize(
    ("arguments", "state", "code"),
    [
        ((0, [], "completed", False, None), "completed", 0),
        ((0, [TERM], "completed", False, None), "completed", 0),
        ((0, [], "diverged", False, None), "diverged", 3),
        ((0, [], None, False, None), "failed", 1),
        ((3, [], "diverged", False, None), "diverged", 3),
        ((3, [], None, False, None), "diverged", 3),
        ((1, [], None, False, None), "failed", 1),
        ((7, [TERM], None, False, None), "failed", 7),
        ((75, [TERM], None, False, None), "interrupted", 75),
        ((75, [TERM], None, True, None), "cancelled", 75),
        ((75, [], None, False, None), "interrupted", 75),
        ((75, [USR2], None, False, 80.0), "time_limit", 75),
        ((75, [USR2, TERM], None, False, None), "time_limit", 75),
        ((75, [USR2], None, False, 3000.0), "preempted", 75),
        ((-TERM, [TERM], None, False, None), "interrupted", 75),
        ((-TERM, [signal.SIGHUP], None, False, None), "interrupted", 75),
        ((-USR2, [USR2], None, False, 10.0), "time_limit", 75),
        ((-KILL, [], None, False, None), "failed", 137),
        ((-KILL, [TERM], None, False, None), "failed", 137),
        ((-SEGV, [], None, False, None), "failed", 139),
        ((-TERM, [], None, False, None), "failed", 143),
    ],
)
def test_classify(arguments: tuple[int, list[int], str | None, bool, float | None], state: str, code: int) -> None:
    ending = classify(*arguments)
    assert (ending.state, ending.code) == (state, code)


def test_a_death_by_signal_is_named() -> None:
    assert "signal 9 (SIGKILL, often the kernel or SLURM when memory ran out)" in str(
        classify(-9, [], None, False, None)
    )


def test_only_completed_is_success_to_slurm() -> None:
    states = ("completed", "diverged", "failed", "interrupted", "time_limit", "preempted", "cancelled")
    assert [s for s in states if Ending(s).code == 0] == ["completed"]


def test_a_child_gets_sigterm_when_its_parent_is_killed_outright(tmp_path: Path) -> None:
    child = "import signal, time; signal.signal(15, lambda *_: open('told', 'w').close() or exit()); "
    child += "open('ready', 'w').close(); time.sleep(60)"
    parent = f"""
import os, sys, time
from pathlib import Path
from study.supervise import spawn
process = spawn([sys.executable, "-c", {child!r}], os.environ, Path("out"), Path("out"))
Path("pid").write_text(str(process.pid))
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", parent], cwd=tmp_path, env=environment())
    wait_until("the child is ready", (tmp_path / "ready").exists)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until("the child was told", (tmp_path / "told").exists, 10)
    pid = int((tmp_path / "pid").read_text())
    wait_until("the child ended", lambda: not psutil.pid_exists(pid), 10)


def test_place_in_an_array_task_that_was_requeued() -> None:
    variables = {
        "SLURM_ARRAY_JOB_ID": "12",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_JOB_ID": "15",
        "SLURM_RESTART_COUNT": "1",
        "SLURM_PROCID": "2",
        "SLURM_NTASKS": "4",
        "SLURM_LOCALID": "0",
        "SLURM_JOB_NODELIST": "n1,n2",
    }
    assert find_place("slurm", variables) == Place("slurm", "12_3", 1, 2, 4, 0, ("n1", "n2"))
    assert find_place("local", variables).world == 1, "a local run inside an allocation is not one of its tasks"


def test_ports_come_from_the_job_and_avoid_those_in_use() -> None:
    assert first_free(5, lambda port: port != FIRST_PORT + 5) == FIRST_PORT + 6
    assert first_free(PORTS - 1, lambda port: port == FIRST_PORT) == FIRST_PORT
    with pytest.raises(OSError, match="no free port"):
        first_free(0, lambda port: False)
    one, other = rendezvous(Place("slurm", "12_3"), "10.0.0.1"), rendezvous(Place("slurm", "12_4"), "10.0.0.1")
    assert one[0] == "10.0.0.1"
    assert one[1] != other[1]
