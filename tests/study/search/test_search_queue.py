"""A search whose workers SLURM does not start says why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from study import ledger
from study.__main__ import main
from study.executors.query import Job, View
from study.layout import StudyFolder
from study.observe import Look
from study.search import pool, queue
from study.search.claims import Office
from tests.study.search.searches import make_search


def submitted(folder: StudyFolder) -> None:
    ledger.append(folder, "intent", name="s.w", executor="slurm", keys=[], resources={}, code=None)
    ledger.append(folder, "submitted", name="s.w", job_id="7")


def look(*jobs: Job) -> Look:
    def answer(ids: Sequence[str]) -> View:
        assert list(ids) == ["7"]
        return View({f"7_{index}": job for index, job in enumerate(jobs)})

    return answer


def test_held_workers_are_named_with_what_helps(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    folder.path.mkdir()
    assert queue.lines(folder, look()) == []
    submitted(folder)
    held, runs = Job("queued", "PENDING", "JobHeldUser"), Job("running", "RUNNING")
    said = queue.lines(folder, look(held, held))
    assert said[0].startswith("2 queued: held by its owner") and said[1].strip() == "scontrol release 7"
    assert "stands still" in said[-1]
    assert "stands still" not in " ".join(queue.lines(folder, look(held, runs)))
    assert queue.lines(folder, look(Job("queued", "PENDING", "Priority"), runs)) == []
    assert queue.lines(folder, look(Job("completed", "COMPLETED"))) == []


def test_jobs_whose_unit_is_over_are_not_asked_for(tmp_path: Path) -> None:
    folder = make_search(tmp_path / "s")
    office = Office.of(folder)
    for name, job in (("s.old", "6"), ("s.w", "7")):
        resources = {"unit": "abc"}
        ledger.append(folder, "intent", name=name, executor="slurm", keys=[], resources=resources, code=None)
        ledger.append(folder, "submitted", name=name, job_id=job)
    assert office.claim("job:s.w", lease=False) is not None
    assert len(queue.lines(folder, look(Job("queued", "PENDING", "JobHeldUser")))) == 3


def test_status_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_search(tmp_path / "s")
    monkeypatch.setattr(queue, "lines", lambda folder: ["7 queued: held by its owner"])
    main(["status", str(folder.path)])
    assert "7 queued: held by its owner" in capsys.readouterr().out


def test_watch_says_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, looks = make_search(tmp_path / "s"), iter(range(4))

    def rest(seconds: float) -> None:
        if next(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(pool, "LINE_SECONDS", 0.0)
    monkeypatch.setattr("study.search.pool.time.sleep", rest)
    monkeypatch.setattr(queue, "lines", lambda folder: ["7 queued: held by its owner"])
    with pytest.raises(KeyboardInterrupt):
        pool.watch(folder)
    said = capsys.readouterr().out
    assert said.count("7 queued: held by its owner") == 1 and said.count("0/12 trials") == 4
