"""Points of a job that follow each other in its lanes: each as if alone, whatever becomes of the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from study.executors.base import RankInfo
from study.executors.jobs import Job, JobState, QueueView
from study.executors.slurm.executor import Slurm
from study.failures.kinds import INTERRUPTED
from study.job import attempt, packed
from study.job.attempt import JOB_BEGAN, JobContext
from study.job.ending import may_requeue
from study.job.lanes import Queue
from study.process.children import Signals
from study.reconcile import dependencies
from study.reconcile.services import Services
from study.records import ledger
from study.records.ledger import Batch
from study.records.point import point
from study.records.points import append_points
from study.status.observer import Observer
from study.status.states import IN_ITS_JOB, TURN_NEVER_CAME
from study.storage.files import read_json
from study.storage.layout import StudyFolder
from tests.study.support.studies import (
    DIVERGES,
    FAILS,
    HANGS,
    KILLS_ITSELF,
    LIMIT_SECONDS,
    OUT_OF_MEMORY,
    diary,
    environment,
    make_study,
    wait_until,
)
from tests.train.runs import REPOSITORY, finish, start, values, write_config
from train.spec.config import RunConfig
from train.spec.gpu_share import SHARED_BY, VARIABLE

TURNS = {"pack": 2, "points_per_job": 9}


def submitted(folder: Path, seeds: Sequence[int], **resources: Any) -> tuple[StudyFolder, dict[int, str]]:
    """Return a study whose points are one job `7_0` of a scheduler, and their keys."""
    study, keys = make_study(folder / "s", seeds)
    intend(study, [keys[seed] for seed in seeds], **resources)
    return study, keys


def intend(study: StudyFolder, keys: Sequence[str], **resources: Any) -> None:
    ledger.append(study, "intent", name="b", executor="slurm", keys=list(keys), resources={**TURNS, **resources})
    ledger.append(study, "submitted", name="b", job_id="7")


class Turn:
    """A stand-in for the process of a point, which goes on until it is told its exit code."""

    pid = 1

    def __init__(self) -> None:
        self.returncode: int | None = None
        self.received: list[int] = []

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int, /) -> None:
        self.received.append(number)


class StandIn:
    """A lane that notes which points of the job it was given."""

    def __init__(self) -> None:
        self.slots: list[int] = []
        self.turns: list[Turn] = []
        self.said: list[str] = []

    def start(self, slot: int) -> Turn:
        self.slots.append(slot)
        self.turns.append(Turn())
        return self.turns[-1]

    def retire(self) -> None:
        self.said.append("let go")

    def close(self) -> None:
        self.said.append("closed")


def test_a_free_lane_takes_the_next_point_and_one_that_nothing_is_left_for_is_retired(tmp_path: Path) -> None:
    study, keys = submitted(tmp_path, [1, 2, 3, 4, 5])
    ledger.append(study, "cancelled", keys=[keys[4]])
    lanes = [StandIn(), StandIn()]
    queue = Queue(study, ledger.read(study).batches["b"], list(keys.values()), lanes)
    ends = iter([(0, 3), (0, 1), (1, 0), (0, 0)])

    def end_one(_: float) -> None:
        lane, code = next(ends)
        lanes[lane].turns[-1].returncode = code

    queue.run(Signals(), end_one)
    assert [lane.slots for lane in lanes] == [[0, 2, 4], [1]], "the fourth was cancelled while it waited"
    assert queue.codes == [3, 1, 0, 0] and queue.waiting == []
    assert lanes[1].said[0] == "let go" and lanes[0].said[-1] == lanes[1].said[-1] == "closed"


def test_lanes_say_how_many_points_share_a_gpu_now(tmp_path: Path) -> None:
    study, keys = submitted(tmp_path / "study", [1, 2, 3, 4])
    shape = {"pack": 3, "pack_gpus": "slices", "gpus_per_node": 1, "points_per_job": 4}
    batch = Batch("b", "slurm", tuple(keys.values()), 1.0, shape)
    parts = packed.lane_shares(batch, 4, {packed.DEVICES: "2,3"}, False, tmp_path)
    assert [part.environment[SHARED_BY] for part in parts] == [str(tmp_path / place) for place in "010"]
    lanes = [StandIn() for _ in parts]
    queue = Queue(study, batch, list(keys.values()), lanes, lambda busy: packed.say_who_shares(parts, busy))
    ends, seen = iter([1, 1, 0, 2]), list[tuple[int, int]]()

    def end_one(_: float) -> None:
        seen.append((int((tmp_path / "0").read_text()), int((tmp_path / "1").read_text())))
        lanes[next(ends)].turns[-1].returncode = 0

    queue.run(Signals(), end_one)
    assert seen == [(2, 1), (2, 1), (2, 0), (1, 0)]
    assert (
        SHARED_BY
        not in packed.lane_shares(replace(batch, resources={**shape, "pack_gpus": "own"}), 4, {}, False)[0].environment
    )


def test_nothing_begins_after_a_signal_and_a_cancelled_point_is_told_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, keys = submitted(tmp_path, [1, 2, 3])
    monkeypatch.setattr("study.job.lanes.LEDGER_SECONDS", 0.0)
    lanes, signals = [StandIn(), StandIn()], Signals()
    queue = Queue(study, ledger.read(study).batches["b"], list(keys.values()), lanes)

    def steps() -> Any:
        ledger.append(study, "cancelled", keys=[keys[1]])
        yield
        assert lanes[0].turns[0].received == [signal.SIGTERM] and not lanes[1].turns[0].received
        signals._handle(signal.SIGUSR1, None)
        yield
        assert lanes[1].turns[0].received == [signal.SIGUSR1]
        for lane in lanes:
            lane.turns[0].returncode = INTERRUPTED
        yield

    step = steps()
    queue.run(signals, lambda _: next(step))
    assert queue.waiting == [keys[3]] and queue.codes == [INTERRUPTED] * 2


@pytest.mark.parametrize(
    ("number", "minutes", "preempts", "again"),
    [
        (signal.SIGUSR1, 1, False, True),
        (signal.SIGUSR1, 60, False, True),
        (signal.SIGTERM, 60, False, False),
        (signal.SIGTERM, 60, True, True),
    ],
)
def test_points_whose_turn_has_not_come_wait_again_unless_somebody_may_mean_them_to_stop(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    number: int,
    minutes: int,
    preempts: bool,
    again: bool,
) -> None:
    monkeypatch.setattr(Slurm, "preempts", lambda _, job_id: preempts and job_id == "7_0")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    study, keys = submitted(tmp_path, [1, 2, 3], time_minutes=minutes, signal_seconds=90, dependency="afterok:3")
    monkeypatch.setattr(packed, "WarmLane", lambda *_: StandIn())
    signals = Signals()
    signals.received.append(number)
    batch = ledger.read(study).batches["b"]
    assert packed.run_packed(study, batch, 0, signals) == INTERRUPTED
    known = ledger.read(study)
    assert list(known.waiting) == (list(keys.values()) if again else [])
    assert not known.ends, "nobody's failure"
    for asked in known.waiting.values():
        assert (asked.why, asked.executor, asked.parallel) == (TURN_NEVER_CAME, "slurm", 256)
        assert asked.resources["points_per_job"] == 9 and "dependency" not in asked.resources


@pytest.mark.parametrize(
    ("job", "cancelled", "state", "why"),
    [
        (Job(JobState.RUNNING, "RUNNING"), False, "queued", IN_ITS_JOB),
        (Job(JobState.RUNNING, "RUNNING"), True, "cancelled", ""),
        (Job(JobState.QUEUED, "PENDING", "Priority"), False, "queued", None),
        (Job(JobState.TIME_LIMIT, "TIMEOUT"), False, "interrupted", TURN_NEVER_CAME),
        (Job(JobState.NODE_FAILURE, "NODE_FAIL"), False, "interrupted", TURN_NEVER_CAME),
        (Job(JobState.FAILED, "FAILED", "exit code 1:0"), False, "interrupted", TURN_NEVER_CAME),
        (Job(JobState.FAILED, "FAILED", "exit code 75:0"), False, "interrupted", "its job was told to end before"),
        (Job(JobState.FAILED, "FAILED", "exit code 1:0"), True, "cancelled", ""),
        (Job(JobState.CANCELLED, "CANCELLED by 1000"), False, "cancelled", None),
        (Job(JobState.COMPLETED, "COMPLETED"), True, "cancelled", ""),
    ],
)
def test_what_a_point_is_that_its_job_has_not_begun(
    tmp_path: Path, job: Job, cancelled: bool, state: str, why: str | None
) -> None:
    study, keys = submitted(tmp_path, [1, 2, 3])
    if cancelled:
        ledger.append(study, "cancelled", keys=[keys[3]])
    observer = Observer(study, lambda batches: QueueView({"7_0": job}))
    observer.refresh()
    status = next(one for one in observer.statuses() if one.key == keys[3])
    assert status.state == state
    assert status.kind == ("interrupted" if "75" in job.reason else ""), "else it is nobody's failure"
    assert why is None or status.why.startswith(why)
    first = next(one for one in observer.statuses() if one.key == keys[1])
    assert TURN_NEVER_CAME != first.why != IN_ITS_JOB, "it is one of those that begin"


def test_a_command_submits_again_what_a_dead_job_has_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, keys = submitted(tmp_path, [1, 2, 3, 4])
    view = QueueView({"7_0": Job(JobState.NODE_FAILURE, "NODE_FAIL")})
    monkeypatch.setattr(dependencies, "query", lambda *_: view)
    assert dependencies.take_back(study, Services(), ledger.read(study))
    known = ledger.read(study)
    assert list(known.waiting) == [keys[3], keys[4]] and known.waiting[keys[3]].resources == TURNS
    assert not known.ends
    assert not dependencies.take_back(study, Services(), ledger.read(study))
    assert ledger.read(study) == known, "once"


def test_what_a_job_of_several_points_may_and_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for resources, requeues in (({}, True), ({"points_per_job": 2}, False), ({"pack": 2}, False)):
        batch = Batch("b", "slurm", ("x", "y"), 1.0, {**resources, "time_minutes": 10})
        work = JobContext(StudyFolder(tmp_path), batch, "x", RankInfo("slurm", "7_0"))
        assert may_requeue(work) == requeues
    now = 1.7e9
    monkeypatch.setattr(attempt, "time", SimpleNamespace(monotonic=lambda: now))
    assert attempt.time_left(work, now) == 600
    monkeypatch.setenv(JOB_BEGAN, repr(now - 500))
    assert attempt.time_left(work, now) == 100, "the limit is the job's, which began before"


@pytest.mark.parametrize(
    ("shape", "seen", "share"),
    [
        ({"pack": 4, "pack_gpus": "slices"}, ["2", "3", "2"], "0.5"),
        ({"pack": 3, "pack_gpus": "mps"}, ["0", "1", "0"], "0.5"),
        ({"pack": 2, "pack_gpus": "slices"}, ["2", "3"], None),
        ({"pack": 2, "pack_gpus": "own"}, ["2", "3"], None),
        ({"pack": 1, "pack_gpus": "slices"}, ["2"], None),
    ],
)
def test_lanes_that_share_a_gpu_have_a_part_of_its_memory(
    shape: dict[str, Any], seen: list[str], share: str | None
) -> None:
    batch = Batch("b", "slurm", ("x", "y", "z"), 1.0, {"points_per_job": 5, "gpus_per_node": 1, **shape})
    made = packed.lane_shares(batch, 3, {packed.DEVICES: "2,3", "HOME": "/h"}, shape["pack_gpus"] == "mps")
    assert [place.environment[packed.DEVICES] for place in made] == seen
    assert {place.environment.get(VARIABLE) for place in made} == {share}
    assert all(place.environment["HOME"] == "/h" for place in made)
    (place,) = packed.lane_shares(replace(batch, keys=("x",)), 1, {packed.DEVICES: "2,3"}, False)
    assert place.environment.get(VARIABLE) == share, "a lane that stays empty counts"


def test_whatever_becomes_of_a_point_its_lane_takes_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = [HANGS, KILLS_ITSELF, 1, FAILS, 2, OUT_OF_MEMORY, DIVERGES, 3, 4]
    study, keys = submitted(tmp_path, seeds, hang_floor_seconds=3.0)
    study.study.write_text(
        "cluster: {executor: slurm}\nretry: {killed: stop, hang: stop, gpu_memory: stop}\ntracking: {enabled: false}\n"
    )
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    batch = ledger.read(study).batches["b"]
    code = packed.run_packed(study, batch, 0, Signals())
    ended = {seed: read_json(study.run(keys[seed]).attempt(1).outcome) or {} for seed in seeds}
    assert {seed: one["kind"] for seed, one in ended.items()} == {
        HANGS: "hang", OUT_OF_MEMORY: "gpu_memory",
        KILLS_ITSELF: "killed", FAILS: "code_error", DIVERGES: "diverged", **dict.fromkeys((1, 2, 3, 4), "completed"),
    }  # fmt: skip
    assert all(diary(study, keys[seed]) == ["begin 0", "end 100"] for seed in (1, 2, 3, 4))
    assert code in (137, 1), "that of the first one which failed"
    slots = {seed: (read_json(study.run(keys[seed]).attempt(1).job) or {})["pid"] for seed in seeds}
    assert len(set(slots.values())) < len(seeds), "a slot stays where its point has completed or diverged"


def test_packed_points_are_bitwise_those_alone_though_a_neighbour_is_killed(tmp_path: Path, tiny: RunConfig) -> None:
    """Two lanes of real trainers, five points; the second one's trainer gets SIGKILL while the others train."""
    study = StudyFolder(tmp_path / "s")
    longer = replace(tiny, budget=replace(tiny.budget, tokens=(tiny.budget.tokens or 0) * 1000), seed=9)
    configs = [tiny, longer, *(replace(tiny, seed=seed) for seed in (1, 2, 3))]
    made = [point(config, ()) for config in configs]
    append_points(study, made)
    study.study.write_text("cluster: {executor: slurm}\nretry: {killed: stop}\ntracking: {enabled: false}\n")
    intend(study, [one.key for one in made])
    kept = {name: value for name, value in os.environ.items() if name != "STUDY_TRAINER"}
    with (tmp_path / "log").open("wb") as log:
        job = subprocess.Popen(
            [sys.executable, "-m", "study.job", str(study.path), "--name", "b"],
            cwd=REPOSITORY, env={**kept, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log,
        )  # fmt: skip
    victim = study.run(made[1].key)
    wait_until("the long one to train", lambda: victim.metrics.exists() and victim.metrics.stat().st_size > 0)
    slot = psutil.Process(json.loads(victim.attempt(1).job.read_text())["pid"])
    (trainer,) = slot.children()
    trainer.kill()
    assert job.wait(LIMIT_SECONDS) == 137, (tmp_path / "log").read_text()
    assert (read_json(victim.attempt(1).outcome) or {})["kind"] == "killed"
    alone = [start(write_config(tmp_path / str(place), configs[place])) for place in (0, 2, 3, 4)]
    pids = []
    for place, process in zip((0, 2, 3, 4), alone, strict=True):
        finish(process)
        assert values(study.run(made[place].key).path) == values(tmp_path / str(place))
        pids.append(json.loads(study.run(made[place].key).attempt(1).job.read_text())["pid"])
    assert len(set(pids)) < 4 and slot.pid not in pids
