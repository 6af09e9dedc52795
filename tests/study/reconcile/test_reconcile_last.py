"""Processes of a study that meet: the last job that submits what waits, ends nobody wrote, a cancel meanwhile."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from study.config.schema import ClusterConfig
from study.executors import query
from study.executors.base import Answer
from study.job.__main__ import unwanted
from study.reconcile import last_job
from study.reconcile.last_job import TRIES, submit_as_last_job, submit_once_others_left
from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import JobEnd, Look, Resolve, Submit
from study.records import ledger
from study.records.point import point
from study.records.points import append_points, load_points
from study.status.observer import Observer
from study.storage.files import locked, write_json
from study.storage.layout import StudyFolder
from tests.study.support.studies import make_study
from train.spec.config import BudgetConfig
from train.spec.resolve import resolve

OFF = Answer(1, error="sacct: error: Slurm accounting storage is disabled")


@dataclass
class Slurm:
    """Answers as SLURM would that takes `most` jobs; jobs stay PENDING until a test says otherwise."""

    most: int = 100
    tasks: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    now: float = field(default_factory=time.time)
    asleep: Callable[[], None] = lambda: None
    submitting: Callable[[], None] = lambda: None
    cancelled: list[str] = field(default_factory=list)

    def __call__(self, command: Sequence[str]) -> Answer:
        if command[0] == "sbatch":
            self.submitting()
            text = Path(command[1]).read_text()
            job = str(1 + len(self.names))
            self.names[job] = Path(command[1]).stem
            found = re.search(r"--array=0-(\d+)", text)
            self.tasks |= {f"{job}_{index}": "PENDING" for index in range(int(found[1]) + 1 if found else 1)}
            return Answer(0, f"Submitted batch job {job}\n")
        if command[0] == "squeue":
            rows = ((*task.split("_"), word) for task, word in self.tasks.items())
            return Answer(0, "".join(f"{job}|{index}|{word}|None|{self.names[job]}\n" for job, index, word in rows))
        if command[0] == "scancel":
            self.cancelled += command[1:]
        if command[:3] == ["scontrol", "show", "config"]:
            return Answer(0, f"MaxArraySize = 1001\nMaxJobCount = {self.most + 1}\n")
        if command[0] == "sacct" and self.ended:
            ended = ((task, word, self.names[task.partition("_")[0]]) for task, word in self.ended.items())
            return Answer(0, "".join(f"{task}|{word}|0:0|n1|{name}\n" for task, word, name in ended))
        return OFF if command[0] == "sacct" else Answer(0)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.asleep()

    @property
    def services(self) -> Services:
        return Services(runner=self, clock=lambda: self.now, sleep=self.sleep, report=lambda text: None)


@dataclass
class World:
    study: StudyFolder
    keys: list[str]
    slurm: Slurm

    def start(self, parallel: int = 10) -> list[str]:
        """Submit; return the keys that are out, in the order of their jobs."""
        cluster = ClusterConfig(executor="slurm", array_parallelism=parallel)
        step(self.study, self.slurm.services, Submit(self.keys, cluster))
        return [key for batch in ledger.read(self.study).batches.values() for key in batch.keys]

    def complete(self, *keys: str) -> None:
        for key in keys:
            self.study.run(key).path.mkdir()
            self.study.run(key).outcome.write_text('{"state": "completed"}')

    def end(self, key: str) -> int:
        """Submit what waits, as the job of a key does when its point is done; return how many points went out."""
        return step(self.study, self.slurm.services, JobEnd([key])).submitted

    def resolve(self) -> int:
        return step(self.study, self.slurm.services, Resolve()).submitted


@pytest.fixture
def make(tmp_path: Path) -> Callable[[int, int], World]:
    def made(points: int, most: int) -> World:
        study, keys = make_study(tmp_path / "s", range(points))
        return World(study, list(keys.values()), Slurm(most))

    return made


def test_who_stays_hears_of_one_that_leaves_while_it_sleeps(make: Callable[[int, int], World]) -> None:
    world = make(3, 2)
    first, second = world.start()
    world.complete(first, second)
    naps = []

    def nap() -> None:
        naps.append(1)
        if len(naps) == TRIES - 1:
            os.utime(world.study.last_job_lock, (1, 1))  # the other one leaves, and its process ends a while after
        if len(naps) == TRIES + 1:
            world.slurm.tasks.popitem()

    world.slurm.asleep = nap
    assert world.end(first) == 1


@pytest.mark.parametrize("left", [False, True], ids=["alone", "one leaves during the last try"])
def test_a_last_try_that_fails_is_not_the_last_where_one_leaves_meanwhile(
    make: Callable[[int, int], World], left: bool
) -> None:
    world, tries = make(1, 1), list[int]()

    def send() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise TimeoutError("another process submits")
        if len(tries) == TRIES and left:
            os.utime(
                world.study.last_job_lock, (1, 1)
            )  # as a touch, also where the clock of the files has not ticked since
        if len(tries) <= TRIES:
            raise ValueError("no answer")
        return 1

    if left:
        assert submit_as_last_job(world.study, world.slurm.services, lambda: True, send) == 1
    else:
        with pytest.raises(ValueError, match="no answer"):
            submit_as_last_job(world.study, world.slurm.services, lambda: True, send)
        assert len(tries) == TRIES


def test_of_jobs_that_run_one_by_one_the_last_makes_room_for_the_rest(make: Callable[[int, int], World]) -> None:
    world = make(4, 3)
    out = world.start(parallel=1)
    assert len(out) == 3
    world.complete(*out)
    world.slurm.tasks = {"1_2": "RUNNING"}  # the one that submits
    assert world.end(out[-1]) == 1
    assert [batch.throttle for batch in ledger.read(world.study).batches.values()] == [1, 1]


@pytest.mark.parametrize("left", ["nothing", "COMPLETING", "CANCELLED"])
def test_a_job_that_ended_without_a_word_does_not_relieve_the_last(
    make: Callable[[int, int], World], left: str
) -> None:
    world = make(3, 2)
    first, second = world.start()
    assert world.end(first) == 0, "the second one waits in the queue, and the scheduler was asked just now"
    world.complete(second)
    world.slurm.tasks = {"1_1": "RUNNING"} | ({} if left == "nothing" else {"1_0": left})

    def nap() -> None:
        world.slurm.tasks.pop("1_0", None)

    world.slurm.asleep = nap
    assert world.end(second) == 1
    assert json.loads(world.study.queue_note.read_text())["waiting"] == 0


def test_a_queue_that_runs_dry_soon_is_filled_sooner(make: Callable[[int, int], World]) -> None:
    world = make(24, 13)
    out = world.start(parallel=20)
    began = json.loads(world.study.queue_note.read_text())["time"]
    world.slurm.tasks.pop("1_0")
    for now, sent in ((began + 1, 0), (began + 2.5, 1)):
        world.slurm.now = now
        assert world.end(out[0]) == sent, "once in 3.6 s; one that is early by little waits"


def test_the_fewer_points_are_left_the_sooner_their_jobs_ask(make: Callable[[int, int], World]) -> None:
    world = make(40, 25)
    out = world.start()
    state = ledger.read(world.study)
    paces = [last_job.pace(world.study, state, out[: len(out) - left]) for left in (25, 20, 5, 1)]
    assert paces == [last_job.PACE_SECONDS, last_job.FEW_PACE_SECONDS, 1.0, last_job.LEAST_PACE_SECONDS]


def test_of_jobs_that_end_together_one_stays_until_the_others_have_left_room(make: Callable[[int, int], World]) -> None:
    """Five jobs are taken, four run: as the four end, the fifth has begun, and all still count."""
    world = make(20, 5)
    out = world.start()
    world.complete(*out[:4])
    world.slurm.now += 60
    gone = iter(["1_1", "1_2"])
    naps = []

    def nap() -> None:
        naps.append(1)
        if (left := next(gone, None)) is not None:
            del world.slurm.tasks[left]

    world.slurm.asleep = nap
    assert world.end(out[0]) == 2, "what those leave that go while it stays"
    assert len(naps) == last_job.STAYS - 1, "and the fourth stayed too long"
    naps.clear()
    with locked(world.study.staying_lock, 0):
        world.slurm.now += 60
        assert (world.end(out[2]), naps) == (0, []), "another one stays already"
    world.slurm.tasks = dict.fromkeys(("1_4", "2_0", "3_0", "1_3", "9_0"), "RUNNING")
    world.slurm.names["9"] = "other.x"
    world.slurm.now += 60
    assert (world.end(out[3]), naps) == (0, []), "the only one that ends has nobody to wait for"


def test_room_of_jobs_that_went_while_one_asked_is_asked_for_once_more(make: Callable[[int, int], World]) -> None:
    world = make(1, 1)
    leaving, room = iter([True, False]), iter([1, 3])
    sent = submit_once_others_left(world.study, world.slurm.services, lambda: next(leaving), lambda: next(room))
    assert sent == 4


def test_a_full_queue_is_looked_at_now_and_then(make: Callable[[int, int], World]) -> None:
    world = make(40, 30)
    world.start()
    assert last_job.pace(world.study, ledger.read(world.study), {world.keys[0]}) == last_job.PACE_SECONDS


def with_branch(world: World, parent: str) -> str:
    """Add a point that goes on from another one, and return its key."""
    base = load_points(world.study)[parent].config
    config = replace(
        base,
        schedule=replace(base.schedule, parent=f"{parent}@{base.budget.tokens}"),
        budget=BudgetConfig(tokens=2 * (base.budget.tokens or 0)),
    )
    branch = point(resolve(config), ("branch",))
    append_points(world.study, [branch])
    world.keys.append(branch.key)
    return branch.key


def test_a_branch_that_slurm_gave_up_with_its_trunks_job_goes_out_when_somebody_sees_it(
    make: Callable[[int, int], World],
) -> None:
    world = make(1, 100)
    trunk = world.keys[0]
    branch = with_branch(world, trunk)
    assert world.start() == [trunk, branch]
    first, second = ledger.read(world.study).batches.values()
    assert second.resources["dependency"] == "afterok:1_0"
    ledger.append(world.study, "waiting", keys=[trunk], resources=dict(first.resources), code=None, parallel=None)
    assert world.resolve() == 1, "the trunk again, its branch still waits for the first job"
    world.slurm.tasks = {}
    world.slurm.ended = {"1_0": "TIMEOUT", "2_0": "CANCELLED", "3_0": "COMPLETED"}
    world.complete(trunk)
    seen = Observer(world.study, lambda batches: query(batches, world.slurm))
    seen.refresh()
    assert step(world.study, world.slurm.services, Look(seen, seen.statuses())).submitted == 1
    last = list(ledger.read(world.study).batches.values())[-1]
    assert (last.keys, last.resources.get("dependency")) == ((branch,), None)


def test_a_branch_does_not_go_out_again_and_again_for_a_trunk_that_failed(make: Callable[[int, int], World]) -> None:
    world = make(2, 100)
    trunk = world.keys[0]
    branch = with_branch(world, trunk)
    assert branch in world.start()
    attempt = world.study.run(trunk).attempt(1)
    attempt.path.mkdir(parents=True)
    write_json(attempt.job, {"name": ledger.read(world.study).current[trunk], "job_id": "1_0", "executor": "slurm"})
    write_json(attempt.outcome, {"state": "failed", "kind": "code_error"})
    world.slurm.tasks = {"1_1": "RUNNING"}  # another trunk of the same array
    world.slurm.ended = {"2_0": "CANCELLED"}
    for _ in range(3):
        assert world.resolve() == 0
    assert list(ledger.read(world.study).waiting) == [branch]


def test_a_job_of_anothers_name_holds_nothing_back_and_no_branch_waits_for_it(
    make: Callable[[int, int], World],
) -> None:
    world = make(4, 100)
    trunk = world.keys[0]
    branch = with_branch(world, trunk)
    ledger.append(world.study, "intent", name="s.a", executor="slurm", keys=[trunk], resources={}, code=None)
    ledger.append(world.study, "submitted", name="s.a", job_id="1")
    world.slurm.names, world.slurm.tasks = {"1": "other.x"}, {"1_0": "RUNNING"}
    world.keys = world.keys[1:]
    assert len(world.start(parallel=1)) == 4, "the other job takes no place of the study's"
    assert branch in ledger.read(world.study).waiting


def test_points_that_are_cancelled_while_they_are_submitted_stay_cancelled(make: Callable[[int, int], World]) -> None:
    world = make(3, 100)
    first, second, third = world.keys
    world.slurm.submitting = lambda: ledger.append(world.study, "cancelled", keys=[first, third])
    world.start()
    known = ledger.read(world.study)
    assert known.cancelled == {first, third}
    assert unwanted(known, known.batches[known.current[first]], first)
    assert unwanted(known, known.batches[known.current[second]], second) is None
    assert world.slurm.cancelled == ["1_[0,2]"], "whoever cancelled them could not see their job"
