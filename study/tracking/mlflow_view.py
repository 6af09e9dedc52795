"""How MLflow's pages show a study: saved views with columns, order and charts, and a description with links. Pure.

MLflow keeps a saved view as a tag of the experiment, `mlflow.sharedViewState.<key>`, that holds its name and the page's
state. It lists these under "Views", and opens one at `#/experiments/<id>/runs?viewStateShareKey=<key>`. Which pages a
browser shows, those for training or those for language model applications, is up to the address (`workflowType`), else
to what was chosen in that browser last; the experiment's kind decided it in earlier versions.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from study.records.metric_names import (
    BEST,
    CORE_HOURS,
    FINAL,
    FLOPS,
    GPU_HOURS,
    LOG_FLOPS,
    LOG_PARAMS,
    LOSS,
    PARAMS,
    TOKENS,
    TOKENS_PER_PARAM,
    VALIDATION_LOSS,
)

TAG = "mlflow.sharedViewState."
KEY, LAW_KEY = "study", "law"
KIND = ("mlflow.experimentKind", "custom_model_development")
"""The tag by which earlier versions of MLflow show the pages for training runs."""
NOTE = "mlflow.note.content"
TRAINING = "workflowType=machine_learning"
SIGNED = "*`study sync` writes this description; without this line it is left as it is.*"
TOTALS = (FINAL, PARAMS, TOKENS, FLOPS, TOKENS_PER_PARAM, GPU_HOURS, CORE_HOURS, BEST, VALIDATION_LOSS)
LAW = (
    *(f"law/{name}" for name in ("E", "A", "B", "alpha", "beta", "a")),
    *(f"optimum/{name}" for name in ("flops", "params", "tokens", "loss")),
    *("backtest/relative_error", "law/runs_used", BEST, FLOPS, GPU_HOURS, CORE_HOURS),
)
MOST_PARAMETERS = 6
MOST_RUNS = 100
NAME, STATE = "attributes.`Run Name`", "tags.`state`"
FIRST_COLUMNS = ("1", NAME, "runDateAndNestInfo")
"""What stands before all other columns, as the page calls it: the box to choose a run, its name, when it began."""
NARROW, WIDE = 128, 190
"""Widths of columns [pixels]."""


def page(server: str, experiment: str, charts: bool = False, key: str = KEY) -> str:
    """Return the address of a study's page in one of its views, as a table or with its charts."""
    mode = "&compareRunsMode=CHART" if charts else ""
    return f"{server.rstrip('/')}/#/experiments/{experiment}/runs?viewStateShareKey={key}&{TRAINING}{mode}"


def run_page(experiment: str, run: str) -> str:
    """Return the page of a run, as it goes behind the server's address."""
    return f"#/experiments/{experiment}/runs/{run}?{TRAINING}"


def experiment_tags(
    study: str, experiment: str, parent: str, configs: Sequence[Mapping[str, Any]], law: str = ""
) -> dict[str, str]:
    """Return the tags by which the pages of a study's experiment show it; `parent`: the study's own run."""
    return {
        KIND[0]: KIND[1],
        TAG + KEY: saved_view(f"Runs of {study}", view(varying(configs)), 2),
        TAG + LAW_KEY: saved_view(f"Law of {study}", law_view(), 1),
        NOTE: _note(study, experiment, parent, law),
    }


def saved_view(name: str, state: Mapping[str, Any], number: int) -> str:
    """Return a view as the tag's value; the one with the highest number is listed first."""
    return json.dumps({"name": name, "createdAt": number, "updatedAt": number, "state": encode(state)})


def may_replace(note: str) -> bool:
    """Return whether a description is one of ours, or none at all: what a person wrote stays."""
    return not note.strip() or SIGNED in note


def _note(study: str, experiment: str, parent: str, law: str) -> str:
    """Return the description that all pages of the experiment show; of it, until it is opened, the first line."""
    links = {
        "Runs": page("", experiment).lstrip("/"),
        "Charts": page("", experiment, charts=True).lstrip("/"),
        "Law": page("", experiment, key=LAW_KEY).lstrip("/"),
        "Summary and report": run_page(experiment, parent),
    }
    line = " · ".join(f"[{name}]({link})" for name, link in links.items())
    return f"**{study}** — {line}{f' — {law}' if law else ''}\n\n{SIGNED}\n"


def varying(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the dotted keys whose values tell configs apart, those with the fewest other values first.

    Values that follow from others (kv_heads from width) are left out where a key before them tells the same apart.
    """
    columns: dict[str, tuple[Any, ...]] = {}
    for key in configs[0] if configs else ():
        values = tuple(json.dumps(config.get(key), default=str) for config in configs)
        if len(set(values)) > 1:
            columns[key] = values
    found: dict[tuple[int, ...], str] = {}
    for key, values in columns.items():
        groups = tuple(values.index(value) for value in values)
        found.setdefault(groups, key)
    return sorted(found.values(), key=lambda key: len(set(columns[key])))[:MOST_PARAMETERS]


def view(parameters: Sequence[str]) -> dict[str, Any]:
    """Return the state of the page: runs by final loss, what they came to and what tells them apart, and the charts."""
    scaling, curves, more = "scaling", "curves", "more"
    charts = [
        _points("size", FINAL, scaling, over=LOG_PARAMS),
        _points("compute", FINAL, scaling, over=LOG_FLOPS),
        _line("validation-compute", VALIDATION_LOSS, curves, over=LOG_FLOPS),
        _line("validation", VALIDATION_LOSS, curves, over=TOKENS),
        _line("train", LOSS, curves, over=TOKENS),
        {**_chart("BAR", "final", more), "metricKey": FINAL, "selectedMetricKeys": [FINAL]},
    ]
    if len(parameters) > 1:
        chosen = {"selectedParams": list(parameters), "selectedMetrics": [FINAL], "showAllRuns": True}
        charts.append({**_chart("PARALLEL", "together", more), **chosen})
    sections = ((scaling, "Scaling: final loss by size and by compute"), (curves, "Curves"), (more, "Comparison"))
    totals, settings = [f"metrics.`{name}`" for name in TOTALS], [f"params.`{name}`" for name in parameters]
    return {
        "searchFilter": "tags.role = 'run'",
        "orderByKey": f"metrics.`{FINAL}`",
        "orderByAsc": True,
        "selectedColumns": [*totals, *settings, "attributes.`Duration`", STATE],
        "columnOrder": [*FIRST_COLUMNS, *totals, *settings, "duration", STATE],
        "columnWidths": {NAME: WIDE, **dict.fromkeys((*totals, *settings), NARROW)},
        "runsHiddenMode": "SHOW_ALL",
        "compareRunCharts": charts,
        "compareRunSections": [
            {"uuid": name, "name": title, "display": True, "isReordered": False, "columns": 2}
            for name, title in sections
        ],
        "isAccordionReordered": True,  # else MLflow sorts the sections by name
        "hideEmptyCharts": True,
    }


def law_view() -> dict[str, Any]:
    """Return the state of the page that shows the study's own run: its law and what it cost.

    The same columns serve to compare studies: choose several experiments and this view's filter.
    """
    columns = [f"metrics.`{name}`" for name in LAW]
    return {
        "searchFilter": "tags.role = 'study'",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "selectedColumns": columns,
        "columnOrder": [*FIRST_COLUMNS, *columns],
        "columnWidths": {NAME: WIDE, **dict.fromkeys(columns, NARROW)},
        "runsHiddenMode": "SHOW_ALL",
    }


def encode(state: Mapping[str, Any]) -> str:
    """Return the state as the tag's value: compressed, for a tag holds 5,000 characters."""
    text = json.dumps(state, separators=(",", ":"))
    return "deflate;" + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _points(name: str, metric: str, section: str, over: str) -> dict[str, Any]:
    axes = {"xaxis": {"key": over, "type": "METRIC"}, "yaxis": {"key": metric, "type": "METRIC"}}
    return {**_chart("SCATTER", name, section), **axes}


def _line(name: str, metric: str, section: str, over: str) -> dict[str, Any]:
    axis = {"xAxisKey": "metric", "selectedXAxisMetricKey": over, "useGlobalXaxisKey": False}
    more = {"xAxisScaleType": "linear", "scaleType": "log", "lineSmoothness": 0, "useGlobalLineSmoothing": False}
    shown = {"yAxisKey": "metric", "yAxisExpressions": [], "range": {}, "displayPoints": metric != LOSS}
    chosen = {"metricKey": metric, "selectedMetricKeys": [metric]}
    return {**_chart("LINE", name, section), **chosen, **axis, **more, **shown}


def _chart(kind: str, name: str, section: str) -> dict[str, Any]:
    about = {"type": kind, "uuid": f"study-{name}", "metricSectionId": section, "runsCountToCompare": MOST_RUNS}
    return {**about, "deleted": False, "isGenerated": False}
