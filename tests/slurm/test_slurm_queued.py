"""Jobs that SLURM does not start: held, or their nodes drained or reserved. `status` says so, and what helps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from getpass import getuser
from pathlib import Path

import pytest

from study.executors.base import Answer
from study.executors.slurm.nodes import read_nodes
from tests.slurm.cluster import ThrowawayCluster, wait_for
from tests.slurm.lab import LOOK_SECONDS, TINY, Lab

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def one_node(slurm_here: None) -> Iterator[ThrowawayCluster]:
    with ThrowawayCluster(nodes=1) as cluster:
        yield cluster


def says(lab: Lab, study: str, *words: str) -> bool:
    """Whether `status` says all of these."""
    text = " ".join(lab.study("status", study).split())
    return all(word in text for word in words)


def test_drained_nodes_and_held_jobs_are_said_in_words(
    one_node: ThrowawayCluster, tmp_path: Path, corpus: Path
) -> None:
    lab = Lab(tmp_path, corpus, one_node).with_trainer("quick")

    def ask(command: Sequence[str]) -> Answer:
        return Answer(0, one_node.call(*command))

    said = partial(says, lab, "q")
    assert {(nodes.count, nodes.down) for nodes in read_nodes(ask).nodes} == {(1, 0)}
    one_node.call("scontrol", "update", "nodename=n1", "state=drain", "reason=disk")
    assert {(nodes.count, nodes.down) for nodes in read_nodes(ask).nodes} == {(1, 1)}
    lab.sweep("study.name=q", *TINY, "seed=1,2")
    drained = ("2 queued: the nodes that it could run on are down, drained or reserved", "sinfo -R", "is stalled")
    wait_for("drained nodes", lambda: said(*drained), every=LOOK_SECONDS)
    stop = f"reservationname=stop starttime=now+30minutes duration=60 nodes=ALL flags=maint users={getuser()}"
    one_node.call("scontrol", "create", "reservation", *stop.split())
    one_node.call("scontrol", "update", "nodename=n1", "state=resume")
    wait_for("a maintenance", lambda: said("reserved for maintenance", "cluster.time_minutes"), every=LOOK_SECONDS)
    (job,) = lab.job_ids("q")
    one_node.call("scontrol", "hold", job)
    wait_for("a hold", lambda: said("held by", f"scontrol release {job}", "is stalled"), every=LOOK_SECONDS)
    assert {point["reason"] for point in lab.points("q")} <= {"JobHeldUser", "JobHeldAdmin"}
    one_node.call("scontrol", "delete", "reservationname=stop")
    one_node.call("scontrol", "release", job)
    lab.study("watch", "q")
    assert said("2 completed") and not said("is stalled")


def test_a_time_before_which_a_job_may_not_start_is_said(
    one_node: ThrowawayCluster, tmp_path: Path, corpus: Path
) -> None:
    lab = Lab(tmp_path, corpus, one_node).with_trainer("quick")
    lab.sweep("study.name=later", *TINY, "seed=1,2", "cluster.sbatch={begin: now+1day}")
    (job,) = lab.job_ids("later")

    said = partial(says, lab, "later")
    shown = f"for job in {job}; do scontrol update JobId=$job StartTime=now; done"
    wait_for("a time", lambda: said("2 queued: it was told not to start before", shown, "stalled"), every=LOOK_SECONDS)
    one_node.call("bash", "-c", shown)
    lab.study("watch", "later")
    assert said("2 completed") and not said("stalled")


def test_points_whose_dependency_is_never_satisfied_start_by_what_is_shown(
    one_node: ThrowawayCluster, tmp_path: Path, corpus: Path
) -> None:
    lab = Lab(tmp_path, corpus, one_node).with_trainer("quick")
    failed = one_node.call("sbatch", "--parsable", "--output=/dev/null", "--wrap=false").strip()
    lab.sweep("study.name=after", *TINY, "seed=1,2", "cluster.sbatch={begin: now+1day}")
    (job,) = lab.job_ids("after")
    one_node.call("scontrol", "update", f"JobId={job}", "StartTime=now", f"Dependency=afterok:{failed}")
    shown = f"scancel {job}, then python -m study retry with --state cancelled"
    wait_for("a failure", lambda: says(lab, "after", shown), every=LOOK_SECONDS)
    one_node.call("scancel", job)
    wait_for("the end", lambda: "2 cancelled" in lab.study("status", "after"), every=LOOK_SECONDS)
    lab.sweep("study.name=after", *TINY, "seed=1,2")  # without the time, for the jobs that come
    lab.study("retry", "after", "--state", "cancelled")
    lab.study("watch", "after")
    assert "2 completed" in lab.study("status", "after")
