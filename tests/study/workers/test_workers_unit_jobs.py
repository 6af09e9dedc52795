"""A job for each unit: whoever comes by submits what the scheduler wants; a kill anywhere leaves nothing undecided."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from study.executors.slurm.query import Answer, Job, View
from study.reconcile.services import Services
from study.records import ledger
from study.search.state import Claim
from study.search.trial_queue import JOB, Office
from study.storage.layout import StudyFolder
from study.workers import pool, unit_jobs
from tests.study.support.searches import environment, make_search

FULL = "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed"
BATCH = ledger.Batch("s.1", "slurm", (), 0.0, job_id="7")


@dataclass
class Cluster:
    """Answers as SLURM would: jobs by id, PENDING until a test says otherwise."""

    states: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    scripts: list[str] = field(default_factory=list)
    before: Callable[[], None] = lambda: None
    refuse: str = ""

    def __call__(self, command: Sequence[str]) -> Answer:
        if command[0] == "sbatch":
            self.before()
            if self.refuse:
                return Answer(1, "", self.refuse)
            text = Path(command[1]).read_text()
            job = str(100 + len(self.states))
            self.scripts.append(text)
            self.states[job] = "PENDING"
            self.names[job] = Path(command[1]).stem
            return Answer(0, f"Submitted batch job {job}\n")
        live = {j: s for j, s in self.states.items() if s in ("PENDING", "RUNNING")}
        if command[0] == "squeue":
            return Answer(0, "".join(f"{j}|N/A|{s}|None|{self.names[j]}\n" for j, s in live.items()))
        if command[0] == "sacct":
            return Answer(0, "".join(f"{j}|{s}|0:0|n1|{self.names[j]}\n" for j, s in self.states.items()))
        return Answer(0, "")


@dataclass
class World:
    study: StudyFolder
    cluster: Cluster = field(default_factory=Cluster)

    def advance(self) -> int:
        return unit_jobs.advance(self.study, Services(runner=self.cluster, sleep=lambda _: None, say=lambda _: None))

    def claims(self) -> list[Claim]:
        return list(Office.of(self.study).search.claims.values())

    def tell(self, number: int, how: str, value: float | None = None) -> None:
        office = Office.of(self.study)
        assert office.tell(office.search.claims[number], how, value=value)

    def state(self, claim: Claim, state: str) -> None:
        job = ledger.read(self.study).batches[claim.worker.removeprefix(JOB)].job_id
        assert job is not None
        self.cluster.states[job] = state


@pytest.fixture
def world(tmp_path: Path) -> World:
    study = make_search(tmp_path / "s", shape="jobs", workers=3, trials=6)
    study.study.write_text("cluster: {executor: slurm, cpus_per_task: 3}\ntracking: {enabled: false}\n")
    return World(study)


@pytest.mark.parametrize(
    ("batch", "seen", "said"),
    [
        (None, View(), "before it submitted"),
        (ledger.Batch("s.1", "slurm", (), 0.0, abandoned="x"), View(), "not submitted: x"),
        (ledger.Batch("s.1", "slurm", (), 0.0), View(), None),
        (BATCH, View({"7_0": Job("queued", "PENDING")}), None),
        (BATCH, View({"7_0": Job("running", "RUNNING")}), None),
        (BATCH, View({"7_0": Job("unknown", "ODD")}), None),
        (BATCH, View({"7_0": Job("node_failure", "NODE_FAIL")}), "NODE_FAIL of job 7"),
        (BATCH, View({"7_0": Job("completed", "COMPLETED")}), "COMPLETED of job 7"),
        (BATCH, View(), "no such job"),
        (BATCH, View(complete=False, queue_complete=False), None),
    ],
)
def test_a_unit_is_given_up_on_evidence_only(batch: ledger.Batch | None, seen: View, said: str | None) -> None:
    found = unit_jobs.gone(batch, seen)
    assert found is None if said is None else said in str(found)


def test_as_many_jobs_as_may_run_each_for_one_unit(world: World) -> None:
    assert world.advance() == 3
    assert [claim.unit.trial for claim in world.claims()] == [0, 1, 2]
    assert world.advance() == 0
    assert all("--cpus-per-task=3" in text and "study.workers.worker" in text for text in world.cluster.scripts)
    batches = ledger.read(world.study).batches
    assert [batches[c.worker.removeprefix(JOB)].resources[unit_jobs.UNIT] for c in world.claims()] == [
        c.key for c in world.claims()
    ]
    world.tell(world.claims()[0].number, "reached", 1.0)
    assert world.advance() == 1
    assert [claim.unit.trial for claim in world.claims()] == [1, 2, 3]


def test_a_job_that_is_gone_gives_its_unit_back_and_one_that_waits_does_not(world: World) -> None:
    world.advance()
    first, second, _ = world.claims()
    world.state(first, "NODE_FAIL")
    world.state(second, "RUNNING")
    spent = Office.of(world.study).search.spent
    assert world.advance() == 1
    again = world.claims()[-1]
    assert (again.key, again.unit) == (first.key, first.unit)
    assert Office.of(world.study).search.spent == spent  # the job never began
    assert second.number in {claim.number for claim in world.claims()}


@pytest.mark.parametrize("moment", ["before sbatch", "after sbatch"])
def test_a_submitter_that_is_killed_leaves_nothing_twice_and_nothing_lost(world: World, moment: str) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    world.cluster.before = die
    if moment == "after sbatch":
        real = ledger.append
        calls = itertools.count()

        def append(*words: object, **fields: object) -> None:
            if words[1] == "submitted" and next(calls) == 0:
                raise KeyboardInterrupt
            real(*words, **fields)  # type: ignore[arg-type]

        world.cluster.before = lambda: None
        ledger.append = append
    try:
        with pytest.raises(KeyboardInterrupt):
            world.advance()
    finally:
        if moment == "after sbatch":
            ledger.append = real
    world.cluster.before = lambda: None
    _let_windows_pass(world.study)
    world.advance()
    claims = world.claims()
    assert [claim.unit.trial for claim in claims] == [0, 1, 2]
    live = {name for job, name in world.cluster.names.items() if world.cluster.states[job] == "PENDING"}
    assert live == {claim.worker.removeprefix(JOB) for claim in claims}


def test_a_full_scheduler_costs_nothing_and_the_unit_comes_again(world: World) -> None:
    world.cluster.refuse = FULL
    assert world.advance() == 0
    search = Office.of(world.study).search
    assert (search.spent, search.lost_units, search.claims) == (0.0, 0, {})
    world.cluster.refuse = ""
    assert world.advance() == 3


def test_of_jobs_that_end_together_and_fill_the_scheduler_the_last_tries_until_they_have_left(world: World) -> None:
    world.advance()
    for claim in world.claims():
        world.tell(claim.number, "reached", 1.0)
    world.cluster.refuse = FULL
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            world.cluster.refuse = ""

    unit_jobs.advance_at_end(world.study, Services(runner=world.cluster, sleep=nap, say=lambda _: None))
    assert len(world.claims()) == 3
    assert len(naps) == 2
    unit_jobs.advance_at_end(world.study, Services(runner=world.cluster, sleep=nap, say=lambda _: None))
    assert len(naps) == 2, "others are there to do it"


def test_workers_that_take_over_from_jobs_do_not_wait_for_those_that_are_gone(world: World) -> None:
    world.advance()
    first, second, third = world.claims()
    world.state(first, "NODE_FAIL")
    world.state(second, "RUNNING")
    unit_jobs.give_up_gone(world.study, Services(runner=world.cluster, sleep=lambda _: None, say=lambda _: None))
    assert [claim.number for claim in world.claims()] == [second.number, third.number]


def test_a_job_whose_unit_was_given_up_does_nothing(world: World) -> None:
    world.advance()
    claim = world.claims()[0]
    world.tell(claim.number, "lost")
    done = _run(world, claim)
    assert done.returncode == 77, done.stderr
    assert not (world.study.run(claim.key).path / "diary").exists()


def test_a_job_that_was_on_its_way_when_the_search_was_stopped_does_nothing(world: World) -> None:
    world.advance()
    claim = world.claims()[0]
    Office.of(world.study).say("stopped")
    done = _run(world, claim)
    assert done.returncode == 77, done.stderr
    assert not (world.study.run(claim.key).path / "diary").exists()
    assert claim.number not in {one.number for one in world.claims()}
    assert Office.of(world.study).search.lost_units == 0


def _let_windows_pass(study: StudyFolder) -> None:
    """Age the ledger: what was meant to be submitted a moment ago may still be on its way."""
    text = study.ledger.read_text()
    import json

    lines = [json.loads(line) for line in text.splitlines()]
    study.ledger.write_text("".join(json.dumps({**line, "time": line["time"] - 100}) + "\n" for line in lines))


def test_a_search_is_cancelled_while_a_lease_is_being_renewed(world: World) -> None:
    world.study.leases.mkdir(parents=True)
    (world.study.leases / "0").write_text("")
    assert "0 workers of this machine were told" in pool.cancel(world.study)
    assert Office.of(world.study).search.stopped


def _run(world: World, claim: Claim) -> subprocess.CompletedProcess[str]:
    name = claim.worker.removeprefix(JOB)
    return subprocess.run(
        [sys.executable, "-m", "study.workers.worker", str(world.study.path), "--name", name],
        env={**environment(), "PATH": os.devnull}, capture_output=True, text=True, check=False,
    )  # fmt: skip
