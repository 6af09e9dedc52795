"""A trainer process that stays for the next attempt, and everything that makes the next one begin afresh."""

from __future__ import annotations

import fcntl
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from study.process import code_version, trainers
from study.process.children import Started
from study.process.trainers import FRESH, TrainerStart, WarmTrainers
from tests.processes import has_ended
from tests.study.support import stand_in_server
from tests.study.support.studies import wait_until


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> Iterator[WarmTrainers]:
    monkeypatch.setattr(trainers, "interpreter", lambda: [sys.executable, "-S", "-E", str(stand_in_server.__file__)])
    monkeypatch.delenv("STUDY_TRAINER", raising=False)
    started = WarmTrainers()
    yield started
    started.close()


def wanted(
    folder: Path, name: str, do: str = "end", until: int | None = None, inherit: int | None = None
) -> TrainerStart:
    """Return an attempt that the stand-in meets as `do` says."""
    config = folder / name
    config.write_text(do)
    inherited = () if inherit is None else (inherit,)
    return TrainerStart(config, until, {"NAME": name}, folder / f"{name}.out", folder / f"{name}.err", inherited)


def ended(process: Started) -> tuple[int, int | None]:
    """Return which process trained an attempt, and the attempt's exit code."""
    wait_until("the attempt's end", lambda: process.poll() is not None)
    return process.pid, process.returncode


def test_attempts_follow_each_other_in_one_process(warm: WarmTrainers, tmp_path: Path) -> None:
    first = ended(warm.start(wanted(tmp_path, "a")))
    second = ended(warm.start(wanted(tmp_path, "b", "end 3", until=4096)))
    assert (first[1], second[1]) == (0, 3)
    assert first[0] == second[0]
    assert (tmp_path / "a.out").read_text() == "end [] a\n"
    assert (tmp_path / "b.out").read_text() == "end ['--until', '4096'] b\n"
    warm.close()
    assert has_ended(first[0])


@pytest.mark.parametrize(("do", "code"), [("exit 1", 1), ("exit 75", 75), ("exit 0", 0), ("kill", -signal.SIGKILL)])
def test_an_attempt_that_ends_its_process_has_its_exit_code(
    do: str, code: int, warm: WarmTrainers, tmp_path: Path
) -> None:
    first, second, third = (
        ended(warm.start(wanted(tmp_path, name, what))) for name, what in (("a", "end"), ("b", do), ("c", "end"))
    )
    assert second == (first[0], code)
    assert third[1] == 0
    assert third[0] != first[0]


@pytest.mark.parametrize(("before", "then"), [("end", "refuse"), ("leave", "end")])
def test_a_process_that_does_not_take_the_next_is_replaced(
    before: str, then: str, warm: WarmTrainers, tmp_path: Path
) -> None:
    first = ended(warm.start(wanted(tmp_path, "a", before)))
    second = ended(warm.start(wanted(tmp_path, "b", then)))
    assert (first[1], second[1]) == (0, 0)
    assert first[0] != second[0]
    assert (tmp_path / "b.out").read_text() == f"{then} [] b\n"


def test_a_signal_reaches_the_attempt_that_runs(warm: WarmTrainers, tmp_path: Path) -> None:
    first = warm.start(wanted(tmp_path, "a"))
    ended(first)
    second = warm.start(wanted(tmp_path, "b", "wait"))
    wait_until("it to wait", lambda: "ready" in (tmp_path / "b.out").read_text())
    first.send_signal(signal.SIGKILL)  # its attempt has ended
    time.sleep(0.05)
    assert second.poll() is None
    second.send_signal(signal.SIGTERM)
    assert ended(second)[1] == 75


def test_edited_code_begins_afresh(warm: WarmTrainers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ended(warm.start(wanted(tmp_path, "a")))
    monkeypatch.setattr(code_version, "stamp", lambda: "edited")
    second = ended(warm.start(wanted(tmp_path, "b")))
    third = ended(warm.start(wanted(tmp_path, "c")))
    assert first[0] != second[0] == third[0]


def test_a_process_holds_the_lock_of_the_run_that_it_trains(warm: WarmTrainers, tmp_path: Path) -> None:
    ended(warm.start(wanted(tmp_path, "a")))
    with (tmp_path / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = warm.start(wanted(tmp_path, "b", "wait", inherit=lock.fileno()))
        wait_until("it to wait", lambda: "ready" in (tmp_path / "b.out").read_text())
    with (tmp_path / "lock").open("a") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        second.send_signal(signal.SIGKILL)
        assert ended(second)[1] == -signal.SIGKILL
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_launcher_of_the_users_is_started_for_each(
    warm: WarmTrainers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDY_TRAINER", f"{sys.executable} -S -c pass")
    pids = {ended(warm.start(wanted(tmp_path, name)))[0] for name in "ab"}
    assert len(pids) == 2
    assert (tmp_path / "a.out").read_text() == ""


def test_without_the_key_each_has_a_process() -> None:
    assert trainers.trainers(False) is FRESH
    assert isinstance(trainers.trainers(True), WarmTrainers)
