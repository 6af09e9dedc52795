"""From run folders, MLflow or a file to one tidy frame: a row a run, with the meaning of its numbers beside it.

Columns are in :data:`COLUMNS`. Runs that failed or are under way are rows too: `drop_code` and `drop_reason` say why
no fit uses them (both are empty for the rows that fits use). Run folders and MLflow give equal frames.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import foreign
from analysis.rows import Index, Rows, rows

PARAMS_KINDS = ("matmul", "total", "non_embedding")
LOSS_UNIT = "nats per token"
COLUMNS = (
    "key", "study", "state", "run", "size_group", "params", "params_kind", "params_matmul", "params_total",
    "params_non_embedding", "tokens", "unique_tokens", "flops", "flop_rule", "flops_budget", "loss", "loss_unit",
    "bits_per_byte", "seed", "width", "layers", "lr", "batch_tokens", "warmup_tokens", "sequence_length", "tokenizer",
    "fingerprint", "validation", "flops_per_second", "schedule", "schedule_complete", "used", "drop_code",
    "drop_reason",
)  # fmt: skip
REQUIRED = ("params", "tokens", "flops", "loss")
BITS_PER_BYTE = "bits per byte"
OPTIONAL = tuple(c for c in COLUMNS if c not in (*REQUIRED, "used", "drop_code", "drop_reason"))
DONE = ("completed", "complete", "finished", "done", "success", "succeeded", "ok")
LABEL_SLACK = 0.05
"""A nominal budget that the exact FLOPs miss by more than this is a rounded label; the exact ones group the runs."""
ONE_KIND = {
    "params_kind": "counts of parameters",
    "flop_rule": "FLOP rules",
    "loss_unit": "units of loss",
    "tokenizer": "tokenizers (their losses per token cannot be compared)",
    "fingerprint": "prepared corpora (their validation sets differ)",
    "validation": "validation sets",
    "sequence_length": "sequence lengths (they change the loss and the FLOPs)",
}
_COMPARABLE_IN_BITS = ("tokenizer", "fingerprint", "validation")
EXTRA = (
    "unique_tokens", "seed", "width", "layers", "lr", "batch_tokens", "warmup_tokens", "sequence_length",
    "bits_per_byte", "flops_per_second",
)  # fmt: skip
"""Number columns of ours that laws may read besides params, tokens, flops and loss."""
_TEXT = (
    "key", "study", "state", "run", "size_group", "params_kind", "flop_rule", "loss_unit", "tokenizer", "fingerprint",
    "validation", "schedule",
)  # fmt: skip


def from_runs(
    folder: Path, params_kind: str = "matmul", which: str = "all", loss_unit: str = LOSS_UNIT
) -> pd.DataFrame:
    """Return the frame of a study's folder; points that never started are not rows (attrs["not_started"] counts them).

    A study keeps the points of every command that named it; with `which` "latest" only those of its latest command are
    taken, so that a changed setting does not leave the runs of the old one in the fit. `loss_unit` is nats per token or
    bits per byte. Raises ValueError where the folder is no study, `params_kind` is none of PARAMS_KINDS or `which` is
    neither "all" nor "latest".
    """
    if which not in ("all", "latest"):
        raise ValueError(f"points={which} is not allowed: all, or latest (what the study's latest command asked for)")
    points = folder / "points.jsonl"
    if not points.is_file():
        raise ValueError(f"runs={folder} is no study (no points.jsonl); give runs/STUDY, mlflow:NAME or a file")
    records, waiting = [], 0
    parents: set[str] = set()
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
        where = (point["key"], folder.resolve().name, state)
        parents.add(_parent(point["config"]))
        records.append(_record(*where, point["config"], outcome, kind=params_kind, unit=loss_unit))
    return _finish(_without_trunks(records, parents), waiting)


def from_mlflow(uri: str, experiment: str, params_kind: str = "matmul", loss_unit: str = LOSS_UNIT) -> pd.DataFrame:
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
    return _finish(_without_trunks(records, parents), max(0, points - len(records)))


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
    loss_unit: str = "",
    tokenizer: str = "",
    validation: str = "",
    where: Mapping[str, str] | None = None,
    need: Sequence[str] = REQUIRED,
) -> pd.DataFrame:
    """Return the frame of a foreign table: CSV, TSV, JSON lines or Parquet.

    `columns` maps our names to the file's, or to COLUMN*FACTOR; those of `need` have to be there, the others of COLUMNS
    are taken where they are, and further number columns are kept under their own names. `where` keeps the rows whose
    column has this value (see :func:`analysis.foreign.filtered`). Of params, tokens and flops one that is not there is
    computed only on the explicit flop_rule="6ND". Rows of one `run` at several token counts are its checkpoints:
    without a column schedule_complete only the last is final. Raises ValueError naming the column that is missing or
    unreadable.

    Examples
    --------
    >>> table = from_csv(Path("docs/example-runs.csv"))
    >>> int(table["used"].sum()), sorted(set(table["drop_code"]))
    (25, [''])
    """
    named = [theirs for ours, theirs in (columns or {}).items() if ours in _TEXT]
    raw = foreign.mapped(foreign.read(path, (*_TEXT, *named)), columns or {}, COLUMNS, path)
    raw = foreign.filtered(raw, where or {}, path).reset_index(drop=True)
    source = (columns or {}).get("loss", "loss")
    if any(word in foreign.plain(source) for word in ("ppl", "perplexity")):
        raise ValueError(
            f"columns=loss:{source} looks like a perplexity; give its natural logarithm, in nats per token"
        )
    if not loss_unit:
        loss_unit = BITS_PER_BYTE if any(w in foreign.plain(source) for w in ("bpb", "bitsperbyte")) else LOSS_UNIT
    raw = _with_6nd(raw, path) if flop_rule == "6ND" else raw
    absent = [name for name in need if name not in raw]
    if absent:
        raise ValueError(foreign.missing(raw, absent, path))
    out, unread = _columns(raw, path)
    settings = foreign.settings(raw, sorted({*(columns or {}).values(), *(where or {}), *COLUMNS, *foreign_kinds(raw)}))
    if settings:  # rows that differ in these are no repeats of each other
        out["setting_group"] = raw.groupby(list(settings), dropna=False, sort=True).ngroup().to_numpy(float) + 1.0
    defaults: dict[str, Any] = {
        "key": [f"row{i + 1}" for i in raw.index], "study": path.name.partition(".")[0], "state": "completed",
        "params_kind": params_kind, "flop_rule": flop_rule, "loss_unit": loss_unit, "flops_budget": np.nan,
        "tokenizer": tokenizer, "validation": validation,
    }  # fmt: skip
    out = out.assign(**{name: value for name, value in defaults.items() if name not in out}).reset_index(drop=True)
    out["key"] = out["key"].astype(str)
    repeats = out.groupby("key").cumcount()
    out["key"] = out["key"].where(repeats == 0, out["key"] + "#" + (repeats + 1).astype(str))
    rounded = (out["flops_budget"] / out.get("flops", np.nan) - 1).abs() > LABEL_SLACK
    out.loc[rounded.to_numpy(bool), "flops_budget"] = np.nan
    for name in REQUIRED:
        if name not in out:
            out[name] = np.nan
    final, why = _final(out)
    out["schedule_complete"] = final
    copies = raw.duplicated().to_numpy(bool)
    faults = dict.fromkeys(np.flatnonzero(copies).tolist(), "it repeats another row of the file in every column")
    frame = _finish(_records(out), 0, need, unread=unread, copies=faults, checkpoints=why)
    frame.attrs["settings"] = settings
    return frame


def foreign_kinds(raw: pd.DataFrame) -> list[str]:
    """Return the file's own columns that were taken as kinds."""
    return [c for c in raw.columns if any(foreign.plain(c) in names for names in foreign.KIND_COLUMNS.values())]


def _with_6nd(raw: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Return the table with the one of params, tokens and flops that is not there from C = 6 N D."""
    there = [name for name in ("params", "tokens", "flops") if name in raw]
    if len(there) == 3:
        return raw
    if len(there) < 2:
        raise ValueError(foreign.missing(raw, [n for n in ("params", "tokens") if n not in raw], path))
    first, second = (foreign.numbers(raw, name, path)[0] for name in there)
    if "flops" not in raw:
        return raw.assign(flops=6.0 * first * second)
    with np.errstate(divide="ignore", invalid="ignore"):
        return raw.assign(**{"tokens" if "params" in raw else "params": second / (6.0 * first)})


def _columns(raw: pd.DataFrame, path: Path) -> tuple[pd.DataFrame, dict[int, str]]:
    """Return the columns that are ours and all further number columns, and why rows with unreadable cells go."""
    reserved = ("used", "drop_code", "drop_reason", "predicted")
    out: dict[str, Any] = {}
    unread: dict[int, str] = {}
    for name in raw.columns:
        if name in reserved:
            continue
        if name in _TEXT or name == "schedule_complete":
            out[name] = raw[name].to_numpy()
            if name in _TEXT:
                out[name] = np.array(["" if _missing(v) or v is None else str(v) for v in out[name]], dtype=object)
        elif name in COLUMNS:
            out[name], bad = foreign.numbers(raw, name, path)
            unread |= {i: f"{name} is {text!r}, which is not a number" for i, text in bad.items()}
        elif pd.api.types.is_numeric_dtype(raw[name]) and not pd.api.types.is_bool_dtype(raw[name]):
            out[name] = raw[name].to_numpy(dtype=np.float64, na_value=np.nan)
    return pd.DataFrame(out, index=raw.index), unread


def _final(frame: pd.DataFrame) -> tuple[list[bool], dict[int, str]]:
    """Return whether each row's schedule was finished, and the checkpoints of a run before its last, by row."""
    if "schedule_complete" in frame:
        return [str(v).strip().lower() not in ("false", "0", "0.0", "no") for v in frame["schedule_complete"]], {}
    why: dict[int, str] = {}
    if "run" in frame:
        last = frame.groupby("run")["tokens"].transform("max")
        early = (frame["tokens"] < last) & (frame["run"] != "")
        why = {int(i): f"a checkpoint of run {frame['run'].iloc[i]} before its last" for i in np.flatnonzero(early)}
    return [i not in why for i in range(len(frame))], why


def best(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame in which, of used rows with equal params, tokens and flops, only the lowest loss stays used.

    Runs of equal learning rate and batch are repeats, of which none is better than another: all of the best stay.
    """
    out = frame.copy()
    out.attrs = dict(frame.attrs)
    swept = [name for name in ("lr", "batch_tokens") if out[name].notna().any()]
    good = out[out["used"]]
    if not swept or not len(good):
        raise ValueError("select=best: the runs have neither lr nor batch_tokens; map them (columns=lr:COLUMN)")
    cell = ["params", "tokens", "flops"]
    mean = good.groupby([*cell, *swept], dropna=False)["loss"].transform("mean")
    lost = good.index[mean > mean.groupby([good[name] for name in cell], dropna=False).transform("min")]
    out.loc[lost, ["drop_code", "drop_reason"]] = ("not_best", f"another {' and '.join(swept)} gives a lower loss here")
    out["used"] = out["drop_code"] == ""
    return out


def used(frame: pd.DataFrame) -> Rows:
    """Return the rows that fits use, by budget and size; ValueError where kinds are mixed or none is left."""
    return _rows(frame, frame["used"])


def checkpoints(frame: pd.DataFrame) -> Rows:
    """Return the rows that fits use and the runs' earlier checkpoints: learning curves, for envelopes."""
    return _rows(frame, frame["used"] | (frame["drop_code"] == "mid_schedule"))


def _rows(frame: pd.DataFrame, mask: pd.Series[bool]) -> Rows:
    good = frame[mask]
    if not len(good):
        counts = ", ".join(f"{n} {code}" for code, n in frame["drop_code"].value_counts().items()) or "no run at all"
        first = next((str(reason) for reason in frame["drop_reason"] if reason), "")
        why = f"; the first: {first}" if first else ""
        raise ValueError(f"there is no finished run to fit ({counts}){why}. Wait for the study, or mend the rows")
    for column, what in ONE_KIND.items():
        if column in _COMPARABLE_IN_BITS and (good["loss_unit"] == BITS_PER_BYTE).all():
            continue
        kinds = sorted({str(v) for v in good[column] if not _missing(v)})
        if len(kinds) > 1:
            raise ValueError(
                f"the runs mix {what}: {column} is {', '.join(kinds)}; fit them apart (where={column}:VALUE on a file)"
                + ("; losses in bits per byte can be compared" if column in _COMPARABLE_IN_BITS else "")
            )
    good = good.sort_values(["flops", "params", "key"], kind="stable")
    values = [good[name].to_numpy(dtype=np.float64) for name in (*REQUIRED, "flops_budget")]
    known = {name for name in COLUMNS if name not in EXTRA}
    further = {str(name): good[name] for name in good.columns if name not in known}
    return rows(
        tuple(good["key"]),
        params=values[0],
        tokens=values[1],
        flops=values[2],
        loss=values[3],
        nominal=values[4],
        size=_groups(good["size_group"]),
        run=_groups(good["run"]),
        extra={name: v.to_numpy(dtype=np.float64) for name, v in further.items() if v.notna().any()},
    )


def _groups(column: pd.Series[Any]) -> Index | None:
    """Return group numbers of the texts; None where any is empty."""
    if (column == "").any():
        return None
    return np.asarray(pd.factorize(column, sort=True)[0], dtype=np.int64)


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
    return {
        "key": key, "study": study, "state": state, "params": counts.get(kind), "params_kind": kind,
        **{f"params_{name}": counts.get(name) for name in PARAMS_KINDS},
        "tokens": reached.get("tokens"), "flops": reached.get("flops"), "flop_rule": reached.get("flop_rule") or "",
        "flops_budget": config["budget"].get("flops"),
        "loss": losses.get(f"validation_{unit.replace(' ', '_')}"), "loss_unit": unit,
        "warmup_tokens": None, "bits_per_byte": losses.get("validation_bits_per_byte"), "seed": config.get("seed"),
        "width": model.get("width"), "layers": model.get("layers"), "lr": config["optim"].get("lr"),
        "batch_tokens": config["batch"].get("tokens"), "sequence_length": data.get("sequence_length"),
        "tokenizer": f"{data.get('tokenizer')}{data.get('vocab_size')}", "fingerprint": data.get("fingerprint") or "",
        "flops_per_second": _speed(reached),
        "schedule": config["schedule"].get("name"), "schedule_complete": bool(reached.get("schedule_complete")),
    }  # fmt: skip


def _speed(outcome: Mapping[str, Any]) -> float | None:
    """Return the FLOPs per second of training that one device of the run gave."""
    seconds = (outcome.get("seconds") or {}).get("train")
    flops = outcome.get("flops_own", outcome.get("flops"))  # a branch has not spent its parent's again
    if not seconds or not flops:
        return None
    return float(flops) / (float(seconds) * float(outcome.get("world_size") or 1))


def _finish(
    records: Iterable[Mapping[str, Any]],
    waiting: int,
    need: Sequence[str] = REQUIRED,
    *,
    unread: Mapping[int, str] | None = None,
    copies: Mapping[int, str] | None = None,
    checkpoints: Mapping[int, str] | None = None,
) -> pd.DataFrame:
    """Return the records as a frame with fixed columns, kinds and order, every row judged.

    Rows by number that a reader found wanting, with the reason: cells that are no numbers, copies, checkpoints.
    """
    rows = list(records)
    more = dict.fromkeys(name for record in rows for name in record if name not in COLUMNS)
    frame = pd.DataFrame(rows).reindex(columns=[*COLUMNS, *more])
    for name in frame.columns:
        if name in _TEXT:
            frame[name] = frame[name].astype(object).where(frame[name].notna(), "")
        elif name not in ("schedule_complete", "used", "drop_code", "drop_reason"):
            frame[name] = pd.to_numeric(frame[name]).astype(float)
    judged = []
    for i, record in enumerate(_records(frame)):
        found = _judge(record, need, (checkpoints or {}).get(i, ""))
        if i in (copies or {}) and not found[0]:
            found = "duplicate", (copies or {})[i]
        judged.append(("not_a_number", (unread or {})[i]) if i in (unread or {}) else found)
    frame["schedule_complete"] = frame["schedule_complete"].fillna(False).astype(bool)
    frame["drop_code"] = pd.Series([code for code, _ in judged], dtype=object)
    frame["drop_reason"] = pd.Series([reason for _, reason in judged], dtype=object)
    frame["used"] = frame["drop_code"] == ""
    frame = frame.sort_values(["flops_budget", "params", "key"], kind="stable").reset_index(drop=True)
    frame.attrs["not_started"] = waiting
    return frame


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in record.items()} for record in frame.to_dict("records")]


def _judge(row: Mapping[str, Any], need: Sequence[str] = REQUIRED, checkpoint: str = "") -> tuple[str, str]:
    """Return why a row takes no part in fits, as code and reason; empty where it does."""
    if str(row["state"]).lower() not in DONE:
        state = str(row["state"]) or "unknown"
        return state, f"the run is {state}: it has no final loss"
    bad = [name for name in need if not _positive(row[name])]
    if bad:
        return "not_positive", f"{', '.join(bad)} must be positive numbers, found {', '.join(str(row[n]) for n in bad)}"
    if str(row["schedule_complete"]) in ("False", "0", "0.0", "false"):
        reason = "the learning-rate schedule was not finished, which biases the loss upwards"
        return "mid_schedule", f"{checkpoint}: {reason}" if checkpoint else reason
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
