"""Telling a person something: a reader that went away, or a full disk under a log, does not end a training run."""

from __future__ import annotations

import contextlib
import os
import sys


def say(text: str) -> None:
    """Print a line at once, if that can be."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def let_go() -> None:
    """Drop unwritten output of a closed stream: at exit Python would try again, and end with exit code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def warn(text: str) -> None:
    """Print a line on standard error at once, if that can be."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)
