"""Triton's interpreter, in half the time.

Whenever a kernel calls a function the interpreter looks through all of triton.language for what to put its own versions
in the place of, though that was done when the kernel was launched. Here it is done once a launch.
"""

from __future__ import annotations

from typing import Any

from triton import language
from triton.runtime import interpreter


class Launch:
    """What one launch has replaced."""

    def __init__(self, scope: Any, replaced: set[int]) -> None:
        self._scope, self._replaced = scope, replaced

    def restore(self) -> None:
        """Put back what was there before."""
        self._replaced.clear()
        self._scope.restore()


def replace_once_a_launch() -> None:
    """Make the interpreter of this process do so, where its version has the function that does it."""
    replace: Any = getattr(interpreter, "_patch_lang", None)
    if replace is None:
        return
    replaced: set[int] = set()

    def once(function: Any) -> Any:
        modules = {id(value) for value in function.__globals__.values() if value is language or value is language.core}
        if modules and modules <= replaced:
            return None  # of a function that a kernel calls: nobody puts anything back
        launched = not replaced
        scope = replace(function)
        replaced.update(modules)
        return Launch(scope, replaced) if launched else scope

    interpreter._patch_lang = once
