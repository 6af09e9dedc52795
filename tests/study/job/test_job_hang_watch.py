"""The watch over a trainer: what counts as progress, how long standing still is allowed, whose clock it is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from study.job import hang_watch
from study.job.hang_watch import LOOK_SECONDS, Bounds, Patience, Watch, limit, stacks
from study.records.heartbeats import Beat, read_beat, slow_rank
from study.storage.layout import RunFolder
from tests.study.support.studies import LIMIT_SECONDS, environment, wait_until
from train.runtime.heartbeat import Heartbeat

BOUNDS = Bounds(floor=600.0, start=1800.0)


@pytest.mark.parametrize(
    ("beat", "pace", "seconds"),
    [
        (None, None, 1800.0),  # nothing was ever heard of it: it starts, imports, compiles, prepares
        (None, 5.0, 600.0),
        (None, 90.0, 900.0),
        (Beat(9, 9, "train", 0.0, 0.5), None, 600.0),
        (Beat(9, 9, "train", 0.0, 300.0), None, 3000.0),
        (Beat(9, 9, "checkpoint", 1800.0, 0.5), None, 1800.0),
        (Beat(1, 0, "start", 1800.0), None, 1800.0),
    ],
)
def test_limit(beat: Beat | None, pace: float | None, seconds: float) -> None:
    assert limit(beat, pace, BOUNDS) == seconds
    assert limit(beat, pace, Bounds(600.0, 1800.0, peers=4000.0)) == 4000.0, "ranks that watch each other come first"


def test_time_in_which_nobody_looked_does_not_count() -> None:
    now = [0.0]
    patience = Patience(lambda: now[0])
    patience.look("a")
    for _ in range(10):
        now[0] += LOOK_SECONDS
        patience.look("a")
    assert patience.still == pytest.approx(10 * LOOK_SECONDS)
    now[0] += 3600.0  # SLURM suspended the job: this process stood still as well
    assert patience.look("a") == pytest.approx(12 * LOOK_SECONDS)
    assert patience.look("b") == 0.0


def test_a_heartbeat_says_what_may_take_long(tmp_path: Path) -> None:
    now, path = [0.0], tmp_path / "beat"
    heart = Heartbeat(str(path), "n1", 1800.0, lambda: now[0])
    beat = read_beat(path)
    assert beat is not None
    assert (beat.phase, beat.allow, beat.where) == ("start", 1800.0, "n1")
    for step in range(1, 6):
        now[0] += 0.5
        heart.took(0.25)
        heart.alone({"data": 0.1, "forward": 0.2, "backward": 9.0})
        heart.beat(step, "train")
    beat = read_beat(path)
    assert beat is not None
    assert (beat.step, beat.allow, beat.median, beat.own) == (4, 0.0, 0.25, 0.3), "the first steps may compile"
    heart.beat(5, "checkpoint", allow=99.0)
    beat = read_beat(path)
    assert beat is not None
    assert (beat.step, beat.phase, beat.allow) == (5, "checkpoint", 1800.0), "written at once: it may take long"
    heart.close()
    path.write_text('{"step": 5, "ph')
    assert read_beat(path) is None


def test_a_run_without_a_heartbeat_file_writes_none(tmp_path: Path) -> None:
    Heartbeat.of({}, 5.0).beat(1, "train")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("own", "slow"),
    [
        ([0.10, 0.10, 0.21, 0.11], "rank 2 on n2 takes 2.1 x the median of 4 ranks"),
        ([0.10, 0.10, 0.14, 0.11], None),
        ([0.001, 0.001, 0.003, 0.001], None),  # milliseconds are noise
        ([0.10, None, 0.21, 0.11], None),
        ([0.10], None),
        ([0.10, 0.30], "rank 1 on n1 takes 3.0 x the median of 2 ranks"),
    ],
)
def test_the_slow_rank_is_named(own: list[float | None], slow: str | None) -> None:
    beats = [Beat(1, own=seconds, where=f"n{rank}") for rank, seconds in enumerate(own)]
    assert slow_rank(beats) == slow
    assert slow_rank([*beats, None]) is None, "one of which nothing is known may be the slow one"


SLEEPER = """
import faulthandler, signal, sys, time
faulthandler.register(signal.SIGQUIT, all_threads=True)
def within_a_call():
    open('ready', 'w').close()
    while True:
        print('noise', flush=True)
        time.sleep(0.05)
within_a_call()
"""


def test_a_process_that_only_prints_hangs_and_leaves_its_stacks(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    attempt = run.attempt(1)
    attempt.path.mkdir(parents=True)
    (tmp_path / "flight-rank-0.json").write_text("{}")
    Heartbeat(str(attempt.beat(0)), "n1", 0.0).beat(7, "train")
    with attempt.stdout(0).open("wb") as out, attempt.stderr(0).open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", SLEEPER], cwd=tmp_path, stdout=out, stderr=err, env=environment(),
            start_new_session=True,
        )  # fmt: skip
    wait_until("it sleeps", (tmp_path / "ready").exists)
    watch = Watch(run, attempt, 1, Bounds(floor=0.1, start=0.1))
    try:
        wait_until("it is found to hang", lambda: watch.look({0: process}))
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    assert "rank 0 on n1 has not moved for" in str(watch.hang)
    assert "within_a_call" in attempt.stacks(0).read_text()
    assert json.loads(attempt.hang.read_text())["beats"]["0"]["step"] == 7
    assert (attempt.path / "flight-rank-0.json").exists()


def sleeper(folder: Path, program: str = SLEEPER) -> subprocess.Popen[bytes]:
    """Start a process that only prints, and wait until it does."""
    folder.mkdir(exist_ok=True)
    with (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", program], cwd=folder, stdout=subprocess.DEVNULL, stderr=err, start_new_session=True
        )
    wait_until("it sleeps", (folder / "ready").exists)
    return process


def test_every_rank_leaves_its_stacks_whoever_finds_that_one_hangs(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    attempt = run.attempt(1)
    attempt.path.mkdir(parents=True)
    ranks = [sleeper(tmp_path / str(rank)) for rank in range(2)]
    for rank in range(2):
        attempt.stderr(rank).symlink_to(tmp_path / str(rank) / "err")
        Heartbeat(str(attempt.beat(rank)), f"n{rank}", 0.0).beat(7, "train")
    finds = Watch(run, attempt, 2, Bounds(floor=0.1, start=0.1))
    is_told = Watch(run, attempt, 2, Bounds(floor=600.0, start=600.0))
    try:
        with ThreadPoolExecutor() as pool:
            found = pool.submit(wait_until, "rank 0 hangs", lambda: finds.look({0: ranks[0]}))
            wait_until("rank 1 is told", lambda: is_told.look({1: ranks[1]}))
            found.result()
    finally:
        for process in ranks:
            process.kill()
    assert [process.wait() for process in ranks] == [-signal.SIGKILL] * 2
    assert is_told.hang == finds.hang
    assert "rank 0 on n0" in str(finds.hang)
    assert all("within_a_call" in attempt.stacks(rank).read_text() for rank in range(2))


def test_stacks_of_a_process_that_is_stopped(tmp_path: Path) -> None:
    process = sleeper(tmp_path)
    process.send_signal(signal.SIGSTOP)
    wait_until("it is stopped", lambda: "T (stopped)" in Path(f"/proc/{process.pid}/status").read_text())
    said = stacks(process.pid, tmp_path / "err")
    process.kill()
    process.wait()
    assert "T (stopped)" in said
    assert "within_a_call" in said


@pytest.mark.parametrize("spied_on", [True, False])
def test_stacks_of_a_process_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spied_on: bool
) -> None:
    """With py-spy its stacks are read from outside; without, the kernel's word for its threads is all there is."""
    monkeypatch.setattr(hang_watch, "SPY_SECONDS", LIMIT_SECONDS)
    if not spied_on:
        monkeypatch.setattr(hang_watch, "py_spy", lambda: None)
        monkeypatch.setattr(hang_watch, "STACK_SECONDS", 0.2)
    deaf = SLEEPER.replace(
        "faulthandler.register(signal.SIGQUIT, all_threads=True)", "signal.signal(3, signal.SIG_IGN)"
    )
    process = sleeper(tmp_path, deaf)
    spy = hang_watch.py_spy()
    if spied_on and (spy is None or subprocess.run([spy, "dump", "--pid", str(process.pid)], check=False).returncode):
        process.kill()
        process.wait()
        pytest.skip("py-spy is not installed, or may not trace here")
    said = stacks(process.pid, tmp_path / "err")
    process.kill()
    process.wait()
    assert f"thread {process.pid}: " in said
    assert ("within_a_call" in said.split("Thread", 1)[-1]) == spied_on
    assert ("it answered SIGQUIT with no stacks" in said) != spied_on


def test_no_watch_where_the_floor_is_zero(tmp_path: Path) -> None:
    watch = Watch(RunFolder(tmp_path), RunFolder(tmp_path).attempt(1), 1, Bounds(floor=0.0))
    assert not watch.look({})
    time.sleep(0)
    assert watch.hang is None


def test_records_of_an_earlier_attempt_do_not_shorten_the_start_of_this_one(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    attempt = run.attempt(2)
    attempt.path.mkdir(parents=True)
    run.metrics.write_text("".join(f'{{"time": {1 + step / 10}}}\n' for step in range(9)))
    watch = Watch(run, attempt, 1, Bounds(floor=0.1, start=600.0))
    process = sleeper(tmp_path)
    try:
        deadline = time.monotonic() + 3.5
        while time.monotonic() < deadline:
            assert not watch.look({0: process}), watch.hang
            time.sleep(0.05)
        with run.metrics.open("a") as file:
            file.write('{"time": 1.9}\n')  # now it has begun: its records count
        wait_until("it is found to hang", lambda: watch.look({0: process}))
    finally:
        process.kill()
        process.wait()
