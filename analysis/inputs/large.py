"""Tables of very many rows: what is refused and how to thin it, which rows thinning keeps, what a long fit is at."""

from __future__ import annotations

import logging
import math
import sys

import numpy as np
import pandas as pd

MOST_READ = 250_000
"""Rows of a file that are judged, one by one."""
MOST_FITTED = 20_000
"""Rows that laws are fitted to. Resamples weigh each of them: a thousand weights of so many rows are 160 MB."""
SLOW = 5_000
"""Rows from which on a fit says on stderr what it is at."""

log = logging.getLogger("analysis")


def thinned(table: pd.DataFrame, every: int) -> pd.DataFrame:
    """Return of every `run` each `every`-th checkpoint by tokens and its last one; without runs each `every`-th row."""
    if every <= 1:
        return table
    if "run" not in table:
        return table.iloc[::every]
    tokens = pd.to_numeric(table["tokens"], errors="coerce") if "tokens" in table else pd.Series(0.0, index=table.index)
    order = np.argsort(tokens.to_numpy(), kind="stable")
    runs = table["run"].iloc[order].astype(str).groupby(table["run"].iloc[order].astype(str), sort=False)
    back = runs.cumcount(ascending=False).to_numpy()  # 0 is the last of its run
    keep = np.zeros(len(table), dtype=bool)
    keep[order] = back % every == 0
    return table[keep]


def refuse_read(count: int, source: object) -> None:
    """Raise ValueError, with what to thin by, where a file has more rows than are read."""
    if count > MOST_READ:
        raise ValueError(
            f"{source} has {count} rows, and at most {MOST_READ} are read: more take minutes and many gigabytes. "
            f"thin={math.ceil(count / MOST_READ)} keeps of every run one checkpoint in so many and its last one, "
            "where=COLUMN:VALUE a part of the rows; laws of N and D rest on the last row of a run alone"
        )


def refuse_fitted(count: int) -> None:
    """Raise ValueError, with what to thin by, where there are more rows than laws are fitted to."""
    if count > MOST_FITTED:
        raise ValueError(
            f"{count} rows are to be fitted, and at most {MOST_FITTED} are: thin={math.ceil(count / MOST_FITTED)} keeps"
            " a row in so many, where=COLUMN:VALUE a part of them. Where they are checkpoints, name their runs "
            "(columns=run:COLUMN): laws of N and D then rest on the last row of each"
        )


def told(count: int) -> None:
    """Have what follows say on stderr what it is at, where there are so many rows that it takes long."""
    if count < SLOW or log.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
