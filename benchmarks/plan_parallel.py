"""How long a search of layouts takes (`python -m study plan parallel`), and how few of its candidates it has to price.

    python -m benchmarks.plan_parallel

Seconds are of the processor, as the machine may do other things, and without what Hydra takes to compose the config.
Every search begins in a process of its own, so that none finds what another has computed.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence

from study.config.single import composed
from study.planning.parallel.answer import answer
from study.planning.parallel.question import ask
from train.spec.step_time import step_time

DATA = ("cluster=h200_x8_400g", "data.vocab_size=128256", "data.sequence_length=4096", "batch.tokens=4194304")
SEARCHES = (
    ("model=8b", "gpus=8"),
    ("model=8b", "gpus=64"),
    ("model=70b", "gpus=64"),
    ("model=70b", "gpus=256"),
    ("model=30b", "gpus=512"),
)
UNIT = 100_000
"""Candidates that a rate is given for."""


def main() -> int:
    """Print the table."""
    print("seconds of one core; candidates: all that were looked at; slower: even at the least time they could take\n")
    print(f"{'':22}{'candidates':>12}{'refused':>10}{'too large':>11}{'slower':>9}{'priced':>8}", end="")
    print(f"{'seconds':>9}{f'per {UNIT:,}':>13}")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for words in SEARCHES:
            counts, seconds = pool.apply(search, (words,))
            size, refused, too_large, slower, priced = counts
            row = f"{' '.join(words):22}{size:12,}{refused:10,}{too_large:11,}{slower:9,}{priced:8,}"
            print(f"{row}{seconds:9.2f}{seconds * UNIT / size:13.2f}", flush=True)
    return 0


def search(words: Sequence[str]) -> tuple[tuple[int, ...], float]:
    """Return a search's counts and how long it takes [s]."""
    question = ask([*DATA, *words], composed)
    began = time.process_time()
    found = answer(question, step_time)
    seconds = time.process_time() - began
    there = found.space
    refused = there.size - len(there.candidates)
    return (there.size, refused, found.found.too_large, found.found.slower, found.found.priced), seconds


if __name__ == "__main__":
    raise SystemExit(main())
