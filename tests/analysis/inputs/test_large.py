"""Tables of very many rows: refused with how to thin them, thinned by run, and progress is said."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.fit import load_frame, parse
from analysis.fit import main as fit_command
from analysis.inputs import large, rows
from tests.analysis import studies


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    yield
    large.log.handlers.clear()
    large.log.setLevel(logging.NOTSET)
    large.log.propagate = True


def checkpoints(path: Path) -> pd.DataFrame:
    """Write the learning curves of twenty runs, ten checkpoints each, in no order; return the last ones."""
    last = studies.isoflop(0, noise=0.003).drop(columns="flops_budget")
    last["run"] = [f"run{i}" for i in range(len(last))]
    parts = []
    for share in np.linspace(0.1, 1.0, 10):
        part = last.assign(tokens=last["tokens"] * share, flops=last["flops"] * share)
        parts.append(part.assign(loss=studies.loss(studies.LAW, part["params"], part["tokens"])))
    pd.concat(parts).sample(frac=1.0, random_state=0).to_csv(path, index=False)
    return parts[-1]


def test_thinning_keeps_the_last_checkpoint_of_every_run(tmp_path: Path) -> None:
    last = checkpoints(tmp_path / "a.csv")
    for every, kept in ((1, 10), (3, 4), (5, 2), (99, 1)):
        found = rows.from_csv(tmp_path / "a.csv", thin=every)
        assert len(found) == 20 * kept
        used = found[found["used"]]
        assert sorted(used["tokens"]) == pytest.approx(sorted(last["tokens"]))
    studies.isoflop(0).to_csv(tmp_path / "b.csv", index=False)
    assert len(rows.from_csv(tmp_path / "b.csv", thin=6)) == 4


QUICK = ("resamples=0", "sensitivity=no", "report=no")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the line in which the command refuses; empty where it answers."""
    code = fit_command([*words, *QUICK])
    said = capsys.readouterr().err
    assert (code == 2) == bool(said), said
    return said


def test_more_rows_than_are_read_or_fitted_are_refused_with_what_thins_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints(tmp_path / "a.csv")
    asked = (f"runs={tmp_path / 'a.csv'}", f"out={tmp_path}")
    monkeypatch.setattr(large, "MOST_READ", 60)
    said = refused(capsys, *asked)
    assert "a.csv has 200 rows, and at most 60 are read" in said and "thin=4 keeps of every run" in said
    assert not refused(capsys, *asked, "thin=4")
    monkeypatch.setattr(large, "MOST_FITTED", 12)
    every = "thin= keeps the last row of every run. where=COLUMN:VALUE keeps a part"
    said = refused(capsys, *asked)
    assert "of 20 runs, and laws are fitted to at most 12" in said and every in said, "no thinning leaves fewer"
    said = refused(capsys, *asked, "thin=4")
    assert "20 rows are to be fitted, and at most 12 are" in said and every in said


def test_the_thinning_that_a_refusal_names_is_one_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows without runs are all fitted: what is enough to read them is not enough to fit them."""
    table = studies.isoflop(0, noise=0.003)
    pd.concat([table] * 10).assign(seed=range(200)).to_csv(tmp_path / "a.csv", index=False)
    asked = (f"runs={tmp_path / 'a.csv'}", f"out={tmp_path}")
    monkeypatch.setattr(large, "MOST_FITTED", 30)
    for most_read in (60, 200):
        monkeypatch.setattr(large, "MOST_READ", most_read)
        assert "thin=7 keeps one row in so many" in refused(capsys, *asked)
        assert not refused(capsys, *asked, "thin=7")
    assert "thin=7 keeps one row" in refused(capsys, *asked, "thin=2"), "thin= counts rows of the file"


def test_short_runs_are_thinned_by_more_than_rows_over_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 20 runs of 10 checkpoints, thin=9 still keeps two of each."""
    checkpoints(tmp_path / "a.csv")
    asked = (f"runs={tmp_path / 'a.csv'}", f"out={tmp_path}")
    monkeypatch.setattr(large, "MOST_READ", 23)
    assert "thin=10 keeps" in refused(capsys, *asked)
    assert not refused(capsys, *asked, "thin=10")


def test_laws_of_compute_alone_are_refused_too_where_rows_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    studies.isoflop(0, noise=0.003)[["flops", "loss"]].to_csv(tmp_path / "a.csv", index=False)
    asked = (f"runs={tmp_path / 'a.csv'}", f"out={tmp_path}", "form=compute")
    monkeypatch.setattr(large, "MOST_FITTED", 12)
    assert "20 rows are to be fitted, and at most 12 are: thin=2 keeps" in refused(capsys, *asked)
    assert not refused(capsys, *asked, "thin=2")


def test_a_million_rows_are_refused_before_they_are_judged(tmp_path: Path) -> None:
    n = 300_000
    table = pd.DataFrame({"params": np.full(n, 1e7), "tokens": 1e9, "flops": 6e16, "loss": 3.0})
    table.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"300000 rows.*thin=15 "):
        rows.from_csv(tmp_path / "a.parquet")


def test_a_long_fit_says_what_it_is_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    studies.isoflop(0, noise=0.003).to_csv(tmp_path / "a.csv", index=False)
    asked = [f"runs={tmp_path / 'a.csv'}", f"out={tmp_path}", "resamples=0", "sensitivity=no", "report=no"]
    assert fit_command(asked) in (0, 3)
    assert capsys.readouterr().err == "", "a short one does not"
    monkeypatch.setattr(large, "SLOW", 10)
    assert fit_command(asked) in (0, 3)
    said = capsys.readouterr().err
    for part in ("20 rows read, 20 of them are fitted", "surface, with 0 resamples", "valleys", "backtest"):
        assert part in said


def test_thin_is_for_files(tmp_path: Path) -> None:
    studies.write_study(tmp_path / "runs" / "a", studies.isoflop(0))
    with pytest.raises(ValueError, match="thin=2 is for files"):
        load_frame(parse([f"runs={tmp_path / 'runs' / 'a'}", "thin=2"]))


def test_where_keeps_rows_of_a_study_too(tmp_path: Path) -> None:
    studies.write_study(tmp_path / "runs" / "a", studies.isoflop(0))
    runs = f"runs={tmp_path / 'runs' / 'a'}"
    whole = load_frame(parse([runs]))
    budget = sorted(whole["flops_budget"].dropna().unique())[-1]
    large = load_frame(parse([runs, f"where=flops_budget:>={budget}"]))
    assert 0 < len(large) < len(whole) and (large["flops_budget"] == budget).all()
    words = shlex.join([runs, f"where=flops_budget:>={budget}"])
    assert large.attrs == {**whole.attrs, "words": words} and list(large.index) == list(range(len(large)))
    with pytest.raises(ValueError, match="where=flops:>1e99 leaves no row"):
        load_frame(parse([runs, "where=flops:>1e99"]))
    with pytest.raises(ValueError, match="columns=params:N is for files"):
        load_frame(parse([runs, "columns=params:N"]))


def test_what_stands_beside_a_fit_takes_fewer_resamples_of_very_many_rows() -> None:
    """So that it takes no more time than of SLOW rows, but at least as many as an interval needs."""
    assert [large.resamples(1000, count) for count in (25, 5_000, 10_000, 20_000, 200_000)] == [200, 200, 100, 50, 50]
    assert [large.resamples(asked, 25) for asked in (0, 60, 150)] == [0, 60, 150]


def test_very_many_rows_take_several_threads_unless_their_number_is_asked() -> None:
    assert large.threads(0, large.SLOW - 1) == 1
    assert 1 <= large.threads(0, large.SLOW) <= 4
    assert [large.threads(asked, count) for asked in (1, 3) for count in (10, 10**5)] == [1, 1, 3, 3]
