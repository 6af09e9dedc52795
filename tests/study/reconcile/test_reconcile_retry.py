"""What follows from bad ends by itself, with a scheduler that answers what it is told to."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from study.config.schema import ClusterConfig
from study.executors import query
from study.executors.base import Answer, RankInfo
from study.executors.jobs import QueueView
from study.executors.slurm.query import read_squeue
from study.failures import kinds
from study.failures.kinds import Ending, Kind
from study.failures.retry_policy import Action, RecordedFailure
from study.job import __main__
from study.job.attempt import JobContext
from study.job.ending import account_for_restart, after
from study.process.children import Signals
from study.reconcile import dependencies, failures
from study.reconcile.failures import certain
from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import LocalEnds, Look, Submit
from study.records import ledger
from study.records.bad_ends import end_fields
from study.status.observer import Observer
from study.status.states import NEVER_BEGAN, PointState, PointStatus
from study.storage.files import RunLock, locked
from study.storage.layout import StudyFolder
from tests.study.support.studies import make_study

SHAPE = {"nodes": 1, "tasks_per_node": 1, "cpus_per_task": 1, "gpus_per_node": 0, "time_minutes": 60, "mem_gb": 2.0}
GONE = Answer(1, "", "slurm_load_jobs error: Invalid job id specified")
OFF = Answer(1, "", "Slurm accounting storage is disabled")
FULL = (
    "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting policy"
)
SILENT = Answer(1, "", "squeue: error: Unable to contact slurm controller (connect failure)")


@dataclass
class Scheduler:
    """Answers by the command's name, and remembers what it was asked."""

    squeue: Answer = GONE
    sacct: Answer = OFF
    sinfo: Answer = field(default_factory=lambda: Answer(0, ""))
    scontrol: Answer = field(default_factory=lambda: Answer(0, ""))
    sbatch: Answer = field(default_factory=lambda: Answer(1, "", FULL))
    asked: list[Sequence[str]] = field(default_factory=list)

    def __call__(self, command: Sequence[str]) -> Answer:
        self.asked.append(tuple(command))
        name = "sbatch" if "sbatch" in command else command[0]
        found: Answer = getattr(self, name, Answer(0, ""))
        return found

    def did(self, *names: str) -> list[Sequence[str]]:
        return [c for c in self.asked if any(name in c for name in names)]


def services(scheduler: Scheduler, said: list[str] | None = None) -> Services:
    say: Callable[[str], None] = said.append if said is not None else lambda text: None
    return Services(runner=scheduler, sleep=lambda seconds: None, report=say)


def submitted(folder: Path, seeds: Sequence[int] = (1,), **resources: Any) -> tuple[StudyFolder, list[str]]:
    study, keys = make_study(folder / "s", list(seeds))
    shape = {**SHAPE, **resources}
    its = list(keys.values())
    ledger.append(study, "intent", name="b", executor="slurm", keys=its, resources=shape, code="c")
    ledger.append(study, "submitted", name="b", job_id="7")
    return study, its


def attempt(study: StudyFolder, key: str, number: int = 1, ended: dict[str, Any] | None = None, **about: Any) -> None:
    folder = study.run(key).attempt(number)
    folder.path.mkdir(parents=True)
    usual = {"name": "b", "executor": "slurm", "job_id": "7_0", "restart": 0, "nodes": ["n1"], "host": "h"}
    folder.job.write_text(json.dumps({**usual, **about, "started": time.time()}))
    if ended is not None:
        folder.outcome.write_text(json.dumps({"exit_code": 1, "signal": None, "error": None, "rank": 0, **ended}))


def events(study: StudyFolder, kind: str) -> list[dict[str, Any]]:
    return [event for event in ledger.read_events(study.ledger) if event["event"] == kind]


def observed(study: StudyFolder, scheduler: Scheduler) -> Observer:
    observer = Observer(study, lambda batches: query(batches, scheduler))
    observer.refresh()
    return observer


def look(study: StudyFolder, scheduler: Scheduler) -> list[PointStatus]:
    return observed(study, scheduler).statuses()


def follow_up(study: StudyFolder, scheduler: Scheduler, world: Services | None = None) -> int:
    """Take the step as a command does that has just looked; return how many points went out."""
    observer = observed(study, scheduler)
    return step(study, world or services(scheduler), Look(observer, observer.statuses())).submitted


def sacct(*lines: str) -> Answer:
    return Answer(0, "".join(f"{line}\n" for line in lines))


def test_what_slurm_ended_goes_on_once(tmp_path: Path) -> None:
    study, keys = submitted(tmp_path, (1, 2, 3, 4))
    for key in keys[:3]:
        attempt(study, key)
    ends = ("7_0|TIMEOUT|0:0|n1|b", "7_1|NODE_FAIL|0:0|n1|b", "7_2|OUT_OF_MEMORY|0:125|n1|b", "7_3|CANCELLED|0:0|n1|b")
    scheduler = Scheduler(sacct=sacct(*ends), sinfo=Answer(0, "n1 down*\nn2 idle\n"))
    follow_up(study, scheduler)
    assert [(e["kind"], e["action"]) for e in events(study, "ended")] == [
        ("time_limit", "again"),
        ("node_failure", "elsewhere"),
        ("host_memory", "more"),
    ]
    waiting = ledger.read(study).waiting
    assert [waiting[key].resources.get("exclude") for key in keys[:3]] == ["n1"] * 3
    assert [waiting[key].resources["mem_gb"] for key in keys[:3]] == [2.0, 2.0, 3.0]
    assert keys[3] not in waiting, "somebody cancelled it"
    (excluded,) = events(study, "excluded")
    assert excluded["nodes"] == {"n1": "its state is down*"}
    assert excluded["until"] > time.time()
    before = study.ledger.read_bytes()
    follow_up(study, scheduler)
    assert events(study, "ended") == ledger_events(before, "ended"), "once"


def test_points_whose_turn_never_came_go_on_without_having_failed(tmp_path: Path) -> None:
    """One of three ran when the node died, one waited in the job, and one had been cancelled there."""
    study, keys = submitted(tmp_path, (1, 2, 3), points_per_job=3)
    attempt(study, keys[0])
    ledger.append(study, "cancelled", keys=[keys[2]])
    scheduler = Scheduler(sacct=sacct("7_0|NODE_FAIL|0:0|n1|b"), sbatch=Answer(0, "Submitted batch job 8\n"))
    assert follow_up(study, scheduler) == 2
    known = ledger.read(study)
    assert [(end.key, end.kind) for end in known.history] == [(keys[0], "node_failure")]
    assert {known.batches[known.current[key]].job_id for key in keys[:2]} == {"8"} and known.current[keys[2]] == "b"
    assert known.batches[known.current[keys[1]]].points == 3


def test_a_job_that_ends_gives_its_host_memory_to_those_side_by_side(tmp_path: Path) -> None:
    study, (key, _) = submitted(tmp_path, (1, 2), pack=2)
    study.peers_checked.touch()
    attempt(study, key, ended={"state": "failed", "kind": "host_memory"})
    after(work(study, key), 1, Ending(Kind.HOST_MEMORY), {"nodes": ["n1"], "memory_gb": 4.0}, services(Scheduler()))
    assert ledger.read(study).waiting[key].resources["mem_gb"] == 3.0, "each had 2 GB: it gets half as much again"


def ledger_events(data: bytes, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in data.splitlines()]
    return [event for event in found if event["event"] == kind]


def test_evidence_grows_old(tmp_path: Path) -> None:
    study, (key,) = submitted(tmp_path, exclude="n[8-9],n1")
    ledger.append(study, "excluded", nodes={"n1": "two attempts"}, until=0)
    attempt(study, key)
    scheduler = Scheduler(sacct=sacct("7_0|TIMEOUT|0:0|n2|b"))
    follow_up(study, scheduler)
    assert ledger.read(study).waiting[key].resources["exclude"] == "n[8-9]", "what the user excluded stays"


def test_a_node_that_the_user_excludes_stays_out_whatever_evidence_named_it(tmp_path: Path) -> None:
    study, (key,) = submitted(tmp_path, exclude="n8,n1,n3")
    study.study.write_text('cluster: {executor: slurm, exclude: "n8,n1"}\ntracking: {enabled: false}\n')
    ledger.append(study, "excluded", nodes={"n1": "two attempts", "n3": "two attempts"}, until=0)
    attempt(study, key)
    follow_up(study, Scheduler(sacct=sacct("7_0|TIMEOUT|0:0|n2|b")))
    assert ledger.read(study).waiting[key].resources["exclude"] == "n8,n1", "n3 was left out on evidence alone"


def test_a_file_settles_a_job_that_slurm_has_forgotten(tmp_path: Path) -> None:
    study, keys = submitted(tmp_path, (1, 2, 3))
    attempt(study, keys[0], ended={"state": "time_limit", "kind": "time_limit"})
    attempt(study, keys[1], ended={"state": "failed", "kind": "code_error"})
    attempt(study, keys[2])
    scheduler = Scheduler()
    statuses = look(study, scheduler)
    assert [s.state for s in statuses] == ["time_limit", "failed", "unknown"]
    follow_up(study, scheduler)
    assert [(e["kind"], e["action"]) for e in events(study, "ended")] == [
        ("time_limit", "again"),
        ("code_error", "stop"),
    ]
    assert list(ledger.read(study).waiting) == [keys[0]], "of the third nobody knows anything"
    assert "retry.code_error" in look(study, scheduler)[1].next


RECORDED = (
    "",
    "\n\n",
    "squeue: error: Unable to contact slurm controller (connect failure)\n",
    "slurm_load_jobs error: Socket timed out on send/recv operation\n",
    "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:n0:6819\n",
    "7_0|TIMEOU",
    "7_0|TIMEOUT|0:0\n",
    "7_0|TIMEOUT|0:0|n1|b|extra\n",
    "|TIMEOUT|0:0|n1|b\n",
    "7_[0-|TIMEOUT|0:0|n1|b\n",
    "7_0||0:0|n1|b\n",
    "7_0|timeout|0:0|n1|b\n",
    "7_0|MELTED|0:0|n1|b\n",
    "JobID|State|ExitCode|NodeList|JobName\n",
    "7_99|TIMEOUT|0:0|n1|b\n",
    "8_0|NODE_FAIL|0:0|n1|b\n",
    "7_0|RUNNING|0:0|n1|b\n",
    "7_0|PENDING|0:0|None assigned|b\n",
    "7_0|TIMEOUT|0:0|n1|b\ngarbage\n",  # of an answer that is not understood in full, no line counts
    "7_0|FAILED|137:0|n1|b\n7_1|TIME",
    "\x00\x00\x00",
    "<html><body>503 Service Unavailable</body></html>\n",
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    queue=st.sampled_from([GONE, SILENT, Answer(None), Answer(0, ""), Answer(137, "7|0|RUN")]),
    history=st.sampled_from([Answer(0, text) for text in RECORDED] + [OFF, SILENT, Answer(None, error="no sacct")])
    | st.text(st.characters(codec="utf-8"), max_size=80).map(lambda text: Answer(0, text.replace("_", "-"))),
)
def test_unknown_stays_unknown(tmp_path_factory: pytest.TempPathFactory, queue: Answer, history: Answer) -> None:
    """Missing, lagging and malformed answers cancel, submit and complete nothing."""
    study, keys = submitted(tmp_path_factory.mktemp("unknown"), (1, 2))
    attempt(study, keys[0])
    before = study.ledger.read_bytes()
    scheduler = Scheduler(squeue=queue, sacct=history)
    statuses = look(study, scheduler)
    assert not [s for s in statuses if s.state in ("completed", "diverged", "cancelled")]
    follow_up(study, scheduler)
    assert study.ledger.read_bytes() == before
    assert not scheduler.did("sbatch", "scancel", "requeue")


@pytest.mark.parametrize("text", [text for text in RECORDED if "|" in text])
def test_what_is_malformed_for_sacct_is_so_for_squeue(text: str) -> None:
    view = read_squeue(Answer(0, text))
    assert not view.complete or all(job.state == "unknown" for job in view.jobs.values())


@pytest.mark.parametrize("begun", [False, True])
def test_points_that_are_tried_again_give_back_what_was_reserved_for_them(tmp_path: Path, begun: bool) -> None:
    """Of two jobs of an hour nobody knows the end: 2 core-hours are enough for them, or for one and a new one."""
    study, keys = submitted(tmp_path, (1, 2))
    study.study.write_text("study: {core_hours: 2}\ncluster: {executor: slurm}\ntracking: {enabled: false}\n")
    if begun:  # and was killed at once
        attempt(study, keys[0])
    scheduler, said = Scheduler(), list[str]()
    assert [one.state for one in look(study, scheduler)] == [PointState.UNKNOWN] * 2
    cluster = ClusterConfig(executor="slurm", gpus_per_node=0, cpus_per_task=1, time_minutes=60)
    step(study, services(scheduler, said), Submit(keys[:1], cluster, retried=keys[:1]))
    assert [event["keys"] for event in events(study, "retry")] == [keys[:1]]
    assert scheduler.did("sbatch") and "sbatch failed" in said[-1], "it is SLURM that has no room"
    longer = replace(cluster, time_minutes=61)
    with pytest.raises(
        ValueError, match=r"core_hours=2: 0 core-hours used, 1 reserved .* 1 job, .* for 1.017: not one"
    ):
        step(study, services(scheduler), Submit(keys[:1], longer))
    with pytest.raises(ValueError, match=r"core_hours=2: 0 core-hours used, 0 reserved .* 2 jobs, .* 1 of them would"):
        step(study, services(scheduler), Submit(keys, longer, retried=keys))
    assert len(events(study, "retry")) == 1, "nothing was given back where the whole was refused"


def test_certain_needs_squeue() -> None:
    said = PointStatus("k", PointState.FAILED, "SLURM says NODE_FAIL", kind=Kind.NODE_FAILURE)
    written = replace(said, why="")
    assert certain([said, written], QueueView()) == [said, written]
    assert certain([said, written], QueueView(complete=False)) == [written]
    assert certain([said, written], QueueView(complete=False, queue_complete=False)) == []


def work(study: StudyFolder, key: str, restart: int = 0) -> JobContext:
    return JobContext(study, ledger.read(study).batches["b"], key, RankInfo("slurm", "7_0", restart, nodes=("n1",)))


@pytest.mark.parametrize(
    ("kind", "resources", "requeues", "waits"),
    [
        ("time_limit", {}, True, False),
        ("preempted", {}, True, False),
        ("hang", {}, True, False),
        ("killed", {}, True, False),
        ("time_limit", {"requeue": False}, False, True),
        ("time_limit", {"pack": 2}, False, True),
        ("host_memory", {}, False, True),  # it needs another script
        ("code_error", {}, False, False),
        ("interrupted", {}, False, False),
        ("cancelled", {}, False, False),
        ("completed", {}, False, False),
    ],
)
def test_a_job_sees_to_its_own_end(
    tmp_path: Path, kind: str, resources: dict[str, Any], requeues: bool, waits: bool
) -> None:
    study, (key,) = submitted(tmp_path, **resources)
    study.peers_checked.touch()
    attempt(study, key, ended={"state": Ending(Kind(kind)).state, "kind": kind})
    scheduler = Scheduler(squeue=Answer(0, "7|0|RUNNING|None|b\n"))
    after(work(study, key), 1, Ending(Kind(kind)), {"nodes": ["n1"], "memory_gb": 2.0}, services(scheduler))
    assert scheduler.did("requeue") == ([("scontrol", "requeue", "7_0")] if requeues else [])
    state = ledger.read(study)
    assert (key in state.waiting) == waits
    written = 0 if kind in ("interrupted", "cancelled", "completed") else 1
    assert len(events(study, "ended")) == written


@pytest.mark.parametrize(
    ("squeue", "history"),
    [
        (GONE, sacct("7_0|FAILED|76:0|n1|b")),
        (Answer(0, "7|0|FAILED|NonZeroExitCode|b\n"), OFF),
        (GONE, OFF),  # SLURM has forgotten it
    ],
)
def test_a_run_that_was_held_goes_out_again_once_its_owner_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squeue: Answer, history: Answer
) -> None:
    study, (key,) = submitted(tmp_path)
    attempt(study, key, nodes=["n9"])  # of a node that SLURM has lost sight of, and that goes on
    owner = RunLock(study.run(key).lock)
    assert owner.acquire()
    monkeypatch.setattr(__main__, "LOCK_SECONDS", 0.0)
    assert __main__.run_first_rank(work(study, key, 1), Signals()) == kinds.HELD
    scheduler = Scheduler(squeue=squeue, sacct=history)
    (seen,) = look(study, scheduler)
    assert (seen.state, seen.why) == ("running", "an earlier attempt still holds the run")
    assert (follow_up(study, scheduler), events(study, "ended")) == (0, [])
    owner.close()
    follow_up(study, scheduler)
    assert [(e["kind"], e["action"]) for e in events(study, "ended")] == [("held", "again")]
    assert key in ledger.read(study).waiting


def test_while_squeue_is_silent_nobody_knows_who_has_a_held_run(tmp_path: Path) -> None:
    study, (key,) = submitted(tmp_path)
    attempt(study, key)
    study.run(key).left_to.write_text(json.dumps({"name": "b", "job_id": "7_0", "time": time.time()}))
    (seen,) = look(study, Scheduler(squeue=SILENT, sacct=OFF))
    assert seen.state == "unknown"


def test_what_was_decided_and_not_done_is_done_by_the_next_look(tmp_path: Path) -> None:
    """A job was killed between writing down that it goes on and asking SLURM for it."""
    study, (key,) = submitted(tmp_path)
    attempt(study, key, ended={"state": "failed", "kind": "hang"})
    end = RecordedFailure(key, "b", 1, Kind.HANG, ("n1",), time.time(), Action.ELSEWHERE, "why")
    ledger.append(study, "ended", **end_fields(end))
    scheduler = Scheduler(sacct=sacct("7_0|FAILED|137:0|n1|b"))
    follow_up(study, scheduler)
    assert key in ledger.read(study).waiting
    assert len(events(study, "ended")) == 1


def test_a_job_that_may_not_requeue_itself_is_submitted_again(tmp_path: Path) -> None:
    for number, scontrol in enumerate((Answer(1, "", "slurm_requeue error: Access denied"), Answer(None))):
        study, (key,) = submitted(tmp_path / str(number))
        study.peers_checked.touch()
        attempt(study, key, ended={"state": "time_limit", "kind": "time_limit"})
        scheduler = Scheduler(squeue=Answer(0, "7|0|RUNNING|None|b\n"), scontrol=scontrol)
        after(work(study, key), 1, Ending(Kind.TIME_LIMIT), {"nodes": ["n1"]}, services(scheduler))
        assert key in ledger.read(study).waiting
        assert len(events(study, "ended")) == 1


@dataclass
class Meanwhile(Scheduler):
    """Lets another process do something while it is asked about nodes."""

    act: Callable[[], None] = lambda: None

    def __call__(self, command: Sequence[str]) -> Answer:
        if command[0] == "sinfo":
            self.act()
        return super().__call__(command)


def test_an_end_that_somebody_follows_up_meanwhile_is_not_followed_up_twice(tmp_path: Path) -> None:
    study, (key,) = submitted(tmp_path, pack=2)  # the job goes on with others, and commands see this end
    study.peers_checked.touch()
    attempt(study, key, ended={"state": "failed", "kind": "hang"})

    def submit() -> None:
        ledger.append(study, "waiting", name="b", keys=[key], resources=SHAPE)
        ledger.append(study, "intent", name="next", executor="slurm", keys=[key], resources=SHAPE)
        ledger.append(study, "submitted", name="next", job_id="8")

    scheduler = Meanwhile(act=submit)
    after(work(study, key), 1, Ending(Kind.HANG), {"nodes": ["n1"]}, services(scheduler))
    known = ledger.read(study)
    assert (known.current, known.waiting, scheduler.did("sbatch")) == ({key: "next"}, {}, [])
    assert len(events(study, "ended")) == 1, "it was seen to the end"


def test_a_job_whose_point_is_no_longer_its_own_leaves_it_alone(tmp_path: Path) -> None:
    study, (key,) = submitted(tmp_path)
    study.peers_checked.touch()
    ledger.append(study, "retry", keys=[key])
    scheduler = Scheduler()
    after(work(study, key), 1, Ending(Kind.TIME_LIMIT), {}, services(scheduler))
    assert not events(study, "ended")
    assert not scheduler.did("requeue")


def test_one_of_the_last_jobs_looks_after_the_others_however_lately_that_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, (mine, other) = submitted(tmp_path, (1, 2))
    study.peers_checked.touch()
    attempt(study, mine, ended={"state": "completed"})
    attempt(study, other, job_id="7_1")
    scheduler = Scheduler(squeue=Answer(0, "7|0|RUNNING|None|b\n"), sacct=sacct("7_1|NODE_FAIL|0:0|n1|b"))
    waits: list[float] = []

    def noted(path: Path, timeout: float = -1) -> AbstractContextManager[Callable[[], bool]]:
        waits.append(timeout)
        return locked(path, timeout)

    monkeypatch.setattr("study.reconcile.failures.locked", noted)
    after(work(study, mine), 1, Ending(Kind.COMPLETED), {}, services(scheduler))
    assert waits[0] > 1, "somebody may submit just then, who does not look"
    assert [(e["key"], e["kind"]) for e in events(study, "ended")] == [(other, "node_failure")]
    asked = len(scheduler.asked)
    after(work(study, mine), 1, Ending(Kind.COMPLETED), {}, services(scheduler))
    assert len(scheduler.asked) == asked, "what waits has jobs that look"


def test_nothing_of_what_follows_can_fail_a_job(tmp_path: Path) -> None:
    study, (key,) = submitted(tmp_path)
    study.study.write_text("retry: {hang: maybe}\n")
    said: list[str] = []
    after(work(study, key), 1, Ending(Kind.HANG), {}, services(Scheduler(), said))
    assert "retry.hang" in said[-1]


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ("PREEMPTED|1\nRUNNING|2\n", "preempted"),
        ("NODE_FAIL|1\nRUNNING|2\n", "node_failure"),
        ("PREEMPTED|1\nNODE_FAIL|2\nRUNNING|3\n", "node_failure"),
        ("REQUEUED|1\nRUNNING|2\n", None),
        ("RUNNING|2\n", None),
        ("", None),
        ("nonsense", None),
    ],
)
def test_a_requeued_job_accounts_for_its_earlier_start(tmp_path: Path, told: str, kind: str | None) -> None:
    study, (key,) = submitted(tmp_path)
    attempt(study, key)
    attempt(study, key, 2, restart=1)
    scheduler = Scheduler(sacct=Answer(0, told))
    assert account_for_restart(work(study, key, 1), 2, services(scheduler)) is None
    assert [e["kind"] for e in events(study, "ended")] == ([kind] if kind else [])
    assert account_for_restart(work(study, key, 0), 2, services(scheduler)) is None


def test_accounting_that_lags_is_asked_again(tmp_path: Path) -> None:
    study, (key,) = submitted(tmp_path)
    attempt(study, key)
    attempt(study, key, 2, restart=1)
    told = ["", "RUNNING|1\n", "RUNNING|1\nRUNNING|2\n", "PREEMPTED|1\nRUNNING|2\n"]
    slept: list[float] = []
    world = Services(runner=lambda command: Answer(0, told.pop(0)), sleep=slept.append, report=lambda text: None)
    assert account_for_restart(work(study, key, 1), 2, world) is None
    assert [e["kind"] for e in events(study, "ended")] == ["preempted"]
    assert (slept[0], sorted(slept), told) == (0, slept, [])


def test_slurm_may_requeue_a_job_only_so_often(tmp_path: Path) -> None:
    study, (key,) = submitted(tmp_path)
    study.study.write_text("retry: {preempted: again 1}\n")
    scheduler = Scheduler(sacct=Answer(0, "PREEMPTED|1\n"))
    for number in (1, 2):
        attempt(study, key, number, restart=number - 1)
        ending = account_for_restart(work(study, key, number), number + 1, services(scheduler))
        assert (ending is None) == (number == 1)
    assert ending is not None
    assert "cap" in str(ending.why)


def test_a_job_says_what_follows_from_its_end(tmp_path: Path) -> None:
    study, (key,) = submitted(tmp_path)
    study.peers_checked.touch()
    attempt(study, key, ended={"state": "time_limit", "kind": "time_limit"})
    said: list[str] = []
    scheduler = Scheduler(squeue=Answer(0, "7|0|RUNNING|None|b\n"))
    after(work(study, key), 1, Ending(Kind.TIME_LIMIT), {"nodes": ["n1"]}, services(scheduler, said))
    (end,) = events(study, "ended")
    assert said == [f"{key}: {end['why']}", f"{key}: job 7_0 is requeued"]


def test_how_long_a_node_is_left_out(tmp_path: Path) -> None:
    study, (key,) = submitted(tmp_path)
    study.study.write_text("retry: {exclude_hours: 12}\ntracking: {enabled: false}\n")
    attempt(study, key)
    scheduler = Scheduler(sacct=sacct("7_0|NODE_FAIL|0:0|n1|b"), sinfo=Answer(0, "n1 down*\n"))
    now = time.time() + 1000.4
    world = replace(services(scheduler), clock=lambda: now)
    follow_up(study, scheduler, world)
    (excluded,) = events(study, "excluded")
    assert excluded["until"] == round(now + 12 * 3600)


@pytest.mark.parametrize(
    ("status", "looks"),
    [
        (PointStatus("k", PointState.FAILED, kind=Kind.HANG), True),
        (PointStatus("k", PointState.TIME_LIMIT, kind=Kind.TIME_LIMIT), True),
        (PointStatus("k", PointState.INTERRUPTED, NEVER_BEGAN), True),
        (PointStatus("k", PointState.INTERRUPTED), False),
        (PointStatus("k", PointState.RUNNING, kind=Kind.HANG), False),
        (PointStatus("k", PointState.COMPLETED), False),
    ],
)
def test_only_a_bad_end_or_a_job_that_never_began_is_followed_up_in_passing(
    status: PointStatus, looks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, _ = make_study(tmp_path / "s", [1])
    followed, said = [], list[str]()

    def fails(*given: Any) -> int:
        followed.append(given)
        raise ValueError("the disk is away")

    monkeypatch.setattr(failures, "record", fails)
    statuses = [PointStatus("other", PointState.QUEUED), status]
    assert step(study, Services(report=said.append), Look(Observer(study), statuses)).statuses is statuses
    assert len(followed) == looks and said == ["the disk is away"] * looks


def test_what_followed_is_looked_at_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, (key,) = submitted(tmp_path)

    def follows(*_: Any) -> int:
        ledger.append(study, "cancelled", keys=[key])
        return 0

    monkeypatch.setattr(failures, "record", follows)
    observer = Observer(study, lambda batches: QueueView())
    look = Look(observer, [PointStatus(key, PointState.FAILED, kind=Kind.HANG)])
    assert [s.state for s in step(study, services(Scheduler()), look).statuses] == ["cancelled"]


def test_where_nothing_of_ours_ended_badly_nothing_is_tried_again_here(tmp_path: Path) -> None:
    study, (key,) = submitted(tmp_path)
    known = ledger.read(study)
    told = PointStatus(key, PointState.FAILED, kind=Kind.HANG, batch="b")
    runs = replace(told, state=PointState.RUNNING)
    for status in (told, replace(told, kind=Kind.NONE), runs, replace(told, batch=None)):
        assert step(study, services(Scheduler()), LocalEnds(known, [status])).retried == []
    assert ledger.read(study) == known, "a job sees to its own end"


def test_ends_are_said_once_for_each_reason() -> None:
    ends = [RecordedFailure(f"k{n}", "b", 1, Kind.HANG, (), 0.0, Action.AGAIN, "one") for n in range(5)]
    assert failures._summary(ends[:3]) == ["k0 k1 k2: one"]
    assert failures._summary([*ends, replace(ends[0], key="x", why="two")]) == ["k0 k1 k2 and 2 more: one", "x: two"]


def test_record_says_how_many_points_are_submitted_again(tmp_path: Path) -> None:
    study, keys = submitted(tmp_path, (1, 2, 3))
    for key in keys:
        attempt(study, key)
    ends = ("7_0|TIMEOUT|0:0|n1|b", "7_1|NODE_FAIL|0:0|n1|b", "7_2|CANCELLED|0:0|n1|b")
    scheduler, said = Scheduler(sacct=sacct(*ends)), list[str]()
    observer = observed(study, scheduler)
    statuses = observer.statuses()
    with locked(study.submitting, 0.0):
        assert failures.record(study, services(scheduler, said), observer, statuses) == 0, "another process does it"
    assert not events(study, "ended") and not said
    assert failures.record(study, services(scheduler, said), observer, statuses) == 2
    assert len(said) == 2 and all(f"{key}: " in line for key, line in zip(keys, said, strict=False))
    assert failures.record(study, services(scheduler, said), observer, observer.statuses()) == 0, "that is done"


def test_nothing_is_submitted_again_where_another_process_was_quicker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, _ = submitted(tmp_path)
    observer = observed(study, Scheduler())
    pending: list[list[RecordedFailure] | None] = [[], None]
    monkeypatch.setattr(failures, "_pending", lambda *_: pending.pop(0))
    assert failures.record(study, services(Scheduler()), observer, observer.statuses()) == 0 and not pending


def test_nothing_waits_for_a_parent_where_no_point_has_one(tmp_path: Path) -> None:
    study, _ = submitted(tmp_path)
    known = ledger.read(study)
    assert dependencies.relations(study, known) == ({}, {})
    assert dependencies.relations(StudyFolder(tmp_path / "none"), known) == ({}, {})
    assert not dependencies.take_back(study, services(Scheduler()), known)


@pytest.mark.parametrize("seen_again", [0, 1])
def test_an_end_that_is_seen_again_replaces_what_was_known_of_it(tmp_path: Path, seen_again: int) -> None:
    study, (key,) = submitted(tmp_path)
    first = RecordedFailure(key, "b", 1, Kind.HANG, (), 1.0, Action.AGAIN, "one")
    second = replace(first, attempt=2, why="two")
    for end in (first, second):
        ledger.append(study, "ended", **end_fields(end))
    newer = replace((first, second)[seen_again], kind=Kind.NODE_FAILURE, why="newer")
    (known,) = failures.merged_ends(ledger.read(study), [newer]).values()
    assert [end.why for end in known] == (["two", "newer"], ["one", "newer"])[seen_again]
    (known,) = failures.merged_ends(ledger.read(study), [replace(first, attempt=3, why="three")]).values()
    assert [end.why for end in known] == ["one", "two", "three"]


@pytest.mark.parametrize(("event", "wanted"), [(None, True), ("waiting", False), ("cancelled", False)])
def test_who_is_wanted_again(tmp_path: Path, event: str | None, wanted: bool) -> None:
    study, (key,) = submitted(tmp_path)
    if event == "waiting":
        ledger.append(study, "waiting", name="b", keys=[key], executor="slurm", resources=SHAPE, code="c")
    elif event:
        ledger.append(study, event, keys=[key])
    assert failures._is_wanted(ledger.read(study), key) is wanted
    assert failures._is_wanted(ledger.read(study), "another") is False
