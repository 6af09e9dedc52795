"""Command lines of key=value arguments for benchmarks: help, and one line for what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from analysis.text.commandline import Key, parse, usage
from train.spec.interrupts import WRONG


def values(command: str, purpose: str, keys: Sequence[Key], words: Sequence[str]) -> dict[str, Any]:
    """Return a value for every key; end the process with 0 after help, with 2 after a line on what is wrong."""
    if any(word in ("-h", "--help", "help") for word in words):
        print(usage(command, purpose, keys))
        raise SystemExit(0)
    try:
        return parse(words, keys)
    except ValueError as error:
        print(f"{command}: {error}", file=sys.stderr)
        raise SystemExit(WRONG) from None


def lists(allowed: Sequence[str]) -> Any:
    """Return what reads a list of these words, separated by commas."""

    def read(key: Key, text: str) -> list[str]:
        parts = text.split(",")
        wrong = [part for part in parts if part not in allowed]
        if wrong:
            raise ValueError(f"{key.name}={text}: {wrong[0]!r} is none of {', '.join(allowed)} ({key.help})")
        return parts

    return read


def counts(key: Key, text: str) -> list[int]:
    """Read whole numbers from 1, separated by commas; 1e4 is welcome."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [0.0]
    if any(one < 1 or one != one // 1 for one in found):
        raise ValueError(f"{key.name}={text}: whole numbers from 1, separated by commas, are needed ({key.help})")
    return [int(one) for one in found]
