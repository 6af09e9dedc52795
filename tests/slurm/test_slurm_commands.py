"""`python -m study status|watch|logs|cancel|retry` on a real SLURM."""

from __future__ import annotations

import re
import signal
import subprocess

import pytest

from tests.slurm.cluster import LIMIT_SECONDS, wait_for
from tests.slurm.lab import LOOK_SECONDS, TINY, Lab

pytestmark = pytest.mark.slurm


def test_failing_point_is_named_everywhere(lab: Lab) -> None:
    quick = lab.with_trainer("quick", QUICK_FAIL=2)
    quick.sweep("study.name=f", *TINY, "seed=1,2,3", "wait=true", code=1)
    good, bad, other = quick.keys("f")
    said = quick.study("status", "f", code=1)
    assert "2 completed, 1 failed" in said
    assert "RuntimeError: seed 2 brings bad luck" in said
    assert "Traceback" in quick.study("logs", "f", bad)
    assert "seed 1 begins" in quick.study("logs", "f", good)
    assert "1 failed" in quick.study("watch", "f", code=1)
    states = {task.job_id.partition("_")[2]: (task.state, task.exit_code) for task in quick.tasks("f")}
    by_key = {point["key"]: point["job_id"].partition("_")[2] for point in quick.points("f")}
    assert states[by_key[bad]] == ("FAILED", "1:0")
    assert states[by_key[good]] == states[by_key[other]] == ("COMPLETED", "0:0")
    cured = lab.with_trainer("quick")
    cured.study("retry", "f", "--wait")
    assert "3 completed" in cured.study("status", "f")
    assert len(cured.tasks("f")) == 4, "only the failed point is submitted again"


def test_cancelled_points_stop_and_carry_on_when_retried(lab: Lab) -> None:
    quick = lab.with_trainer("quick", QUICK_SECONDS=300)
    quick.sweep("study.name=c", *TINY, "seed=1,2,3", "cluster.array_parallelism=1")
    one = ["queued", "queued", "running"]
    wait_for("one running point", lambda: sorted(p["state"] for p in quick.points("c")) == one, every=LOOK_SECONDS)
    quick.study("cancel", "c")
    (begun,) = quick.tasks("c")
    assert begun.state.startswith("CANCELLED")
    assert {point["state"] for point in quick.points("c")} == {"cancelled"}
    quick.sweep("study.name=c", *TINY, "seed=1,2,3", "wait=true")
    assert {point["state"] for point in quick.points("c")} == {"cancelled"}, "cancelled means not wanted any more"
    done = lab.with_trainer("quick")
    done.study("retry", "c", "--state=cancelled", "--wait")
    assert {point["state"] for point in done.points("c")} == {"completed"}


def test_a_copy_of_a_study_reaches_none_of_its_jobs_and_can_train_the_points_itself(lab: Lab) -> None:
    gate = lab.folder / "gate"
    quick = lab.with_trainer("quick", QUICK_GATE=gate)
    quick.sweep("study.name=o", *TINY, "seed=1,2,3", "cluster.array_parallelism=1")
    one = ["queued", "queued", "running"]
    wait_for("one running point", lambda: sorted(p["state"] for p in quick.points("o")) == one, every=LOOK_SECONDS)
    runs = lab.folder / "runs"
    lab.run("cp", "-r", str(runs / "o"), str(runs / "copy"))
    lab.run("cp", "-r", str(runs / "o"), str(runs / "another"))
    said = quick.study("status", "copy")
    assert f"the jobs of 3 points belong to the study at {runs / 'o'}" in " ".join(said.split())
    assert "3 points cancelled: 3 not started" in quick.study("cancel", "copy")
    quick.study("status", "another")
    assert sorted(p["state"] for p in quick.points("o")) == one, "they are the original's"
    gate.touch()
    quick.study("resume", "another")
    quick.study("watch", "another")
    quick.study("watch", "o")
    for name in ("o", "another"):
        assert {point["state"] for point in quick.points(name)} == {"completed"}
    assert {point["state"] for point in quick.points("copy")} == {"cancelled"}
    asked = [{event["name"] for event in quick.ledger(name) if event["event"] == "intent"} for name in ("o", "another")]
    assert [name.partition(".")[0] for name in asked[1] - asked[0]] == ["another"]
    tasks = quick.tasks("another")  # of both, as it has the original's records
    assert [task.state for task in tasks] == ["COMPLETED"] * 6


def test_dry_run_shows_what_slurm_would_take_and_writes_nothing(lab: Lab) -> None:
    said = lab.sweep(
        "study.name=e",
        *TINY,
        "seed=1,2",
        "cluster.partition=short",
        "cluster.time_minutes=1",
        "cluster.mem_gb=1",
        "dry_run=true",
    )
    assert list(lab.folder.iterdir()) == []
    lines = said.splitlines()
    start = lines.index("#!/bin/bash")
    end = max(number for number, line in enumerate(lines) if line.startswith("srun "))
    script = lab.folder / "shown.sh"
    script.write_text("\n".join(lines[start : end + 1]) + "\n", encoding="utf-8")
    lab.cluster.call("sbatch", "--test-only", str(script))
    assert "#SBATCH --array=0-1%2" in lines
    assert "#SBATCH --partition=short" in lines


def test_watching_may_end_while_the_jobs_live_on(lab: Lab) -> None:
    gate, said = lab.folder / "gate", lab.folder / "said"
    quick = lab.with_trainer("quick", QUICK_GATE=gate)
    with said.open("w") as out:
        command = quick.sweep_command("study.name=w", *TINY, "wait=true")
        watcher = subprocess.Popen(command, cwd=lab.folder, env=quick.environment, stdout=out, stderr=out)
    wait_for("the first line of watching", lambda: re.search(r"1 (queued|running)", said.read_text()) is not None)
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait(LIMIT_SECONDS) == 130, said.read_text()
    assert "1 run continues.  To come back:  python -m study watch w" in said.read_text()
    gate.touch()
    quick.study("watch", "w")
    assert quick.point("w")["state"] == "completed"
