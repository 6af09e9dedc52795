"""A foreign table as a tidy frame: its columns taken and judged, what is computed from others, which rows are final."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.inputs import foreign, large, tables
from analysis.inputs.columns import (
    BITS_PER_BYTE,
    COLUMNS,
    LABEL_SLACK,
    LOSS_UNIT,
    REQUIRED,
    TEXT,
    empty,
    finish,
)
from analysis.inputs.dataset import SAME_SIZE, clusters


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
    decimal: str = "auto",
    thin: int = 1,
    table: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return the frame of a foreign table: CSV, TSV, JSON lines or Parquet, or a `table` that errors call `path`.

    `columns` maps our names to the file's, or to COLUMN*FACTOR; those of `need` have to be there, the others of COLUMNS
    are taken where they are, and further number columns are kept under their own names. `where` keeps the rows whose
    column has this value (see :func:`analysis.inputs.foreign.filtered`), and `thin` one of so many of these, with the
    last one of every run. Of params, tokens and flops one that is not there is computed only on the explicit
    flop_rule="6ND". Rows of one `run` at several token counts are its checkpoints: without a column schedule_complete
    only the last is final. Raises ValueError naming the column that is missing or unreadable, and where there are too
    many rows.

    Examples
    --------
    >>> table = from_csv(Path("docs/example-runs.csv"))
    >>> int(table["used"].sum()), sorted(set(table["drop_code"]))
    (25, [''])
    """
    _refuse_twice(columns or {})
    named = [theirs for ours, theirs in (columns or {}).items() if ours in TEXT]
    read = tables.read(path, (*TEXT, *named), decimal) if table is None else tables.tidied(table, path)
    raw = foreign.mapped(read, columns or {}, COLUMNS, path)
    whole = foreign.filtered(raw, where or {}, path)
    raw = large.thinned(whole, thin).reset_index(drop=True)
    large.refuse_read(whole, len(raw), path)
    raw, loss_unit = _with_unit(raw, columns or {}, loss_unit, path)
    raw = _with_6nd(raw, path) if flop_rule == "6ND" else raw
    absent = [name for name in need if name not in raw]
    if absent:
        raise ValueError(foreign.missing(raw, absent, path))
    out, unread = _columns(raw, path, columns or {})
    settings = foreign.settings(raw, sorted({*(columns or {}).values(), *(where or {}), *COLUMNS, *foreign_kinds(raw)}))
    if settings:  # rows that differ in these are no repeats of each other
        out["setting_group"] = raw.groupby(list(settings), dropna=False, sort=True).ngroup().to_numpy(float) + 1.0
    defaults: dict[str, Any] = {
        "key": [f"row{i + 1}" for i in raw.index], "study": path.name.partition(".")[0], "state": "completed",
        "params_kind": params_kind, "flop_rule": flop_rule, "loss_unit": loss_unit, "flops_budget": np.nan,
        "tokenizer": tokenizer, "validation": validation,
    }  # fmt: skip
    called = next((out[name].astype(str) for name in ("run", "key") if name in out), None)
    out = _filled(out, defaults)
    final, why = _final(out, called)
    out["schedule_complete"] = final
    copies = raw.duplicated().to_numpy(bool)
    faults = dict.fromkeys(np.flatnonzero(copies).tolist(), "it repeats another row of the file in every column")
    frame = finish(out, 0, need, unread=unread, copies=faults, checkpoints=why)
    frame.attrs["settings"] = settings
    return frame


def _with_unit(raw: pd.DataFrame, columns: Mapping[str, str], given: str, path: Path) -> tuple[pd.DataFrame, str]:
    """Return the table with the loss in the unit asked for, and that unit.

    The column loss_unit tells the unit of the column loss. It says nothing of another column that `columns` takes as
    the loss, nor of bits_per_byte, which is the loss where bits per byte are asked for. ValueError where it contradicts
    the unit asked for.
    """
    own = "loss" not in columns or "loss_unit" in columns
    unit = _unit(columns.get("loss", "loss"), given)
    if "loss_unit" not in raw or (given == "" and own):
        return raw, unit
    said = {str(value) for value in raw["loss_unit"] if not empty(value)}
    if not own:
        return raw.drop(columns="loss_unit"), unit
    if said <= {unit}:
        return raw, unit
    if unit == BITS_PER_BYTE and "bits_per_byte" in raw:
        return raw.assign(loss=raw["bits_per_byte"]).drop(columns="loss_unit"), unit
    raise ValueError(
        f"loss_unit={given}: the column loss_unit of {path} says {', '.join(sorted(said))}; leave loss_unit= out, or "
        "name the column that holds the loss in this unit with columns=loss:COLUMN"
    )


def _unit(source: str, given: str) -> str:
    """Return the unit of the loss, by its column's name where none is given; ValueError for a perplexity."""
    if any(word in foreign.plain(source) for word in ("ppl", "perplexity")):
        raise ValueError(
            f"columns=loss:{source} looks like a perplexity; give its natural logarithm, in nats per token"
        )
    return given or (BITS_PER_BYTE if any(w in foreign.plain(source) for w in ("bpb", "bitsperbyte")) else LOSS_UNIT)


def _filled(out: pd.DataFrame, defaults: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows with what they do not say: defaults, keys of their own, empty columns that every row has.

    A nominal budget that is a rounded label of the exact FLOPs is taken away.
    """
    out = out.assign(**{name: value for name, value in defaults.items() if name not in out}).reset_index(drop=True)
    out["key"] = out["key"].astype(str)
    repeats = out.groupby("key").cumcount()
    out["key"] = out["key"].where(repeats == 0, out["key"] + "#" + (repeats + 1).astype(str))
    rounded = (out["flops_budget"] / out.get("flops", np.nan) - 1).abs() > LABEL_SLACK
    out.loc[rounded.to_numpy(bool), "flops_budget"] = np.nan
    for name in REQUIRED:
        if name not in out:
            out[name] = np.nan
    return out


def _refuse_twice(columns: Mapping[str, str]) -> None:
    """Raise ValueError where one column of the file is mapped to two of params, tokens, flops and loss."""
    taken: dict[str, str] = {}
    for ours in REQUIRED:
        theirs = columns.get(ours, "")
        if theirs and taken.setdefault(theirs, ours) != ours:
            raise ValueError(
                f"columns={taken[theirs]}:{theirs},{ours}:{theirs}: one column cannot be both; map another"
            )


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


def _columns(raw: pd.DataFrame, path: Path, called: Mapping[str, str]) -> tuple[pd.DataFrame, dict[int, str]]:
    """Return the columns that are ours and all further number columns, and why rows with unreadable cells go."""
    reserved = ("used", "drop_code", "drop_reason", "predicted")
    out: dict[str, Any] = {}
    unread: dict[int, str] = {}
    for name in raw.columns:
        if name in reserved:
            continue
        if name in TEXT or name == "schedule_complete":
            out[name] = raw[name].to_numpy()
            if name in TEXT:
                out[name] = np.array(["" if empty(v) or v is None else str(v) for v in out[name]], dtype=object)
        elif name in COLUMNS:
            out[name], bad = foreign.numbers(raw, name, path, called.get(name, ""))
            unread |= {i: f"{name} is {text!r}, which is not a number" for i, text in bad.items()}
        elif pd.api.types.is_numeric_dtype(raw[name]) and not pd.api.types.is_bool_dtype(raw[name]):
            out[name] = raw[name].to_numpy(dtype=np.float64, na_value=np.nan)
    return pd.DataFrame(out, index=raw.index), unread


YES, NO = ("true", "yes", "y", "t", "done", "finished", "complete", "completed"), ("false", "no", "n", "f", "")
WHOLE = 1e-3
"""A share of the schedule within this of 1 is all of it."""


def _final(frame: pd.DataFrame, called: pd.Series[str] | None) -> tuple[list[bool], dict[int, str]]:
    """Return whether each row's schedule was finished, and the checkpoints of a run before its last, by row.

    `called` are the names of the runs as the file has them, None where it has none.
    """
    if "schedule_complete" in frame:
        return [_finished(value) for value in frame["schedule_complete"]], {}
    if called is None:
        return [True] * len(frame), {}
    called = called.reset_index(drop=True)
    # A name may stand for several models: rows of one name and size are checkpoints of one run.
    size = clusters(np.where(frame["params"] > 0, frame["params"], 1.0).astype(float), SAME_SIZE)
    last = frame.groupby([called, size])["tokens"].transform("max")
    early = (frame["tokens"] < last) & (called != "")
    names = called.tolist()
    why = {i: f"a checkpoint of run {names[i]} before its last" for i in np.flatnonzero(early).tolist()}
    return [i not in why for i in range(len(frame))], why


def _finished(value: Any) -> bool:
    """Return whether a cell says that the schedule was finished: a word, or its share done; ValueError for others."""
    text = "" if value is None or empty(value) else str(value).strip().lower()
    if text in YES or text in NO:
        return text in YES
    try:
        share = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        share = float("nan")
    if not 0.0 <= share <= 1.0 + WHOLE:
        raise ValueError(
            f"schedule_complete={value}: write true or false, or the share of the schedule that was done, 0 to 1 "
            "(1 is finished)"
        )
    return share >= 1.0 - WHOLE
