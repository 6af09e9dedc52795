from __future__ import annotations

import os
import socket
import subprocess
import sys

import psutil
import pytest

from study.records.attempts import is_alive, process_identity

needs_proc = pytest.mark.skipif(process_identity(os.getpid()) is None, reason="no /proc here")


def own_job(**more: object) -> dict[str, object]:
    process = psutil.Process()
    return {"host": socket.gethostname(), "pid": process.pid, "start_time": process.create_time(), **more}


@needs_proc
def test_a_process_is_known_again_after_the_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    job = own_job(process=process_identity(os.getpid()))
    real = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: real(self) + 86400)
    assert is_alive(job) is True
    assert is_alive(own_job(start_time=job["start_time"])) is False, "what earlier versions wrote moves with the clock"


@needs_proc
def test_who_has_the_pid_of_another_process_or_has_ended_is_not_it() -> None:
    mine = process_identity(os.getpid())
    assert is_alive(own_job(process=mine, pid=1)) is False
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        theirs = process_identity(child.pid)
        assert theirs is not None and theirs != mine
        assert is_alive(own_job(process=theirs, pid=child.pid)) is True
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_alive(own_job(process=theirs, pid=child.pid)) is False, "a zombie does not live"
    assert process_identity(child.pid) is None


def test_what_earlier_versions_wrote_and_other_hosts_processes() -> None:
    assert is_alive(own_job()) is True
    assert is_alive(own_job(start_time=0.0)) is False
    assert is_alive(own_job(host="elsewhere")) is None
