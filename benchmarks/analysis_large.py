"""`python -m analysis.fit` on tables of many rows: wall clock, processor time, peak memory, what it ends with.

`python -m benchmarks.analysis_large [rows=1e4,1e5,1e6] [kinds=runs,curves] [limit=300] [OPTION=VALUE ...]`: made-up
tables in a temporary folder. "runs" are runs of 40 sizes at 25 budgets with seeds, "curves" checkpoints of runs, 100 of
each. Further options go to the command. Its exit code tells an answer (0, 3) from a refusal (2), which is followed: the
next line is of the command with the thin= that it names. `limit` [s] ends a command that does neither. Set
OMP_NUM_THREADS. On a machine that others use as well, processor seconds say more than the clock.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.text.commandline import Key, number
from benchmarks.key_values import counts, lists, values

CHECKPOINTS, SIZES, BUDGETS = 100, 40, 25
KINDS = ("runs", "curves")
REFUSED, MOST_REFUSALS = 2, 4
KEYS = (
    Key("rows", "numbers of rows", [10_000, 100_000, 1_000_000], counts),
    Key("kinds", f"of {', '.join(KINDS)}", list(KINDS), lists(KINDS)),
    Key("limit", "a command is ended after this time [s]", 300.0, number),
)
PURPOSE = "Time and memory of `python -m analysis.fit` on tables of many rows. Further key=value words go to it."


def loss(params: np.ndarray, tokens: np.ndarray, noise: np.ndarray) -> np.ndarray:
    return np.asarray((1.8 + 480 / params**0.35 + 2100 / tokens**0.37) * np.exp(noise))


def runs(count: int) -> pd.DataFrame:
    """Return `count` runs: seeds of 40 sizes at 25 budgets."""
    generator = np.random.default_rng(0)
    flops = np.geomspace(1e18, 1e22, BUDGETS)[generator.integers(BUDGETS, size=count)]
    ratio = np.geomspace(1, 400, SIZES)[generator.integers(SIZES, size=count)]
    params = np.sqrt(flops / (6 * ratio))
    tokens = flops / (6 * params)
    value = loss(params, tokens, 0.004 * generator.normal(size=count))
    return pd.DataFrame({"params": params, "tokens": tokens, "flops": flops, "loss": value})


def curves(count: int) -> pd.DataFrame:
    """Return `count` checkpoints, 100 a run, of runs of as many sizes and 20 to 400 tokens per parameter.

    Checkpoints of a run share an error. Runs of one ratio alone would leave N and D apart to none.
    """
    generator = np.random.default_rng(0)
    many = max(count // CHECKPOINTS, 1)
    params = np.repeat(np.exp(generator.uniform(np.log(1e7), np.log(1e10), many)), CHECKPOINTS)
    last = np.repeat(np.exp(generator.uniform(np.log(20), np.log(400), many)), CHECKPOINTS)
    tokens = params * last * np.tile(np.geomspace(0.005, 1, CHECKPOINTS), many)
    noise = np.repeat(0.004 * generator.normal(size=many), CHECKPOINTS) + 0.0005 * generator.normal(size=len(params))
    name = np.repeat([f"run{i}" for i in range(many)], CHECKPOINTS)
    table = {
        "run": name,
        "params": params,
        "tokens": tokens,
        "flops": 6 * params * tokens,
        "loss": loss(params, tokens, noise),
    }
    return pd.DataFrame(table)


def timed(table: Path, folder: Path, limit: float, further: list[str]) -> tuple[str, str]:
    """Return a line of what the command took and ended with, and the thin= that a refusal names, else nothing."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "analysis.fit", f"runs={table}", f"out={folder}", *further]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
    wall = time.perf_counter() - begin
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    worked = own.ru_utime + own.ru_stime - before.ru_utime - before.ru_stime
    last = (said.strip().splitlines() or [""])[-1]
    named = re.search(r"\bthin=\d+", last) if process.returncode == REFUSED else None
    shown = last.removeprefix("analysis.fit: ").replace(f"{folder}/", "")[:60]
    line = f"{wall:8.1f} {worked:10.1f} {own.ru_maxrss / 2**20:9.2f} {process.returncode:5d}  {shown}"
    return line, named.group() if named else ""


def follow(count: int, kind: str, limit: float, further: list[str]) -> None:
    """Print the command's line on a table of so many rows, then that of the command that its refusal advises."""
    with tempfile.TemporaryDirectory() as folder:
        table, thin = Path(folder) / "table.csv", ""
        {"runs": runs, "curves": curves}[kind](count).to_csv(table, index=False)
        for _ in range(MOST_REFUSALS):
            reader, writer = os.pipe()
            if os.fork() == 0:  # a process of its own, so that the peak of memory is this command's
                line, named = timed(table, Path(folder), limit, [*further, *([thin] if thin else [])])
                print(f"{count:9d} {kind:>7} {thin or '-':>8} {line}", flush=True)
                os.write(writer, named.encode())
                os._exit(0)
            os.close(writer)
            os.wait()
            with os.fdopen(reader, "rb") as said:
                thin = said.read().decode()
            if not thin:
                return


def main() -> None:
    words = sys.argv[1:]
    known = {key.name for key in KEYS}
    further = [word for word in words if "=" in word.lstrip("=") and word.partition("=")[0] not in known]
    given = values("benchmarks.analysis_large", PURPOSE, KEYS, [word for word in words if word not in further])
    heads = f"{'wall, s':>8} {'processor':>10} {'peak, GiB':>9} {'exit':>5}  last line"
    print(f"{'rows':>9} {'kind':>7} {'thinned':>8} {heads}")
    for count in given["rows"]:
        for kind in given["kinds"]:
            follow(count, kind, given["limit"], further)


if __name__ == "__main__":
    main()
