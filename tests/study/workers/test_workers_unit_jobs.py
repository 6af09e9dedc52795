"""A job for each unit: whoever comes by submits what the scheduler wants; a kill anywhere leaves nothing undecided."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from study.__main__ import main
from study.executors.base import Answer
from study.executors.jobs import Job, JobState, QueueView
from study.process.children import Signals
from study.reconcile import units
from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import LostUnits, Units
from study.records import ledger
from study.records.ledger import UNIT, Ledger
from study.search.state import Claim
from study.search.trial_queue import TrialQueue
from study.storage.layout import StudyFolder
from study.workers import pool, unit_jobs, waiting, worker
from tests.study.support.searches import environment, make_search

FULL = "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed"
BATCH = ledger.Batch("s.1", "slurm", ("u",), 0.0, job_id="7")
EARLIER = ledger.Batch("u", "slurm", (), 0.0, resources={UNIT: "key"}, job_id="7", array=False)


@dataclass
class Cluster:
    """Answers as SLURM would: jobs by id, PENDING until a test says otherwise."""

    states: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    scripts: list[str] = field(default_factory=list)
    before: Callable[[], None] = lambda: None
    refuse: str = ""
    most: int = 100

    def __call__(self, command: Sequence[str]) -> Answer:
        if command[0] == "sbatch":
            self.before()
            if self.refuse:
                return Answer(1, "", self.refuse)
            text = Path(command[1]).read_text()
            job = str(100 + len(self.scripts))
            self.scripts.append(text)
            self.names[job] = Path(command[1]).stem
            found = re.search(r"--array=0-(\d+)", text)
            self.states |= {f"{job}_{index}": "PENDING" for index in range(int(found[1]) + 1 if found else 1)}
            return Answer(0, f"Submitted batch job {job}\n")
        if command[:3] == ["scontrol", "show", "config"]:
            return Answer(0, f"MaxArraySize = 1001\nMaxJobCount = {self.most + 1}\n")
        live = {j: s for j, s in self.states.items() if s in ("PENDING", "RUNNING")}
        if command[0] == "squeue":
            rows = ((*j.split("_"), s, self.names[j.split("_")[0]]) for j, s in live.items())
            return Answer(0, "".join(f"{job}|{index}|{s}|None|{name}\n" for job, index, s, name in rows))
        if command[0] == "sacct":
            rows = ((j, s, self.names[j.split("_")[0]]) for j, s in self.states.items())
            return Answer(0, "".join(f"{job}|{s}|0:0|n1|{name}\n" for job, s, name in rows))
        return Answer(0, "")


@dataclass
class World:
    study: StudyFolder
    cluster: Cluster = field(default_factory=Cluster)

    def advance(self) -> int:
        return step(self.study, self.services(), Units()).submitted

    def services(self, said: list[str] | None = None) -> Services:
        say: Callable[[str], None] = said.append if said is not None else lambda _: None
        return Services(runner=self.cluster, sleep=lambda _: None, report=say)

    def claims(self) -> list[Claim]:
        return list(TrialQueue.of(self.study).search.claims.values())

    def tell(self, number: int, how: str, value: float | None = None) -> None:
        queue = TrialQueue.of(self.study)
        assert queue.record_end(queue.search.claims[number], how, value=value)

    def state(self, claim: Claim, state: str) -> None:
        unit, known = units.name_of(claim), ledger.read(self.study)
        batch = known.batches[known.current[unit]]
        self.cluster.states[batch.job(batch.task(unit))] = state


@pytest.fixture
def world(tmp_path: Path) -> World:
    study = make_search(tmp_path / "s", shape="jobs", workers=3, trials=6)
    study.study.write_text("cluster: {executor: slurm, cpus_per_task: 3}\ntracking: {enabled: false}\n")
    return World(study)


@pytest.mark.parametrize(
    ("batch", "seen", "said"),
    [
        (None, QueueView(), "before it queued"),
        (replace(BATCH, job_id=None, abandoned="x"), QueueView(), "not submitted: x"),
        (replace(BATCH, job_id=None), QueueView(), None),
        (BATCH, QueueView({"7_0": Job(JobState.QUEUED, "PENDING")}), None),
        (BATCH, QueueView({"7_0": Job(JobState.RUNNING, "RUNNING")}), None),
        (BATCH, QueueView({"7_0": Job(JobState.UNKNOWN, "ODD")}), None),
        (BATCH, QueueView({"7_0": Job(JobState.NODE_FAILURE, "NODE_FAIL")}), "NODE_FAIL of job 7_0"),
        (EARLIER, QueueView({"7": Job(JobState.NODE_FAILURE, "NODE_FAIL")}), "NODE_FAIL of job 7"),
        (EARLIER, QueueView({"7": Job(JobState.RUNNING, "RUNNING")}), None),
        (BATCH, QueueView({"7_0": Job(JobState.COMPLETED, "COMPLETED")}), "COMPLETED of job 7"),
        (BATCH, QueueView(), "no such job"),
        (BATCH, QueueView(complete=False, queue_complete=False), None),
    ],
)
def test_a_unit_is_given_up_on_evidence_only(batch: ledger.Batch | None, seen: QueueView, said: str | None) -> None:
    known = Ledger() if batch is None else Ledger({batch.name: batch}, dict.fromkeys(batch.keys, batch.name))
    found = units.gone(known, "u", seen)
    assert found is None if said is None else said in str(found)


def test_as_many_jobs_as_may_run_each_for_one_unit(world: World) -> None:
    assert world.advance() == 3
    assert [claim.unit.trial for claim in world.claims()] == [0, 1, 2]
    assert world.advance() == 0
    assert all("--cpus-per-task=3" in text and "study.workers.worker" in text for text in world.cluster.scripts)
    (batch,) = ledger.read(world.study).batches.values()
    assert batch.keys == tuple(map(units.name_of, world.claims())), "one array"
    world.tell(world.claims()[0].number, "reached", 1.0)
    assert world.advance() == 1
    assert [claim.unit.trial for claim in world.claims()] == [1, 2, 3]


def test_a_job_that_is_gone_gives_its_unit_back_and_one_that_waits_does_not(world: World) -> None:
    world.advance()
    first, second, _ = world.claims()
    world.state(first, "NODE_FAIL")
    world.state(second, "RUNNING")
    spent = TrialQueue.of(world.study).search.spent
    assert world.advance() == 1
    again = world.claims()[-1]
    assert (again.key, again.unit) == (first.key, first.unit)
    assert TrialQueue.of(world.study).search.spent == spent  # the job never began
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
    known = ledger.read(world.study)
    (batch,) = {known.current[units.name_of(claim)] for claim in claims}
    assert set(world.cluster.names.values()) == {batch}
    assert len(world.cluster.states) == 3


def test_a_full_scheduler_costs_nothing_and_the_unit_comes_again(world: World) -> None:
    world.cluster.refuse = FULL
    assert world.advance() == 0
    search, known = TrialQueue.of(world.study).search, ledger.read(world.study)
    assert search.lost_units == 0
    assert list(known.waiting) == [units.name_of(claim) for claim in search.claims.values()]
    world.cluster.refuse = ""
    assert world.advance() == 3
    assert TrialQueue.of(world.study).search.spent == search.spent


def test_units_obey_the_limits_of_the_site_as_points_do(world: World) -> None:
    world.cluster.most = 2
    said: list[str] = []
    assert step(world.study, world.services(said), Units()).submitted == 2
    assert said[0].startswith("submitted 2 units as job array 100 (s.")
    assert "1 unit waits (MaxJobCount of the cluster is 2, and 2 are used)" in said[1]
    assert [text.partition(" (")[0] for text in said[2:]] == [
        f"trial {n} to {claim.unit.until:,} tokens: job 100_{n}" for n, claim in enumerate(world.claims()[:2])
    ]
    assert len(world.claims()) == 3
    assert (
        waiting.lines(world.study, lambda ids: QueueView())[0]
        == "1 waits: MaxJobCount of the cluster is 2, and 2 are used"
    )
    world.tell(world.claims()[0].number, "reached", 1.0)
    world.cluster.states["100_0"] = "COMPLETED"
    assert world.advance() == 1
    assert len(world.cluster.scripts) == 2


def test_units_that_wait_are_withdrawn_where_the_search_is_stopped_or_workers_take_over(world: World) -> None:
    world.cluster.refuse = FULL
    world.advance()
    step(world.study, world.services(), LostUnits())
    assert (world.claims(), dict(ledger.read(world.study).waiting)) == ([], {})
    world.advance()
    assert len(ledger.read(world.study).waiting) == 3
    pool.cancel(world.study)
    assert not ledger.read(world.study).waiting
    world.cluster.refuse = ""
    assert world.advance() == 0
    assert (world.claims(), TrialQueue.of(world.study).search.lost_units) == ([], 0)


def test_cancel_tells_only_jobs_that_have_the_names_of_the_search(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.advance()
    name = world.cluster.names["100"]
    for command, text in {"squeue": 'cat "$0.says"', "scancel": 'echo "$@" >> "$0.told"'}.items():
        (tmp_path / command).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / command).chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "squeue.says").write_text("100|0|RUNNING|None|other.x\n")
    assert "0 job arrays" in pool.cancel(world.study)
    assert not (tmp_path / "scancel.told").exists()
    (tmp_path / "squeue.says").write_text(f"100|0|RUNNING|None|{name}\n")
    assert "1 job arrays" in pool.cancel(world.study)
    assert (tmp_path / "scancel.told").read_text().split()[-1] == "100"


def test_a_job_leaves_its_unit_waiting_where_the_disk_has_no_room_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.advance()
    claim = world.claims()[0]
    unit = units.name_of(claim)
    batch = ledger.read(world.study).batches[ledger.read(world.study).current[unit]]
    monkeypatch.setattr("study.reconcile.disk.take_room", lambda *asked: "no room")
    monkeypatch.setattr(Signals, "install", lambda signals: None)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(batch.task(unit)))
    assert worker.main([str(world.study.path), "--name", batch.name]) == 77
    known = ledger.read(world.study)
    assert (known.waiting[unit].why, (known.waiting[unit].needs or 0) > 0) == ("no room", True)
    assert claim.number in {one.number for one in world.claims()}, "it is this unit's still"
    assert not world.study.run(claim.key).path.exists()
    monkeypatch.undo()
    assert world.advance() == 1 and not ledger.read(world.study).waiting


def test_a_copy_of_a_search_leaves_the_originals_jobs_alone_until_its_own_command_is_given(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.advance()
    names = [*ledger.read(world.study).batches]
    copy = StudyFolder(Path(shutil.copytree(world.study.path, tmp_path / "copy")))
    for name in ("squeue", "sacct", "scancel", "sbatch"):
        said = f"printf '100|0|RUNNING|None|{names[0]}\\n'" if name == "squeue" else ""
        (tmp_path / name).write_text(f'#!/bin/bash\necho {name} "$@" >> {tmp_path}/told\n{said}\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    unit_jobs.advance_quietly(copy)
    assert main(["status", str(copy.path)]) == 0
    assert f"a copy: the jobs of the search belong to the study at {world.study.path}" in unfolded(capsys)
    assert main(["status", str(copy.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["copy_of"] == str(world.study.path)
    assert main(["cancel", str(copy.path)]) == 0
    assert str(world.study.path) in unfolded(capsys)
    assert not (tmp_path / "told").exists(), "SLURM was asked"
    other = World(copy, world.cluster)
    TrialQueue.of(copy).record_control("resumed")
    assert step(copy, other.services(), Units(lambda: None)).submitted == 3
    assert len(world.cluster.scripts) == 2 and str(copy.path) in world.cluster.scripts[1]
    assert ledger.read(copy).copy_of is None
    assert {claim.number for claim in world.claims()}, "the original goes on"


def unfolded(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_a_submission_that_was_given_up_and_arrives_late_does_not_run_its_unit_twice(world: World) -> None:
    world.advance()
    claim = world.claims()[0]
    unit = units.name_of(claim)
    ledger.append(world.study, "waiting", keys=[unit], resources={UNIT: True})
    ledger.append(world.study, "intent", name="s.late", executor="slurm", keys=[unit], resources={UNIT: True})
    ledger.append(world.study, "submitted", name="s.late", job_id="9")
    late = next(iter(ledger.read(world.study).batches))
    done = _run(world, claim, name=late)
    assert done.returncode == 77, done.stderr


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

    unit_jobs.advance_at_end(world.study, Services(runner=world.cluster, sleep=nap, report=lambda _: None))
    assert len(world.claims()) == 3
    assert len(naps) == 2
    unit_jobs.advance_at_end(world.study, Services(runner=world.cluster, sleep=nap, report=lambda _: None))
    assert len(naps) == 2, "others are there to do it"


def test_workers_that_take_over_from_jobs_do_not_wait_for_those_that_are_gone(world: World) -> None:
    world.advance()
    first, second, third = world.claims()
    world.state(first, "NODE_FAIL")
    world.state(second, "RUNNING")
    step(world.study, world.services(), LostUnits())
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
    TrialQueue.of(world.study).record_control("stopped")
    done = _run(world, claim)
    assert done.returncode == 77, done.stderr
    assert not (world.study.run(claim.key).path / "diary").exists()
    assert claim.number not in {one.number for one in world.claims()}
    assert TrialQueue.of(world.study).search.lost_units == 0


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
    assert TrialQueue.of(world.study).search.stopped


def _run(world: World, claim: Claim, name: str = "") -> subprocess.CompletedProcess[str]:
    batches = ledger.read(world.study).batches.values()
    unit = units.name_of(claim)
    batch = next(batch for batch in batches if unit in batch.keys and name in ("", batch.name))
    index = str(batch.task(unit))
    return subprocess.run(
        [sys.executable, "-m", "study.workers.worker", str(world.study.path), "--name", batch.name],
        env={**environment(), "PATH": os.devnull, "SLURM_ARRAY_TASK_ID": index},
        capture_output=True,
        text=True,
        check=False,
    )
