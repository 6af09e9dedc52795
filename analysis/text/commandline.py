"""Command lines of key=value arguments: each key says what it is, and an error names key, value and what is allowed."""

from __future__ import annotations

import difflib
import math
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from errno import EDQUOT, ENOSPC
from typing import Any, Protocol

from analysis.text import numbers
from analysis.text.terminal import complain, help_columns, show
from train.spec.calls import FEWEST_RESAMPLES

Read = Callable[["Key", str], Any]
BESIDE = 30
"""Columns that the words about a key need beside its name and type; with fewer they begin on a line of their own."""
UNANSWERED = 3
"""Exit code where the command did what it was asked to, and the runs do not say what was asked for."""


class UnansweredError(ValueError):
    """The runs do not say what was asked for: nothing of theirs can be recommended or planned with."""


class Level(Protocol):
    """A finding, as far as a command's exit code goes."""

    @property
    def level(self) -> str:
        """How bad it is: error, warning or note."""


def code(checks: Iterable[Level]) -> int:
    """Return the exit code of a command that is done: UNANSWERED where a finding is an error, else 0."""
    return UNANSWERED if any(check.level == "error" for check in checks) else 0


@dataclass(frozen=True)
class Key:
    """A key of a command: its help, how its text is read, what it is where it is not given.

    kind: the type that the help shows; empty: by `read`, the choices or the default.
    """

    name: str
    help: str
    default: Any = ""
    read: Read | None = None
    required: bool = False
    choices: tuple[str, ...] = ()
    kind: str = ""

    @property
    def type_name(self) -> str:
        """What a value is, in a word."""
        if self.kind or self.read in _TYPES:
            return self.kind or _TYPES[self.read]
        if isinstance(self.default, tuple | list):
            return "list"
        return "choice" if self.choices else "text"

    def value(self, text: str) -> Any:
        """Return the value of this text; ValueError says what is allowed."""
        if self.choices and text not in self.choices:
            near = difflib.get_close_matches(text, self.choices, n=1, cutoff=0.5)
            hint = f"; did you mean {self.name}={near[0]}?" if near else ""
            raise ValueError(f"{self.name}={text} is not allowed: one of {', '.join(self.choices)} ({self.help}){hint}")
        return text if self.read is None else self.read(self, text)


def number(key: Key, text: str) -> float:
    """Read a positive number."""
    value = numbers.read(text)
    if not 0.0 < value < float("inf"):
        raise ValueError(f"{key.name}={text}: a positive number is needed ({key.help})")
    return value


def share(key: Key, text: str) -> float:
    """Read a number between 0 and 1, or a percentage: 0.4, 40% or 40 %."""
    value = numbers.read(text.removesuffix("%").strip()) / (100.0 if text.endswith("%") else 1.0)
    if not 0.0 < value < 1.0:
        raise ValueError(f"{key.name}={text}: a number between 0 and 1 is needed ({key.help})")
    return value


def whole(key: Key, text: str) -> int:
    """Read a whole number, 0 or more; 1e3 is welcome."""
    value = numbers.read(text)
    if not 0.0 <= value < float("inf") or value != int(value):
        raise ValueError(f"{key.name}={text}: a whole number, 0 or more is needed ({key.help})")
    return int(value)


def count(key: Key, text: str) -> int:
    """Read a whole number, 1 or more."""
    value = numbers.read(text)
    if not 1.0 <= value < float("inf") or value != int(value):
        raise ValueError(f"{key.name}={text}: a whole number, 1 or more is needed ({key.help})")
    return int(value)


def not_negative(key: Key, text: str) -> float:
    """Read a number, 0 or more."""
    value = numbers.read(text)
    if not 0.0 <= value < float("inf"):
        raise ValueError(f"{key.name}={text}: a number, 0 or more is needed ({key.help})")
    return value


def resamples(key: Key, text: str) -> int:
    """Read a number of resamples: none, or enough for the ends of an interval."""
    value = whole(key, text)
    if 0 < value < FEWEST_RESAMPLES:
        raise ValueError(f"{key.name}={text}: 0 for no interval, or at least {FEWEST_RESAMPLES} ({key.help})")
    return value


def switch(key: Key, text: str) -> bool:
    """Read yes or no."""
    found = {"yes": True, "true": True, "1": True, "on": True, "no": False, "false": False, "0": False, "off": False}
    if text.lower() not in found:
        raise ValueError(f"{key.name}={text}: yes or no is needed ({key.help})")
    return found[text.lower()]


def constants(key: Key, text: str) -> dict[str, float]:
    """Read E:1.7,alpha:0.3 as a mapping of numbers."""
    found = {}
    for part in text.split(","):
        name, colon, value = (piece.strip() for piece in part.partition(":"))
        number = numbers.read(value)
        if not colon or not name or math.isnan(number):
            raise ValueError(f"{key.name}={text}: write {key.name}=NAME:NUMBER,NAME:NUMBER ({key.help})")
        found[name] = number
    return found


def names(key: Key, text: str) -> dict[str, str]:
    """Read beta:alpha,b:a as a mapping of names."""
    found = {}
    for part in text.split(","):
        left, colon, right = (piece.strip() for piece in part.partition(":"))
        if not colon or not left or not right:
            raise ValueError(f"{key.name}={text}: write {key.name}=NAME:NAME,NAME:NAME ({key.help})")
        found[left] = right
    return found


def parse(arguments: Iterable[str], keys: Sequence[Key]) -> dict[str, Any]:
    """Return a value for every key; ValueError names an unknown key's nearest, a bad value, a key missing or twice."""
    known = {key.name: key for key in keys}
    given: dict[str, Any] = {}
    words = list(arguments)
    for argument in words:
        name, equals, text = argument.partition("=")
        name = name.lstrip("-")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}=?" if near else f". Keys: {', '.join(known)}"
            if name == "fit" and "runs" in known:
                hint = ": laws are fitted anew: give runs=runs/STUDY, or the file of runs that the fit is of"
            if not equals and "runs" in known and not argument.startswith("-"):
                hint = f"; did you mean runs={argument}?"
            raise ValueError(f"{argument!r}: there is no key {name!r}{hint}")
        if not equals or not text:
            raise ValueError(f"{argument!r}: write {name}=VALUE ({known[name].help})")
        given[name] = known[name].value(text)
    refuse_repeated(words)
    for key in keys:
        if key.required and key.name not in given:
            raise ValueError(f"{key.name}= is missing: {key.help}")
    return {key.name: given.get(key.name, key.default) for key in keys}


def refuse_repeated(words: Iterable[str]) -> None:
    """Raise ValueError for a key that is given two values; signs before its name make no difference."""
    said: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        bare = name.lstrip("-+")
        if equals and (first := said.setdefault(bare, word)).partition("=")[2] != text:
            raise ValueError(f"{bare} is given twice: {first} and {word}; leave one out")


def usage(command: str, purpose: str, keys: Sequence[Key], examples: Sequence[str] = ()) -> str:
    """Return the help of a command."""
    first = next((f"{key.name}=... " for key in keys if key.required), "")
    told = textwrap.wrap(purpose, help_columns(), break_on_hyphens=False)
    lines = [f"usage: python -m {command} {first}[key=value ...]", "", *told, "", *key_lines(keys)]
    if examples:
        lines += ["", "examples:", *(f"  {example}" for example in examples)]
    return "\n".join(lines)


def _lacking(command: str, purpose: str, keys: Sequence[Key], examples: Sequence[str]) -> str:
    """Return what a command without arguments is answered with: what it needs, an example, and where its help is."""
    needed = [key for key in keys if key.required]
    missing = "; ".join(f"{key.name}= is missing: {key.help}" for key in needed) or " ".join(purpose.split())
    first = [f"for example: {example}" for example in examples[:1]]
    return "\n".join([f"{command}: {missing}", *first, f"all keys: python -m {command} --help"])


def key_lines(keys: Sequence[Key]) -> list[str]:
    """Return the lines of each key: name, type, what it is, its choices and its default."""
    width, kinds = max(len(key.name) for key in keys) + 2, max(len(key.type_name) for key in keys) + 2
    columns = help_columns()
    beside = columns - (2 + width + kinds) >= BESIDE
    lines = []
    for key in keys:
        default = "" if key.required or key.default in ("", None) else f" (default {_shown(key.default)})"
        choices = f": {', '.join(key.choices)}" if key.choices else ""
        lead = f"  {key.name:<{width}}{key.type_name:<{kinds}}"
        indent = " " * (len(lead) if beside else 6)
        lines += [] if beside else [lead.rstrip()]
        lines += textwrap.wrap(
            f"{key.help}{choices}{default}",
            columns,
            initial_indent=lead if beside else indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def run(
    command: str,
    purpose: str,
    keys: Sequence[Key],
    act: Callable[[Mapping[str, Any]], int],
    arguments: Sequence[str] | None = None,
    *,
    examples: Sequence[str] = (),
) -> int:
    """Run a command: its help, or what it does; 2 with the message where the arguments or the runs are wrong.

    3 where the runs do not say what was asked for.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if any(a in ("-h", "--help", "help") for a in given):
            show(usage(command, purpose, keys, examples))
            return 0
        if not given:
            complain(_lacking(command, purpose, keys, examples))
            return 2
        with warnings.catch_warnings():
            # Overflow in a trial step is part of a search; what comes of it is judged, and findings say it.
            warnings.simplefilter("ignore", RuntimeWarning)
            return act(parse(given, keys))
    except ValueError as error:
        complain(f"{command}: {error}")
        return UNANSWERED if isinstance(error, UnansweredError) else 2
    except BrokenPipeError:  # the reader of the output has gone, as head does
        sys.stderr.close()
        return 0
    except OSError as error:  # a folder that cannot be written, a file that cannot be read
        cure = "make room, or give another path" if error.errno in (ENOSPC, EDQUOT) else "give another path"
        print(f"{command}: {error.filename or 'a file'}: {error.strerror or error}; {cure}", file=sys.stderr)
        return 2


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict | tuple | list):
        return ",".join(map(str, value)) or "none"
    return str(value)


_TYPES: Mapping[Read | None, str] = {
    number: "number",
    share: "share",
    not_negative: "number",
    whole: "int",
    count: "int",
    resamples: "int",
    switch: "yes|no",
    constants: "NAME:NUMBER,…",
    names: "NAME:NAME,…",
}
