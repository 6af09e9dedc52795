"""One submission and what became of it, with a scheduler that answers as it is told and a clock that sleeps at once."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from study.executors.base import Answer, SubmitError
from study.executors.job_spec import JobSpec
from study.reconcile.services import Services
from study.reconcile.two_phase import Request, Sent, after_error, resolve_unclear, send
from study.records import ledger
from study.storage.layout import StudyFolder

SILENT = Answer(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
TIMED_OUT = Answer(1, "", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
NO_QOS = Answer(1, "", "sbatch: error: Batch job submission failed: Invalid qos specification")
FULL = Answer(1, "", "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Job violates accounting/QOS policy")


@dataclass
class World:
    """SLURM's commands, a clock and a voice."""

    sbatch: Answer = field(default_factory=lambda: Answer(0, "Submitted batch job 12\n"))
    squeue: Answer = field(default_factory=lambda: Answer(0, ""))
    now: float = 0.0
    asked: list[str] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def run(self, command: Sequence[str]) -> Answer:
        self.asked.append(command[0])
        return {"sbatch": self.sbatch, "squeue": self.squeue}.get(command[0], Answer(0, ""))

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    @property
    def services(self) -> Services:
        return Services(self.run, lambda: self.now, self.sleep, self.said.append)


@pytest.fixture
def study(tmp_path: Path) -> StudyFolder:
    folder = StudyFolder(tmp_path / "s")
    folder.path.mkdir()
    return folder


def intent(study: StudyFolder, name: str = "s.a", at: float = 0.0, executor: str = "slurm", keys: str = "ab") -> None:
    ledger.append(
        study, "intent", at, name=name, executor=executor, keys=list(keys), resources=JobSpec().record(), code="c"
    )


def waiting(study: StudyFolder, keys: str, shape: JobSpec) -> None:
    ledger.append(study, "waiting", keys=list(keys), resources=shape.record(), code="c")


def events(study: StudyFolder) -> list[str]:
    return [event["event"] for event in ledger.read_events(study.ledger)]


def test_what_the_ledger_says_of_a_request() -> None:
    array = Request("s.a", JobSpec(nodes=2), 3, ("a", "b"), "c", throttle=4, also={"unit": "u"}, executor="slurm")
    assert array.intent() == {
        "event": "intent", "name": "s.a", "executor": "slurm", "keys": ["a", "b"], "code": "c", "throttle": 4,
        "resources": {**JobSpec(nodes=2).record(), "unit": "u"},
    }  # fmt: skip
    single = Request("s.a", JobSpec(), None, executor="slurm").intent()
    assert single["array"] is False and "throttle" not in single and single["keys"] == []
    assert "array" not in array.intent()


def test_a_submission_that_goes_through(study: StudyFolder) -> None:
    world = World()
    assert send(study, Request("s.a", JobSpec(), 2, ("a", "b"), "c", executor="slurm"), world.services) == Sent("12")
    assert events(study) == ["intent", "submitted"]
    assert ledger.read(study).batches["s.a"].job_id == "12"
    assert "--array=0-1" in (study.jobs / "s.a.sh").read_text()
    assert world.asked == ["sbatch"] and world.said == []


@pytest.mark.parametrize("answer", [Answer(0, "Submitted batch job 12\n"), FULL])
def test_the_room_that_was_held_is_free_when_it_is_written_down_what_became_of_it(
    study: StudyFolder, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = list[bool]()
    append = ledger.append

    def noted(*given: Any, **more: Any) -> None:
        held.append(study.reserve.exists())
        append(*given, **more)

    monkeypatch.setattr(ledger, "append", noted)
    send(study, Request("s.a", JobSpec(), 2, ("a", "b"), executor="slurm"), World(sbatch=answer).services)
    study.jobs.rename(study.jobs.with_name("moved"))
    study.jobs.write_text("no folder, so that no script can be written")
    with pytest.raises(OSError, match="jobs"):
        send(study, Request("s.b", JobSpec(), 2, ("c", "d"), executor="slurm"), World(sbatch=answer).services)
    assert held == [False, False]


def test_what_cannot_be_rendered_leaves_no_intent(study: StudyFolder) -> None:
    with pytest.raises(ValueError, match="code"):
        send(study, Request("s.a", JobSpec(code="frozen"), 1, ("a",), "gone", executor="slurm"), World().services)
    assert events(study) == []


def test_where_there_is_no_room_its_keys_wait_again(study: StudyFolder) -> None:
    waiting(study, "ab", JobSpec())
    sent = send(study, Request("s.a", JobSpec(), 2, ("a", "b"), executor="slurm"), World(sbatch=FULL).services)
    assert sent.job_id is None and "QOS policy" in sent.full
    known = ledger.read(study)
    assert set(known.waiting) == {"a", "b"} and "QOS policy" in known.waiting["a"].why
    assert known.refused == {} and known.current == {}


def test_what_is_refused_for_good_waits_no_more_nor_what_is_to_be_submitted_alike(study: StudyFolder) -> None:
    asked, other = JobSpec(qos="night"), JobSpec(qos="day")
    waiting(study, "ab", asked)
    waiting(study, "c", other)
    with pytest.raises(SubmitError, match=r"Invalid qos specification: cluster\.qos=night: change it") as refused:
        send(study, Request("s.a", asked, 1, ("a",), executor="slurm"), World(sbatch=NO_QOS).services)
    assert not refused.value.ambiguous
    known = ledger.read(study)
    assert set(known.waiting) == {"c"}
    assert set(known.refused) == {"a", "b"} and "cluster.qos=night" in known.refused["b"]
    assert not known.batches["s.a"].ambiguous


def test_a_refusal_of_the_only_one_says_nothing_of_others(study: StudyFolder) -> None:
    waiting(study, "c", JobSpec(qos="day"))
    with pytest.raises(SubmitError):
        send(study, Request("s.a", JobSpec(qos="night"), 1, ("a",), executor="slurm"), World(sbatch=NO_QOS).services)
    assert events(study) == ["waiting", "intent", "abandoned"]


def test_a_submission_that_went_through_in_spite_of_the_error(study: StudyFolder) -> None:
    world = World(sbatch=TIMED_OUT, squeue=Answer(0, "31|0|PENDING|None|s.a\n31|1|PENDING|None|s.a\n"))
    assert send(study, Request("s.a", JobSpec(), 2, ("a", "b"), executor="slurm"), world.services) == Sent("31")
    assert world.said == ["s.a: was submitted as job 31"]
    assert ledger.read(study).batches["s.a"].job_id == "31"
    assert world.slept == []


def test_a_submission_that_never_arrived_is_waited_out_and_given_up(study: StudyFolder) -> None:
    intent(study)
    world = World()
    with pytest.raises(ValueError, match="timed out: nothing was submitted: run the command again, with other"):
        after_error(study, "s.a", SubmitError("timed out", True), world.services)
    assert world.slept == [2.0] * 5, "ten seconds after the intent"
    assert world.said == ["s.a: never reached the scheduler: its points are submitted again"]
    assert ledger.read(study).batches["s.a"].abandoned == "the scheduler does not know its name"


def test_whoever_submits_waits_to_know_what_became_of_it(study: StudyFolder) -> None:
    world = World(sbatch=TIMED_OUT, now=time.time())
    with pytest.raises(ValueError, match="nothing was submitted"):
        send(study, Request("s.a", JobSpec(), 1, ("a",), executor="slurm"), world.services)
    assert sum(world.slept) >= 10


@pytest.mark.parametrize("patient", [False, True])
def test_who_is_in_a_hurry_leaves_it_open(patient: bool, study: StudyFolder) -> None:
    intent(study, at=100.0)
    world = World(now=105.0)
    error = ValueError("no answer")  # of a kind that says nothing of itself counts as unclear
    words = "nothing was submitted" if patient else "it is not known whether s.a was submitted: run the command again"
    with pytest.raises(ValueError, match=f"no answer: {words}"):
        after_error(study, "s.a", error, world.services, patient=patient)
    assert bool(world.slept) is patient
    assert ledger.read(study).batches["s.a"].ambiguous is not patient


def test_where_the_scheduler_is_silent_nobody_waits(study: StudyFolder) -> None:
    intent(study)
    world = World(squeue=SILENT, now=50.0)
    (left,) = resolve_unclear(study, world.services)
    assert left.name == "s.a" and "Unable to contact" in left.why
    assert (world.slept, world.said, events(study)) == ([], [], ["intent"])


def test_a_clock_that_runs_behind_is_not_waited_for_for_ever(study: StudyFolder) -> None:
    intent(study, at=1000.0)
    world = World(now=0.0)
    (left,) = resolve_unclear(study, world.services)
    assert "may still be on its way" in left.why
    assert sum(world.slept) == 22.0, "twice the time in which a submission may be on its way"


def test_the_user_knows_better(study: StudyFolder) -> None:
    intent(study)
    world = World(squeue=SILENT)
    assert resolve_unclear(study, world.services, force=True) == []
    assert world.said == ["s.a: given up: its points are submitted again"]
    abandoned = ledger.read(study).batches["s.a"].abandoned or ""
    assert re.match("given up by the user: it is not known whether it was submitted", abandoned)


def begun(study: StudyFolder, key: str, name: str) -> None:
    attempt = study.run(key).attempt(1)
    attempt.path.mkdir(parents=True)
    attempt.job.write_text(json.dumps({"name": name, "executor": "slurm", "job_id": "31_4"}))


@pytest.mark.parametrize(("name", "asked", "job"), [("s.a", [], "31"), ("s.old", ["squeue", "sacct"], None)])
def test_an_attempt_of_its_own_says_which_job_it_is(
    name: str, asked: list[str], job: str | None, study: StudyFolder
) -> None:
    intent(study)
    begun(study, "b", name)
    world = World(now=50.0)
    assert resolve_unclear(study, world.services) == []
    assert world.asked == asked
    assert ledger.read(study).batches["s.a"].job_id == job


def test_local_runs_need_nobody_to_be_asked(study: StudyFolder) -> None:
    intent(study, executor="local")
    world = World()
    assert resolve_unclear(study, world.services) == []
    assert (world.asked, ledger.read(study).batches["s.a"].job_id) == ([], "local")


def test_each_unclear_submission_is_settled_for_itself(study: StudyFolder) -> None:
    intent(study, "s.a", keys="a")
    intent(study, "s.b", keys="b")
    ledger.append(study, "submitted", name="s.b", job_id="9")
    intent(study, "s.c", at=95.0, keys="c")
    world = World(now=96.0)
    (left,) = resolve_unclear(study, world.services, patient=False)
    assert left.name == "s.c" and world.slept == []
    assert {name: batch.ambiguous for name, batch in ledger.read(study).batches.items()} == {
        "s.a": False, "s.b": False, "s.c": True,
    }  # fmt: skip


def test_what_is_said_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    outside: Any = Services()
    outside.report("words")
    assert capsys.readouterr().out == "words\n"
