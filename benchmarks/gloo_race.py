"""How often is a process with torch's gloo groups aborted, whose two threads write to one string, and how often ours?

`python -m benchmarks.gloo_race [--times 50] [--limit 120]`. Each time a new process has many collectives under
way at once, in a group as torch makes it and in one of `train.runtime.gloo`, by turns. A process may end well, be ended
by a signal or an error, or be stopped as it still hangs after the limit. The busier the machine, the more aborts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.analysis_intervals import wilson
from tests.train.runtime.gloo_workers import COLLECTIVES, ROUNDS
from train.spec.command_line import Parser

WAYS = {"torch": "torch alone, two threads a group", "ours": "train.runtime.gloo, one thread a group"}


@dataclass(frozen=True)
class End:
    """How a process ended, in a word, the line on its standard error that says why, and its seconds."""

    word: str
    line: str
    seconds: float


def ran(way: str, limit: float) -> End:
    """Run one process to its end, or for `limit` seconds."""
    command = [sys.executable, "-m", "benchmarks._gloo_load", way]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    begun = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parents[1], env=environment, capture_output=True, text=True, timeout=limit,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return End("hung", "", time.monotonic() - begun)
    seconds, lines = time.monotonic() - begun, done.stderr.strip().splitlines() or [""]
    if done.returncode < 0:
        return End(signal.Signals(-done.returncode).name, lines[0], seconds)
    well = done.returncode == 0 and done.stdout.strip() == "done"
    return End("well" if well else f"exit code {done.returncode}", lines[-1], seconds)


def said(way: str, ends: list[End]) -> None:
    """Print how the processes of a way ended."""
    bad = [end for end in ends if end.word != "well"]
    low, high = wilson(len(bad) / len(ends), len(ends))
    print(f"{WAYS[way]}: {len(bad)} of {len(ends)} did not end well (95 %: {low:.0%} to {high:.0%})")
    for (word, line), count in Counter((end.word, end.line) for end in bad).most_common(6):
        print(f"  {count} x {word} {line}".rstrip())
    if well := [end.seconds for end in ends if end.word == "well"]:
        print(f"  those that did took {min(well):.1f} to {max(well):.1f} s")


def main() -> None:
    parser = Parser(prog="python -m benchmarks.gloo_race", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=50, help="processes of each way")
    parser.add_argument("--limit", type=float, default=120.0, help="a process hangs that takes longer [s]")
    given = parser.parse_args()
    ends: dict[str, list[End]] = {way: [] for way in WAYS}
    for _ in range(given.times):
        for way, found in ends.items():
            found.append(ran(way, given.limit))
    print(f"{given.times} processes of each way, {ROUNDS * COLLECTIVES:,} collectives each")
    for way, found in ends.items():
        said(way, found)


if __name__ == "__main__":
    main()
