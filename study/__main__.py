"""`python -m study COMMAND`: one word for each thing that one does with a study. Each command is a file of its own."""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from train.spec.interrupts import run

    run("study.__main__")

import argparse
import difflib
import importlib
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import NoReturn

from analysis.text.terminal import complain, show
from study import __version__
from study import text as terminal
from study.commands import COMMANDS, EXIT_CODES, FORMAT, Command
from study.storage.shapes import told
from train.spec.command_line import Parser

HELP = ("-h", "--help", "help")
"""Words that ask what there is."""


class _WordsError(Exception):
    """Words of a command line that are not those of its command."""


class _Parser(Parser):
    """A parser that leaves it to its caller to say what is wrong, to people or to a script."""

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong."""
        raise _WordsError(self.said(message))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 2 for what the user can put right, else the command's own."""
    terminal.spell_out()
    try:
        try:
            return _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            sys.stdout.flush()  # also what a command's --help printed, after which argparse exits
    except BrokenPipeError:
        # The reader (head, less) has seen enough: nothing more can be written to it, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(given: Sequence[str]) -> int:
    """Run the command in these words and return its exit code."""
    if not given or given[0] in HELP:
        show(usage())
        return 0
    if given[0] == "--version":
        print(f"scaling-study {__version__}")
        return 0
    name = given[0]
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"the commands are {', '.join(COMMANDS)}"
        complain(f"study: unknown command {name!r}: {hint}")
        return 2
    return _command(name, given[1:])


def _command(name: str, given: Sequence[str]) -> int:
    """Run a command with the words behind its name; return its exit code."""
    command: Command = importlib.import_module(f"study.commands.{name.replace('-', '_')}")
    parser = _Parser(
        prog=f"python -m study {name}",
        description="\n".join(textwrap.wrap(COMMANDS[name], 78)),
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(parser)
    if hasattr(command, "about") and any(word in HELP for word in given):
        show(command.about([word for word in given if word not in HELP]) or parser.format_help())
        return 0
    try:
        options = parser.parse_intermixed_args(given)
    except _WordsError as error:
        return _refused(name, str(error), argparse.Namespace(json="--json" in given))
    try:
        with told(lambda text: complain(f"study {name}: {text}")):
            code = command.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        from study.config.errors import from_system

        message = from_system(error) if isinstance(error, OSError) else str(error)
        if message is None:
            raise
        return _refused(name, message, options)


def _refused(name: str, message: str, options: argparse.Namespace) -> int:
    """Say what the user can put right, to people or to a script; return the exit code."""
    complain(f"study {name}: {message}")
    if getattr(options, "json", False):
        print(json.dumps({"format": FORMAT, "command": name, "error": message}))
    return 2


def usage() -> str:
    """Return the list of commands."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "python -m study COMMAND STUDY    (its options: python -m study COMMAND --help)",
            "",
            *lines,
            "",
            "To create a study: python -m study.sweep (its --help lists every key).",
            "--json prints JSON for scripts.",
            "",
            EXIT_CODES,
        ]
    )
