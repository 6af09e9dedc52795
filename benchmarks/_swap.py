"""A mutant put into modules that are imported already: the code of the functions that it changes is swapped.

That is right for what runs when a function is called, under whatever name or decorator others hold it: the function
object stays, with another `__code__`. It is not for what ran when the module was imported (constants, defaults, bodies
of classes, and functions that were called then): of such a mutant `pairs` or `Live.swap` say so, and it is tried in a
process that imports the module anew.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

ROOT = Path(__file__).parents[1]
Pair = tuple[CodeType, CodeType]
"""A function's code before and after the change."""


def place(code: CodeType) -> str:
    """Return the name of the function or class that holds this code, as in its module's text: `Class.method.inner`."""
    return ".".join(part for part in code.co_qualname.split(".") if not part.startswith("<")) or "module"


def file_of(code: CodeType) -> str:
    """Return the code's file relative to the root; empty if it lies outside."""
    path = os.path.relpath(code.co_filename, ROOT)
    return "" if path.startswith("..") else path


def pairs(before: str, after: str) -> list[Pair] | None:
    """Return the outermost functions that differ between two sources; None if anything outside of functions does."""
    found: list[Pair] = []
    old, new = (compile(source, "<mutant>", "exec", dont_inherit=True) for source in (before, after))
    return found if _compared(old, new, found) else None


def _compared(old: CodeType, new: CodeType, found: list[Pair]) -> bool:
    """Add the functions that differ within a module's or a class's body; say whether the body itself is the same."""
    if not _same_but_nested(old, new):
        return False
    for one, other in zip(_nested(old), _nested(new), strict=True):
        if same(one, other):
            continue
        if not one.co_flags & CO_OPTIMIZED:  # the body of a class
            if not _compared(one, other, found):
                return False
        elif one.co_name.startswith("<") and one.co_name != "<lambda>":  # a comprehension: it runs with the body
            return False
        else:
            found.append((one, other))
    return True


def same(one: CodeType, other: CodeType) -> bool:
    """Say whether two codes do the same, wherever they stand."""
    if not _same_but_nested(one, other):
        return False
    return all(same(a, b) for a, b in zip(_nested(one), _nested(other), strict=True))


def _same_but_nested(one: CodeType, other: CodeType) -> bool:
    return _bare(one) == _bare(other)


def _bare(code: CodeType) -> CodeType:
    constants = tuple(None if isinstance(value, CodeType) else value for value in code.co_consts)
    nested = f"{len(_nested(code))}"
    return code.replace(co_consts=(*constants, nested), co_firstlineno=1, co_linetable=b"", co_filename="")


def _nested(code: CodeType) -> list[CodeType]:
    return [value for value in code.co_consts if isinstance(value, CodeType)]


class Live:
    """The functions of the modules that are imported now, with those of them that ran on import."""

    def __init__(self, on_import: Iterable[CodeType]) -> None:
        self.on_import: dict[str, set[str]] = defaultdict(set)
        for code in on_import:
            if code.co_flags & CO_OPTIMIZED:
                self.on_import[file_of(code)].add(place(code))
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        gc.unfreeze()
        for one in gc.get_objects():
            if isinstance(one, FunctionType):
                self._functions[_key(file_of(one.__code__), one.__code__)].append(one)

    def swap(self, path: str, changed: Iterable[Pair]) -> bool:
        """Swap the functions' code; False, and nothing is changed, where that would not be the whole change."""
        planned = []
        for old, new in changed:
            functions = self._functions.get(_key(path, old), [])
            if not functions or old.co_freevars != new.co_freevars or place(old) in self.on_import.get(path, ()):
                return False
            if not all(same(one.__code__, old) for one in functions):
                return False
            planned += [(one, new) for one in functions]
        for function, code in planned:
            function.__code__ = code.replace(co_filename=function.__code__.co_filename)
        return True


def _key(path: str, code: CodeType) -> tuple[str, str, int]:
    return path, code.co_qualname, code.co_firstlineno


@contextmanager
def entered(codes: set[CodeType]) -> Generator[None]:
    """Collect the code of every function that is entered, in all threads."""
    if sys.version_info >= (3, 12):
        watch, tool = sys.monitoring, 4
        watch.use_tool_id(tool, "reach")

        def start(code: CodeType, _offset: int) -> Any:
            codes.add(code)
            return watch.DISABLE

        watch.register_callback(tool, watch.events.PY_START, start)
        watch.set_events(tool, watch.events.PY_START)
        watch.restart_events()
        try:
            yield
        finally:
            watch.set_events(tool, 0)
            watch.free_tool_id(tool)
    else:

        def call(frame: FrameType, _event: str, _argument: object) -> None:
            codes.add(frame.f_code)

        before = sys.gettrace()
        threading.settrace(call)
        sys.settrace(call)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(None)
