"""A corpus and a place to give commands, for the tests on the throwaway SLURM cluster."""

from __future__ import annotations

from pathlib import Path

import filelock
import pytest

from tests.slurm.cluster import ThrowawayCluster
from tests.slurm.lab import TINY, Lab, prepare, write_text


@pytest.fixture(scope="session")
def corpus(session_folder: Path) -> Path:
    """Folder with a small corpus in text/, prepared in text-bytes257/ as TEXT says."""
    folder = session_folder / "slurm-corpus"
    with filelock.FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            write_text(folder / "text")
            prepare(folder)
    return folder


@pytest.fixture
def lab(tmp_path: Path, corpus: Path, cluster: ThrowawayCluster) -> Lab:
    """A folder of its own in which a test gives commands."""
    return Lab(tmp_path, corpus, cluster)


@pytest.fixture(scope="session")
def undisturbed(session_folder: Path, corpus: Path, cluster: ThrowawayCluster) -> dict[str, float]:
    """The losses of the TINY run in one process of this machine that nobody disturbs."""
    lab = Lab(session_folder / "slurm-undisturbed", corpus, cluster)
    with filelock.FileLock(lab.folder.with_suffix(".lock")):
        if not lab.folder.exists():
            lab.folder.mkdir()
            lab.sweep("study.name=undisturbed", *TINY, cluster="local")
    losses: dict[str, float] = lab.outcome("undisturbed")["loss"]
    return losses
