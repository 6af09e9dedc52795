"""Locks of links, for file systems without flock: real processes, some of them killed while they hold one."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from study.storage import locks
from study.storage.files import RunLock, locked
from study.storage.locks import LinkLock
from tests.study.support.studies import wait_until

COUNTING = """
import sys, time
from pathlib import Path
from study.storage.files import locked
folder, turns = Path(sys.argv[1]), int(sys.argv[2])
for _ in range(turns):
    with locked(folder / "events.lock"):
        inside = folder / "inside"
        inside.mkdir()  # fails where somebody else is inside
        count = int((folder / "count").read_text())
        (folder / "count").write_text(str(count + 1))
        inside.rmdir()
"""
HOLDING = """
import sys, time
from pathlib import Path
from study.storage.files import locked
with locked(Path(sys.argv[1]) / "events.lock"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert locks.choose(tmp_path, "link") == "link"
    (tmp_path / "count").write_text("0")
    return tmp_path


def begin(program: str, *words: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_one_process_at_a_time(folder: Path) -> None:
    workers = [begin(COUNTING, folder, 40) for _ in range(4)]
    for worker in workers:
        _, said = worker.communicate(timeout=900)
        assert worker.returncode == 0, said
    assert (folder / "count").read_text() == "160"
    assert len([path for path in folder.iterdir() if path.name.startswith("events.lock.")]) <= 2  # no growing heap


def test_a_killed_holders_lock_goes_to_the_next(folder: Path) -> None:
    for _ in range(3):
        holder = begin(HOLDING, folder)
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(TimeoutError, match="held by another"), locked(folder / "events.lock", 0.1):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with locked(folder / "events.lock", 10.0) as holds:
        assert holds()


def test_another_hosts_lock_lasts_while_it_is_touched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, here = LinkLock(folder / "lock", stale=300.0), LinkLock(folder / "lock", stale=300.0)
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(locks, "_host", lambda: "elsewhere")
    assert there.acquire()
    monkeypatch.undo()
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.05)
    link = folder / "lock.1"

    def left_alone() -> None:
        os.utime(link, (0, 0), follow_symlinks=False)

    def taken_over() -> bool:
        left_alone()
        return here.acquire(0.0)

    for _ in range(3):
        left_alone()
        wait_until("it is touched", lambda: link.lstat().st_mtime > 0)
        assert not here.acquire(0.0)
    assert there.held
    there._end.set()  # it stands still, or its host is gone
    wait_until("its turn has ended", taken_over)
    assert not there.held
    there.release()  # it wakes up: the turn that it ends is its own, long over
    assert here.held
    here.release()
    assert not here.held


def test_ends_of_turns_at_any_moment_leave_one_holder_at_most(folder: Path) -> None:
    """Stale names: a process that read the row before others came and went must not think that it holds the lock."""
    random_ = random.Random(0)
    contenders = [LinkLock(folder / "lock") for _ in range(5)]
    holder: LinkLock | None = None
    numbers = LinkLock._numbers
    old: list[int] = []
    for _ in range(300):
        one = random_.choice(contenders)
        if holder is not None and random_.random() < 0.5:
            holder.release()
            holder = None
        elif one is not holder:
            seen = iter([old, None])  # what it reads first may be long out of date

            def read(self: LinkLock, seen: "object" = seen) -> list[int]:
                stale = next(seen, None)  # type: ignore[call-overload]
                return numbers(self) if stale is None or random_.random() < 0.5 else stale

            old = numbers(one)
            LinkLock._numbers = read  # type: ignore[method-assign]
            try:
                got = one.acquire(0)
            finally:
                LinkLock._numbers = numbers  # type: ignore[method-assign]
            assert not (got and holder is not None)
            holder = one if got else holder
        assert sum(lock.held for lock in contenders) == (holder is not None)
    if holder is not None:
        holder.release()


def test_a_runs_lock_stays_with_the_trainer_that_inherited_it(folder: Path) -> None:
    run = folder / "0123456789ab"
    run.mkdir()
    program = (
        "import subprocess, sys, time; from pathlib import Path; from study.storage.files import RunLock\n"
        "lock = RunLock(Path(sys.argv[1])); assert lock.acquire()\n"
        "child = subprocess.Popen(['sleep', '600'], pass_fds=(lock.fileno(),)); print(child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    holder = begin(program, run / "lock")
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert not RunLock(run / "lock").acquire()
    os.kill(child, signal.SIGKILL)
    limit = time.monotonic() + 900
    while not RunLock(run / "lock").acquire():
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_the_kind_is_the_studys_and_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locks.choose(tmp_path / "a", "auto") == "posix"
    assert locks.kind_of(tmp_path / "a" / "events.lock") == "posix"
    monkeypatch.setattr(locks, "works", lambda folder: False)
    assert locks.choose(tmp_path / "b", "auto") == "link"
    monkeypatch.undo()
    assert locks.choose(tmp_path / "b", "auto") == "link"  # for all who come later
    assert locks.kind_of(tmp_path / "b" / "key" / "lock") == "link"
    assert locks.choose(tmp_path / "b", "posix") == "posix"
    with pytest.raises(ValueError, match=r"paths\.locks='nfs' is not allowed: auto, posix, link"):
        locks.choose(tmp_path, "nfs")


@pytest.mark.parametrize("broken", ["fails", "gives it to all"])
def test_a_flock_that_does_not_exclude_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    import fcntl

    def flock(file: object, how: int) -> None:
        if broken == "fails":
            raise OSError(37, "No locks available")

    assert locks.works(tmp_path)
    monkeypatch.setattr(fcntl, "flock", flock)
    assert not locks.works(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("timeout", [0.0, 0.01])
def test_a_lock_that_is_held_is_given_up_after_its_time_and_free_after_its_holder(
    tmp_path: Path, timeout: float
) -> None:
    locks.choose(tmp_path, "posix")
    held = pytest.raises(TimeoutError, match="is held by another process")
    with locked(tmp_path / "lock"), held, locked(tmp_path / "lock", timeout):
        pass
    with locked(tmp_path / "lock", timeout) as holds:
        assert holds()


def test_a_disk_that_takes_nothing_keeps_nobody_from_a_lock(tmp_path: Path) -> None:
    program = """
import resource, sys
from pathlib import Path
from study.storage.files import locked
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
with locked(Path(sys.argv[1])):
    print("held")
"""
    words = [sys.executable, "-c", program, str(tmp_path / "x.lock")]
    ended = subprocess.run(words, check=False, capture_output=True, text=True, timeout=300)
    assert (ended.stdout, ended.stderr) == ("held\n", "")
