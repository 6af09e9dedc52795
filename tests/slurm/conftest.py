"""The throwaway SLURM cluster of the test session, shared by all of its xdist workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import ThrowawayCluster
from tests.slurm.install import unavailable
from tests.slurm.lab import TINY, Lab, write_text


def require_slurm() -> None:
    """Skip with the reason where the cluster cannot run; in CI that is a failure."""
    reason = unavailable()
    if reason is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI=true, but the tests on a real SLURM cannot run: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def slurm_here() -> None:
    """What a test asks for that starts clusters of its own."""
    require_slurm()


@pytest.fixture(scope="session")
def cluster(slurm_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThrowawayCluster]:
    """The session's cluster: nodes n1 … n4 with 2 CPUs each, in use by the tests of other workers as well."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # each worker has a folder of its own in the session's
    running = ThrowawayCluster.shared(base / "slurm-cluster")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a small corpus in text/, prepared by the first study that needs it."""
    folder = tmp_path_factory.mktemp("corpus")
    write_text(folder / "text")
    return folder


@pytest.fixture
def lab(tmp_path: Path, corpus: Path, cluster: ThrowawayCluster) -> Lab:
    """A folder of its own in which a test gives commands."""
    return Lab(tmp_path, corpus, cluster)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, corpus: Path, cluster: ThrowawayCluster) -> dict[str, float]:
    """The losses of the TINY run in one process of this machine that nobody disturbs."""
    lab = Lab(tmp_path_factory.mktemp("undisturbed"), corpus, cluster)
    lab.sweep("study.name=undisturbed", *TINY, cluster="local")
    losses: dict[str, float] = lab.outcome("undisturbed")["loss"]
    return losses
