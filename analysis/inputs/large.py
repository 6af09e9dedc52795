"""Tables of very many rows: what is refused and how to thin it, which rows thinning keeps, what a long fit is at."""

from __future__ import annotations

import logging
import math
import os
import sys

import numpy as np
import pandas as pd

MOST_READ = 250_000
"""Rows of a file that are judged, one by one."""
LEFT = 100_000
"""Rows that the thin= of a refusal leaves: of more, reading and writing takes as long as the fits do."""
MOST_FITTED = 20_000
"""Rows that laws are fitted to. Resamples weigh each of them: a thousand weights of so many rows are 160 MB."""
MOST_WEIGHED = 2_500
"""Runs that next ones are chosen for. Each is weighed with every other: time grows with the square, or faster."""
SLOW = 5_000
"""Rows from which on a fit says on stderr what it is at."""
BESIDE, LEAST_BESIDE = 200, 50
"""Most and fewest resamples of what stands beside a fit."""

PART = "where=COLUMN:VALUE keeps a part of the rows"
NAMED = "Where rows are checkpoints, name their runs (columns=run:COLUMN): laws of N and D then rest on the last ones"

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


def refuse_read(table: pd.DataFrame, kept: int, source: object) -> None:
    """Raise ValueError, with what to thin by, where more rows of a file would be read than are judged.

    `table` has all rows of the file that where= keeps, of which thin= keeps `kept`.
    """
    if kept <= MOST_READ:
        return
    said = f"{source} has {kept} rows, and at most {MOST_READ} are read: more take minutes and many gigabytes. "
    if "run" not in table:
        raise ValueError(f"{said}thin={math.ceil(len(table) / MOST_FITTED)} keeps one row in so many. {PART}. {NAMED}")
    lengths = table["run"].astype(str).value_counts().to_numpy()
    if len(lengths) > MOST_FITTED:
        raise ValueError(
            f"{said}They are of {len(lengths)} runs, and laws are fitted to at most {MOST_FITTED}; thin= keeps the "
            f"last row of every run. {PART}"
        )
    left = min(LEFT, MOST_READ)
    every = math.ceil(len(table) / left)
    while int(np.ceil(lengths / every).sum()) > left:
        every += 1
    raise ValueError(
        f"{said}thin={every} keeps of every run one checkpoint in so many and its last one; laws of N and D rest on "
        f"the last row of a run alone. {PART}"
    )


def refuse_fitted(frame: pd.DataFrame, thin: int) -> None:
    """Raise ValueError, with what to thin by, where a frame that was thinned by `thin` has more rows than are fitted.

    Where all of them are of named runs, no thinning drops any: they are the last ones of their runs.
    """
    _refuse(frame, thin, MOST_FITTED, "rows are to be fitted, and at most")


def refuse_weighed(frame: pd.DataFrame, thin: int) -> None:
    """Raise ValueError as :func:`refuse_fitted` where next runs would be chosen for more runs than can be weighed."""
    _refuse(frame, thin, MOST_WEIGHED, "runs would be weighed with each other to choose the next ones, and at most")


def _refuse(frame: pd.DataFrame, thin: int, most: int, what: str) -> None:
    rows = frame[frame["used"]]
    if len(rows) <= most:
        return
    said = f"{len(rows)} {what} {most} are"
    if (rows["run"] != "").all():
        raise ValueError(f"{said}; thin= keeps the last row of every run. {PART}")
    every = math.ceil(thin * len(rows) / most)
    raise ValueError(f"{said}: thin={every} keeps one row in so many. {PART}. {NAMED}")


def resamples(asked: int, count: int) -> int:
    """Return how many resamples stand beside a fit to `count` rows, of other choices and approaches.

    Up to 200; of very many rows fewer, so that they take no more time than of SLOW rows, but enough for an interval.
    """
    return min(BESIDE, asked, max(LEAST_BESIDE, BESIDE * SLOW // max(count, 1)))


def threads(asked: int, count: int) -> int:
    """Return the threads of a fit to `count` rows; 0 asked: one, or of very many rows one a core, up to four."""
    if asked:
        return asked
    return min(4, os.cpu_count() or 1) if count >= SLOW else 1


def told(count: int) -> None:
    """Have what follows say on stderr what it is at, where there are so many rows that it takes long."""
    if count < SLOW or log.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
