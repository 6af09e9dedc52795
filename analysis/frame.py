"""From run folders, MLflow or a file to one tidy frame: a row a run, with the meaning of its numbers beside it.

Columns are in :data:`COLUMNS`. Runs that failed or are under way are rows too: `drop_code` and `drop_reason` say why
no fit uses them (both are empty for the rows that fits use). Run folders and MLflow give equal frames.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.rows import Rows, rows

PARAMS_KINDS = ("matmul", "total", "non_embedding")
LOSS_UNIT = "nats per token"
COLUMNS = (
    "key", "study", "state", "params", "params_kind", "params_matmul", "params_total", "params_non_embedding", "tokens",
    "flops", "flop_rule", "flops_budget", "loss", "loss_unit", "bits_per_byte", "seed", "width", "layers", "lr",
    "batch_tokens", "sequence_length", "tokenizer", "fingerprint", "schedule", "schedule_complete", "used",
    "drop_code", "drop_reason",
)  # fmt: skip
REQUIRED = ("params", "tokens", "flops", "loss")
ONE_KIND = {
    "params_kind": "counts of parameters",
    "flop_rule": "FLOP rules",
    "loss_unit": "units of loss",
    "tokenizer": "tokenizers (their losses per token cannot be compared)",
    "fingerprint": "prepared corpora (their validation sets differ)",
    "sequence_length": "sequence lengths (they change the loss and the FLOPs)",
}
_TEXT = ("key", "study", "state", "params_kind", "flop_rule", "loss_unit", "tokenizer", "fingerprint", "schedule")


def from_runs(folder: Path, params_kind: str = "matmul", which: str = "all") -> pd.DataFrame:
    """Return the frame of a study's folder; points that never started are not rows (attrs["not_started"] counts them).

    A study keeps the points of every command that named it; with `which` "latest" only those of its latest command are
    taken, so that a changed setting does not leave the runs of the old one in the fit. Raises ValueError where the
    folder is no study, `params_kind` is none of PARAMS_KINDS or `which` is neither "all" nor "latest".
    """
    if which not in ("all", "latest"):
        raise ValueError(f"points={which} is not allowed: all, or latest (what the study's latest command asked for)")
    points = folder / "points.jsonl"
    if not points.is_file():
        raise ValueError(f"runs={folder} is no study (no points.jsonl); give runs/STUDY, mlflow:NAME or a file")
    records, waiting = [], 0
    latest = _read(folder / "latest.json") if which == "latest" else None
    if which == "latest" and latest is None:
        raise ValueError(
            f"points=latest: {folder / 'latest.json'} is missing or damaged: give the study's command again"
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
        records.append(_record(point["key"], folder.resolve().name, state, point["config"], outcome, kind=params_kind))
    return _finish(records, waiting)


def from_mlflow(uri: str, experiment: str, params_kind: str = "matmul") -> pd.DataFrame:
    """Return the frame of an MLflow experiment that the study's syncer wrote.

    A study that was removed and run again under its name is another study in the same experiment: the latest counts.
    Raises ValueError where the store cannot be read or has no such experiment.
    """
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    # MLflow's own patience with a server that is away, several minutes without a word, is for jobs, not for people.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    shown = _without_password(uri)
    file = Path(uri.removeprefix("sqlite:///"))
    if uri.startswith("sqlite:///") and not file.exists():  # MLflow would make an empty one
        raise ValueError(f"uri={uri}: there is no database {file}; give uri=sqlite:///FILE or uri=http://HOST:PORT")
    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(experiment)
        if found is None:
            raise ValueError(f"runs=mlflow:{experiment}: {shown} has no such experiment; see mlflow experiments search")
        studies = _search(client, found.experiment_id, "study")
        runs = _search(client, found.experiment_id, "run")
    except MlflowException as error:
        first = _without_password(str(error).strip().splitlines()[0])[:300]
        raise ValueError(f"runs=mlflow:{experiment}: {shown} cannot be read: {first}") from None
    latest = max(studies, key=lambda run: run.info.start_time or 0, default=None)
    if latest is not None and latest.data.tags.get("study_id"):
        runs = [run for run in runs if run.data.tags.get("study_id") == latest.data.tags["study_id"]]
    records = []
    for run in runs:
        tags = run.data.tags
        outcome = json.loads(tags["outcome"]) if tags.get("outcome") else None
        state = outcome["state"] if outcome else tags.get("state", "unknown")
        config = _nested({name: _parsed(value) for name, value in run.data.params.items()})
        records.append(_record(tags["point_key"], experiment, state, config, outcome, kind=params_kind))
    points = int(latest.data.tags.get("points", 0)) if latest is not None else 0
    return _finish(records, max(0, points - len(records)))


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


def from_csv(
    path: Path,
    *,
    columns: Mapping[str, str] | None = None,
    params_kind: str = "given",
    flop_rule: str = "given",
    loss_unit: str = LOSS_UNIT,
    where: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Return the frame of a foreign CSV or Parquet file.

    `columns` maps our names to the file's; params, tokens, flops and loss are needed, the others of COLUMNS are taken
    where they are there. `where` keeps the rows whose column has this text. FLOPs are computed only on the explicit
    flop_rule="6ND". Raises ValueError naming the column that is missing or unreadable.
    """
    try:
        raw = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except FileNotFoundError:
        raise ValueError(f"runs={path} does not exist; give runs/STUDY, mlflow:NAME or a .csv") from None
    for name, text in (where or {}).items():
        _has(raw, name, path)
        raw = raw[raw[name].astype(str) == text]
    for name, column in (columns or {}).items():
        _has(raw, column, path)
        raw = raw.assign(**{name: raw[column]})
    if "flops" not in raw and flop_rule == "6ND":
        raw = raw.assign(flops=6.0 * _number(raw, "params", path) * _number(raw, "tokens", path))
    for name in REQUIRED:
        raw = raw.assign(**{name: _number(raw, name, path)})
    raw = raw.reset_index(drop=True)
    given = {name: raw[name] for name in COLUMNS if name in raw and name not in ("used", "drop_code", "drop_reason")}
    out = pd.DataFrame(given, index=raw.index)
    defaults: dict[str, Any] = {
        "key": [f"row{i + 1}" for i in range(len(raw))], "study": path.stem, "state": "completed",
        "params_kind": params_kind, "flop_rule": flop_rule, "loss_unit": loss_unit, "flops_budget": np.nan,
        "schedule_complete": True,
    }  # fmt: skip
    missing = {name: value for name, value in defaults.items() if name not in out}
    out = out.assign(**missing)
    out["key"] = out["key"].astype(str)
    repeats = out.groupby("key").cumcount()
    out["key"] = out["key"].where(repeats == 0, out["key"] + "#" + (repeats + 1).astype(str))
    for name in COLUMNS:
        if name in out and name not in (*_TEXT, *REQUIRED, "schedule_complete"):
            out[name] = _number(out, name, path)
    return _finish(_records(out), 0)


def used(frame: pd.DataFrame) -> Rows:
    """Return the rows that fits use, by budget and size; ValueError where kinds are mixed or none is left."""
    good = frame[frame["used"]]
    if not len(good):
        counts = ", ".join(f"{n} {code}" for code, n in frame["drop_code"].value_counts().items()) or "no run at all"
        raise ValueError(f"there is no finished run to fit ({counts}); wait for the study to end, or see its status")
    for column, what in ONE_KIND.items():
        kinds = sorted({str(v) for v in good[column] if not _missing(v)})
        if len(kinds) > 1:
            raise ValueError(
                f"the runs mix {what}: {column} is {', '.join(kinds)}; fit them apart (where={column}:VALUE on a file)"
            )
    good = good.sort_values(["flops", "params", "key"], kind="stable")
    values = [good[name].to_numpy(dtype=np.float64) for name in (*REQUIRED, "flops_budget")]
    return rows(
        tuple(good["key"]), params=values[0], tokens=values[1], flops=values[2], loss=values[3], nominal=values[4]
    )


def _has(raw: pd.DataFrame, name: str, path: Path) -> None:
    if name not in raw:
        raise ValueError(f"{path} has no column {name!r}; it has {', '.join(map(str, raw.columns[:30]))}")


def _number(raw: pd.DataFrame, name: str, path: Path) -> pd.Series[float]:
    """Return a column as floats."""
    if name not in raw:
        hint = "; flop_rule=6ND computes them from params and tokens" if name == "flops" else ""
        raise ValueError(
            f"{path} has no column {name!r}; map it with columns={name}:COLUMN{hint}. "
            f"The file has {', '.join(map(str, raw.columns[:30]))}"
        )
    try:
        return pd.to_numeric(raw[name]).astype(float)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: column {name!r} holds what is not a number ({error})") from None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def _attempt_state(run: Path) -> str:
    """Return the state of a run without an outcome, from its latest attempt."""
    numbers = sorted(int(p.name) for p in (run / "attempts").iterdir() if p.name.isdigit())
    ended = _read(run / "attempts" / str(numbers[-1]) / "outcome.json") if numbers else None
    state = str(ended["state"]) if ended else "running"
    return {"completed": "queued", "preempted": "interrupted"}.get(state, state)


def _record(
    key: str, study: str, state: str, config: Mapping[str, Any], outcome: Mapping[str, Any] | None, *, kind: str
) -> dict[str, Any]:
    """Return a run as a row: sizes and losses from its outcome, the rest from its config."""
    if kind not in PARAMS_KINDS:
        raise ValueError(f"params={kind} is not a count of parameters: use one of {', '.join(PARAMS_KINDS)}")
    model, data = config["model"], config["data"]
    reached = outcome or {}
    counts, losses = reached.get("params") or {}, reached.get("loss") or {}
    return {
        "key": key, "study": study, "state": state, "params": counts.get(kind), "params_kind": kind,
        **{f"params_{name}": counts.get(name) for name in PARAMS_KINDS},
        "tokens": reached.get("tokens"), "flops": reached.get("flops"), "flop_rule": reached.get("flop_rule") or "",
        "flops_budget": config["budget"].get("flops"), "loss": losses.get("validation_nats_per_token"),
        "loss_unit": LOSS_UNIT, "bits_per_byte": losses.get("validation_bits_per_byte"), "seed": config.get("seed"),
        "width": model.get("width"), "layers": model.get("layers"), "lr": config["optim"].get("lr"),
        "batch_tokens": config["batch"].get("tokens"), "sequence_length": data.get("sequence_length"),
        "tokenizer": f"{data.get('tokenizer')}{data.get('vocab_size')}", "fingerprint": data.get("fingerprint") or "",
        "schedule": config["schedule"].get("name"), "schedule_complete": bool(reached.get("schedule_complete")),
    }  # fmt: skip


def _finish(records: Iterable[Mapping[str, Any]], waiting: int) -> pd.DataFrame:
    """Return the records as a frame with fixed columns, kinds and order, every row judged."""
    frame = pd.DataFrame(list(records)).reindex(columns=list(COLUMNS))
    for name in COLUMNS:
        if name in _TEXT:
            frame[name] = frame[name].astype(object).where(frame[name].notna(), "")
        elif name not in ("schedule_complete", "used", "drop_code", "drop_reason"):
            frame[name] = pd.to_numeric(frame[name]).astype(float)
    judged = [_judge(record) for record in _records(frame)]
    frame["schedule_complete"] = frame["schedule_complete"].fillna(False).astype(bool)
    frame["drop_code"] = pd.Series([code for code, _ in judged], dtype=object)
    frame["drop_reason"] = pd.Series([reason for _, reason in judged], dtype=object)
    frame["used"] = frame["drop_code"] == ""
    frame = frame.sort_values(["flops_budget", "params", "key"], kind="stable").reset_index(drop=True)
    frame.attrs["not_started"] = waiting
    return frame


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in record.items()} for record in frame.to_dict("records")]


def _judge(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return why a row takes no part in fits, as code and reason; empty where it does."""
    if row["state"] != "completed":
        state = str(row["state"]) or "unknown"
        return state, f"the run is {state}: it has no final loss"
    bad = [name for name in REQUIRED if not _positive(row[name])]
    if bad:
        return "not_positive", f"{', '.join(bad)} must be positive numbers, found {', '.join(str(row[n]) for n in bad)}"
    if str(row["schedule_complete"]) in ("False", "0", "0.0", "false"):
        return "mid_schedule", "the learning-rate schedule was not finished, which biases the loss upwards"
    return "", ""


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def _missing(value: Any) -> bool:
    return value == "" or (isinstance(value, float) and math.isnan(value))


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
