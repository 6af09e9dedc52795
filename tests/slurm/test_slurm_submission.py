"""The submitting process is killed in the middle of submission and started again: no point twice, none lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.slurm.cluster import wait_for
from tests.slurm.lab import TINY, TRAINERS, Lab

pytestmark = pytest.mark.slurm

SEEDS = 6
STUDY = ("study.name=s", *TINY, f"seed=range({SEEDS})")


def killed_around_sbatch(lab: Lab, moment: str, late: float = 0.0) -> Path:
    """Submit with an sbatch that kills its submitter at this moment; return the file that appears once it was real."""
    victim = lab.folder / "victim"
    path = f"{TRAINERS}:{lab.environment['PATH']}"
    environment = lab.environment | {"PATH": path, "MOMENT": moment, "VICTIM": str(victim), "LATE": str(late)}
    command = ["sh", "-c", f'echo $$ > {victim}; exec "$@"', "-", *lab.sweep_command(*STUDY)]
    submitter = subprocess.Popen(command, cwd=lab.folder, env=environment, stdout=subprocess.DEVNULL)
    assert submitter.wait(timeout=900) == -signal.SIGKILL
    return victim.with_name("victim.submitted")


def assert_each_point_ran_once(lab: Lab) -> None:
    assert len(lab.keys("s")) == SEEDS
    ran = {key: (lab.run_folder("s", key) / "ran").read_text(encoding="utf-8").split() for key in lab.keys("s")}
    assert all(len(jobs) == 1 for jobs in ran.values()), ran
    assert {point["state"] for point in lab.points("s")} == {"completed"}


def killed_before_sbatch_was_called(quick: Lab) -> None:
    killed_around_sbatch(quick, "never")
    assert [event["event"] for event in quick.ledger("s")] == ["waiting", "intent"]
    quick.sweep(*STUDY, "wait=true")
    assert_each_point_ran_once(quick)
    assert len(quick.tasks("s")) == SEEDS


def killed_after_sbatch_and_before_the_ledger_knew(quick: Lab) -> None:
    killed_around_sbatch(quick, "after")
    assert [event["event"] for event in quick.ledger("s")] == ["waiting", "intent"]
    quick.sweep(*STUDY, "wait=true")
    assert_each_point_ran_once(quick)
    assert len(quick.tasks("s")) == SEEDS, "the array that was there is taken up, no other one is submitted"


def killed_while_the_request_was_on_its_way(quick: Lab) -> None:
    """It arrives within the time that is given to it, or, should this machine be slow, after it was given up."""
    submitted = killed_around_sbatch(quick, "late", late=4.0)
    quick.sweep(*STUDY, "wait=true")
    wait_for("the submission", submitted.exists)
    assert_each_point_ran_once(quick)
    assert {task.exit_code for task in quick.tasks("s")} <= {"0:0", "77:0"}


def request_that_arrives_after_it_was_given_up_runs_nothing(quick: Lab) -> None:
    submitted = killed_around_sbatch(quick, "told")
    quick.sweep(*STUDY, "wait=true")
    submitted.with_name("victim.go").touch()
    wait_for("the late submission", submitted.exists)
    assert_each_point_ran_once(quick)
    codes = sorted(task.exit_code for task in quick.tasks("s"))
    assert codes == ["0:0"] * SEEDS + ["77:0"] * SEEDS, "the late tasks say that nobody wants them"


def test_killed_at_every_moment_around_sbatch(lab: Lab) -> None:
    """Side by side, each in a folder of its own: most of the time they wait."""
    courses = (
        killed_before_sbatch_was_called,
        killed_after_sbatch_and_before_the_ledger_knew,
        killed_while_the_request_was_on_its_way,
        request_that_arrives_after_it_was_given_up_runs_nothing,
    )
    labs = [replace(lab, folder=lab.folder / course.__name__).with_trainer("quick") for course in courses]
    for one in labs:
        one.folder.mkdir()
    with ThreadPoolExecutor(len(courses)) as pool:
        ended = [pool.submit(course, one) for course, one in zip(courses, labs, strict=True)]
    for course in ended:
        course.result()


def test_killed_again_and_again_at_random_moments(lab: Lab) -> None:
    quick = lab.with_trainer("quick")
    moments = random.Random(4)
    for _ in range(6):
        submitter = subprocess.Popen(
            quick.sweep_command(*STUDY), cwd=quick.folder, env=quick.environment, stdout=subprocess.DEVNULL
        )
        delay = moments.uniform(0.3, 2.0)
        time.sleep(delay)
        print(f"killed after {delay:.3f} s")
        os.kill(submitter.pid, signal.SIGKILL)
        submitter.wait()
    quick.sweep(*STUDY, "wait=true")
    assert_each_point_ran_once(quick)
