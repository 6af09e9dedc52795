"""Clusters that take few jobs, small arrays or none, spoken to from an environment that says the wrong things."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from study.storage.files import locked, write_atomic
from study.storage.layout import StudyFolder
from tests.slurm.cluster import ThrowawayCluster, wait_for
from tests.slurm.lab import TINY, Lab

pytestmark = pytest.mark.slurm

POINTS = 11
POISON = {
    "SLURM_JOB_ID": "999",
    "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_NTASKS": "64",
    "SLURM_CPU_BIND": "mask_cpu:0x1",
    "SLURM_EXPORT_ENV": "NONE",
    "SLURM_MEM_PER_NODE": "99999",
    "SBATCH_EXPORT": "NONE",
    "SBATCH_PARTITION": "nowhere",
    "SBATCH_TIMELIMIT": "1",
    "SBATCH_ARRAY_INX": "0-99",
    "SRUN_CPUS_PER_TASK": "32",
    "SQUEUE_FORMAT": "%Z",
    "SACCT_FORMAT": "JobID",
    "PMI_RANK": "5",
    "PMIX_RANK": "5",
    "CUDA_VISIBLE_DEVICES": "7",
}


@pytest.fixture(scope="module")
def narrow(slurm_here: None) -> Iterator[ThrowawayCluster]:
    """A cluster that takes 6 jobs of the user, in arrays of at most 4, each of at most 3 cores and 90 minutes."""
    with ThrowawayCluster(extra=("MaxArraySize=4", "AccountingStorageEnforce=limits")) as cluster:
        if cluster.settings.user != "root":  # whom accounting knows from the beginning
            cluster.call("sacctmgr", "-i", "add", "user", cluster.settings.user, "account=root")
        most = ("MaxSubmitJobs=6", "MaxTRES=cpu=3", "MaxWall=90")
        cluster.call("sacctmgr", "-i", "modify", "user", cluster.settings.user, "set", *most)
        yield cluster


def test_what_accounting_never_lets_start_is_refused(narrow: ThrowawayCluster, tmp_path: Path, corpus: Path) -> None:
    lab = Lab(tmp_path, corpus, narrow)
    too_much = ("cluster.nodes=2", "cluster.cpus_per_task=2", "cluster.time_minutes=120")
    said = " ".join(lab.sweep("study.name=x", *TINY, *too_much, code=2).split())
    assert f"4 core(s) (MaxTRES of the association of {narrow.settings.user}: at most 3 core(s)) and 120 min" in said
    assert "could never start: cluster.nodes=1 cluster.time_minutes=90 would fit" in said
    assert not (tmp_path / "runs" / "x").exists(), "nothing was written"
    # SLURM itself takes such a job, and never starts it.
    asked = ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2", "--time=120", "--output=/dev/null", "--wrap=true")
    job = narrow.call("sbatch", "--parsable", *asked).strip()
    reason = ("squeue", "--noheader", "--format=%r", f"--jobs={job}")
    wait_for("the reason", lambda: narrow.call(*reason).strip().startswith("AssocMax"))
    narrow.call("scancel", job)


def test_everything_runs_once_though_little_fits(narrow: ThrowawayCluster, tmp_path: Path, corpus: Path) -> None:
    gate = tmp_path / "gate"
    lab = Lab(tmp_path, corpus, narrow, tuple(POISON.items())).with_trainer("quick", QUICK_GATE=gate, QUICK_SECONDS=1)
    said = lab.sweep("study.name=n", *TINY, f"seed=range({POINTS})")
    full = f"5 points wait (MaxSubmitJobs of {narrow.settings.user} is 6, and 6 are used)"
    assert full in said.replace("\n", " ")
    waiting = [point for point in lab.points("n") if point["state"] == "waiting"]
    assert 0 < len(waiting) <= POINTS - 6
    assert waiting[0]["why"].startswith("queued later: MaxSubmitJobs")
    gate.touch()
    # No command any more: the jobs that end submit the rest.
    outcomes = [lab.run_folder("n", key) / "outcome.json" for key in lab.keys("n")]
    wait_for("all points", lambda: all(path.exists() for path in outcomes), every=1)
    for key in lab.keys("n"):
        assert len((lab.run_folder("n", key) / "ran").read_text(encoding="utf-8").split()) == 1
    batches = [event for event in lab.ledger("n") if event["event"] == "intent"]
    assert max(len(event["keys"]) for event in batches) <= 4
    said = lab.study("resume", "n")
    assert "nothing to do" in said
    assert len([event for event in lab.ledger("n") if event["event"] == "intent"]) == len(batches)


def test_a_job_has_nothing_of_the_environment_that_it_was_submitted_from(
    narrow: ThrowawayCluster, tmp_path: Path, corpus: Path
) -> None:
    lab = Lab(tmp_path, corpus, narrow, tuple(POISON.items())).with_trainer("surroundings", KEEP_THIS="yes")
    away = tmp_path / "bin"
    away.mkdir()
    (away / "scontrol").write_text(f"#!/bin/sh\ntouch {away}/called\nexit 1\n", encoding="utf-8")
    (away / "scontrol").chmod(0o755)
    without = f'cluster.setup=["export PATH={away}:$PATH"]'
    lab.sweep("study.name=e", *TINY, "cluster.nodes=2", "cluster.master_addr=127.0.0.1", without)
    path = lab.run_folder("e") / "environment"
    wait_for("the job", path.exists)
    seen = dict(line.partition("=")[::2] for line in path.read_text(encoding="utf-8").splitlines())
    assert seen["KEEP_THIS"] == "yes"
    assert seen["SLURM_JOB_ID"] != "999"
    assert seen["SLURM_JOB_PARTITION"] == "main"
    assert {
        name for name in ("PMI_RANK", "PMIX_RANK", "CUDA_VISIBLE_DEVICES", "SBATCH_EXPORT") if name in seen
    } == set()
    assert seen["SLURM_NTASKS"] == seen["WORLD_SIZE"] == "2"
    assert seen["MASTER_ADDR"] == "127.0.0.1"
    assert 20000 <= int(seen["MASTER_PORT"]) < 32000
    assert sorted(lab.attempt("e", 1, "job.json")["nodes"])[0] in ("n1", "n2", "n3")
    assert len(lab.attempt("e", 1, "job.json")["nodes"]) == 2
    assert not (away / "called").exists(), "a job needs no scontrol"
    script = next((lab.folder / "runs" / "e" / "jobs").glob("*.sh")).read_text(encoding="utf-8")
    assert all(word in script for word in ("#SBATCH --export=ALL", "--kill-on-bad-exit=1", "--wait=60", "--export=ALL"))


def test_a_cluster_without_arrays_is_given_single_jobs(slurm_here: None, tmp_path: Path, corpus: Path) -> None:
    with ThrowawayCluster(extra=("MaxArraySize=0",)) as cluster:
        gate = tmp_path / "gate"
        lab = Lab(tmp_path, corpus, cluster).with_trainer("quick", QUICK_GATE=gate)
        said = lab.sweep("study.name=s", *TINY, "seed=range(3)", "cluster.array_parallelism=2")
        assert "submitted 2 points as 2 single jobs: SLURM takes no arrays here" in said
        why = "cluster.array_parallelism=2 is used up by the jobs that wait or run"
        assert f"1 point waits ({why})" in said.replace("\n", " ")
        first = _forget_submission(StudyFolder(lab.folder / "runs" / "s"))
        gate.touch()
        # No command any more: the jobs that end find that job by its name or its attempts, and submit the rest.
        outcomes = [lab.run_folder("s", key) / "outcome.json" for key in lab.keys("s")]
        wait_for("all points", lambda: all(path.exists() for path in outcomes), every=1)
        notes = [(lab.run_folder("s", key) / "ran").read_text(encoding="utf-8").split() for key in lab.keys("s")]
        assert notes == [["None_None"]] * 3, "each ran once, in a job that is no array's"
        assert (len(set(lab.job_ids("s"))), lab.job_ids("s").count(first)) == (3, 1)
        assert {point["job_id"] for point in lab.points("s")} == set(lab.job_ids("s"))
        assert {task.job_id: task.state for task in lab.tasks("s")} == dict.fromkeys(lab.job_ids("s"), "COMPLETED")
        endless = lab.with_trainer("quick", QUICK_SECONDS=3600)
        endless.sweep("study.name=c", *TINY)
        wait_for("its point to run", (endless.run_folder("c") / "ran").exists)
        endless.study("cancel", "c")
        wait_for("the queue to be empty", lambda: not cluster.queue())


def _forget_submission(study: StudyFolder) -> str:
    """Take the confirmation of a study's first submission out of its ledger, as after a kill; return its job id."""
    with locked(study.lock):
        lines = study.ledger.read_text(encoding="utf-8").splitlines(keepends=True)
        place = next(number for number, line in enumerate(lines) if json.loads(line)["event"] == "submitted")
        write_atomic(study.ledger, "".join([*lines[:place], *lines[place + 1 :]]))  # jobs read it meanwhile
        return str(json.loads(lines[place])["job_id"])
