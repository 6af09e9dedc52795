"""The throwaway SLURM cluster of the test session, shared by all of its xdist workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.slurm.cluster import ThrowawayCluster
from tests.slurm.install import unavailable

# Machines that run tests are shared and slow now and then: an example's time says nothing about the code.
hypothesis.settings.register_profile("shared-machine", deadline=None)
hypothesis.settings.load_profile("shared-machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put these tests first, the longest ahead: mostly they wait, and others can run meanwhile."""
    items.sort(key=lambda item: (item.get_closest_marker("slurm") is None, "time_limit" not in item.name))


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
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of the test session share."""
    base = tmp_path_factory.getbasetemp()
    # Under xdist each worker has a folder of its own in the session's.
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def cluster(slurm_here: None, session_folder: Path) -> Iterator[ThrowawayCluster]:
    """The session's cluster: nodes n1 … n4 with 2 CPUs each, in use by the tests of other workers as well."""
    running = ThrowawayCluster.shared(session_folder / "slurm-cluster")
    yield running
    running.stop()
