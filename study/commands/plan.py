"""`python -m study plan WHAT [KEY=VALUE ...]`: answers before anything runs, each by a module of its own."""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import Protocol

from study import text as terminal
from study.commands import add_json, emit
from study.planning.reply import Reply
from study.storage.mounts import check_out
from train.spec.interrupts import WRONG

PLANS = {
    "memory": ("study.planning.memory.plan", "what each GPU holds, by component, and whether that fits"),
    "step": ("study.planning.step.plan", "how long a step takes on a layout, and what limits it"),
    "parallel": (
        "study.bench.layouts",
        "which layout of so many GPUs is predicted to be fastest, and why; measure=true runs the first few",
    ),
}
"""What can be planned: the module that answers, and what it says."""


class Plan(Protocol):
    """What a module of PLANS offers."""

    def reply(self, words: Sequence[str]) -> Reply:
        """Return the answer to words of the command line; ValueError for what the user can put right."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    names = f"{{{','.join(PLANS)}}}"
    parser.add_argument("what", metavar=names, help="; ".join(f"{name}: {told}" for name, (_, told) in PLANS.items()))
    parser.add_argument(
        "words",
        metavar="KEY=VALUE",
        nargs="*",
        default=[],
        help="as for python -m study.sweep, and the plan's own: docs/howto",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the answer; 2 where it is no."""
    if options.what not in PLANS:
        if "=" in options.what:
            raise ValueError(f"which plan? Name it before the keys: study plan {'|'.join(PLANS)} {options.what}")
        near = difflib.get_close_matches(options.what, PLANS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(PLANS)}"
        raise ValueError(f"unknown plan {options.what!r}: {hint}")
    check_out(options.words)
    plan: Plan = importlib.import_module(PLANS[options.what][0])
    found = plan.reply(options.words)
    if options.json:
        more = {"error": found.refusal} if found.refusal else {}
        emit("plan", None, {"what": options.what, **found.fields, **more})
    else:
        terminal.show(found.text)
    if found.refusal:
        print(f"study plan: {found.refusal}", file=sys.stderr)
    return WRONG if found.refusal else found.code
