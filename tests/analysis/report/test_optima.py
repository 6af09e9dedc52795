"""One law, one path: what the API answers, fit.json, its frame, the page and the terminal tell the same best sizes."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import analysis as sa
from analysis.report import answer, optima
from analysis.report.figures.data import read_rows
from analysis.report.page import page
from analysis.report.terminal import summary
from analysis.values import study_result
from analysis.values.json_values import to_json
from tests.analysis import studies

DATA = Path(__file__).parents[1] / "data"
RUNS = "docs/example-runs.csv"
ASKED: dict[str, dict[str, Any]] = {
    "surface": {"resamples": 30},
    "no draws": {"resamples": 0},
    "valleys": {"resamples": 30, "approach": "2"},
    "law": {"resamples": 20, "form": "kaplan"},
    "a far target": {"resamples": 0, "budget": 3e25},
}


def fitted(name: str) -> sa.StudyFit:
    return sa.fit(RUNS, sensitivity=False, **ASKED[name])


def curves(ratios: tuple[float, ...] = (5, 10, 20, 40)) -> pd.DataFrame:
    table = studies.isoflop(0, budgets=(1e15, 1e16, 1e17), ratios=ratios)
    parts = [
        table.assign(run=table.index, tokens=share * table["tokens"], flops=share * table["flops"])
        for share in (0.1, 0.2, 0.4, 0.7, 1.0)
    ]
    whole = pd.concat(parts, ignore_index=True)
    return whole.assign(loss=studies.loss(studies.LAW, whole["params"], whole["tokens"]))[
        ["run", "params", "tokens", "flops", "loss"]
    ]


def agrees(fit: sa.StudyFit) -> None:
    plan = fit.recommendation
    assert plan is not None
    assert len(plan.optima) >= 5
    for one in plan.optima:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            best = fit.optimum(one.budget_flops)
        for quantity in ("params", "tokens", "tokens_per_param", "loss", "intervals"):
            assert getattr(one, quantity) == getattr(best, quantity), (one.budget_flops, quantity)
        assert best.approach == plan.approach
    asked = next(one for one in plan.optima if one.budget_flops == plan.budget_flops)
    assert (asked.params, asked.tokens, asked.loss, asked.intervals) == (
        plan.params, plan.tokens, plan.loss, plan.intervals,
    )  # fmt: skip
    budgets = [one.budget_flops for one in plan.optima]
    assert budgets == sorted(budgets)
    frame = fit.optima()
    assert frame["budget_flops"].tolist() == budgets
    assert frame["beyond"].tolist() == [one.beyond for one in plan.optima]
    for quantity in ("params", "tokens", "tokens_per_param"):
        assert frame[quantity].tolist() == [getattr(one, quantity) for one in plan.optima]
        low = [(one.intervals[quantity] or (None,))[0] for one in plan.optima]
        assert frame[f"{quantity}_low"].astype(object).where(frame[f"{quantity}_low"].notna(), None).tolist() == low


@pytest.mark.parametrize("name", ASKED)
def test_the_table_is_what_the_fit_answers_for_each_budget(name: str) -> None:
    agrees(fitted(name))


def test_an_envelope_s_too() -> None:
    every = curves((2.5, 5, 10, 20, 40, 80))
    fit = sa.fit(every, approach="1", resamples=0, sensitivity=False, mid_schedule="exclude")
    assert fit.recommendation is not None
    assert fit.recommendation.approach == "envelope"
    agrees(fit)


def test_an_envelope_of_two_curves_recommends_nothing() -> None:
    fit = sa.fit(curves(), approach="1", resamples=0, sensitivity=False, mid_schedule="exclude")
    said = [check.message for check in fit.checks if check.code == "no_recommendation"]
    assert said == ["the envelope does not qualify (it touches two curves, and two fix any power law)"]


def test_the_valleys_answer_where_the_recommended_law_has_no_best_size() -> None:
    """As a plan for that budget does; up to there the law answers."""
    fit = fitted("surface")
    sizes = [fit.optimum(10.0**n) for n in range(18, 24)]
    assert {one.approach for one in sizes} == {"surface"}
    with pytest.warns(UserWarning, match="no run says whether the law holds there"):
        far = fit.optimum(1e60)
    assert far.approach == sa.plan(fit, 1e60).form == "valleys"


def test_far_beyond_the_runs_an_answer_warns() -> None:
    fit = fitted("surface")
    with pytest.warns(UserWarning, match=r"budget=1e25 is 100000× the largest run: no run says whether") as told:
        fit.optimum(1e25)
    assert told[0].filename == __file__


def test_a_budget_of_the_table_is_answered_without_a_warning() -> None:
    fit = fitted("no draws")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for flops in fit.optima()["budget_flops"]:
            fit.optimum(flops)


def test_it_is_kept_and_read_again(tmp_path: Path) -> None:
    fit = fitted("surface")
    path = fit.save(tmp_path)
    again = study_result.load(path)
    assert again.recommendation is not None
    assert fit.recommendation is not None
    assert again.recommendation.optima == fit.recommendation.optima
    assert set(json.loads(path.read_text())["recommendation"]["optima"][0]) == {
        "budget_flops", "params", "tokens", "tokens_per_param", "loss", "intervals", "beyond",
    }  # fmt: skip


def test_a_file_of_an_earlier_version_is_read_and_tells_no_table() -> None:
    path = DATA / "fit_example.json"
    assert "optima" not in json.loads(path.read_text())["recommendation"]
    fit = study_result.load(path)
    assert optima.lines(to_json(fit)) == []
    assert answer.best_sizes(fit) == ""
    html = page(fit, read_rows(DATA / "runs.csv"), ())
    assert "Compute-optimal sizes" not in html
    assert "best sizes" not in summary(to_json(fit))


def test_without_a_recommendation_the_frame_has_its_columns_and_no_row() -> None:
    fit = sa.fit(RUNS, form="farseer", resamples=0, sensitivity=False, budget=1e40)
    if fit.recommendation is None:
        assert len(fit.optima()) == 0
    assert {"budget_flops", "params", "loss_high", "beyond"} <= set(fit.optima().columns)


def test_the_page_marks_what_lies_beyond_the_data_and_says_why_there_is_no_interval() -> None:
    fit = fitted("no draws").result
    html = page(fit, (), ())
    table = html.partition('id="optima"')[2].partition("</section>")[0]
    assert table.count("beyond the data") == 3
    assert "Where there is no interval: resamples=0." in table
    assert '<a href="#optima">Compute-optimal sizes</a>' in html


def test_the_terminal_aligns_the_columns() -> None:
    lines = summary(to_json(fitted("surface").result)).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("best sizes"))
    head, first = lines[at : at + 2]
    assert head.split() == ["best", "sizes", "FLOPs", "parameters", "tokens", "per", "parameter", "loss"]
    for line in lines[at + 1 : at + 9]:
        assert len(line.removesuffix("  extrapolated")) == len(head) == len(first)
