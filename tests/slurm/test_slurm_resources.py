"""Shapes of jobs, packed points, budgets and costs on a real SLURM whose nodes have GPUs (terminals, in truth)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import ThrowawayCluster, wait_for
from tests.slurm.lab import TINY, Lab

pytestmark = pytest.mark.slurm

GPU = ("cluster.gpus_per_node=1", "cluster.time_minutes=2", "runtime.device=cpu")


@pytest.fixture(scope="module")
def gpu_cluster(slurm_here: None) -> Iterator[ThrowawayCluster]:
    with ThrowawayCluster(nodes=2, cpus_per_node=4, gpus_per_node=4) as own:
        yield own


@pytest.fixture
def gpus(tmp_path: Path, corpus: Path, gpu_cluster: ThrowawayCluster) -> Lab:
    return Lab(tmp_path, corpus, gpu_cluster).with_trainer("quick")


def accounted(lab: Lab, study: str) -> tuple[float, int]:
    """Return the GPU-seconds of all runs of a study's jobs straight from accounting, and how many runs there were."""
    names = ",".join(event["name"] for event in lab.ledger(study) if event["event"] == "intent")
    fields = "--format=ElapsedRaw,AllocTRES"
    said = lab.cluster.call("sacct", "-n", "-P", "-X", "-D", f"--name={names}", "--starttime=now-1day", fields)
    runs = [line.partition("|") for line in said.splitlines() if not line.startswith("0|")]
    gpus = [dict(part.split("=") for part in tres.split(",")).get("gres/gpu", "0") for _, _, tres in runs]
    return sum(int(seconds) * int(count) for (seconds, _, _), count in zip(runs, gpus, strict=True)), len(runs)


def costs(lab: Lab, study: str) -> dict[str, Any]:
    (one,) = json.loads(lab.study("cost", study, "--json"))["costs"]
    return dict(one)


def test_packed_points_have_gpus_of_their_own_and_one_that_fails_fails_alone(gpus: Lab) -> None:
    lab = gpus.with_trainer("quick", QUICK_FAIL=3, QUICK_SECONDS=2)
    lab.sweep("study.name=pack", *TINY, *GPU, "cluster.pack=2", "seed=range(5)", "retry=never", "wait=true", code=1)
    states = [point["state"] for point in lab.points("pack")]
    assert sorted(states) == ["completed"] * 4 + ["failed"]
    tasks = lab.tasks("pack")
    assert len(tasks) == 3, "five points are three jobs of two"
    assert sum(task.state == "FAILED" for task in tasks) == 1
    by_job: dict[str, list[str]] = {}
    for point in lab.points("pack"):
        seen = (lab.run_folder("pack", point["key"]) / "devices").read_text(encoding="utf-8")
        by_job.setdefault(point["job_id"], []).append(seen)
        assert point["attempt"] == 1
    assert all(len(set(devices)) == len(devices) for devices in by_job.values()), by_job
    used, runs = accounted(lab, "pack")
    found = costs(lab, "pack")
    assert runs == 3
    assert found["unit"] == "GPU-hours"
    assert found["used"] == pytest.approx(used / 3600)
    assert found["asked"] == pytest.approx(3 * 2 * 2 / 60)
    assert found["lost"] > 0
    assert "seed 3 brings bad luck" in lab.study("logs", "pack", next(
        point["key"] for point in lab.points("pack") if point["state"] == "failed"
    ))  # fmt: skip


def test_cancelling_one_of_two_packed_points_leaves_the_other(gpus: Lab) -> None:
    lab = gpus.with_trainer("fragile", FRAGILE="1:wait;2:hold")
    lab.sweep("study.name=half", *TINY, *GPU, "cluster.pack=2", "seed=1,2")
    one, other = lab.keys("half")
    runs = [lab.run_folder("half", key) for key in (one, other)]
    wait_for("both to run", lambda: all((run / "waits").exists() for run in runs))
    lab.study("cancel", "half", "--point", one)
    (runs[1] / "go").touch()
    lab.study("watch", "half")
    states = {point["key"]: point["state"] for point in lab.points("half")}
    assert states == {one: "cancelled", other: "completed"}


def test_points_of_a_job_follow_each_other(gpus: Lab) -> None:
    """Four of one job on one GPU: one fails, one is cancelled while it waits for its turn."""
    lab = gpus.with_trainer("fragile", FRAGILE="1:hold;2:fail;3:complete;4:hold")
    lab.sweep("study.name=turns", *TINY, *GPU, "cluster.points_per_job=4", "seed=1,2,3,4", "retry=never")
    keys = lab.keys("turns")
    runs = [lab.run_folder("turns", key) for key in keys]
    wait_for("the first to run", (runs[0] / "waits").exists)
    seen = {point["key"]: (point["state"], point["why"]) for point in lab.points("turns")}
    assert seen[keys[0]][0] == "running"
    assert seen[keys[3]] == ("queued", "it waits in its job for an earlier point to end")
    lab.study("cancel", "turns", "--point", keys[3])
    (runs[0] / "go").touch()
    lab.study("watch", "turns", code=1)
    found = {point["key"]: point for point in lab.points("turns")}
    assert [found[key]["state"] for key in keys] == ["completed", "failed", "completed", "cancelled"]
    assert len({found[key]["job_id"] for key in keys[:3]}) == 1
    (task,) = lab.tasks("turns")
    assert task.state == "FAILED"


def test_requeued_and_failed_runs_are_in_the_cost(gpus: Lab) -> None:
    gate = gpus.folder / "gate"
    lab = gpus.with_trainer("quick", QUICK_GATE=gate, QUICK_SECONDS=2, QUICK_FAIL=2)
    lab.sweep("study.name=cost", *TINY, *GPU, "seed=1,2", "retry=never")
    (job,) = lab.job_ids("cost")
    begun = lab.folder / "runs" / "cost" / lab.keys("cost")[0] / "ran"
    # SLURM counts whole seconds, and what took none costs nothing.
    wait_for("two seconds of the first", lambda: begun.exists() and time.time() - begun.stat().st_mtime > 2)
    lab.cluster.call("scontrol", "requeue", f"{job}_0")
    gate.touch()
    lab.study("watch", "cost", code=1)
    lab.tasks("cost")
    used, runs = accounted(lab, "cost")
    found = costs(lab, "cost")
    assert runs == 3, "one of two jobs ran twice"
    assert found["used"] == pytest.approx(used / 3600)
    assert (found["jobs"], found["runs"]) == (2, 3)
    assert 0 < found["lost"] < found["used"]
    assert found["reserved"] == 0


def test_a_budget_is_kept_before_anything_is_submitted(gpus: Lab) -> None:
    within = ("study.name=bound", *TINY, *GPU, "study.gpu_hours=0.1")
    lab = gpus.with_trainer("quick")
    said = lab.sweep(*within, "seed=range(4)", code=2)
    assert "study.gpu_hours=0.1" in said
    assert "3 of them would fit" in said, "0.1 h are three jobs of 2 minutes"
    assert not (lab.folder / "runs" / "bound" / "ledger.jsonl").exists()


def test_what_can_never_start_is_refused_and_a_dry_run_says_when_jobs_would(gpus: Lab) -> None:
    said = gpus.sweep("study.name=never", *TINY, "cluster.gpus_per_node=8", code=2)
    assert "more than any node of the default partition has" in said
    assert "cluster.nodes=2 cluster.gpus_per_node=4 would fit" in said
    said = gpus.sweep("study.name=never", *TINY, "cluster.partition=short", "cluster.time_minutes=5", code=2)
    assert "cluster.time_minutes=1 would fit" in said
    said = gpus.sweep("study.name=never", *TINY, *GPU, "study.gpu_hours=1", "seed=1,2", "dry_run=true")
    assert "0.06667 GPU-hours" in said
    assert "SLURM would start the first job at" in said
    assert "study.gpu_hours=1: 0 GPU-hours used" in said
    short = ("cluster.auto=[points_per_job]", "budget.tokens=12000000", "seed=range(16)")
    said = gpus.sweep("study.name=never", *TINY, *GPU, *short, "dry_run=true")
    assert "in 8 jobs: room for 8 at once, and each should have 60 s or more" in said
    assert not (gpus.folder / "runs").exists()


def test_points_of_other_sizes_become_arrays_of_their_own(gpus: Lab) -> None:
    sized = ("cluster.auto=[time,memory]", "runtime.device=cpu", "budget.tokens=20480,200000000")
    gpus.sweep("study.name=sizes", *TINY, *sized, "wait=true")
    asked = [event["resources"] for event in gpus.ledger("sizes") if event["event"] == "intent"]
    assert len(asked) == 2
    assert asked[0]["time_minutes"] > asked[1]["time_minutes"] == 5
    assert {shape["mem_gb"] for shape in asked} == {1.5}


def test_branches_wait_in_the_queue_for_their_trunk(gpus: Lab) -> None:
    gate = gpus.folder / "gate"
    lab = gpus.with_trainer("quick", QUICK_GATE=gate)
    design = ("search=trunk_and_branch", "search.tokens=[20480,40960]", "search.shapes=[{width: 16, layers: 1}]")
    sizes = [word for word in TINY if not word.startswith("budget.")]
    lab.sweep("study.name=tree", *design, *sizes, "cluster.time_minutes=5")
    gate.touch()
    lab.study("watch", "tree")
    asked = [event["resources"] for event in lab.ledger("tree") if event["event"] == "intent"]
    job = lab.job_ids("tree")[0]
    assert any(str(shape.get("dependency", "")).startswith(f"afterok:{job}_") for shape in asked), asked
    assert {point["state"] for point in lab.points("tree")} == {"completed"}
    assert len(lab.tasks("tree")) == len(lab.keys("tree")), "no job was given up or submitted twice"
