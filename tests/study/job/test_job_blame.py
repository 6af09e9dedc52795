"""What is blamed for a bad end: the rank that died, the disk that is full; and files' times are no clock."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

import pytest

from study.config.errors import from_system
from study.executors.base import RankInfo
from study.failures.kinds import Ending, Kind
from study.job import attempt as attempts_module
from study.job.attempt import JobContext, TrainerExit, classify_attempt, record
from study.process.children import Signals
from study.records import ledger
from study.records.ledger import Batch
from study.records.points import append_points
from study.status.cost import attempts
from study.storage.files import write_json
from study.storage.jsonl import append_at
from study.storage.layout import StudyFolder
from study.tracking.__main__ import _away
from study.tracking.follow import in_words
from tests.study.support.studies import seeded

CLOSED = "RuntimeError: [/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:7"


def work(tmp_path: Path, world: int = 3) -> JobContext:
    study, point = StudyFolder(tmp_path / "s"), seeded(1)
    append_points(study, [point])
    batch = Batch("local.a", "local", (point.key,), 0.0)
    return JobContext(study, batch, point.key, RankInfo("local", "local-1", world=world, starts_ranks=True))


def failed(work: JobContext, said: dict[int, str], kinds: dict[int, Ending]) -> dict[str, object]:
    """Let ranks fail with these last words; return the attempt's outcome as it is written."""
    attempt = work.run.attempt(1)
    attempt.path.mkdir(parents=True)
    for rank, text in said.items():
        attempt.stderr(rank).write_text(f"Traceback (most recent call last):\n{text}\n")
        if rank:
            write_json(attempt.rank(rank), record(attempt, kinds[rank], time.monotonic(), rank))
    ending = classify_attempt(work, attempt, TrainerExit(1), Signals(), time.monotonic())
    return record(attempt, ending, time.monotonic(), 0)


def test_the_headline_is_of_the_rank_that_died(tmp_path: Path) -> None:
    said = {0: CLOSED, 1: CLOSED, 2: "ValueError: row 7 holds no tokens"}
    kinds = {1: Ending(Kind.COMMUNICATION, 1), 2: Ending(Kind.CODE_ERROR, 1)}
    outcome = failed(work(tmp_path), said, kinds)
    assert outcome["headline"] == "rank 2: ValueError: row 7 holds no tokens"
    assert outcome["kind"] == "code_error" and "row 7" in str(outcome["error"]).splitlines()[1]
    assert "Connection closed" not in str(outcome["error"]), "what the ranks that lost it say is no cause"
    assert outcome["rank"] == 2


@pytest.mark.parametrize("days", [1, -2])
def test_a_clock_that_is_set_meanwhile_does_not_change_how_long_an_attempt_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    started, before = time.monotonic(), time.time()
    monkeypatch.setattr(time, "time", lambda: before + 86400 * days)
    outcome = record(work(tmp_path).run.attempt(1), Ending(Kind.COMPLETED), started, 0)
    assert 0 <= outcome["seconds"] < 3600
    assert outcome["ended"] == pytest.approx(before + 86400 * days, abs=0.001), "the file has the clock's own time"


def test_the_headline_of_a_killed_rank_is_that_it_was_killed(tmp_path: Path) -> None:
    said = {0: CLOSED, 1: "UserWarning: something of an hour ago", 2: CLOSED}
    killed = Ending(Kind.KILLED, None, 9, why="killed by signal 9 (SIGKILL)")
    outcome = failed(work(tmp_path), said, {1: killed, 2: Ending(Kind.COMMUNICATION, 1)})
    assert outcome["headline"] == "rank 1: killed by signal 9 (SIGKILL)" and outcome["kind"] == "killed"


@pytest.mark.parametrize("kind", [Kind.HOST_MEMORY, Kind.CODE_ERROR])
def test_the_headline_of_a_rank_without_a_last_word_is_no_warning_of_before(tmp_path: Path, kind: Kind) -> None:
    said = {0: CLOSED, 1: "UserWarning: something of an hour ago"}
    number = 9 if kind == Kind.HOST_MEMORY else 11
    outcome = failed(work(tmp_path, 2), said, {1: Ending(kind, None, number, why=f"killed by signal {number}")})
    assert outcome["headline"] == f"rank 1: killed by signal {number}"


def test_the_first_rank_that_died_is_its_own_headline(tmp_path: Path) -> None:
    said = {0: "ValueError: rank nought", 1: CLOSED, 2: CLOSED}
    outcome = failed(work(tmp_path), said, {1: Ending(Kind.COMMUNICATION, 1), 2: Ending(Kind.COMMUNICATION, 1)})
    assert outcome["headline"] == "ValueError: rank nought" and outcome["rank"] == 0


@pytest.mark.parametrize("full", ["run", "temporary"])
def test_the_disk_that_is_full_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    one, scratch = work(tmp_path, world=1), tmp_path / "scratch"
    places = {"run": one.run.path, "temporary": scratch}
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(scratch))
    monkeypatch.setattr(attempts_module, "is_full", lambda path: path == places[full])
    outcome = failed(one, {0: "OSError: [Errno 28] No space left on device"}, {})
    assert outcome["kind"] == "disk_full"
    assert str(outcome["error"]).startswith(f"no space left in {places[full]}")


def test_an_append_to_a_full_disk_names_the_file_and_leaves_it_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, write = StudyFolder(tmp_path / "s"), os.pwrite
    ledger.append(study, "retry", keys=["a"])
    before = study.ledger.read_bytes()

    def half(descriptor: int, data: bytes, place: int) -> int:
        if len(data) < 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[: len(data) // 2], place)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(OSError, match=r"ledger\.jsonl") as refused:
        ledger.append(study, "retry", keys=["b"])
    assert study.ledger.read_bytes() == before
    assert str(from_system(refused.value)).startswith(f"{study.ledger}: No space left on device: make room")


def test_a_disk_that_takes_a_part_at_a_time_gets_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "file", os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, place: write(descriptor, data[:3], place))
    with path.open("wb") as file:
        append_at(file.fileno(), b"0123456789", 0, path)
    assert path.read_bytes() == b"0123456789"


def test_a_full_disk_of_the_study_is_not_blamed_on_the_store(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder.tracking))
    said = _away(folder, "sqlite:////elsewhere/mlflow.db", in_words(error))
    assert said.startswith(f"study.tracking: {folder.tracking}: No space left on device") and "mlflow.db" not in said


def test_files_times_are_no_clock(tmp_path: Path) -> None:
    one = work(tmp_path, world=1)
    now, started = 2_000_000_000.0, 1_999_990_000.0
    attempt = one.run.attempt(1)
    attempt.path.mkdir(parents=True)
    write_json(attempt.job, {"name": "local.a", "job_id": "local-1", "started": started})
    write_json(attempt.beat(0), {"beats": 1, "step": 3, "phase": "step", "allow": 0, "median": None, "own": None,
                                 "where": "", "time": started + 60})  # fmt: skip
    for path in attempt.path.iterdir():
        os.utime(path, (now + 10**6, now + 10**6))
    (killed,) = attempts(one.study, [one.key], now)
    assert killed.ended - killed.started == 60.0
    attempt.beat(0).unlink()
    record_ = {"kind": "train", "step": 1, "tokens": 8, "time": started + 30, "metrics": {}}
    later = {**record_, "step": 2, "time": started + 5000}
    one.run.metrics.write_text(f"{json.dumps(record_)}\n{json.dumps(later)}\n")
    second = one.run.attempt(2)
    second.path.mkdir()
    write_json(second.job, {"name": "local.a", "job_id": "local-2", "started": started + 4000})
    killed, _ = attempts(one.study, [one.key], now)
    assert killed.ended - killed.started == 30.0, "not with what the next attempt wrote"
