"""Jobs that begin together on a disk that is nearly full: one trains, the others leave their points waiting."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from study.executors.base import Answer
from study.reconcile import disk, dispatch
from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import Submit
from study.records import ledger
from study.records.ledger import Ledger, Waiting
from study.records.points import load_points
from study.records.settings import load_submission
from study.search.trial_queue import TrialQueue
from study.status.observer import Observer
from study.storage import room_taken
from study.storage.files import RunLock
from study.storage.layout import StudyFolder
from study.watch.follow import LocalRunner
from tests.study.support.searches import begin_worker, make_search
from tests.study.support.stand_ins import mounted
from tests.study.support.studies import SLOW, environment, make_study, wait_until

MB = 10**6


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A stand-in for the disk: so many bytes are free."""
    said = {"bytes": 100 * MB}

    def statvfs(path: object) -> SimpleNamespace:
        return SimpleNamespace(f_frsize=1, f_blocks=10**12, f_bavail=said["bytes"], f_files=0, f_favail=0)

    monkeypatch.setattr(os, "statvfs", statvfs)
    return said


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own with room for the checkpoints of one point of make_study, and not of two."""
    with mounted(tmp_path / "disk", "20m") as disk:
        yield disk


def begun(study: StudyFolder, key: str) -> RunLock:
    """Return the lock of a run that an attempt holds."""
    study.run(key).path.mkdir(parents=True, exist_ok=True)
    lock = RunLock(study.run(key).lock)
    assert lock.acquire()
    return lock


def test_room_is_taken_by_whoever_comes_first_and_one_alone_is_never_refused(
    tmp_path: Path, free: dict[str, int]
) -> None:
    study = StudyFolder(tmp_path / "s")
    study.path.mkdir()
    assert room_taken.take(study, "a", 60 * MB) == ""
    assert room_taken.take(study, "a", 60 * MB) == "", "its own room is not another's"
    assert "40 MB are left" in room_taken.take(study, "b", 60 * MB)
    assert room_taken.take(study, "c", 30 * MB) == ""
    assert room_taken.lacking(study, "d", 30 * MB)
    room_taken.give_back(study, "a")
    assert room_taken.take(study, "b", 60 * MB) == ""
    for key in "bc":
        room_taken.give_back(study, key)
    assert room_taken.take(study, "e", 1000 * MB) == "", "its need is only estimated"
    assert sorted(path.name for path in study.room.iterdir()) == [f"e.{1000 * MB}"]


def test_what_was_written_needs_no_room_any_more_and_what_died_none_at_all(
    tmp_path: Path, free: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = StudyFolder(tmp_path / "s")
    study.path.mkdir()
    free["bytes"] = 20 * MB
    room_taken.take(study, "a", 15 * MB)
    lock = begun(study, "a")
    monkeypatch.setattr(room_taken, "FRESH_SECONDS", 0.0)
    assert room_taken.lacking(study, "b", 10 * MB)
    study.run("a").checkpoints.mkdir()
    (study.run("a").checkpoints / "weights").write_bytes(bytes(9 * MB))
    assert room_taken.lacking(study, "b", 10 * MB) == ""
    (study.run("a").checkpoints / "weights").unlink()
    assert room_taken.lacking(study, "b", 10 * MB)
    lock.close()
    assert room_taken.lacking(study, "b", 10 * MB) == "", "nobody has its lock"


def test_points_that_found_no_room_go_out_as_it_is_left(tmp_path: Path, free: dict[str, int]) -> None:
    study = StudyFolder(tmp_path / "s")
    study.path.mkdir()
    waiting = {
        key: Waiting(why=f"{key} waits", needs=needs) for key, needs in (("b", 30 * MB), ("c", 60 * MB), ("d", 30 * MB))
    }
    state = Ledger(waiting={**waiting, "e": Waiting()})
    room_taken.take(study, "a", 95 * MB)
    assert disk.held_back(study, state) == {key: f"{key} waits" for key in "bcd"}, "others find out as they begin"
    room_taken.give_back(study, "a")
    room_taken.take(study, "a", 50 * MB)
    assert disk.held_back(study, state) == {"c": "c waits", "d": "d waits"}
    room_taken.give_back(study, "a")
    free["bytes"] = 20 * MB
    assert disk.held_back(study, state) == {"c": "c waits", "d": "d waits"}, "one goes out where nothing runs"
    free["bytes"] = 200 * MB
    assert disk.held_back(study, state) == {}


def test_of_jobs_that_begin_at_once_one_trains_and_the_others_leave_their_points_waiting(small_disk: Path) -> None:
    study, keys = make_study(small_disk / "s", [SLOW, SLOW + 1, SLOW + 2])
    study.study.write_text("cluster: {executor: slurm}\ntracking: {enabled: false}\n")
    every = list(keys.values())
    assert 20 * MB > disk.needed_for(load_points(study)[every[0]]) > 10 * MB
    ledger.append(study, "intent", name="s.w", executor="slurm", keys=every, resources={}, code=None)
    ledger.append(study, "submitted", name="s.w", job_id="7")
    command = [sys.executable, "-m", "study.job", str(study.path), "--name", "s.w"]
    jobs = []
    for index in "012":
        said = {"PATH": "/usr/bin:/bin", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": index}  # and no SLURM
        jobs.append(subprocess.Popen([*command, "--index", index], env=environment() | said))
    try:
        wait_until("two to leave", lambda: sum(job.poll() is not None for job in jobs) == 2)
        assert sorted(job.returncode for job in jobs if job.poll() is not None) == [77, 77]
        known = ledger.read(study)
        (trains,) = set(every) - known.waiting.keys()
        assert all("it waits for them to end" in asked.why and asked.needs for asked in known.waiting.values())
        wait_until("the trainer", study.run(trains).attempt(1).job.exists)
        assert [key for key in every if study.run(key).attempts.exists()] == [trains]
        sent: list[Sequence[str]] = []

        def runner(command: Sequence[str]) -> Answer:
            sent.append(command)
            return Answer(0, f"Submitted batch job {7 + len(sent)}\n" if command[0] == "sbatch" else "")

        services = Services(runner=runner, report=lambda text: None)
        assert dispatch.dispatch(study, services) == 0, "while it runs"
    finally:
        for job in jobs:
            job.terminate()
        assert {job.wait(300) for job in jobs} == {77, 75}
    assert [*study.room.iterdir()] == []
    assert dispatch.dispatch(study, services) == 1, "one, as both would find out again"


def test_runs_of_this_machine_begin_one_after_the_other_where_there_is_room_for_one(
    tmp_path: Path, free: dict[str, int]
) -> None:
    study, keys = make_study(tmp_path / "s", [1, 2])
    step(study, Services(), Submit(list(keys.values()), load_submission(study).cluster))
    free["bytes"] = 15 * MB

    class TwoSlots:
        count, running = 2, frozenset[str]()

        def reap(self) -> dict[str, int]:
            return {}

        def start(self, key: str, batch: ledger.Batch) -> None:
            self.running |= {key}

    observer, slots, said = Observer(study), TwoSlots(), list[str]()
    observer.refresh()
    controller = LocalRunner(observer, slots)  # type: ignore[arg-type]
    for _ in range(2):
        seen = controller.step(observer.statuses(), True, said.append)
    (first,) = slots.running
    assert sorted(status.state for status in seen) == ["pending", "running"]
    assert len(said) == 1 and "not started: 3 MB are left" in said[0]
    room_taken.give_back(study, first)
    controller.step(observer.statuses(), True, said.append)
    assert slots.running == set(keys.values())


def test_workers_of_a_search_hand_a_trial_back_where_there_is_no_room(small_disk: Path) -> None:
    study = make_search(small_disk / "s", trials=3)
    workers = [begin_worker(study, f"w{number}", seconds=1.0) for number in range(3)]
    wait_until("a trial", lambda: bool(TrialQueue.of(study).search.trials))
    said = "".join(worker.communicate(timeout=600)[0] for worker in workers)
    search = TrialQueue.of(study).search
    assert search.over and not search.stopped and len(search.trials) == 3
    assert not any(trial.failed for trial in search.trials.values()) and not search.lost_units
    assert "it waits for them to end" in said
    assert [*study.room.iterdir()] == []


def test_a_full_disk_stops_a_search_before_its_first_trial_is_lost(small_disk: Path) -> None:
    study = make_search(small_disk / "s")
    free = os.statvfs(small_disk)
    (small_disk / "others").write_bytes(bytes(free.f_bavail * free.f_frsize - 600_000))
    said = begin_worker(study, "w").communicate(timeout=600)[0]
    search = TrialQueue.of(study).search
    assert search.stopped and search.why_stopped == f"no space left in {study.path}: make room", said
    assert not search.claims and not search.lost_units and not any(trial.failed for trial in search.trials.values())
    assert not any(study.run(trial.key).path.exists() for trial in search.trials.values())
