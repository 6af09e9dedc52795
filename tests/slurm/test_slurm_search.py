"""Searches on four nodes: of real trials while workers and nodes go, over several ranks, and a job for each unit."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from study.search.state import Search
from study.search.trial_queue import TrialQueue
from study.storage.layout import StudyFolder
from tests.slurm.cluster import ClusterError, ThrowawayCluster, wait_for
from tests.slurm.lab import TINY, Lab

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

WORDS = (
    *(word for word in TINY if not word.startswith("optim.lr")),
    "study.name=asha",
    "search=asha_promotion",
    "search.trials=4",
    "search.eta=2",
    "search.min_tokens=5120",
    "search.workers=3",
    "search.lease_seconds=4",
    "optim.lr=tag(log,interval(1e-3,1e-2))",
)


@pytest.fixture
def own(tmp_path: Path, corpus: Path) -> Iterator[Lab]:
    """A cluster of its own, whose nodes may go down without harm to other tests."""
    with ThrowawayCluster(nodes=4) as cluster:
        yield Lab(tmp_path, corpus, cluster)


def _resumed(lab: Lab, node: str) -> bool:
    """Ask for the node back; SLURM refuses while it still clears up what ran there, and where it is back by itself."""
    try:
        lab.cluster.call("scontrol", "update", f"nodename={node}", "state=resume")
    except ClusterError:
        return "DOWN" not in lab.cluster.call("scontrol", "show", "node", node)
    return True


def test_trials_finish_though_workers_and_nodes_do_not(own: Lab) -> None:
    said = own.sweep(*WORDS)
    assert "submitted 3 workers as job array" in said
    folder = StudyFolder(own.folder / "runs" / "asha")

    def search() -> Search:
        return TrialQueue.of(folder).search

    wait_for("two claims", lambda: len(search().claims) >= 2)
    killed, fenced = list(search().claims.values())[:2]
    own.cluster.call("scancel", "--signal=KILL", "--full", killed.worker.rpartition("/")[2])
    nodes = {task.job_id: task.nodes for task in own.cluster.queue()}
    node = nodes[fenced.worker.rpartition("/")[2]]
    own.cluster.call("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    wait_for(
        "the node's workers to be gone",
        lambda: node not in {t.nodes for t in own.cluster.queue() if t.state == "RUNNING"},
    )
    wait_for("the node to come back", lambda: _resumed(own, node), every=1.0)
    own.sweep(*WORDS)  # brings the pool back to three workers
    wait_for("the end of the search", lambda: search().over, every=1.0)
    found = search()
    assert len(found.trials) == 4
    assert found.lost_units >= 1
    assert not any(trial.failed for trial in found.trials.values())
    rungs = Counter(at for trial in found.trials.values() for at in trial.values)
    assert rungs[5120] == 4
    assert rungs[10240] >= 2
    for trial in found.trials.values():
        assert all(math.isfinite(value) for value in trial.values.values())
        steps = [trial.values[at] for at in sorted(trial.values)]
        assert steps == sorted(steps, reverse=True)  # it went on from its checkpoint, and learned
    assert "over: 4/4 trials" in own.study("status", "asha")


SMALL = (
    *(word for word in WORDS if not word.startswith(("study.name", "search.workers", "search.lease"))),
    "search.lease_seconds=30",
)


def _search_in(lab: Lab, name: str) -> Search:
    return TrialQueue.of(StudyFolder(lab.folder / "runs" / name)).search


def _notes(lab: Lab, name: str) -> list[dict[str, Any]]:
    """Return who took part in each unit."""
    runs = (lab.folder / "runs" / name).glob("*/ranks")
    return [json.loads(line) for run in runs for line in run.read_text().splitlines()]


def test_workers_of_two_nodes_decide_together(lab: Lab) -> None:
    """Each of two workers is a task on each of two nodes: the first claims, both advance. The command stays."""
    ranked = lab.with_trainer("ranks")
    shape = ("cluster.nodes=2", "parallel.dp_replicate=2", "model.width=32")
    ranked.sweep(*SMALL, "study.name=crew", "search.workers=2", *shape, "wait=true")
    assert _search_in(lab, "crew").over
    search, notes = _search_in(lab, "crew"), _notes(lab, "crew")
    assert not any(trial.failed for trial in search.trials.values())
    assert len(notes) == sum(len(trial.values) for trial in search.trials.values())
    assert all(len(set(note["nodes"])) == 2 and all(note["nodes"]) for note in notes), notes
    assert {task.state for task in lab.tasks("crew")} == {"COMPLETED"}


def test_a_job_for_each_unit_and_the_jobs_submit_the_next(lab: Lab) -> None:
    """Two jobs at once, and nobody but them: each submits what follows from it as it ends."""
    ranked = lab.with_trainer("ranks")
    said = ranked.sweep(*SMALL, "study.name=units", "search.workers=2", "search.shape=jobs")
    assert "submitted 2 jobs" in said
    wait_for("the end of the search", lambda: _search_in(lab, "units").over, every=0.5)
    search = _search_in(lab, "units")
    units = sum(len(trial.values) for trial in search.trials.values())
    assert len(search.trials) == 4
    assert units >= 4 + 2
    assert len(_notes(lab, "units")) == units
    submitted = [key for event in lab.ledger("units") if event["event"] == "intent" for key in event["keys"]]
    assert len(submitted) == units == len(set(submitted)), "a job each, those that go out together as one array"
    assert "over: 4/4 trials" in ranked.study("status", "units")
