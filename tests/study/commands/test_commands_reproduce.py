"""What a killed pipeline leaves behind does not stop the next one, and what a living one holds is respected."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from study.commands.reproduce import forget_the_dead, show_report
from study.storage.layout import StudyFolder
from tests.processes import has_ended


def write_locks(path: Path, write: int, read: int) -> None:
    holder = {"cmd": "dvc repro"}
    locks = {"write": {"a": {"pid": write, **holder}}, "read": {"b": [{"pid": read, **holder}]}}
    path.write_text(json.dumps(locks))


def test_a_dead_process_that_nobody_reaped_holds_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "rwlock"
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    while psutil.Process(dead.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    write_locks(path, dead.pid, dead.pid)
    forget_the_dead(path)
    assert not path.exists()
    dead.wait()


def test_the_living_keep_theirs(tmp_path: Path) -> None:
    path = tmp_path / "rwlock"
    command = [sys.executable, "-c", "print(flush=True); input() # dvc"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as living:
        assert living.stdout is not None and living.stdout.readline()  # before, the kernel may not know its command yet
        write_locks(path, 2**22 + 1, living.pid)
        forget_the_dead(path)
        assert path.exists()
        living.communicate(b"\n")


@pytest.mark.parametrize("text", ["", '{"write": {"a": {"pi'])
def test_a_file_that_was_cut_off_is_removed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rwlock"
    path.write_text(text)
    forget_the_dead(path)
    assert not path.exists()
    forget_the_dead(path)


STAGE = """
import pathlib, time
pathlib.Path("begun").touch()
try:
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.3)
    pathlib.Path("saved").touch()
    raise SystemExit(130)
"""


@pytest.mark.parametrize("to_all", [True, False], ids=["Ctrl-C in a terminal", "SIGTERM to the command alone"])
def test_told_to_end_it_waits_until_its_stage_has_saved(tmp_path: Path, to_all: bool) -> None:
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / "stage.py").write_text(STAGE)
    (tmp_path / "dvc.yaml").write_text(f"stages:\n  sweep:\n    cmd: {sys.executable} stage.py\n")
    command = [sys.executable, "-m", "study", "reproduce", "--root", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as running:
        while not (tmp_path / "begun").exists():
            assert running.poll() is None
            time.sleep(0.05)
        started = psutil.Process(running.pid).children(recursive=True)
        if to_all:
            os.killpg(running.pid, signal.SIGINT)
        else:
            running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
        assert running.returncode not in (0, -signal.SIGTERM)
    assert (tmp_path / "saved").exists() and "what ran is kept" in said
    alive = psutil.wait_procs(started, timeout=10)[1]
    assert all(has_ended(process.pid) for process in alive)


def test_a_report_that_its_stage_has_sent_is_not_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, study = tmp_path / "reports/s/report.html", StudyFolder(tmp_path / "runs/s")
    for file in (page, study.tracking):
        file.parent.mkdir(parents=True)
        file.touch()
    commands: list[list[str]] = []
    monkeypatch.setattr("subprocess.run", lambda command, **_: commands.append(command))
    for lacks, count in ((False, 0), (True, 1)):
        monkeypatch.setattr("study.commands.reproduce.lacks_report", lambda _, said=lacks: said)
        show_report(tmp_path, Path("reports/s"))
        assert len(commands) == count
    assert commands[0][1:4] == ["-m", "study.tracking", "sync"]
    study.tracking.unlink()
    show_report(tmp_path, Path("reports/s"))
    assert len(commands) == 1, "tracking is off"
