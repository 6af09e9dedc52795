"""What every executor keeps to: the two that there are, and a third that is known to the tests alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from study.config.executors import EXECUTORS
from study.config.schema import ClusterConfig
from study.executors import load, submitted
from study.executors.base import Answer, Executor, JobRequest, SubmitError
from study.executors.job_spec import JobSpec
from study.executors.jobs import LookupAnswer
from study.records import ledger
from study.records.ledger import Batch
from study.records.shapes import JOB_ID
from study.status.observer import observe
from study.storage.layout import StudyFolder
from tests.study.support import detached
from tests.study.support.studies import FAILS, LIMIT_SECONDS, environment, make_study, wait_until
from train.spec.from_mapping import read

NAMES = ("local", "slurm", "detached")


class Slurm:
    """SLURM's commands as recorded, for a job that was submitted once under the name `s.1`."""

    def __init__(self) -> None:
        self.there = ""

    def __call__(self, command: Sequence[str]) -> Answer:
        if command[0] == "sbatch":
            self.there = "7|0|RUNNING|None|s.1\n7|1|PENDING|Priority|s.1\n"
            return Answer(0, "Submitted batch job 7\n")
        if command[0] == "squeue":
            return Answer(0, self.there if "--name=other" not in command else "")
        if command[0] == "scancel":
            self.there = ""
        return Answer(0)


@pytest.fixture(autouse=True)
def third(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spool").mkdir()
    monkeypatch.setattr(detached, "SPOOL", tmp_path / "spool")
    monkeypatch.setitem(EXECUTORS, "detached", detached.MODULE)


@pytest.fixture(params=NAMES)
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    yield load(request.param, Slurm())


def test_it_is_found_by_the_name_that_it_has(executor: Executor) -> None:
    assert load(executor.name).name == executor.name
    assert executor.title and executor.command


def test_a_config_takes_its_name(executor: Executor) -> None:
    assert read(ClusterConfig, {"executor": executor.name}, "cluster").executor == executor.name
    with pytest.raises(ValueError, match="local, slurm, detached"):
        read(ClusterConfig, {"executor": "pbs"}, "cluster")


def test_a_script_names_the_study_and_the_batch(executor: Executor, tmp_path: Path) -> None:
    request = JobRequest(StudyFolder(tmp_path / "a b"), JobSpec(), "s.1", 2, 1)
    script = executor.render(request)
    assert str(tmp_path / "a b") in script and "s.1" in script and "study.job" in script
    assert script == executor.render(replace(request)), "it is the same each time"


def test_what_is_submitted_is_found_by_its_name_and_cancelled(executor: Executor, tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    job_id = executor.submit(JobRequest(folder, JobSpec(), "s.1", 2), "for I in $(seq 0 1); do sleep 60; done")
    assert JOB_ID.fits(job_id)
    assert executor.find("s.1", 0.0).job_id == job_id
    batch = Batch("s.1", executor.name, ("a", "b"), 0.0, job_id=job_id)
    assert submitted([batch]) == ([batch] if executor.detached else [])
    assert executor.log(folder, batch, "b").parent == folder.jobs
    if executor.detached:
        jobs = executor.query([job_id]).jobs
        assert set(jobs) == set(batch.jobs_by_key().values())
        assert set(executor.queue([job_id]).jobs) <= set(jobs)
        assert executor.find("other", 0.0).answer == LookupAnswer.ABSENT
        executor.cancel({job_id: (0, 1)})
        wait_until("its end", lambda: all(not j.alive for j in executor.query([job_id]).jobs.values()))


def test_a_refusal_says_whether_it_may_have_been_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detached, "SPOOL", tmp_path / "nowhere")
    for name, runner in (("detached", None), ("slurm", lambda command: Answer(1, error="sbatch: error: no"))):
        with pytest.raises(SubmitError) as refused:
            load(name, runner).submit(JobRequest(StudyFolder(tmp_path / "s"), JobSpec(), "s.1", 1), "seq 0 0;")
        assert (refused.value.ambiguous, refused.value.full) == (False, False)


def test_limits_and_the_site_refuse_nothing_that_is_not_known(executor: Executor, tmp_path: Path) -> None:
    limits, site = executor.limits(tmp_path / "limits.json", 0.0), executor.site()
    assert not limits.problem and limits.tightest(JobSpec()) is None
    assert site.jobs_at_once(JobSpec()) is None
    assert site.check(JobSpec()) is None and site.longest_minutes(JobSpec()) is None and site.gpus_per_node(None) == 0


def test_a_process_knows_which_rank_of_which_job_it_is(executor: Executor) -> None:
    info = executor.rank_info({"SLURM_JOB_ID": "7", "JOB": "7"}, 2)
    assert info.executor == executor.name and info.first and info.job_id
    assert info.starts_ranks != executor.allocates, "either each rank is started, or one process that starts them"
    assert info.world == (2 if info.starts_ranks else 1)


def test_a_study_runs_to_its_end_on_an_executor_that_only_the_tests_know(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [1, 2, FAILS])
    study.study.write_text("cluster: {executor: detached, poll_seconds: 0.2}\ntracking: {enabled: false}\n")

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", detached.MODULE, "study", *words]
        told = {**environment(), "SPOOL": str(detached.SPOOL)}
        return subprocess.run(line, env=told, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)

    sent = command("resume", str(study.path))
    assert sent.returncode == 0, sent.stderr
    watched = command("watch", str(study.path))
    assert watched.returncode == 1, watched.stdout + watched.stderr
    found = {status.key: status for status in observe(study)}
    assert [found[keys[seed]].state for seed in (1, 2, FAILS)] == ["completed", "completed", "failed"]
    (batch,) = ledger.read(study).batches.values()
    assert (batch.executor, batch.array) == ("detached", True)
    assert all(status.job_id in batch.jobs_by_key().values() for status in found.values())
