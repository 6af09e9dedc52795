"""The throwaway SLURM cluster of the test session, shared by all of its xdist workers."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.slurm.cluster import ThrowawayCluster
from tests.slurm.install import unavailable


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
