"""The check for losses in two units with its rough look first, beside every way fitted in full, in the same run.

`python -m benchmarks.unit_check [--tables 200]`: seconds for tables whose losses scatter by 15 %, where neither of two
units fits and every start is looked at; and whether made-up tables have the same findings either way. They differ in
design and scatter, rows are in bits or perplexities by size, ratio, order or at random, and some runs went wrong. One
thread: set OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

from analysis.diagnostics import suspects, two_units
from tests.analysis import studies
from tests.analysis.diagnostics.unit_tables import made
from train.spec.command_line import Parser

SIZES = (25, 200, 1000)
SCATTER = 0.15
REPEATS = 3


def findings(table: pd.DataFrame) -> list[tuple[str, str]]:
    """Return what the check says of a table: codes and texts."""
    return [(check.code, check.message) for check in suspects.findings(studies.as_rows(table), "nats per token")]


def in_full(call: Callable[[], Any]) -> Any:
    """Return what `call` does where every way to part the rows is fitted in full."""
    with patch.object(two_units, "_may_hold", lambda left, most: True):
        return call()


def seconds(call: Callable[[], Any]) -> float:
    """Return the least seconds by the clock of a few calls."""
    taken = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return min(taken)


def mixed(count: int) -> Iterator[pd.DataFrame]:
    """Yield so many tables, a third of them as they are, the others with rows in another unit."""
    generator = np.random.default_rng(0)
    for seed in range(count):
        kind = ("isoflop", "ladder", "random")[seed % 3]
        table = made(kind, (20, 25, 40, 90)[seed % 4], (0.005, 0.03, 0.1)[seed // 3 % 3], seed)
        table.loc[generator.random(len(table)) < 0.03 * (seed % 5 == 0), "loss"] *= 1.7
        orders = (
            table["params"],
            table["tokens"] / table["params"],
            pd.Series(table.index),
            generator.random(len(table)),
        )
        order = np.argsort(np.asarray(orders[seed // 9 % 4], dtype=float))
        rows = order[: int(generator.uniform(0.1, 0.6) * len(table))]
        loss = table["loss"].to_numpy(float, copy=True)
        if seed % 3 == 1:
            loss[rows] /= np.log(2.0)
        elif seed % 3 == 2:
            loss[rows] = np.exp(loss[rows])
        yield table.assign(loss=loss).sample(frac=1.0, random_state=seed).reset_index(drop=True)


def main(arguments: list[str]) -> int:
    """Print the seconds of both, and how many tables have the same findings."""
    parser = Parser(prog="python -m benchmarks.unit_check", description=__doc__)
    parser.add_argument("--tables", type=int, default=200, help="made-up tables whose findings are compared")
    given = parser.parse_args(arguments)
    print(f"{'runs':>6}{'in full [s]':>14}{'rough look first [s]':>23}{'ratio':>8}")
    for size in SIZES:
        table = made("random", size, SCATTER, 0)
        ours, full = seconds(partial(findings, table)), in_full(partial(seconds, partial(findings, table)))
        print(f"{size:>6}{full:>14.3f}{ours:>23.3f}{full / ours:>8.1f}", flush=True)
    tables = list(mixed(given.tables))
    same = sum(findings(table) == in_full(partial(findings, table)) for table in tables)
    told = sum(bool(findings(table)) for table in tables)
    print(f"{same} of {len(tables)} tables have the same findings, to the letter; {told} have any")
    return 0 if same == len(tables) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
