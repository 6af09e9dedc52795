"""Ctrl-C at the last moment at which it still counts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from train.spec.interrupts import deferred


def pressed_as_it_begins() -> Callable[[], AbstractContextManager[None]]:
    """Return `deferred`, whose first call is interrupted: Python runs a signal's handler where a function begins."""
    left = [KeyboardInterrupt()]

    def begins() -> AbstractContextManager[None]:
        if left:
            raise left.pop()
        return deferred()

    return begins
