"""The tidy frame: which columns it has, what they hold, and the judgement of every row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.values.blocks import NOT_DECAYED

PARAMS_KINDS = ("matmul", "total", "non_embedding")
LOSS_UNIT = "nats per token"
COLUMNS = (
    "key", "study", "state", "run", "size_group", "params", "params_kind", "params_matmul", "params_total",
    "params_non_embedding", "tokens", "unique_tokens", "epochs", "flops", "flop_rule", "flops_budget", "loss",
    "loss_unit", "lowest_loss", "bits_per_byte", "seed", "width", "layers", "lr", "batch_tokens", "warmup_tokens",
    "sequence_length", "tokenizer", "fingerprint", "validation", "flops_per_second", "schedule", "schedule_complete",
    "used", "drop_code", "drop_reason",
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
COMPARABLE_IN_BITS = ("tokenizer", "fingerprint", "validation")
EXTRA = (
    "unique_tokens", "epochs", "lowest_loss", "seed", "width", "layers", "lr", "batch_tokens", "warmup_tokens",
    "sequence_length", "bits_per_byte", "flops_per_second",
)  # fmt: skip
"""Number columns of ours that laws may read besides params, tokens, flops and loss."""
TEXT = (
    "key", "study", "state", "run", "size_group", "params_kind", "flop_rule", "loss_unit", "tokenizer", "fingerprint",
    "validation", "schedule",
)  # fmt: skip


def finish(
    records: Iterable[Mapping[str, Any]] | pd.DataFrame,
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
    given = records if isinstance(records, pd.DataFrame) else pd.DataFrame(list(records))
    frame = given.reindex(columns=[*COLUMNS, *(name for name in given.columns if name not in COLUMNS)])
    for name in frame.columns:
        if name in TEXT:
            frame[name] = frame[name].astype(object).where(frame[name].notna(), "")
        elif name not in ("schedule_complete", "used", "drop_code", "drop_reason"):
            frame[name] = pd.to_numeric(frame[name]).astype(float)
    judged = _judged(frame, need, checkpoints or {})
    for i, reason in (copies or {}).items():
        if not judged[i][0]:
            judged[i] = ("duplicate", reason)
    for i, reason in (unread or {}).items():
        judged[i] = ("not_a_number", reason)
    frame["schedule_complete"] = frame["schedule_complete"].fillna(False).astype(bool)
    frame["drop_code"] = pd.Series([code for code, _ in judged], dtype=object)
    frame["drop_reason"] = pd.Series([reason for _, reason in judged], dtype=object)
    frame["used"] = frame["drop_code"] == ""
    frame = frame.sort_values(["flops_budget", "params", "key"], kind="stable").reset_index(drop=True)
    frame.attrs["not_started"] = waiting
    return frame


def _judged(frame: pd.DataFrame, need: Sequence[str], checkpoints: Mapping[int, str]) -> list[tuple[str, str]]:
    """Return what `judge` says of every row. One by one only rows that lack something: of files most rows do not."""
    said = frame["schedule_complete"]
    whole = (frame["state"].isin(DONE) & said.isin([True, False])).to_numpy()
    for name in need:
        values = frame[name].to_numpy()
        whole = whole & np.isfinite(values) & (values > 0)
    found: list[tuple[str, str]] = [("", "")] * len(frame)
    schedules = frame["schedule"].tolist()
    for i in np.flatnonzero(whole & said.isin([False]).to_numpy()).tolist():
        found[i] = _mid_schedule(checkpoints.get(i, ""), schedules[i])
    rest = np.flatnonzero(~whole).tolist()
    read = ("state", "schedule", "schedule_complete", *need)
    cells = zip(*(frame[name].iloc[rest].tolist() for name in read), strict=True)
    for i, row in zip(rest, cells, strict=True):
        found[i] = judge(dict(zip(read, row, strict=True)), need, checkpoints.get(i, ""))
    return found


def as_records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the frame's rows as mappings by column name."""
    return [{str(name): value for name, value in record.items()} for record in frame.to_dict("records")]


def judge(row: Mapping[str, Any], need: Sequence[str] = REQUIRED, checkpoint: str = "") -> tuple[str, str]:
    """Return why a row takes no part in fits, as code and reason; empty where it does."""
    if str(row["state"]).lower() not in DONE:
        state = str(row["state"]) or "unknown"
        return state, f"the run is {state}: it has no final loss"
    absent = [name for name in need if row[name] is None or empty(row[name])]
    if absent:
        return (
            "missing",
            f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} empty or NaN: not run, or diverged",
        )
    bad = [name for name in need if not _positive(row[name])]
    if bad:
        return (
            "not_positive",
            f"{', '.join(bad)} must be positive and finite, found {', '.join(str(row[n]) for n in bad)}",
        )
    if str(row["schedule_complete"]) in ("False", "0", "0.0", "false"):
        return _mid_schedule(checkpoint, str(row.get("schedule", "")))
    return "", ""


def _mid_schedule(checkpoint: str, schedule: str) -> tuple[str, str]:
    reason = NOT_DECAYED
    if checkpoint or schedule != "constant":
        reason = "the learning-rate schedule was not finished, which biases the loss upwards"
    return "mid_schedule", f"{checkpoint}: {reason}" if checkpoint else reason


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def empty(value: Any) -> bool:
    """Return whether a cell says nothing."""
    return value == "" or (isinstance(value, float) and math.isnan(value))
