"""`python -m study bench WHAT [KEY=VALUE …]`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import Any, Protocol

from analysis.text.commandline import usage
from study import text as terminal
from study.commands import add_json, emit
from study.storage.mounts import at_home, check_out
from train.spec.interrupts import INTERRUPTED

BENCHES = {"comm": "study.bench.comm", "pipeline": "study.bench.pipeline", "strategies": "study.bench.strategies"}
"""What can be measured or compared, and the module that does it."""


class Bench(Protocol):
    """What a module of `BENCHES` offers."""

    PURPOSE: str
    KEYS: Sequence[Any]

    def run(self, words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
        """Do what the key=value words ask for; return lines of text and the fields of the JSON object.

        A field `interrupted` that is true says that Ctrl-C ended it, and the rest is what there was until then. A field
        `problems` that is not empty says what needs attention.
        """


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    named = f"{{{','.join(BENCHES)}}}"
    parser.add_argument("what", choices=tuple(BENCHES), metavar=named, help="what to compare or to measure")
    parser.add_argument(
        "words", nargs="*", default=[], metavar="KEY=VALUE", help=f"python -m study bench {named} --help lists them"
    )
    add_json(parser)


def about(words: Sequence[str]) -> str | None:
    """Return the help on what words name; None where they name nothing that there is."""
    named = [word for word in words if word in BENCHES]
    if not named:
        return None
    bench: Bench = importlib.import_module(BENCHES[named[0]])
    return usage(f"study bench {named[0]}", bench.PURPOSE, bench.KEYS)


def run(options: argparse.Namespace) -> int:
    """Compare or measure; print a table, or one JSON object."""
    bench: Bench = importlib.import_module(BENCHES[options.what])
    options.words = at_home(options.words)
    check_out(options.words)
    lines, said = bench.run(options.words)
    if options.json:
        emit("bench", None, said)
    else:
        terminal.show("\n".join(lines))
    return INTERRUPTED if said.get("interrupted") else int(bool(said.get("problems")))
