"""Command lines of options: what is wrong with one is said in one line, as everywhere else."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from train.spec.interrupts import WRONG

_MISSING = "the following arguments are required: "
_UNKNOWN = "unrecognized arguments: "


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line on stderr: what is wrong, then how the command is written."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and end with exit code 2."""
        command = self.prog.removeprefix("python -m ")
        print(f"{command}: {self.said(message)}", file=sys.stderr)
        raise SystemExit(WRONG)

    def said(self, message: str) -> str:
        """Return argparse's message in one line with the usage behind it."""
        if message.startswith(_MISSING):
            many = {name for action in self._actions if action.nargs == "*" for name in (action.metavar, action.dest)}
            names = [name for name in message.removeprefix(_MISSING).split(", ") if name not in many]
            message = f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} missing"
        elif message.startswith(_UNKNOWN):
            message = f"there is no {message.removeprefix(_UNKNOWN)}"
        usage = " ".join(self.format_usage().split()).removeprefix("usage: ").replace(" [-h]", "")
        return f"{message}; usage: {usage}"
