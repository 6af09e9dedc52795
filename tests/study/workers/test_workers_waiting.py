"""A search whose workers SLURM does not start says why."""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from study.__main__ import main
from study.config.schema import ClusterConfig
from study.executors.jobs import Job, JobState, QueueView
from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import Units, Workers
from study.records import ledger
from study.search.trial_queue import TrialQueue
from study.status.observer import Look
from study.storage.layout import StudyFolder
from study.workers import pool, waiting
from tests.study.support.searches import make_search


def submitted(folder: StudyFolder) -> None:
    ledger.append(folder, "intent", name="s.w", executor="slurm", keys=[], resources={}, code=None)
    ledger.append(folder, "submitted", name="s.w", job_id="7")


def look(*jobs: Job) -> Look:
    def answer(batches: Sequence[ledger.Batch]) -> QueueView:
        assert [batch.job_id for batch in batches] == ["7"]
        return QueueView({f"7_{index}": job for index, job in enumerate(jobs)})

    return answer


def test_held_workers_are_named_with_what_helps(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    folder.path.mkdir()
    assert waiting.lines(folder, look()) == []
    submitted(folder)
    held, runs = Job(JobState.QUEUED, "PENDING", "JobHeldUser"), Job(JobState.RUNNING, "RUNNING")
    said = waiting.lines(folder, look(held, held))
    assert said[0].startswith("2 queued: held by its owner") and said[1].strip() == "scontrol release 7"
    assert "is stalled" in said[-1]
    assert "is stalled" not in " ".join(waiting.lines(folder, look(held, runs)))
    assert waiting.lines(folder, look(Job(JobState.QUEUED, "PENDING", "Priority"), runs)) == []
    assert waiting.lines(folder, look(Job(JobState.COMPLETED, "COMPLETED"))) == []


def test_workers_are_asked_for_only_where_none_is_on_its_way(tmp_path: Path) -> None:
    """Where SLURM has them in its queue, the same command would start none."""
    folder = make_search(tmp_path / "s")
    search = TrialQueue.of(folder).search
    assert "run the study's command again" in waiting.idle(search, folder, look())[0]
    submitted(folder)
    assert waiting.idle(search, folder, look(Job(JobState.QUEUED, "PENDING", "Priority"))) == []
    assert waiting.idle(search, folder, look(Job(JobState.RUNNING, "RUNNING"))) == []
    assert len(waiting.idle(search, folder, look(Job(JobState.CANCELLED, "CANCELLED")))) == 1
    assert waiting.idle(search, folder, lambda batches: QueueView({}, False, queue_complete=False)) == []
    assert TrialQueue.of(folder).claim("w")
    assert waiting.idle(TrialQueue.of(folder).search, folder, look()) == []


def test_jobs_whose_unit_is_over_are_not_asked_for(tmp_path: Path) -> None:
    folder = make_search(tmp_path / "s")
    queue = TrialQueue.of(folder)
    for name, job in (("s.old", "6"), ("s.w", "7")):
        resources = {"unit": "abc"}
        ledger.append(folder, "intent", name=name, executor="slurm", keys=[], resources=resources, code=None)
        ledger.append(folder, "submitted", name=name, job_id=job)
    assert queue.claim("job:s.w", lease=False) is not None
    assert len(waiting.lines(folder, look(Job(JobState.QUEUED, "PENDING", "JobHeldUser")))) == 3


def test_status_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_search(tmp_path / "s")
    monkeypatch.setattr(waiting, "lines", lambda folder: ["7 queued: held by its owner"])
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
    monkeypatch.setattr("study.workers.pool.time.sleep", rest)
    monkeypatch.setattr(waiting, "lines", lambda folder: ["7 queued: held by its owner"])
    with pytest.raises(KeyboardInterrupt):
        pool.watch(folder)
    said = capsys.readouterr().out
    assert said.count("7 queued: held by its owner") == 1 and said.count("0/12 trials") == 4


OPTION = "sbatch: unrecognized option '--nam=x'\nTry \"sbatch --help\" for more information"
PARTITION = "sbatch: error: Batch job submission failed: Invalid partition name specified"


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file whose words an sbatch says that refuses everything; it takes jobs while the file is empty."""
    words, folder = tmp_path / "words", tmp_path / "bin"
    folder.mkdir()
    script = f'#!/bin/bash\n[ -s {words} ] && {{ cat {words} >&2; exit 1; }}\necho "Submitted batch job 7"\n'
    for name, text in {"sbatch": script, "squeue": "#!/bin/bash\nexit 1\n", "sacct": "#!/bin/bash\nexit 1\n"}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return words


@pytest.mark.parametrize(
    ("words", "asked", "key"),
    [
        (OPTION, {"sbatch": {"nam": "x"}}, "cluster.sbatch={nam: x}"),
        (PARTITION, {"partition": "none"}, "cluster.partition=none"),
    ],
)
def test_status_says_that_slurm_refuses_the_workers_until_it_takes_them(
    words: str, asked: Any, key: str, sbatch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, cluster = make_search(sbatch.parent / "s"), ClusterConfig(executor="slurm", **asked)
    sbatch.write_text(words)
    with pytest.raises(ValueError, match="sbatch failed"):
        step(folder, Services(), Workers(4, cluster))
    assert main(["status", str(folder.path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    told = words.splitlines()[0]
    assert f"pending: refused by SLURM: sbatch failed: {told}: {key}: change it" in said
    assert "pending: change what SLURM refused, run the study's command again" in said
    main(["status", str(folder.path), "--json"])
    assert key in json.loads(capsys.readouterr().out)["refused"]
    sbatch.write_text("")
    step(folder, Services(), Workers(4, ClusterConfig(executor="slurm")))
    main(["status", str(folder.path)])
    assert "refused" not in capsys.readouterr().out


def test_status_says_that_slurm_refuses_a_units_job_and_does_not_try_it_again(
    sbatch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_search(tmp_path / "s", shape="jobs", workers=2)
    folder.study.write_text("cluster: {executor: slurm, partition: none}\ntracking: {enabled: false}\n")
    sbatch.write_text(PARTITION)
    (tmp_path / "bin" / "squeue").write_text("#!/bin/bash\n")
    with pytest.raises(ValueError, match=r"cluster\.partition=none"):
        step(folder, Services(report=lambda _: None), Units())
    capsys.readouterr()
    for _ in range(2):
        main(["status", str(folder.path)])
        shown = capsys.readouterr()
        assert "refused by SLURM" in shown.out and "cluster.partition=none" in shown.out and not shown.err
    assert len(ledger.read(folder).batches) == 1
    sbatch.write_text("")
    assert step(folder, Services(report=lambda _: None), Units()).submitted == 2
