"""Triton's interpreter, in a quarter of the time.

Whenever a kernel calls a function the interpreter looks through all of triton.language for what to put its own versions
in the place of, though that was done when the kernel was launched. Here it is done once a launch. And it computes for
every sum and product of integers whether it overflows, to throw that away where kernels are not debugged; here it asks
first. And for every value it writes down anew which type of NumPy stands for which of its own; here it remembers.
"""

from __future__ import annotations

from dataclasses import replace as changed
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


def hasten() -> None:
    """Make the interpreter of this process do all three, where its version has what does them."""
    builder: Any = getattr(interpreter, "interpreter_builder", None)
    options: Any = getattr(builder, "options", None)
    if getattr(options, "sanitize_overflow", False):
        builder.options = changed(options, sanitize_overflow=options.debug)
    _replace_once_a_launch()
    _remember_types()


def _remember_types() -> None:
    look_up: Any = getattr(interpreter, "_get_np_dtype", None)
    if look_up is None:
        return
    known: dict[str, Any] = {}

    def remembered(kind: Any) -> Any:
        name = kind.scalar.name  # blocks of a type are stored as the type is
        if name not in known:
            known[name] = look_up(kind)
        return known[name]

    interpreter._get_np_dtype = remembered


def _replace_once_a_launch() -> None:
    replace: Any = getattr(interpreter, "_patch_lang", None)
    if replace is None:
        return
    replaced: set[int] = set()
    seen: dict[int, tuple[Any, set[int]]] = {}
    """What each module has of the language by the id of its names, which are kept: an id is that of one object."""

    def language_of(names: dict[str, Any]) -> set[int]:
        if id(names) not in seen:
            found = {id(value) for value in names.values() if value is language or value is language.core}
            seen[id(names)] = names, found
        return seen[id(names)][1]

    def once(function: Any) -> Any:
        modules = language_of(function.__globals__)
        if modules and modules <= replaced:
            return None  # of a function that a kernel calls: nobody puts anything back
        launched = not replaced
        scope = replace(function)
        replaced.update(modules)
        return Launch(scope, replaced) if launched else scope

    interpreter._patch_lang = once
