"""Workers of a search on SLURM: one array, or single jobs where a site takes none."""

import stat
from pathlib import Path

import pytest

from study.config.schema import ClusterConfig
from study.executors.slurm import site
from study.executors.slurm.limits import Controller, Limits
from study.executors.slurm.nodes import Site
from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import Workers
from study.records import ledger
from study.search.trial_queue import TrialQueue
from study.sweep.__main__ import main
from study.workers import pool
from tests.study.support.searches import advance, make_search

SBATCH = """#!/bin/bash
echo x >> {folder}/sent
[ $(wc -l < {folder}/sent) -gt {most} ] && {{ echo "sbatch: error: {words}" >&2; exit 1; }}
echo "Submitted batch job $(wc -l < {folder}/sent)"
"""
SLURM = ClusterConfig(executor="slurm")


@pytest.fixture
def no_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "read_site", lambda *_: Site(allowed=Limits(Controller(max_array=0))))


def tools(folder: Path, most: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (folder / "sbatch").write_text(SBATCH.format(folder=folder, most=most, words=words))
    (folder / "sbatch").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    "words", ["Batch job submission failed: Invalid account", "QOSMaxSubmitJobPerUserLimit: job submit limit"]
)
def test_a_refused_worker_does_not_hide_those_that_were_submitted(
    no_arrays: None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools(tmp_path / "bin", 2, words, monkeypatch)
    study = make_search(tmp_path / "s")
    with pytest.raises(ValueError, match="2 of 4 workers were submitted, as jobs 1 ") as refused:
        step(study, Services(), Workers(4, SLURM))
    batches = list(ledger.read(study).batches.values())
    assert [(b.job_id, b.abandoned is not None) for b in batches] == [("1", False), ("2", False), (None, True)]
    assert all(word in str(refused.value) for word in (words, f"1 ({batches[0].name})", f"2 ({batches[1].name})"))


def test_a_dry_run_shows_the_jobs_that_would_be_submitted(
    no_arrays: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["search=asha", "budget.tokens=65536", "cluster=slurm", "search.workers=3", "dry_run=true", "-m"]
    words.append("optim.lr=interval(1e-4,1e-2)")
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "SLURM takes no arrays here: once for each of 3 workers." in said
    assert "--array=" not in said
    monkeypatch.setattr(site, "read_site", Site)
    assert main(words) == 0
    assert "#SBATCH --array=0-2%3" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_refuses_what_the_command_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_search(tmp_path / "runs" / "mine")
    before = (tmp_path / "runs" / "mine" / "search.json").read_text()
    words = ["study.name=mine", "search=asha", "budget.tokens=65536", "dry_run=true", "-m"]
    assert main([*words, "optim.lr=interval(1e-4,1e-2)"]) == 2
    assert "study mine holds another search (different: " in capsys.readouterr().err
    assert (tmp_path / "runs" / "mine" / "search.json").read_text() == before


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("search.eta=1", "search.eta=1 is not allowed"),
        ("search.eta=0", "search.eta=0 is not allowed"),
        ("search.min_tokens=100000", "search.min_tokens=100000 is not allowed: at least 1 and at most"),
        ("search.min_tokens=0", "search.min_tokens=0 is not allowed"),
        ("search.stake=1.0", "search.stake=1.0 is not allowed: a share of the resource"),
        ("search.stake=0.25", "search.stake=0.25 is what asha_guarded selects with: it needs search=asha_guarded"),
    ],
)
def test_what_a_search_cannot_be_is_refused_by_the_key_that_says_so(
    word: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["search=asha", "budget.tokens=65536", "dry_run=true", word, "-m", "optim.lr=interval(1e-4,1e-2)"]
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_a_search_that_is_over_is_not_stopped(tmp_path: Path) -> None:
    study = make_search(tmp_path / "s")
    assert advance(study, 1_000).search.over
    before = study.events.read_bytes()
    assert "s: the search is over" in pool.cancel(study)
    assert study.events.read_bytes() == before
    TrialQueue.of(study).record_control("stopped")
    assert "s: stopped; " in pool.cancel(study), "one that was stopped may have workers left to tell"
