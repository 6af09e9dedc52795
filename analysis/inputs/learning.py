"""The learning curves of a study's runs: validation losses by tokens, as the trainer wrote them while it trained."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.inputs.recorded import read

if TYPE_CHECKING:
    import pandas as pd


def validations(path: Path, name: str = "loss") -> list[tuple[float, float]]:
    """Return (tokens, loss) of every validation on the path that a run took, in the order written; none without a file.

    path: its metrics.jsonl. name: loss (nats per token) or bits_per_byte. Losses that are no numbers are left out.
    """
    points = []
    for record in read(path, "validation"):
        try:
            tokens, loss = float(record["tokens"]), float(record["metrics"][name])
        except (ValueError, KeyError, TypeError):
            continue
        if tokens > 0 and math.isfinite(loss):
            points.append((tokens, loss))
    return points


def checkpoints(folder: Path, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with a row for each of their validations before the end, `run` saying which belong together.

    FLOPs rise with tokens as they do to the end of the run. A run whose validations are not there keeps its one row.
    """
    import pandas as pd

    from analysis.inputs.columns import LOSS_UNIT, as_records

    rows = []
    for record in as_records(runs):
        key, tokens = record["key"], record["tokens"]
        name = "loss" if record["loss_unit"] == LOSS_UNIT else "bits_per_byte"
        # After a restart validations are written again: the last ones led to what the run became.
        early = {at: loss for at, loss in validations(folder / key / "metrics.jsonl", name) if at < tokens and loss > 0}
        last = {**record, "run": key, "flops_budget": math.nan}
        for at, loss in sorted(early.items()):
            flops = record["flops"] * at / tokens
            rows.append({**last, "key": f"{key}@{at:.0f}", "tokens": at, "flops": flops, "loss": loss})
        rows.append(last)
    return pd.DataFrame(rows, columns=runs.columns)
