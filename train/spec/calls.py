"""Calls from notebooks: a wrong argument is answered in one line, which names it, what is allowed and the nearest name.

Standard library only: the functions of all packages are checked by it.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[[str, Any], None]
"""Raises ValueError for a value, given the name of its argument."""

FEWEST_RESAMPLES = 20
"""Fewer resamples than these, other than none, are no interval."""
_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def answered(**checks: Check) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator by which a function answers a wrong call in a line, before it does anything.

    `checks` are of the arguments by name; None is not checked where it is the default. What is missing, not known or
    given twice is a TypeError, as Python's own, a value that is not allowed a ValueError.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*given: P.args, **named: P.kwargs) -> R:
            _check(function, checks, given, named)
            return function(*given, **named)

        return call

    return decorate


def whole(least: int = 0) -> Check:
    """Return the check of a whole number of at least `least`."""

    def check(name: str, value: Any) -> None:
        if not _is_number(value) or value != int(value) or value < least:
            raise ValueError(f"{name}={_shown(value)}: a whole number, {least} or more is needed")

    return check


def resamples(name: str, value: Any) -> None:
    """Check a number of resamples: none, or enough for the ends of an interval."""
    whole()(name, value)
    if 0 < value < FEWEST_RESAMPLES:
        raise ValueError(f"{name}={_shown(value)}: 0 for no interval, or at least {FEWEST_RESAMPLES}")


def positive(name: str, value: Any) -> None:
    """Check a positive number."""
    if not _is_number(value) or value <= 0:
        raise ValueError(f"{name}={_shown(value)}: a positive number is needed")


def not_negative(name: str, value: Any) -> None:
    """Check a number that is 0 or positive."""
    if not _is_number(value) or value < 0:
        raise ValueError(f"{name}={_shown(value)}: a number, 0 or more is needed")


def share(name: str, value: Any) -> None:
    """Check a number between 0 and 1."""
    if not _is_number(value) or not 0 < value < 1:
        raise ValueError(f"{name}={_shown(value)}: a number between 0 and 1 is needed, such as 0.05")


def text(name: str, value: Any) -> None:
    """Check a text."""
    if not isinstance(value, str):
        raise ValueError(f"{name}={value!r:.40}: a text is needed")


def numbers(name: str, value: Any) -> None:
    """Check a mapping of names to numbers."""
    if not isinstance(value, Mapping) or not all(_is_number(number) for number in value.values()):
        raise ValueError(f"{name}={value!r:.60}: names with numbers are needed, such as {name}={{'E': 1.7}}")


def one_of(*allowed: str) -> Check:
    """Return the check of a text that is one of these."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(
                f"{name}={value!r:.40} is not known{nearest(name, value, allowed)}; use {_listed(allowed)}"
            )

    return check


def some_of(*allowed: str) -> Check:
    """Return the check of a sequence of texts that are each one of these."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ValueError(f"{name}={value!r:.40}: a list is needed, such as {name}=[{allowed[0]!r}]")
        for one in value:
            one_of(*allowed)(name, one)

    return check


def nearest(name: str, value: object, allowed: Iterable[str]) -> str:
    """Return "; did you mean size=page?" where a value comes near one of those allowed, else nothing."""
    near = difflib.get_close_matches(str(value), list(allowed), n=1, cutoff=0.6)
    return f"; did you mean {name}={near[0]}?" if near else ""


def _check(
    function: Callable[..., Any], checks: Mapping[str, Check], given: Sequence[Any], named: Mapping[str, Any]
) -> None:
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*given, **named)
    except TypeError:
        raise TypeError(_why(function.__name__, signature, given, named)) from None
    for name, value in bound.arguments.items():
        if name in checks and not (value is None and signature.parameters[name].default is None):
            checks[name](name, value)


def _why(function: str, signature: inspect.Signature, given: Sequence[Any], named: Mapping[str, Any]) -> str:
    """Return what is wrong with the arguments of a call that cannot be bound, and what it takes."""
    every = {name: p for name, p in signature.parameters.items() if name != "self" and p.kind not in _ANY}
    bare = [name for name, p in signature.parameters.items() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    takes = f"{function}() takes {_listed([f'{name}=' for name in every])}"
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values()):
        takes += " and others by name"
    for name in named:
        if name not in every:
            near = difflib.get_close_matches(name, every, n=1, cutoff=0.6)
            return f"there is no argument {name}={f'; did you mean {near[0]}=?' if near else ''}; {takes}"
    own = len([name for name in bare if name == "self"])
    if len(given) > len(bare):
        alone = _listed(bare[own:])
        return f"{function}() was given {len(given) - own} values without a name, and only {alone} needs none; {takes}"
    twice = [name for name in named if name in bare[: len(given)]]
    if twice:
        return f"{twice[0]}= is given twice, by its place and by its name; {takes}"
    missing = [
        name for name, p in every.items()
        if p.default is inspect.Parameter.empty and name not in named and name not in bare[: len(given)]
    ]  # fmt: skip
    return f"{' and '.join(f'{name}=' for name in missing)} {'is' if len(missing) == 1 else 'are'} missing; {takes}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"


def _shown(value: object) -> str:
    """Return a value as it is quoted: a number without digits that say nothing, anything else cut short."""
    return f"{value:g}" if isinstance(value, float) else f"{value!r:.40}"


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
