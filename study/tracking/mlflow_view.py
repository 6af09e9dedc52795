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

TAG = "mlflow.sharedViewState."
KEY = "study"
KIND = ("mlflow.experimentKind", "custom_model_development")
"""The tag by which earlier versions of MLflow show the pages for training runs."""
NOTE = "mlflow.note.content"
TRAINING = "workflowType=machine_learning"
SIGNED = "*`study sync` writes this description; without this line it is left as it is.*"
LOSS, TRAIN, TOKENS = "validation_loss", "train_loss", "tokens"
COLUMNS = ("tags.`state`", f"metrics.`{LOSS}`", f"metrics.`{TRAIN}`", f"metrics.`{TOKENS}`")
AFTER = ("attributes.`Duration`", "tags.`attempt`", "tags.`nodes`")
MOST_PARAMETERS = 6
MOST_RUNS = 20


def page(server: str, experiment: str, charts: bool = False) -> str:
    """Return the address of a study's page, as a table or with its charts."""
    mode = "&compareRunsMode=CHART" if charts else ""
    return f"{server.rstrip('/')}/#/experiments/{experiment}/runs?viewStateShareKey={KEY}&{TRAINING}{mode}"


def run_page(experiment: str, run: str) -> str:
    """Return the page of a run, as it goes behind the server's address."""
    return f"#/experiments/{experiment}/runs/{run}?{TRAINING}"


def experiment_tags(study: str, experiment: str, parent: str, configs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the tags by which the pages of a study's experiment show it; `parent`: the study's own run."""
    state = view(varying(configs))
    return {
        KIND[0]: KIND[1],
        TAG + KEY: saved_view(f"Runs of {study}", state, 1),
        NOTE: _note(study, experiment, parent),
    }


def saved_view(name: str, state: Mapping[str, Any], number: int) -> str:
    """Return a view as the tag's value; the one with the highest number is listed first."""
    return json.dumps({"name": name, "createdAt": number, "updatedAt": number, "state": encode(state)})


def may_replace(note: str) -> bool:
    """Return whether a description is one of ours, or none at all: what a person wrote stays."""
    return not note.strip() or SIGNED in note


def _note(study: str, experiment: str, parent: str) -> str:
    """Return the description that all pages of the experiment show; of it, until it is opened, the first line."""
    links = {
        "Runs": page("", experiment).lstrip("/"),
        "Charts": page("", experiment, charts=True).lstrip("/"),
        "Report and config": run_page(experiment, parent),
    }
    line = " · ".join(f"[{name}]({link})" for name, link in links.items())
    return f"**{study}** — {line}\n\n{SIGNED}\n"


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
    """Return the state of the page: the runs by validation loss, what tells them apart as columns, and four charts."""
    section = "losses"
    charts = [
        _line("train", TRAIN, section, log=True),
        _line("validation", LOSS, section, log=False),
        {**_chart("BAR", "final", section), "metricKey": LOSS, "selectedMetricKeys": [LOSS]},
    ]
    for name in parameters[:2]:
        axes = {"xaxis": {"key": name, "type": "PARAM"}, "yaxis": {"key": LOSS, "type": "METRIC"}}
        charts.append({**_chart("SCATTER", f"by-{name}", section), **axes, "runsCountToCompare": 100})
    if len(parameters) > 1:
        chosen = {"selectedParams": list(parameters), "selectedMetrics": [LOSS], "showAllRuns": True}
        charts.append({**_chart("PARALLEL", "together", section), **chosen})
    return {
        "searchFilter": "tags.role = 'run'",
        "orderByKey": f"metrics.`{LOSS}`",
        "orderByAsc": True,
        "selectedColumns": [*COLUMNS, *(f"params.`{name}`" for name in parameters), *AFTER],
        "runsHiddenMode": "FIRST_20_RUNS",
        "compareRunCharts": charts,
        "compareRunSections": [{"uuid": section, "name": "Losses", "display": True, "isReordered": False}],
        "isAccordionReordered": False,
        "hideEmptyCharts": True,
    }


def encode(state: Mapping[str, Any]) -> str:
    """Return the state as the tag's value: compressed, for a tag holds 5,000 characters."""
    text = json.dumps(state, separators=(",", ":"))
    return "deflate;" + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _line(name: str, metric: str, section: str, log: bool) -> dict[str, Any]:
    scale = "log" if log else "linear"
    axis = {"xAxisKey": "metric", "selectedXAxisMetricKey": TOKENS, "useGlobalXaxisKey": False}
    more = {"xAxisScaleType": scale, "scaleType": scale, "lineSmoothness": 0, "useGlobalLineSmoothing": False}
    shown = {"yAxisKey": "metric", "yAxisExpressions": [], "range": {}}
    chosen = {"metricKey": metric, "selectedMetricKeys": [metric]}
    return {**_chart("LINE", name, section), **chosen, **axis, **more, **shown}


def _chart(kind: str, name: str, section: str) -> dict[str, Any]:
    about = {"type": kind, "uuid": f"study-{name}", "metricSectionId": section, "runsCountToCompare": MOST_RUNS}
    return {**about, "deleted": False, "isGenerated": False}
