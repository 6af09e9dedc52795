"""Once a run has found its disk full, no other is started until somebody has made room and says so."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from study.__main__ import main
from study.commands import retry
from study.executors import query
from study.executors.base import Answer
from study.failures.kinds import Kind
from study.failures.retry_policy import Action, RecordedFailure
from study.job import __main__ as job
from study.process.children import Signals
from study.reconcile import dispatch
from study.reconcile.services import Services
from study.reconcile.step import step as take_step
from study.reconcile.triggers import Look, Submit
from study.records import ledger
from study.records.bad_ends import end_fields
from study.records.ledger import Batch
from study.records.settings import load_submission
from study.status.observer import Observer
from study.status.overview import bad_ends, next_action
from study.status.states import PointState, PointStatus
from study.storage.files import DiskReserve
from study.storage.layout import StudyFolder
from study.watch.follow import LocalRunner
from tests.study.support.studies import FULL, make_study, run_to_end, states


def test_no_point_is_started_after_one_that_found_its_disk_full(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [FULL, 1, 2, 3])
    text = study.study.read_text().replace("slots: 2", "slots: 1")
    study.study.write_text(text)
    code, said = run_to_end(study)
    found = states(study)
    assert code == 1 and found == {keys[FULL]: "failed"} | {keys[seed]: "pending" for seed in (1, 2, 3)}
    assert "no new points are started: the disk was full; make room, then python -m study retry" in said


@dataclass
class OneSlot:
    count: int = 1
    running: frozenset[str] = frozenset()
    started: list[str] = field(default_factory=list)

    def reap(self) -> dict[str, int]:
        return {}

    def start(self, key: str, batch: Batch) -> None:
        self.started.append(key)


@pytest.mark.parametrize(("rule", "tried_again"), [("stop", False), ("again 1", True)])
def test_a_disk_that_the_policy_tries_again_or_a_person_has_cleared_stops_nothing(
    tmp_path: Path, rule: str, tried_again: bool
) -> None:
    study, keys = make_study(tmp_path / "s", [1, 2])
    study.study.write_text(study.study.read_text() + f"retry: {{disk_full: {rule}}}\n")
    first, second = keys.values()
    cluster, slots, observer, said = load_submission(study).cluster, OneSlot(), Observer(study), list[str]()
    take_step(study, Services(), Submit([first, second], cluster))
    observer.refresh()
    controller = LocalRunner(observer, slots)  # type: ignore[arg-type]

    def step(state: str, kind: str = "") -> str:
        observer.refresh()
        known, count = observer.known.current, len(slots.started)
        controller.step(
            [
                PointStatus(first, PointState(state), kind=Kind(kind), batch=known[first]),
                PointStatus(second, PointState.PENDING),
            ],
            True,
            said.append,
        )
        return "".join(slots.started[count:])

    assert step("pending") == first
    assert step("failed", "disk_full") == (first if tried_again else "")
    assert any("no new points are started" in text for text in said) != tried_again
    assert step("failed", "disk_full") == "", "as often as the policy says"
    assert any("no new points are started" in text for text in said)
    ledger.append(study, "retry", keys=[first])
    take_step(study, Services(), Submit([first], cluster))
    assert step("pending") == first, "somebody has made room"


def test_nothing_waiting_is_submitted_before_a_point_that_found_its_disk_full_is_retried(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [1, 2])
    first, second = keys.values()
    ledger.append(study, "intent", name="s.a", executor="slurm", keys=[first], resources={}, code=None)
    ledger.append(study, "submitted", name="s.a", job_id="7")
    end = RecordedFailure(first, "s.a", 1, Kind.DISK_FULL, (), 1.0, Action.STOP, "no space left", None, 0)
    ledger.append(study, "ended", **end_fields(end))
    ledger.append(study, "waiting", keys=[second], resources={}, code=None, parallel=None)
    asked: list[str] = []

    def runner(command: object) -> None:
        raise AssertionError(f"SLURM was asked: {command}")

    assert dispatch.dispatch(study, Services(runner=runner, clock=lambda: 5.0, report=asked.append)) == 0  # type: ignore[arg-type]
    assert f"the disk was full when {first} ended: make room, then python -m study retry" in asked[0]
    ledger.append(study, "retry", keys=[first])
    with pytest.raises(AssertionError, match="SLURM was asked"):
        dispatch.dispatch(study, Services(runner=runner, clock=lambda: 6.0))  # type: ignore[arg-type]


def one_that_never_began(tmp_path: Path, executor: str = "slurm") -> tuple[StudyFolder, str, Services]:
    """Return a study whose only job failed before an attempt began, and a SLURM that says so."""
    study, keys = make_study(tmp_path / "s", [1])
    study.study.write_text("cluster: {executor: slurm}\ntracking: {enabled: false}\n")
    ledger.append(study, "intent", name="s.a", executor=executor, keys=list(keys.values()), resources={}, code=None)
    ledger.append(study, "submitted", name="s.a", job_id="7")

    def runner(command: Sequence[str]) -> Answer:
        return Answer(0, "7_0|FAILED|1:0|n1|s.a\n" if command[0] == "sacct" else "")

    return study, keys[1], Services(runner=runner, clock=lambda: 5.0, report=lambda text: None)


def looked_at(study: StudyFolder, services: Services) -> PointStatus:
    """Return the point as a command shows it, which records its end."""
    observer = Observer(study, lambda batches: query(batches, services.runner))
    observer.refresh()
    (status,) = take_step(study, services, Look(observer, observer.statuses())).statuses
    return status


def test_a_job_that_ended_without_a_word_while_the_disk_is_full_says_where_room_is_wanting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, _, services = one_that_never_began(tmp_path)
    before = looked_at(study, services)
    assert (before.kind, before.headline) == (Kind.UNKNOWN, "")
    monkeypatch.setattr("study.status.observer.is_full", lambda folder: folder == study.path)
    found = looked_at(study, services)
    assert (found.state, found.kind, found.headline) == ("failed", "disk_full", f"no space left in {study.path}")
    assert found.next == "retry.disk_full is stop"
    assert "make room first" in next_action({"failed": 1}, "s", bad_ends([found]))
    monkeypatch.setattr("study.status.observer.is_full", lambda folder: False)
    assert looked_at(study, services).kind == Kind.DISK_FULL, "what was found stays until it is retried"


def test_an_end_that_was_written_down_is_not_laid_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, key, services = one_that_never_began(tmp_path)
    attempt = study.run(key).attempt(1)
    attempt.path.mkdir(parents=True)
    attempt.job.write_text(json.dumps({"name": "s.a", "executor": "slurm", "job_id": "7_0", "host": "h"}))
    attempt.outcome.write_text(json.dumps({"state": "failed", "kind": "code_error", "ended": 2.0, "seconds": 1.0}))
    monkeypatch.setattr("study.status.observer.is_full", lambda folder: True)
    assert looked_at(study, services).kind == Kind.CODE_ERROR


def test_nothing_waiting_goes_out_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, keys = make_study(tmp_path / "s", [1])
    ledger.append(study, "waiting", keys=list(keys.values()), resources={}, code=None, parallel=None)
    said: list[str] = []

    def runner(command: object) -> None:
        raise AssertionError(f"SLURM was asked: {command}")

    services = Services(runner=runner, clock=lambda: 5.0, report=said.append)  # type: ignore[arg-type]
    with monkeypatch.context() as while_full:
        while_full.setattr("study.reconcile.disk.is_full", lambda folder: True)
        assert dispatch.dispatch(study, services) == 0
    assert said == [f"1 point waits: no space left in {study.path}: make room"]
    with pytest.raises(AssertionError, match="SLURM was asked"):
        dispatch.dispatch(study, services)


@pytest.mark.parametrize(("free", "after_another", "starts"), [(0, False, False), (10**6, True, False),
                                                               (10**6, False, True), (10**12, True, True)])  # fmt: skip
def test_a_job_leaves_its_point_unstarted_where_there_is_no_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, after_another: bool, starts: bool
) -> None:
    """Of a disk that is nearly full one point has said that its checkpoints did not fit."""
    study, keys = make_study(tmp_path / "s", [1, 2])
    study.study.write_text("cluster: {executor: slurm}\ntracking: {enabled: false}\n")
    first, second = keys.values()
    ledger.append(study, "intent", name="s.a", executor="slurm", keys=[first, second], resources={}, code=None)
    ledger.append(study, "submitted", name="s.a", job_id="7")
    if after_another:
        end = RecordedFailure(first, "s.a", 1, Kind.DISK_FULL, (), 1.0, Action.STOP, "no space left", None, 0)
        ledger.append(study, "ended", **end_fields(end))
    monkeypatch.setattr("study.reconcile.disk.is_full", lambda folder, least=1: free < least)
    monkeypatch.setattr(Signals, "install", lambda signals: None)
    monkeypatch.setattr(job, "send_next", lambda *words, **more: None)
    monkeypatch.setattr(job, "run_first_rank", lambda work, signals: 0)
    code = job.main([str(study.path), "--name", "s.a", "--index", "1"])
    known = ledger.read(study)
    assert (code, second in known.waiting, second in known.current) == (
        (0, False, True) if starts else (77, True, False)
    )
    if not starts:
        assert "make room" in known.waiting[second].why
        assert not study.run(second).path.exists()


def test_local_jobs_that_find_no_room_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, keys = make_study(tmp_path / "s", [1, 2])
    first, second = keys.values()
    slots, observer, said = OneSlot(), Observer(study), list[str]()
    take_step(study, Services(), Submit([first, second], load_submission(study).cluster))
    observer.refresh()
    controller = LocalRunner(observer, slots)  # type: ignore[arg-type]
    controller.step(observer.statuses(), True, said.append)
    (started,) = slots.started
    with monkeypatch.context() as while_full:
        while_full.setattr(OneSlot, "reap", lambda slots: {started: 1})
        while_full.setattr("study.watch.follow.is_full", lambda folder: folder == study.path)
        seen = controller.step(observer.statuses(), True, said.append)
    assert slots.started == [started] and controller.full
    (status,) = (s for s in seen if s.key == started)
    assert (status.state, status.kind, status.headline) == ("failed", "disk_full", f"no space left in {study.path}")
    assert any("no new points are started: the disk was full" in text for text in said)
    controller.step(observer.statuses(), True, said.append)
    assert slots.started == [started], "room made meanwhile is for the next command"


@pytest.mark.parametrize("executor", ["local", "slurm"])
def test_a_retry_names_the_full_disk_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], executor: str
) -> None:
    study, key, _ = one_that_never_began(tmp_path, executor)
    study.study.write_text(f"cluster: {{executor: {executor}}}\ntracking: {{enabled: false}}\n")
    attempt = study.run(key).attempt(1)
    attempt.path.mkdir(parents=True)
    attempt.job.write_text(json.dumps({"name": "s.a", "executor": executor, "job_id": "7_0", "host": "h"}))
    attempt.outcome.write_text(json.dumps({"state": "failed", "kind": "code_error", "ended": 2.0, "seconds": 1.0}))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("study.storage.room.is_full", lambda folder: folder == study.path)
    before = study.ledger.read_bytes()
    assert main(["retry", str(study.path)]) == 2
    err = capsys.readouterr().err
    assert f"{study.path}: No space left on device: make room" in err
    assert "nothing was submitted; the study is as it was" in err
    assert study.ledger.read_bytes() == before


class FullDisk:
    """A disk that takes so many writes; then only what a reserve gave back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes: int) -> None:
        self.left, self.hit = takes, False
        fsync, write_bytes, release = os.fsync, Path.write_bytes, DiskReserve.release

        def sync(descriptor: int) -> None:
            self.use()
            fsync(descriptor)

        def write(path: Path, data: bytes) -> int:
            if data:
                self.use()
            return write_bytes(path, data)

        def freed(reserve: DiskReserve) -> None:
            self.left += 2 if reserve._path.exists() and reserve._path.stat().st_size else 0
            release(reserve)

        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(Path, "write_bytes", write)
        monkeypatch.setattr(DiskReserve, "release", freed)

    def use(self) -> None:
        self.left -= 1
        if self.left < 0:
            self.hit = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("executor", ["local", "slurm"])
@pytest.mark.parametrize("takes", range(9))
def test_a_retry_on_a_full_disk_is_made_or_leaves_the_study_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], executor: str, takes: int
) -> None:
    study, keys = make_study(tmp_path / "runs" / "s", [1, 2])
    study.study.write_text(f"cluster: {{executor: {executor}}}\ntracking: {{enabled: false}}\n")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("squeue", "scontrol", "sdiag", "sinfo", "scancel"):
        (tools / name).write_text("#!/bin/sh\n")
    (tools / "sacct").write_text("#!/bin/sh\n")
    (tools / "sbatch").write_text(f"#!/bin/sh\necho x >> {tools}/sent\necho Submitted batch job 9\n")
    for path in tools.iterdir():
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setattr(retry, "follow", lambda *words, **more: 0)
    monkeypatch.chdir(tmp_path)
    every = list(keys.values())
    ledger.append(study, "intent", name="s.a", executor=executor, keys=every, resources={}, code=None)
    ledger.append(study, "submitted", name="s.a", job_id="7")
    for index, key in enumerate(every):
        attempt = study.run(key).attempt(1)
        attempt.path.mkdir(parents=True)
        said = {"name": "s.a", "executor": executor, "job_id": f"7_{index}", "host": "h", "pid": 1, "started": 1.0}
        attempt.job.write_text(json.dumps(said))
        attempt.outcome.write_text(json.dumps({"state": "failed", "kind": "code_error", "ended": 2.0, "seconds": 1.0}))
    assert set(states(study).values()) == {"failed"}
    with monkeypatch.context() as while_full:
        disk = FullDisk(while_full, takes)
        code = main(["retry", "s"])
        err = capsys.readouterr().err
    found, known = set(states(study).values()), ledger.read(study)
    sent = (tools / "sent").exists()
    assert not known.unclear, err
    assert not study.reserve.exists()
    if not disk.hit or code == 0:
        assert code == 0, err
        assert found <= {"pending", "queued", "unknown"} and set(known.current.values()) != {"s.a"}
        return
    assert code == 2 and "No space left on device: make room" in err
    if "as it was" in err:
        assert (found, sent, known.waiting) == ({"failed"}, False, {})
    else:
        assert "2 points to be submitted: any later command of the study does it" in err
        assert (found, sent) == ({"waiting"}, False)
    assert main(["retry", "s"]) == 0, "the same command again"
    assert set(states(study).values()) <= {"pending", "queued", "waiting", "unknown"}
