"""`python -m study plan WHAT [KEY=VALUE ...]`: answers before anything runs, each by a module of its own."""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import Protocol

from analysis.text.commandline import usage
from study import text as terminal
from study.commands import add_json, emit
from study.planning.reply import Reply
from study.storage.mounts import at_home, check_out
from train.spec.interrupts import WRONG

PLANS = {
    "memory": (
        "study.planning.memory.plan",
        "study.planning.memory.question",
        "what each GPU holds, by component, and whether that fits",
    ),
    "step": (
        "study.planning.step.plan",
        "study.planning.step.question",
        "how long a step takes on a layout, and what limits it",
    ),
    "parallel": (
        "study.bench.layouts",
        "study.planning.parallel.question",
        "which layout of so many GPUs is predicted to be fastest, and why; measure=true runs the first few",
    ),
}
"""What can be planned: the module that answers, the one whose KEYS are its own, and what it says."""
STUDY_KEYS = (
    "model", "data.vocab_size", "data.sequence_length", "batch", "optim.name", "precision", "parallel", "memory",
    "compile", "cluster.nodes", "cluster.gpus_per_node", "cluster.gpu_memory_gb",
)  # fmt: skip
"""Keys and sections of a study on which plans depend."""


class Plan(Protocol):
    """What a module of PLANS offers."""

    def reply(self, words: Sequence[str]) -> Reply:
        """Return the answer to words of the command line; ValueError for what the user can put right."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    names = f"{{{','.join(PLANS)}}}"
    parser.add_argument(
        "what", metavar=names, help="; ".join(f"{name}: {told}" for name, (_, _, told) in PLANS.items())
    )
    parser.add_argument(
        "words",
        metavar="KEY=VALUE",
        nargs="*",
        default=[],
        help=f"python -m study plan {names} --help lists them",
    )
    add_json(parser)


def about(words: Sequence[str]) -> str | None:
    """Return the help on the plan that words name; None where they name none."""
    named = [word for word in words if word in PLANS]
    if not named:
        return None
    from study.config.compose import conf_folder
    from study.config.key_lines import lines_of

    _, module, told = PLANS[named[0]]
    own = importlib.import_module(module).KEYS
    models = ", ".join(sorted(path.stem for path in (conf_folder() / "model").glob("*.yaml")))
    return "\n".join(
        [
            usage(f"study plan {named[0]}", f"Predict {told}.", own),
            "",
            "Keys of the study, as for python -m study.sweep (the schema's defaults, a group's option may set others).",
            "Groups: model=NAME, parallel=NAME, precision=NAME, optim=NAME, +reference=NAME. Their options:",
            "  python -m study.sweep --help model",
            f"Models: {models}",
            *lines_of(STUDY_KEYS),
        ]
    )


def _of_another(what: str, words: Sequence[str]) -> str:
    """Return the message for a word that another plan has and this one has not; empty where there is none."""
    own = {name: [key.name for key in importlib.import_module(module).KEYS] for name, (_, module, _) in PLANS.items()}
    for word in words:
        key, _, value = word.partition("=")
        others = [f"study plan {name}" for name in PLANS if key in own[name]]
        if key in own[what] or not others:
            continue
        if key != "cluster":
            return f"{word} is a word of {' and '.join(others)}, not of study plan {what}: leave it out"
        from study.planning.parallel.profiles import names

        if value in names() or value.endswith(".yaml"):  # else an option of the group, or meant to be one
            return (
                f"{word} names a profile, which {' and '.join(others)} read: study plan {what} takes "
                "cluster.gpu_memory_gb=GB of a GPU instead"
            )
    return ""


def run(options: argparse.Namespace) -> int:
    """Print the answer; 2 where it is no."""
    if options.what not in PLANS:
        if "=" in options.what:
            raise ValueError(f"which plan? Name it before the keys: study plan {'|'.join(PLANS)} {options.what}")
        near = difflib.get_close_matches(options.what, PLANS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(PLANS)}"
        raise ValueError(f"unknown plan {options.what!r}: {hint}")
    options.words = at_home(options.words)
    check_out(options.words)
    for word in options.words:
        if word in PLANS:
            raise ValueError(f"{options.what} and {word} are two plans: ask for one after the other")
    plan: Plan = importlib.import_module(PLANS[options.what][0])
    try:
        found = plan.reply(options.words)
    except ValueError as error:
        raise ValueError(_of_another(options.what, options.words) or str(error)) from None
    if options.json:
        more = {"error": found.refusal} if found.refusal else {}
        emit("plan", None, {"what": options.what, **found.fields, **more})
    else:
        terminal.show(found.text)
    if found.refusal:
        print(f"study plan: {found.refusal}", file=sys.stderr)
    return WRONG if found.refusal else found.code
