"""Sources that change between submission and start: jobs of a frozen study run the old ones, others say so."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.environment import python_path
from tests.slurm.cluster import REPOSITORY, wait_for
from tests.slurm.lab import TINY, Lab

pytestmark = pytest.mark.slurm

PACKAGES = ("study", "train", "sweeps", "kernels", "analysis", "hydra_plugins", "conf")
HELD = ("cluster.sbatch={hold: true}", "cluster.requeue=false")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the packages that may be edited, which is the working directory too."""
    root = tmp_path / "checkout"
    for name in PACKAGES:
        shutil.copytree(REPOSITORY / name, root / name)
    (root / "train" / "said.py").write_text("TEXT = 'old'\n", encoding="utf-8")
    return root


def released(lab: Lab, study: str, count: int) -> None:
    """Let a study's jobs start, all that there are to be so far."""
    wait_for(f"{count} submissions of {study}", lambda: len(lab.job_ids(study)) == count)
    lab.cluster.call("scontrol", "release", lab.job_ids(study)[-1])


def test_sources_edited_before_the_job_starts(checkout: Path, corpus: Path, lab: Lab) -> None:
    there = replace(lab, folder=checkout).with_trainer("says", PYTHONPATH=python_path(checkout))
    there.with_trainer("says", SAYS_DIES=1).sweep("study.name=frozen", *TINY, *HELD, "cluster.code=frozen")
    there.sweep("study.name=live", *TINY, *HELD)
    (checkout / "train" / "said.py").write_text("TEXT = 'new'\n", encoding="utf-8")
    released(there, "live", 1)
    for start in (1, 2):  # the first start dies; its job submits the second one, from the code that it has
        released(there, "frozen", start)
    for study in ("frozen", "live"):
        wait_for(f"the end of {study}", (there.run_folder(study) / "outcome.json").exists)
    said = {s: (there.run_folder(s) / "said").read_text(encoding="utf-8").split() for s in ("frozen", "live")}
    assert said == {"frozen": ["old", "old"], "live": ["new"]}
    (version,) = {there.attempt(s, n, "job.json")["code"] for s, n in (("frozen", 1), ("frozen", 2), ("live", 1))}
    assert [there.attempt("frozen", n, "job.json")["source"] for n in (1, 2)] == ["frozen", "frozen"]
    assert there.attempt("live", 1, "job.json")["source"] == "other"
    logs = {s: "".join(p.read_text() for p in (checkout / "runs" / s / "jobs").glob("*.out")) for s in said}
    assert f"code {version}, frozen in {checkout / 'runs' / '.code' / version}" in logs["frozen"]
    assert f"with other code than was recorded for it ({version})" in logs["live"]
