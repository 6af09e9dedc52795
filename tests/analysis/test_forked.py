from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from analysis import forked
from tests.late import pressed_as_it_begins
from tests.processes import has_ended

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("processes", [0, 1, 2, 3, 40])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_results_are_in_the_items_order_whoever_found_them(processes: int, count: int) -> None:
    assert forked.each(lambda item: item * item, range(count), processes) == [place**2 for place in range(count)]


def test_other_processes_do_the_work(tmp_path: Path) -> None:
    def waits(_: int) -> int:
        """End once three processes have an item."""
        (tmp_path / str(os.getpid())).touch()
        limit = time.monotonic() + 600
        while len(list(tmp_path.iterdir())) < 3 and time.monotonic() < limit:
            time.sleep(0.01)
        return os.getpid()

    pids = forked.each(waits, range(6), 3)
    assert os.getpid() not in pids
    assert len(set(pids)) == 3


def test_more_items_than_a_byte_counts_are_done_here() -> None:
    count = forked.MOST + 1
    assert forked.each(lambda _: os.getpid(), range(count), 2) == [os.getpid()] * count


def test_an_exception_is_raised_here_with_its_traceback() -> None:
    def fails(item: int) -> int:
        if item == 3:
            raise ValueError("item 3")
        return item

    with pytest.raises(ValueError, match="item 3"):
        forked.each(fails, range(5), 2)


def test_what_a_killed_fork_had_found_is_found_again() -> None:
    here = os.getpid()

    def dies(item: int) -> int:
        if item == 2 and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    assert forked.each(dies, range(6), 2) == list(range(6))


def test_a_result_that_cannot_be_pickled_is_found_here() -> None:
    def locked(item: int) -> tuple[int, object]:
        return item, threading.Lock()

    assert [item for item, _ in forked.each(locked, range(3), 2)] == [0, 1, 2]


def test_nothing_is_forked_beside_another_thread() -> None:
    over = threading.Event()
    beside = threading.Thread(target=over.wait)
    beside.start()
    try:
        assert forked.cores() == 1
    finally:
        over.set()
        beside.join()


def test_ctrl_c_at_the_moment_of_a_fork_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    forks, fork = list[int](), os.fork

    def pressed() -> int:
        child = fork()
        if child:
            forks.append(child)
            signal.raise_signal(signal.SIGINT)
        return child

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(os, "fork", pressed)
    try:
        with pytest.raises(KeyboardInterrupt):
            forked.each(time.sleep, [600.0, 600.0], 2)
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(ChildProcessError):
        os.waitpid(forks[0], os.WNOHANG)


def test_ctrl_c_as_the_forks_are_ended_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    forks, fork = list[int](), os.fork

    def forking() -> int:
        forks.append(fork())
        return forks[-1]

    def failing(answers: int, *_: object, **__: object) -> object:
        monkeypatch.setattr(forked, "deferred", pressed_as_it_begins())
        raise OSError(answers)

    monkeypatch.setattr(os, "fork", forking)
    monkeypatch.setattr("builtins.open", failing)
    with pytest.raises(KeyboardInterrupt):
        forked.each(time.sleep, [600.0, 600.0], 2)
    monkeypatch.undo()
    for fork_of in forks:
        with pytest.raises(ChildProcessError):
            os.waitpid(fork_of, os.WNOHANG)


INTERRUPTED = """
import os, time
from analysis import forked
def wait(item):
    os.write(1, str(os.getpid()).encode() + bytes([10]))
    time.sleep(600)
try:
    forked.each(wait, range(4), 2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_ends_the_forks() -> None:
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted\n"
    assert all(map(has_ended, pids))
