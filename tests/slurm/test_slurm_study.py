"""Whole studies on a real SLURM give what they give on one machine, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import ThrowawayCluster
from tests.slurm.lab import TINY, Lab

pytestmark = pytest.mark.slurm

ISOFLOP = ("study=isoflop", "search.width_step=16", "search.budgets=[1e9,3e9]", "search.ratios=[0.2,1]")
WHOLE_NODE = "cluster.cpus_per_task=2"


@pytest.fixture
def own_cluster(slurm_here: None) -> Iterator[ThrowawayCluster]:
    """A cluster on which no other test has jobs."""
    with ThrowawayCluster() as own:
        yield own


def test_isoflop_on_four_nodes_equals_this_machine_to_the_last_bit(
    own_cluster: ThrowawayCluster, tmp_path: Path, corpus: Path
) -> None:
    lab = Lab(tmp_path, corpus, own_cluster)
    lab.sweep(*ISOFLOP, "study.name=here", cluster="local")
    said = lab.sweep(*ISOFLOP, "study.name=there", WHOLE_NODE, "wait=true")
    assert "4 completed" in said
    assert len(lab.keys("there")) == 4
    assert lab.losses("there") == lab.losses("here")
    tasks = lab.tasks("there")
    assert len(tasks) == 4
    assert {task.nodes for task in tasks} == {"n1", "n2", "n3", "n4"}
    assert len(lab.job_ids("there")) == 1, "one resource shape is one array"
    lab.sweep(*ISOFLOP, "study.name=there", WHOLE_NODE, "wait=true")
    assert len(lab.tasks("there")) == 4, "the same command twice does nothing twice"


def test_two_nodes_of_two_tasks_equal_one_process(lab: Lab, undisturbed: dict[str, float]) -> None:
    shape = ("cluster.nodes=2", "cluster.tasks_per_node=2", "cluster.master_addr=127.0.0.1")
    lab.sweep("study.name=wide", *TINY, *shape, "wait=true")
    outcome = lab.outcome("wide")
    assert outcome["world_size"] == 4
    assert len(lab.attempt("wide", 1, "job.json")["nodes"]) == 2
    difference = max(abs(outcome["loss"][name] - loss) for name, loss in undisturbed.items())
    print(f"largest difference to one process: {difference:.1e}")
    # Not bitwise: four ranks add the same gradients in another order.
    assert difference < 1e-6


def test_submitting_from_inside_a_job(lab: Lab) -> None:
    quick = lab.with_trainer("quick")
    sweep = quick.sweep_command("study.name=inner", *TINY, "seed=1,2")
    quick.run("srun", "--nodes=2", "--ntasks=2", "--cpus-per-task=2", "--export=ALL", "sh", "-c",
              'test "$SLURM_PROCID" = 1 || exec "$@"', "-", *sweep)  # fmt: skip
    quick.study("watch", "inner")
    assert [task.state for task in quick.tasks("inner")] == ["COMPLETED", "COMPLETED"]
    for key in quick.keys("inner"):
        job = quick.run_folder("inner", key) / "attempts" / "1" / "job.json"
        assert '"world": 1' in job.read_text(encoding="utf-8")


def test_data_is_prepared_in_a_job(lab: Lab, tmp_path: Path) -> None:
    quick = lab.with_trainer("quick")
    root = tmp_path / "corpora"
    said = quick.sweep("study.name=data", *TINY, f"runtime.data_root={root}", "wait=true")
    assert "in a SLURM job" in said
    assert len(list(root.glob("*/manifest.json"))) == 1
    assert [path.name for path in root.iterdir() if path.name.startswith(".prepare-")] == []
    elsewhere = ("study.name=lost", *TINY, f"runtime.data_root={tmp_path / 'x'}")
    assert "cluster.partition=no does not exist here" in quick.sweep(*elsewhere, "cluster.partition=no", code=2)
    lost = quick.sweep(*elsewhere, "cluster.reservation=no", code=2)
    assert "cluster.prepare=here prepares it on this machine" in lost
