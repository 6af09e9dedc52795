"""`python -m train.branch --parent RUN --out FOLDER`: the config of a run that continues from another one.

A cooldown: the parent's config with a wsd schedule that is at its peak where the checkpoint was taken and decays over
the tokens that follow. A reproduction (`--same`): the parent's schedule and budget, so that its steps happen again,
with other settings if some are given. Then `python -m train.run --config FOLDER/config.yaml`.
"""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from train.spec.interrupts import run

    run("train.branch")

import argparse
import math
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.spec.command_line import Parser
from train.spec.config import RunConfig
from train.spec.from_mapping import read
from train.spec.interrupts import WRONG
from train.spec.later import filled, is_frozen
from train.spec.resolve import resolve
from train.spec.schedule import branch_decay_fraction
from train.spec.yamlfile import dump, read_mapping, value_of

if TYPE_CHECKING:
    from train.checkpoint.layout import Checkpoint


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = _parser().parse_args(arguments)
    from train.checkpoint.layout import newest  # loads torch

    try:
        parent = read_mapping(options.parent / "config.yaml")
        found = newest(options.parent / "checkpoints", before=options.before_step)
        if found is None:
            raise ValueError(f"{options.parent}/checkpoints has no complete checkpoint before the requested step")
        config = branch(_with(parent, options.set or []), found, None if options.same else options.tokens)
        place, text = options.out / "config.yaml", dump(asdict(config))
        if place.exists() and place.read_text(encoding="utf-8") != text:
            raise ValueError(f"{place} is there already, of another run: name another folder with --out")
        options.out.mkdir(parents=True, exist_ok=True)
        _keep(found)
        place.write_text(text, encoding="utf-8")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}: name a folder of your own with --out", file=sys.stderr)
        return WRONG
    print(
        f"{place}: from {found.folder.name} at {found.progress['tokens']:,} tokens to {config.budget.tokens:,}; "
        f"start it with python -m train.run --config {place}"
    )
    return 0


def _keep(found: Checkpoint) -> None:
    """Keep a checkpoint for good, which its run would remove in time; said where it is not ours to keep."""
    from train.checkpoint.layout import pin

    try:
        pin(found.folder)
    except OSError as error:
        print(
            f"warning: {found.folder} cannot be pinned ({error.strerror}): if its run goes on, it may remove it before "
            "the branch has begun",
            file=sys.stderr,
        )


def branch(parent: RunConfig, found: Checkpoint, tokens: int | None) -> RunConfig:
    """Return the config of a run from checkpoint `found` of a run with config `parent`.

    tokens: length of a cooldown [tokens]; None: schedule and budget stay the parent's. ValueError where they cannot be.
    """
    at = int(found.progress["tokens"])
    schedule = replace(parent.schedule, parent=str(found.folder.absolute()))
    if tokens is None:
        return resolve(replace(parent, schedule=schedule))
    if tokens <= 0:
        raise ValueError(f"--tokens {tokens} is not allowed: a cooldown takes more than 0 tokens")
    length = parent.data.sequence_length
    end = at + max(1, round(tokens / length)) * length  # whole sequences, as budgets are: the decay begins at `at`
    warmup = parent.schedule.warmup_fraction * (parent.budget.tokens or end) / end
    share = branch_decay_fraction(at, end)
    ramp = parent.batch.ramp_fraction * (parent.budget.tokens or end) / end
    if parent.batch.ramp_from is not None and ramp > 1.0:
        raise ValueError(
            f"--tokens {tokens} is not allowed: the batch of {found.folder} grows until {round(ramp * end):,} tokens, "
            f"and the cooldown would end at {end:,}: give at least {math.ceil(ramp * end) - at}"
        )
    if warmup + share > 1.0:
        raise ValueError(f"{found.folder} was taken during warmup: a cooldown begins at the peak learning rate")
    changed = replace(schedule, name="wsd", warmup_fraction=warmup, decay_fraction=share, final_lr_fraction=0.0)
    budget = replace(parent.budget, tokens=end, flops=None, tokens_per_param=None)
    # The ramp ends where the parent's does: a share of the parent's budget, not of the branch's.
    batch = parent.batch if parent.batch.ramp_from is None else replace(parent.batch, ramp_fraction=ramp)
    return resolve(replace(parent, batch=batch, schedule=changed, budget=budget))


def _with(mapping: dict[str, Any], assignments: list[str]) -> RunConfig:
    """Return the config of a mapping with `section.key=value` assignments applied, resolved."""
    mapping = filled(mapping) if is_frozen(mapping) else mapping
    for assignment in assignments:
        name, equals, _ = assignment.partition("=")
        section, dot, key = name.partition(".")
        if not equals:
            raise ValueError(f"--set {assignment}: write it as section.key=value")
        place = mapping.setdefault(section, {}) if dot else mapping
        if not isinstance(place, dict):
            raise ValueError(f"--set {assignment}: {section} is no section, but a key: write it as {section}=value")
        place[key if dot else name] = value_of(assignment)
    return resolve(read(RunConfig, mapping), begun=True)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m train.branch", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--parent", type=Path, required=True, metavar="RUN", help="folder of the run to branch from")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder of the new run")
    parser.add_argument("--before-step", type=int, metavar="N", help="use a checkpoint of a step before this one")
    parser.add_argument("--set", metavar="SECTION.KEY=VALUE", nargs="+", action="extend", help="change these settings")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--tokens", type=int, metavar="N", help="cooldown over this many tokens after the checkpoint")
    what.add_argument("--same", action="store_true", help="keep schedule and budget, to repeat the parent's steps")
    return parser
