"""Command lines of options: what is wrong with one is said in one line, as everywhere else."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from train.spec.interrupts import WRONG

_MISSING = "the following arguments are required: "
_UNKNOWN = "unrecognized arguments: "
_NO_NUMBER = re.compile(r"argument (\S+): invalid (int|float) value: (.*)")
_NO_CHOICE = re.compile(r"argument (\S+): invalid choice: (.*?) \(choose from (.*)\)")
_NO_VALUE = re.compile(r"argument (\S+): ignored explicit argument '(.*)'")
_NUMBERS = {"int": "a whole number", "float": "a number"}


def whole_number(text: str) -> int:
    """Return an option's value where it is a whole number from 1 on: an option's `type`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: a whole number from 1 on is needed")
    return int(text)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line on stderr: what is wrong, then how the command is written.

    Without a `prog` the command is `python -m MODULE`, of the module that Python was started with.
    """

    def __init__(self, prog: str | None = None, **more: Any) -> None:
        started = getattr(sys.modules.get("__main__"), "__spec__", None)
        if prog is None and started is not None:
            prog = f"python -m {started.name.removesuffix('.__main__')}"
        super().__init__(prog=prog, **more)
        self._given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and keep the words for what is said of them."""
        self._given = self._given or tuple(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and end with exit code 2."""
        command = self.prog.removeprefix("python -m ")
        print(f"{command}: {self.said(message)}", file=sys.stderr)
        raise SystemExit(WRONG)

    def said(self, message: str) -> str:
        """Return argparse's message in one line with the usage behind it."""
        if message.startswith(_MISSING) and (unknown := self._unknown()):
            message = _UNKNOWN + " ".join(unknown)  # which argparse says only where nothing is missing
        if message.startswith(_MISSING):
            many = {name for action in self._actions if action.nargs == "*" for name in (action.metavar, action.dest)}
            names = [name for name in message.removeprefix(_MISSING).split(", ") if name not in many]
            message = f"{' and '.join(map(_title, names))} {'is' if len(names) == 1 else 'are'} missing"
        elif message.startswith(_UNKNOWN):
            words = message.removeprefix(_UNKNOWN).split(" ")
            takes_keys = any(action.metavar == "KEY=VALUE" for action in self._actions)
            near, options = 0.7 if takes_keys else 0.6, self._option_string_actions
            meant = difflib.get_close_matches(words[0].partition("=")[0], options, n=1, cutoff=near)
            hint = f": did you mean {meant[0]}?" if meant and words[0].startswith("-") else ""
            if takes_keys and not hint and words[0].startswith("--"):
                key, equals, value = words[0].lstrip("-").partition("=")
                hint = f": keys are written without dashes, {key}={value if equals else ' '.join(words[1:2]) or '…'}"
            message = f"there is no {' '.join(words)}{hint}"
        elif found := _NO_NUMBER.fullmatch(message):
            message = f"{found[1]} {found[3]} is not allowed: {_NUMBERS[found[2]]} is needed"
        elif found := _NO_VALUE.fullmatch(message):
            message = f"{found[1]} takes no value: leave ={found[2]} out"
        elif found := _NO_CHOICE.fullmatch(message):
            of = "" if found[1].startswith("{") else f"{found[1]} "
            message = f"{of}{found[2]} is not allowed: choose one of {found[3].replace(chr(39), '')}"
        elif message.startswith("argument "):
            message = message.partition(": ")[2] if "{" in message.partition(": ")[0] else message[len("argument ") :]
        usage = " ".join(self.format_usage().split()).removeprefix("usage: ").replace(" [-h]", "")
        return f"{message}; usage: {usage}"

    def _unknown(self) -> list[str]:
        """Return the options among the words that there are not; those of sub-commands are not looked at."""
        words = self._given[: self._given.index("--")] if "--" in self._given else self._given
        named = [word for word in words if word.startswith("--")]
        return [
            word for word in named if not any(o.startswith(word.partition("=")[0]) for o in self._option_string_actions)
        ]


def _title(name: str) -> str:
    """Return what an argument is called in a sentence: its choices, where its name lists them."""
    return f"one of {name[1:-1].replace(',', ', ')}" if name.startswith("{") else name
