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
from collections.abc import Collection, Mapping, Sequence
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
WORDS = {FINAL: "Final loss", BEST: "Best loss"}
TRAINING = "workflowType=machine_learning"
SIGNED = "*`study sync` writes this description; without this line it is left as it is.*"
TOTALS = (FINAL, PARAMS, TOKENS, FLOPS, TOKENS_PER_PARAM, GPU_HOURS, CORE_HOURS)
TRIAL = ("trial", "rung")
"""Tags of a search's runs that its table shows; `rung` in tokens."""
LAW = (
    *(f"law/{name}" for name in ("E", "A", "B", "alpha", "beta", "a")),
    *(f"optimum/{name}" for name in ("flops", "params", "tokens", "loss")),
    *("backtest/relative_error", "law/runs_used", BEST, FLOPS, GPU_HOURS, CORE_HOURS),
)
ASKED = ("swept", "data.name")
"""Parameters of the study's own run that its table shows: what was asked."""
MOST_PARAMETERS = 6
MOST_SWEPT = 3
MOST_RUNS = 100
NAME, STATE = "attributes.`Run Name`", "tags.`state`"
FIRST_COLUMNS = ("1", NAME, "runDateAndNestInfo")
"""What stands before all other columns, as the page calls it: the box to choose a run, its name, when it began."""
NARROW, DIGITS, WIDE, KEYS = 124, 164, (150, 340), 260
"""Widths of columns [pixels]: of most, of FLOPs, which MLflow shows with all their digits, of names between two, of
three keys that were swept."""
LETTER = 6.2
"""Mean width of a letter of a run's name [pixels], beside which stand 58 pixels of colour and margins."""
PARENT_KEY = "schedule.parent"
"""Says where a run goes on from, which no column has room for."""
SIZES = ("model.", "budget.")
"""Sections whose keys the charts over size and compute show: other swept keys have charts of their own."""


def page(server: str, experiment: str, charts: bool = False, key: str = KEY) -> str:
    """Return the address of a study's page in one of its views, as a table or with its charts."""
    mode = "&compareRunsMode=CHART" if charts else ""
    return f"{server.rstrip('/')}/#/experiments/{experiment}/runs?viewStateShareKey={key}&{TRAINING}{mode}"


def run_page(experiment: str, run: str) -> str:
    """Return the page of a run, as it goes behind the server's address."""
    return f"#/experiments/{experiment}/runs/{run}?{TRAINING}"


def artifact_page(experiment: str, run: str, path: str) -> str:
    """Return the page that shows an artifact of a run, as it goes behind the server's address."""
    return f"#/experiments/{experiment}/runs/{run}/artifacts/{path}?{TRAINING}"


def experiment_tags(study: str, parameters: Sequence[str], *, search: bool = False, longest: int = 0) -> dict[str, str]:
    """Return the tags by which the pages of a study's experiment show it.

    parameters: keys that tell its runs apart. search: whether a search made them. longest: name of a run [letters].
    """
    return {
        KIND[0]: KIND[1],
        TAG + KEY: saved_view(f"Runs of {study}", view(parameters, search=search, longest=longest), 2),
        TAG + LAW_KEY: saved_view(f"Law of {study}", law_view(), 1),
    }


def saved_view(name: str, state: Mapping[str, Any], number: int) -> str:
    """Return a view as the tag's value; the one with the highest number is listed first."""
    return json.dumps({"name": name, "createdAt": number, "updatedAt": number, "state": encode(state)})


def may_replace(note: str) -> bool:
    """Return whether a description is one of ours, or none at all: what a person wrote stays."""
    return not note.strip() or SIGNED in note


def links(experiment: str, parent: str, report: str = "", *, law: bool = True) -> str:
    """Return the ways from an experiment's description to its pages.

    report: its path among the parent's artifacts. law: whether there is one to show.

    The first line of a description is all that MLflow shows until it is opened; links need no marks between them.
    """
    found = {
        "Runs": page("", experiment).lstrip("/"),
        "Charts": page("", experiment, charts=True).lstrip("/"),
        **({"Law": page("", experiment, key=LAW_KEY).lstrip("/")} if law else {}),
        "Summary": run_page(experiment, parent),
        **({"Report": artifact_page(experiment, parent, report)} if report else {}),
    }
    return " ".join(f"[{name}]({link})" for name, link in found.items())


def varying(configs: Sequence[Mapping[str, Any]], swept: Collection[str] = ()) -> list[str]:
    """Return the dotted keys whose values tell configs apart: those that were swept first, then by fewest values.

    A key that was not swept is left out unless it tells apart what the keys before it do not, and so is a swept one
    whose values follow another's: kv_heads and mlp_width from width.
    """
    columns: dict[str, tuple[str, ...]] = {}
    for key in (key for key in (configs[0] if configs else ()) if key != PARENT_KEY):
        values = tuple(json.dumps(config.get(key), default=str) for config in configs)
        if len(set(values)) > 1:
            columns[key] = values
    found: list[str] = []
    apart: list[tuple[str, ...]] = [()] * len(configs)
    seen: set[tuple[int, ...]] = set()
    for key in sorted(columns, key=lambda key: (key not in swept, len(set(columns[key])))):
        values = columns[key]
        groups = tuple(values.index(value) for value in values)
        finer = [(*before, value) for before, value in zip(apart, values, strict=True)]
        if groups not in seen and (key in swept or len(set(finer)) > len(set(apart))):
            found, apart = [*found, key], finer
            seen.add(groups)
    return found[:MOST_PARAMETERS]


def view(parameters: Sequence[str], *, search: bool = False, longest: int = 0) -> dict[str, Any]:
    """Return the state of the page: runs by loss, what they came to and what tells them apart, and the charts.

    Most runs of a search end early: they are shown, and ordered, by the best loss that they reached.
    """
    loss = BEST if search else FINAL
    totals = [f"metrics.`{name}`" for name in ((BEST, *TOTALS) if search else TOTALS)]
    settings = [f"params.`{name}`" for name in parameters]
    tags = [f"tags.`{name}`" for name in TRIAL] if search else []
    width = min(max(WIDE[0], round(58 + LETTER * longest)), WIDE[1])
    return {
        "searchFilter": "tags.role = 'run'",
        "orderByKey": f"metrics.`{loss}`",
        "orderByAsc": True,
        "selectedColumns": [*totals, *settings, "attributes.`Duration`", STATE, *tags],
        "columnOrder": [*FIRST_COLUMNS, STATE, *tags, *totals, *settings, "duration"],
        "columnWidths": {NAME: width, **_widths((STATE, *tags, *totals, *settings))},
        "runsHiddenMode": "SHOW_ALL",
        **_charts(parameters, loss, search),
        "isAccordionReordered": True,  # else MLflow sorts the sections by name
        "hideEmptyCharts": True,
    }


def _widths(columns: Sequence[str]) -> dict[str, int]:
    return {name: DIGITS if name.endswith("flops`") else NARROW for name in columns}


def _charts(parameters: Sequence[str], loss: str, search: bool) -> dict[str, Any]:
    """Return the sections of charts: those over size and compute unless a search swept neither."""
    scaling, swept, curves, more = "scaling", "swept", "curves", "more"
    sized = not search or any(name.startswith(SIZES) for name in parameters)
    keys = [name for name in parameters if not name.startswith((*SIZES, "seed"))][:MOST_SWEPT]
    charts = [_points(f"{swept}-{key}", loss, swept, over=key, kind="PARAM") for key in keys]
    if sized:
        charts += [
            _points("size", loss, scaling, over=LOG_PARAMS),
            _points("compute", loss, scaling, over=LOG_FLOPS),
        ]
    charts += [
        _line("validation-compute", VALIDATION_LOSS, curves, over=LOG_FLOPS),
        _line("validation", VALIDATION_LOSS, curves, over=TOKENS),
        _line("train", LOSS, curves, over=TOKENS),
        {**_chart("BAR", "final", more), "metricKey": loss, "selectedMetricKeys": [loss]},
    ]
    if len(parameters) > 1:
        chosen = {"selectedParams": list(parameters), "selectedMetrics": [loss], "showAllRuns": True}
        charts.append({**_chart("PARALLEL", "together", more), **chosen})
    titles = {
        swept: f"{WORDS[loss]} by setting",
        scaling: f"Scaling: {WORDS[loss].lower()}",
        curves: "Loss curves",
        more: "Comparison",
    }  # 22 letters have room at 1400 pixels beside MLflow's assistant; each chart names its axes
    order = (swept, scaling, curves, more) if search else (scaling, curves, swept, more)
    filled = [name for name in order if any(chart["metricSectionId"] == name for chart in charts)]
    sections = [
        {"uuid": name, "name": titles[name], "display": True, "isReordered": False, "columns": 2} for name in filled
    ]
    return {"compareRunCharts": charts, "compareRunSections": sections}


def law_view() -> dict[str, Any]:
    """Return the state of the page that shows the study's own run: its law and what it cost.

    The same columns serve to compare studies: choose several experiments and this view's filter.
    """
    columns = [*(f"params.`{name}`" for name in ASKED), *(f"metrics.`{name}`" for name in LAW)]
    return {
        "searchFilter": "tags.role = 'study'",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "selectedColumns": columns,
        "columnOrder": [*FIRST_COLUMNS, *columns],
        "columnWidths": {NAME: WIDE[0], **_widths(columns), columns[0]: KEYS},
        "runsHiddenMode": "SHOW_ALL",
    }


def encode(state: Mapping[str, Any]) -> str:
    """Return the state as the tag's value: compressed, for a tag holds 5,000 characters."""
    text = json.dumps(state, separators=(",", ":"))
    return "deflate;" + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _points(name: str, metric: str, section: str, over: str, kind: str = "METRIC") -> dict[str, Any]:
    axes = {"xaxis": {"key": over, "type": kind}, "yaxis": {"key": metric, "type": "METRIC"}}
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
