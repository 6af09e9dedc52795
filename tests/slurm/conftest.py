"""The throwaway SLURM cluster of the test session.

Every module here carries the marks `slurm` and `xdist_group("slurm")`; the group keeps all of it in one worker
(--dist loadgroup), so that the session starts one cluster. Without that option each worker starts its own, which also works.
"""

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
def cluster(slurm_here: None) -> Iterator[ThrowawayCluster]:
    """The session's cluster: 4 idle nodes n1 … n4 with 2 CPUs each."""
    with ThrowawayCluster() as running:
        yield running
