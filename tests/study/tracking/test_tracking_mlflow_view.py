from __future__ import annotations

import base64
import json
import re
import zlib

import pytest

from study.tracking.mlflow_view import (
    LETTER,
    SIGNED,
    encode,
    experiment_tags,
    law_view,
    links,
    may_replace,
    page,
    run_page,
    varying,
    view,
)


@pytest.mark.parametrize(
    ("configs", "keys"),
    [
        ([], []),
        ([{"a": 1}], []),
        ([{"a": 1, "b": 2}, {"a": 1, "b": 3}], ["b"]),
        ([{"width": 16, "heads": 1}, {"width": 32, "heads": 2}], ["width"]),
        ([{"w": 1, "s": 1}, {"w": 2, "s": 1}, {"w": 3, "s": 2}], ["s", "w"]),
        ([{"w": 1, "s": (1, 2)}, {"w": 1, "s": (1, 3)}], ["s"]),
    ],
)
def test_what_tells_points_apart(configs: list[dict[str, object]], keys: list[str]) -> None:
    assert varying(configs) == keys


def test_what_was_swept_comes_before_what_follows_from_it() -> None:
    """budget.tokens and mlp_width follow from width and budget, and have other values than each of them."""
    configs: list[dict[str, object]] = [
        {"mlp_width": 8 * (w // 8), "budget.tokens": c * w, "width": w, "heads": w // 4, "budget.flops": c, "lr": 0.1}
        for w in (4, 8, 12)
        for c in (10, 20)
    ]
    assert varying(configs, {"width", "budget.flops", "lr"}) == ["budget.flops", "width"]
    many = [{f"k{k}": k * (n + 1) % (k + 2) for k in range(9)} for n in range(30)]
    assert len(varying(many, set(many[0]))) == 6, "as many as the table has room for"
    branches = [{"schedule.parent": "a@1", "lr": 1}, {"schedule.parent": "b@1", "lr": 2}]
    assert varying(branches, {"schedule.parent", "lr"}) == ["lr"]


def test_a_search_is_shown_by_what_it_swept_and_the_best_loss_of_trials_that_ended_early() -> None:
    state = view(["optim.lr"], search=True)
    assert state["orderByKey"] == "metrics.`best_loss`"
    assert {"tags.`trial`", "tags.`rung`"} <= set(state["selectedColumns"])
    first = state["compareRunCharts"][0]
    assert (first["xaxis"], first["yaxis"]["key"]) == ({"key": "optim.lr", "type": "PARAM"}, "best_loss")
    assert [section["uuid"] for section in state["compareRunSections"]] == ["swept", "curves", "more"]
    sized = view(["budget.flops", "model.width", "optim.lr"])
    assert [section["uuid"] for section in sized["compareRunSections"]] == ["scaling", "curves", "swept", "more"]


def test_names_of_runs_have_the_room_that_they_need() -> None:
    widths = [view([], longest=letters)["columnWidths"]["attributes.`Run Name`"] for letters in (0, 30, 300)]
    assert widths == [150, 244, 340]
    shown = view([])["columnWidths"]
    assert shown["metrics.`flops`"] > shown["metrics.`final_loss`"], "FLOPs have many digits, and all are shown"


def test_titles_of_sections_have_room_beside_mlflows_assistant() -> None:
    for search in (False, True):
        sections = view(["model.width", "optim.lr", "seed"], search=search)["compareRunSections"]
        assert max(len(section["name"]) for section in sections) <= 22, "as much as MLflow shows at 1400 pixels"


def test_the_view_is_small_enough_for_a_tag_and_is_read_back() -> None:
    names = [f"section.quite_a_long_name_{number}" for number in range(6)]
    state = view(names)
    text = encode(state)
    assert len(text) < 5000
    assert json.loads(zlib.decompress(base64.b64decode(text.removeprefix("deflate;")))) == state
    assert {chart["metricSectionId"] for chart in state["compareRunCharts"]} == {
        section["uuid"] for section in state["compareRunSections"]
    }
    assert len({chart["uuid"] for chart in state["compareRunCharts"]}) == len(state["compareRunCharts"])
    assert f"params.`{names[0]}`" in state["selectedColumns"]
    assert set(state["columnWidths"]) <= set(state["columnOrder"]), "MLflow takes widths of columns in order only"
    assert set(state["selectedColumns"]) - {"attributes.`Duration`"} <= set(state["columnOrder"])


def test_the_law_of_a_study_stands_beside_what_was_swept_for_it() -> None:
    """What three keys need is wider than a number: `budget.flops, model.layers, model.width`."""
    state = law_view()
    assert state["selectedColumns"][:3] == ["params.`swept`", "params.`data.name`", "metrics.`law/E`"]
    assert state["columnWidths"]["params.`swept`"] >= LETTER * len("budget.flops, model.layers, model.width")


def test_addresses() -> None:
    table = "http://127.0.0.1:5000/#/experiments/7/runs?viewStateShareKey=study&workflowType=machine_learning"
    assert page("http://127.0.0.1:5000/", "7") == table
    assert page("http://127.0.0.1:5000", "7", charts=True) == f"{table}&compareRunsMode=CHART"
    assert run_page("7", "abc") == "#/experiments/7/runs/abc?workflowType=machine_learning"


def test_an_experiment_is_told_how_to_show_the_study() -> None:
    tags = experiment_tags("grid", ["seed"])
    stored = json.loads(tags["mlflow.sharedViewState.study"])
    assert (stored["name"], type(stored["createdAt"])) == ("Runs of grid", int)
    assert stored["state"] == encode(view(["seed"]))
    assert all(len(value) < 5000 for value in tags.values())
    assert re.findall(r"\((#/experiments/7/runs[^)]*)\)", links("7", "parent", "report/report.html")) == [
        page("", "7").lstrip("/"),
        page("", "7", charts=True).lstrip("/"),
        page("", "7", key="law").lstrip("/"),
        run_page("7", "parent"),
        "#/experiments/7/runs/parent/artifacts/report/report.html?workflowType=machine_learning",
    ]


@pytest.mark.parametrize(("note", "ours"), [("", True), (" \n", True), ("mine", False), ("edited\n" + SIGNED, True)])
def test_a_description_that_a_person_wrote_stays(note: str, ours: bool) -> None:
    assert may_replace(note) is ours
