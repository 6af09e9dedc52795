"""What a killed pipeline leaves behind does not stop the next one, and what a living one holds is respected."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from study.commands.reproduce import forget_the_dead


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
    with subprocess.Popen([sys.executable, "-c", "input() # dvc"], stdin=subprocess.PIPE) as living:
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
