"""`python -m train.provenance --config RUN/config.yaml --step N`: list the documents that step N trained on.

Nothing was recorded for it: rows are a function of the seed and of the rows consumed before. The newest
checkpoint of a run says where it rolled back and where it branched off, from which row it went on then.
"""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from train.spec.interrupts import run

    run("train.provenance")

import argparse
import sys
from collections import Counter
from pathlib import Path

from train.spec.command_line import Parser
from train.spec.config import RunConfig
from train.spec.interrupts import WRONG
from train.spec.schedule import batch_sequences


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = _parser().parse_args(arguments)
    from train.spec.frozen_run import load

    try:
        config = load(options.config)
        folder = options.config.parent
        found = rows_of(config, options.step, rollbacks(folder), beginning(folder), options.first)
        print("\n".join(describe(config, options.step, *found, options.rows)))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG
    return 0


Place = tuple[int, int, int]
"""A step, and the tokens and rows of all steps until its end."""


def rows_of(
    config: RunConfig,
    step: int,
    went_back: list[tuple[int, int, int]],
    began: Place = (0, 0, 0),
    first: bool = False,
) -> tuple[int, int]:
    """Return the first row of a step and how many it took, of all ranks; ValueError where there is no such step.

    went_back: the run's rollbacks (train.health.monitor). began: where a branch left its parent. first: of a step that
    was taken again after a rollback, the rows of the first time, which are those that spiked; else of the last.
    """
    budget, length = config.budget.tokens, config.data.sequence_length
    assert budget is not None
    number, tokens, row = began
    found: tuple[int, int] | None = None
    pending = list(went_back)
    while tokens < budget:
        count = batch_sequences(config.batch, budget, tokens, length)
        number += 1
        if number == step and not (first and found):
            found = (row, count)
        row += count
        tokens += count * length
        if pending and number == pending[0][0]:
            _, number, tokens = pending.pop(0)
        elif found is not None and number >= step and not pending:
            break
    if found is None:
        own = f"the run has steps {began[0] + 1} to {number}"
        raise ValueError(f"--step {step}: {own}" + (", those before are its parent's" if began[0] else ""))
    return found


def beginning(folder: Path) -> Place:
    """Return where the run in a folder left its parent, by its newest checkpoint; zeros where it has none.

    ValueError where it left one, and the checkpoint, of an earlier version, does not say at which step and row.
    """
    from train.checkpoint.layout import newest

    found = newest(folder / "checkpoints")
    progress = {} if found is None else found.progress
    step, tokens, row = (progress.get(f"inherited{what}", 0) for what in ("_steps", "", "_sequences"))
    if tokens and not step:
        raise ValueError(
            f"{folder} branched off at {tokens} tokens, and its checkpoints were begun by a version that did not note "
            "at which step and row: which rows its steps took is not known"
        )
    return step, tokens, row


def rollbacks(folder: Path) -> list[tuple[int, int, int]]:
    """Return the rollbacks of the run in a folder, by its newest checkpoint."""
    from train.checkpoint.layout import newest

    found = newest(folder / "checkpoints")
    notes = {} if found is None else found.manifest.get("notes", {})
    return [(a, b, c) for a, b, c in notes.get("monitor", {}).get("went_back", [])]


def describe(config: RunConfig, step: int, first: int, count: int, shown: int) -> list[str]:
    """Return lines on the rows of a step: those with the least entropy first, at most `shown`, with their documents."""
    from train.data.dataset import open_training
    from train.health.token_entropy import odd, statistics

    data = open_training(config.data, config.runtime.data_root, config.seed)
    rows = data.rows(first, count)
    found = [statistics(row) for row in rows.inputs]
    strange = set(odd(found))
    origins = data.origins(first, count)
    sources = Counter(origin.source for origin in origins)
    lines = [
        f"step {step}: rows {first} to {first + count - 1}, "
        + ", ".join(f"{number} documents of {source}" for source, number in sources.most_common()),
        "row  entropy [nats]  top token  distinct  longest run  repeated 8-grams",
    ]
    for i in sorted(range(count), key=lambda i: found[i].entropy)[:shown]:
        s = found[i]
        lines.append(
            f"{first + i}  {s.entropy:.3f}  {100 * s.top_share:.1f} %  {100 * s.distinct_share:.1f} %  "
            f"{s.longest_run}  {100 * s.repeated_share:.1f} %{'  <- stands out' if i in strange else ''}"
        )
        lines += [
            f"    {o.source} {o.shard} document {o.document} at token {o.offset}, {o.tokens} tokens"
            for o in origins
            if o.row == first + i
        ]
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m train.provenance", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--config", type=Path, required=True, help="the run's config.yaml")
    parser.add_argument("--step", type=int, required=True, help="number of the step")
    parser.add_argument(
        "--first",
        action="store_true",
        help="for a step repeated after a rollback: show its first rows (those that spiked)",
    )
    parser.add_argument("--rows", type=int, default=8, help="number of rows to show, lowest entropy first")
    return parser
