"""The small files beside fit.json hold what people compare, and nothing that changes by itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from analysis.fit import write as write_fit
from analysis.results import tracked
from analysis.values import study_result

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="session")
def found() -> study_result.Fit:
    return study_result.load(DATA / "fit_example.json")


def test_metrics_are_those_of_the_fit(found: study_result.Fit) -> None:
    plan, test = found.recommendation, found.backtest
    assert plan is not None and test is not None
    said = tracked.metrics(found)
    assert list(said)[:5] == ["a", "loss", "N", "D", "backtest"] and list(said)[-1] == "runs"
    assert said["N"] == pytest.approx(plan.params, rel=1e-5)
    assert said["backtest"] == pytest.approx(test.relative_error, rel=1e-5)
    assert said["runs"] == found.runs.used
    assert len(said) <= 12


def test_what_there_is_none_of_is_left_out(found: study_result.Fit) -> None:
    unsure = {**found.identified, "E": replace(found.identified["E"], identified=False)}
    said = tracked.metrics(replace(found, recommendation=None, backtest=None, identified=unsure))
    assert not {"a", "loss", "N", "D", "backtest", "E"} & said.keys()
    assert said["alpha"] == pytest.approx(found.params["alpha"], rel=1e-5)


def test_a_fit_is_the_same_file_whenever_it_was_made(found: study_result.Fit, tmp_path: Path) -> None:
    frame = pd.read_csv(DATA / "runs.csv")
    for name, date in (("one", "2026-01-01T00:00:00+00:00"), ("two", "2027-01-01T00:00:00+00:00")):
        write_fit(replace(found, created=date), frame, tmp_path / name)
        assert study_result.load(tmp_path / name / "fit.json").created == date
    for name in ("fit.json", "runs.csv", "points.csv", "metrics.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_fit_that_was_brought_alone_or_is_of_an_earlier_version_is_read(
    found: study_result.Fit, tmp_path: Path
) -> None:
    study_result.save(found, tmp_path / "fit.json")
    (tmp_path / "fit.created").unlink()
    assert study_result.load(tmp_path / "fit.json").created == ""
    fields = json.loads((tmp_path / "fit.json").read_text())
    (tmp_path / "fit.json").write_text(json.dumps({**fields, "created": "2025-05-05T05:05:05+00:00"}))
    assert study_result.load(tmp_path / "fit.json").created == "2025-05-05T05:05:05+00:00"


def test_points_have_the_budget_of_their_group(found: study_result.Fit) -> None:
    frame = pd.read_csv(DATA / "runs.csv")
    for given in (frame, frame.assign(flops_budget=float("nan"))):
        rows = tracked.points(found, given)
        assert len(rows) == int(frame["used"].sum())
        assert list(rows["budget"]) == sorted(rows["budget"])
        assert rows["budget"].nunique() == found.runs.budgets
