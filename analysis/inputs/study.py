"""The runs of our own studies as records: from a study's folder, and from the MLflow experiment its syncer wrote."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.inputs.columns import BITS_PER_BYTE, LOSS_UNIT, PARAMS_KINDS, finish


def from_runs(
    folder: Path, params_kind: str = "matmul", which: str = "all", loss_unit: str = LOSS_UNIT
) -> pd.DataFrame:
    """Return the frame of a study's folder; points that never started are not rows (attrs["not_started"] counts them).

    attrs["folder"] is the folder, where the runs' learning curves are (:func:`analysis.inputs.frame.checkpoints`).

    A study keeps the points of every command that named it; with `which` "latest" only those of its latest command are
    taken, so that a changed setting does not leave the runs of the old one in the fit. `loss_unit` is nats per token or
    bits per byte. Raises ValueError where the folder is no study, `params_kind` is none of PARAMS_KINDS or `which` is
    neither "all" nor "latest".
    """
    if which not in ("all", "latest"):
        raise ValueError(f"points={which} is not allowed: all, or latest (what the study's latest command asked for)")
    points = folder / "points.jsonl"
    if not points.is_file():
        inside = Path("runs") / folder
        meant = (
            f"did you mean runs={inside}?"
            if (inside / points.name).is_file()
            else f"its results were pulled without its runs, whose table is runs=reports/{folder.name}/runs.csv"
            if (folder / "outcomes.jsonl").is_file()
            else "give runs/STUDY, mlflow:NAME or a file"
        )
        raise ValueError(f"runs={folder} is no study (no {points.name}); {meant}")
    records, waiting = [], 0
    parents: set[str] = set()
    latest = _read(folder / "latest.json") if which == "latest" else None
    if which == "latest" and latest is None:
        raise ValueError(
            f"points=latest: {folder / 'latest.json'} is missing or damaged: run the study's command again"
        )
    for point in _points(points):
        if latest is not None and point["key"] not in latest["keys"]:
            continue
        run = folder / point["key"]
        if not (run / "outcome.json").exists() and not (run / "attempts").is_dir():
            waiting += 1
            continue
        outcome = _read(run / "outcome.json")
        state = outcome["state"] if outcome else _attempt_state(run)
        where = (point["key"], folder.resolve().name, state)
        parents.add(_parent(point["config"]))
        records.append(_record(*where, point["config"], outcome, kind=params_kind, unit=loss_unit))
    frame = finish(_without_trunks(records, parents), waiting)
    frame.attrs["folder"] = str(folder)
    return frame


def from_mlflow(uri: str, experiment: str, params_kind: str = "matmul", loss_unit: str = LOSS_UNIT) -> pd.DataFrame:
    """Return the frame of an MLflow experiment that the study's syncer wrote.

    A study that was removed and run again under its name is another study in the same experiment: the latest counts.
    Raises ValueError where the store cannot be read or has no such experiment.
    """
    from analysis.inputs.tracking_store import in_words, past_proxies, refusal

    # MLflow's own patience with a server that is away, several minutes without a word, is for jobs, not for people.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    shown = _without_password(uri)
    file = Path(uri.removeprefix("sqlite:///"))
    if uri.startswith("sqlite:///") and not file.exists():  # MLflow would make an empty one
        raise ValueError(f"uri={uri}: there is no database {file}; give uri=sqlite:///FILE or uri=http://HOST:PORT")
    if why := refusal(uri, key="uri", write=False):
        raise ValueError(f"runs=mlflow:{experiment}: {shown} cannot be read: {_without_password(why)}")
    past_proxies(uri)
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient
    from sqlalchemy.exc import SQLAlchemyError

    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(experiment)
        if found is None:
            raise ValueError(f"runs=mlflow:{experiment}: {shown} has no such experiment; see mlflow experiments search")
        studies = _search(client, found.experiment_id, "study")
        runs = _search(client, found.experiment_id, "run")
    except (MlflowException, SQLAlchemyError, ModuleNotFoundError) as error:
        said = _without_password(in_words(str(error), uri, key="uri"))
        raise ValueError(f"runs=mlflow:{experiment}: {shown} cannot be read: {said}") from None
    latest = max(studies, key=lambda run: run.info.start_time or 0, default=None)
    if latest is not None and latest.data.tags.get("study_id"):
        runs = [run for run in runs if run.data.tags.get("study_id") == latest.data.tags["study_id"]]
    records = []
    parents: set[str] = set()
    for run in runs:
        tags = run.data.tags
        outcome = json.loads(tags["outcome"]) if tags.get("outcome") else None
        state = outcome["state"] if outcome else tags.get("state", "unknown")
        config = _nested({name: _parsed(value) for name, value in run.data.params.items()})
        where = (tags["point_key"], experiment, state)
        parents.add(_parent(config))
        records.append(_record(*where, config, outcome, kind=params_kind, unit=loss_unit))
    points = int(latest.data.tags.get("points", 0)) if latest is not None else 0
    frame = finish(_without_trunks(records, parents), max(0, points - len(records)))
    frame.attrs["experiment"] = experiment
    return frame


def _without_password(text: str) -> str:
    return re.sub(r"://[^/@\s]*@", "://***@", text)


def _search(client: Any, experiment: str, role: str) -> list[Any]:
    """Return all runs of an experiment with this role, page by page."""
    found, page = [], None
    while True:
        runs = client.search_runs([experiment], f"tags.role = '{role}'", max_results=1000, page_token=page)
        found += runs
        page = runs.token
        if not page:
            return found


def _points(path: Path) -> list[dict[str, Any]]:
    """Return the points of a study, each once; a last line that is being appended is left for later."""
    found: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            break
        try:
            point = json.loads(line)
            found.setdefault(str(point["key"]), point)
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}: line {number} is not a point: {line[:60]!r}; restore or remove it") from None
    return list(found.values())


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(
            f"{path} is not whole ({error}): the run itself mends it from its newest checkpoint, with python -m "
            f"train.run --config {path.with_name('config.yaml')}"
        ) from None


def _attempt_state(run: Path) -> str:
    """Return the state of a run without an outcome, from its latest attempt."""
    numbers = sorted(int(p.name) for p in (run / "attempts").iterdir() if p.name.isdigit())
    ended = _read(run / "attempts" / str(numbers[-1]) / "outcome.json") if numbers else None
    state = str(ended["state"]) if ended else "running"
    return {"completed": "queued", "preempted": "interrupted"}.get(state, state)


def _parent(config: Mapping[str, Any]) -> str:
    """Return the key of the run that this one goes on from; "" for none."""
    return str((config.get("schedule") or {}).get("parent") or "").partition("@")[0]


def _without_trunks(records: list[dict[str, Any]], parents: set[str]) -> list[dict[str, Any]]:
    """Say of runs at constant learning rate that others cool down from: their schedule ends in those, not in them."""
    for record in records:
        if record["schedule"] == "constant" and record["key"] in parents:
            record["schedule_complete"] = False
    return records


def _record(
    key: str,
    study: str,
    state: str,
    config: Mapping[str, Any],
    outcome: Mapping[str, Any] | None,
    *,
    kind: str,
    unit: str = LOSS_UNIT,
) -> dict[str, Any]:
    """Return a run as a row: sizes and losses from its outcome, the rest from its config."""
    if kind not in PARAMS_KINDS:
        raise ValueError(f"params={kind} is not a count of parameters: use one of {', '.join(PARAMS_KINDS)}")
    if unit not in (LOSS_UNIT, BITS_PER_BYTE):
        raise ValueError(f"loss_unit={unit}: a study's runs hold {LOSS_UNIT} and {BITS_PER_BYTE}")
    model, data = config["model"], config["data"]
    reached = outcome or {}
    counts, losses = reached.get("params") or {}, reached.get("loss") or {}
    loss = losses.get(f"validation_{unit.replace(' ', '_')}")
    return {
        "key": key, "study": study, "state": state, "params": counts.get(kind), "params_kind": kind,
        **{f"params_{name}": counts.get(name) for name in PARAMS_KINDS},
        "tokens": reached.get("tokens"), "flops": reached.get("flops"), "flop_rule": reached.get("flop_rule") or "",
        "flops_budget": config["budget"].get("flops"),
        "epochs": reached.get("epochs"), "loss": loss, "loss_unit": unit, "lowest_loss": _lowest(losses, loss),
        "warmup_tokens": None, "bits_per_byte": losses.get("validation_bits_per_byte"), "seed": config.get("seed"),
        "width": model.get("width"), "layers": model.get("layers"), "lr": config["optim"].get("lr"),
        "batch_tokens": config["batch"].get("tokens"), "sequence_length": data.get("sequence_length"),
        "tokenizer": f"{data.get('tokenizer')}{data.get('vocab_size')}", "fingerprint": data.get("fingerprint") or "",
        "flops_per_second": _speed(reached),
        "schedule": config["schedule"].get("name"), "schedule_complete": bool(reached.get("schedule_complete")),
    }  # fmt: skip


def _lowest(losses: Mapping[str, Any], loss: float | None) -> float | None:
    """Return a run's lowest validation loss in the unit of its last one, `loss`."""
    lowest, last = losses.get("lowest_validation_nats_per_token"), losses.get("validation_nats_per_token")
    return None if not (lowest and last and loss) else float(loss) * float(lowest) / float(last)


def _speed(outcome: Mapping[str, Any]) -> float | None:
    """Return the FLOPs per second of training that one device gave; a shared one is a run's for its share of time."""
    seconds = (outcome.get("seconds") or {}).get("train")
    flops = outcome.get("flops_own", outcome.get("flops"))  # a branch has not spent its parent's again
    if not seconds or not flops:
        return None
    devices = float(outcome.get("world_size") or 1) * float(outcome.get("gpu_share") or 1)
    return float(flops) / (float(seconds) * devices)


def _parsed(text: str) -> Any:
    """Return an MLflow parameter's value: JSON where it is, else the text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return {"model.width": 64} as {"model": {"width": 64}}."""
    out: dict[str, Any] = {name: {} for name in ("model", "data", "optim", "batch", "budget", "schedule")}
    for name, value in flat.items():
        *parents, leaf = name.split(".")
        place = out
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = value
    return out
