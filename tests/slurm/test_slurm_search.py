"""A search of real trained trials on four nodes, while workers are cancelled and a node goes down."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from study.layout import StudyFolder
from study.search.claims import Office
from study.search.state import Search
from tests.slurm.cluster import ClusterError, ThrowawayCluster, wait_for
from tests.slurm.lab import TINY, Lab

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

WORDS = (
    *(word for word in TINY if not word.startswith("optim.lr")),
    "study.name=asha",
    "search=asha",
    "search.trials=6",
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
        return Office.of(folder).search

    wait_for("two claims", lambda: len(search().claims) >= 2, seconds=120)
    killed, fenced = list(search().claims.values())[:2]
    own.cluster.call("scancel", "--signal=KILL", "--full", killed.worker.rpartition("/")[2])
    nodes = {task.job_id: task.nodes for task in own.cluster.queue()}
    node = nodes[fenced.worker.rpartition("/")[2]]
    own.cluster.call("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    wait_for(
        "the node's workers to be gone",
        lambda: node not in {t.nodes for t in own.cluster.queue() if t.state == "RUNNING"},
    )
    wait_for("the node to come back", lambda: _resumed(own, node), seconds=60, every=1.0)
    own.sweep(*WORDS)  # brings the pool back to three workers
    wait_for("the end of the search", lambda: search().over, seconds=240, every=1.0)
    found = search()
    assert len(found.trials) == 6
    assert found.lost_units >= 1
    assert not any(trial.failed for trial in found.trials.values())
    rungs = Counter(at for trial in found.trials.values() for at in trial.values)
    assert rungs[5120] == 6
    assert rungs[10240] >= 3
    for trial in found.trials.values():
        assert all(math.isfinite(value) for value in trial.values.values())
        steps = [trial.values[at] for at in sorted(trial.values)]
        assert steps == sorted(steps, reverse=True)  # it went on from its checkpoint, and learned
    assert "over: 6/6 trials" in own.study("status", "asha")
