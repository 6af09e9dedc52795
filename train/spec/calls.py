"""Calls from notebooks: a wrong argument is answered in one line, which names it, what is allowed and the nearest name.

Standard library only: the functions of all packages are checked by it.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from os import PathLike
from typing import Any, ParamSpec, TypeVar

from train.spec.not_installed import not_installed

P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[[str, Any], None]
"""Raises ValueError for a value, given the name of its argument."""
Further = Callable[[], Iterable[str]]
"""Returns the names of the arguments that a function passes on."""

FEWEST_RESAMPLES = 20
"""Fewer resamples than these, other than none, are no interval."""
LONG = 40
"""Characters of a value that errors quote."""
_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def answered(further: Further | None = None, /, **checks: Check) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator by which a function answers a wrong call in a line, before it does anything.

    `checks` are of the arguments by name; None is not checked where it is the default. What is missing, not known or
    given twice is a TypeError, as Python's own, a value that is not allowed a ValueError. Where the function needs a
    package that is not installed, the ModuleNotFoundError says what to install. Of a function that takes any argument
    by name, `further` names those that it knows.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*given: P.args, **named: P.kwargs) -> R:
            _check(function, further, checks, given, named)
            try:
                return function(*given, **named)
            except ModuleNotFoundError as error:
                if said := not_installed(error):
                    raise ModuleNotFoundError(f"{function.__name__}(): {said}", name=error.name) from None
                raise

        return call

    return decorate


def whole(least: int = 0) -> Check:
    """Return the check of a whole number of at least `least`."""

    def check(name: str, value: Any) -> None:
        if not _is_number(value) or value != int(value) or value < least:
            raise ValueError(f"{name}={shown(value)}: a whole number, {least} or more is needed")

    return check


def resamples(name: str, value: Any) -> None:
    """Check a number of resamples: none, or enough for the ends of an interval."""
    whole()(name, value)
    if 0 < value < FEWEST_RESAMPLES:
        raise ValueError(f"{name}={shown(value)}: 0 for no interval, or at least {FEWEST_RESAMPLES}")


def positive(name: str, value: Any) -> None:
    """Check a positive number."""
    if not _is_number(value) or value <= 0:
        raise ValueError(f"{name}={shown(value)}: a positive number is needed")


def flops(name: str, value: Any) -> None:
    """Check a budget [FLOPs]."""
    if not _is_number(value) or value <= 0:
        raise ValueError(f"{name}={shown(value)}: a positive number of FLOPs is needed, such as 1e22")


def budgets(name: str, value: Any) -> None:
    """Check a list of budgets [FLOPs]: a sequence or column of positive numbers."""
    # An iterator would be used up by the check, and an array without axes only looks like a list.
    listed = isinstance(value, Iterable) and not isinstance(value, (str, Mapping, Iterator))
    if not listed or getattr(value, "ndim", 1) != 1:
        raise ValueError(f"{name}={shown(value)}: a list is needed, such as {name}=[1e21, 1e22]")
    for one in value:
        flops(name, one)


def number(*words: str) -> Check:
    """Return the check of a number, for which one of these words may stand. A text of digits is none."""

    def check(name: str, value: Any) -> None:
        if not _is_number(value) and not (isinstance(value, str) and value in words):
            raise ValueError(f"{name}={shown(value)}: a number is needed{''.join(f', or {word!r}' for word in words)}")

    return check


def not_negative(name: str, value: Any) -> None:
    """Check a number that is 0 or positive."""
    if not _is_number(value) or value < 0:
        raise ValueError(f"{name}={shown(value)}: a number, 0 or more is needed")


def share(name: str, value: Any) -> None:
    """Check a number between 0 and 1."""
    if not _is_number(value) or not 0 < value < 1:
        usual = 0.95 if name == "confidence" else 0.05
        raise ValueError(f"{name}={shown(value)}: a number between 0 and 1 is needed, such as {usual}")


def text(name: str, value: Any) -> None:
    """Check a text."""
    if not isinstance(value, str):
        raise ValueError(f"{name}={shown(value)}: a text is needed")


def unicode(name: str, value: Any) -> None:
    """Check a text that is to become UTF-8: half of a surrogate pair is no character."""
    text(name, value)
    lone = next((place for place, letter in enumerate(value) if "\ud800" <= letter <= "\udfff"), None)
    if lone is not None:
        raise ValueError(
            f"{name}={shown(value)}: character {lone} is {value[lone]!r}, half of a surrogate pair, which is no text: "
            f"leave it out, as {name}.encode(errors='ignore').decode() does"
        )


def truth(name: str, value: Any) -> None:
    """Check a yes or no: no text stands for one."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={shown(value)}: True or False is needed")


def path(usual: str) -> Check:
    """Return the check of a path, as text or as pathlib's, which `usual` is an example of."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, (str, PathLike)) or not str(value):
            raise ValueError(f"{name}={shown(value)}: a path is needed, such as {usual!r}")

    return check


def numbers(name: str, value: Any) -> None:
    """Check a mapping of names to numbers."""
    if not isinstance(value, Mapping) or not all(_is_number(number) for number in value.values()):
        raise ValueError(f"{name}={shown(value)}: names with numbers are needed, such as {name}={{'E': 1.7}}")


def texts(name: str, value: Any) -> None:
    """Check a mapping of names to texts."""
    if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value.values()):
        raise ValueError(f"{name}={shown(value)}: names with texts are needed, such as {name}={{'beta': 'alpha'}}")


def axes(name: str, value: Any) -> None:
    """Check axes of matplotlib."""
    if not hasattr(value, "set_xlabel"):
        raise ValueError(f"{name}={shown(value)}: axes of matplotlib are needed, or none for new ones")


def one_of(*allowed: str) -> Check:
    """Return the check of a text that is one of these."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(
                f"{name}={shown(value)} is not known{nearest(name, value, allowed)}; use {_listed(allowed)}"
            )

    return check


def some_of(*allowed: str) -> Check:
    """Return the check of a sequence of texts that are each one of these."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ValueError(f"{name}={shown(value)}: a list is needed, such as {name}=[{allowed[0]!r}]")
        for one in value:
            one_of(*allowed)(name, one)

    return check


def names_of(function: Callable[..., Any], *own: str) -> list[str]:
    """Return the names of a function's arguments but for `own`: what passes the others on takes these."""
    return [name for name in inspect.signature(function).parameters if name not in own]


def shown(value: object) -> str:
    """Return a value as errors quote it, in one line: what is long by its type, a number without needless digits."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str) and len(value) > LONG:
        return f"{value[:LONG]!r}..."
    quoted = repr(value)
    return (
        quoted
        if isinstance(value, str) or (len(quoted) <= LONG and "\n" not in quoted)
        else f"<{type(value).__name__}>"
    )


def nearest(name: str, value: object, allowed: Iterable[str]) -> str:
    """Return "; did you mean size=page?" where a value comes near one of those allowed, else nothing."""
    near = difflib.get_close_matches(str(value), list(allowed), n=1, cutoff=0.6)
    return f"; did you mean {name}={near[0]}?" if near else ""


def none_such(name: str, value: str, of: str, held: Sequence[str]) -> str:
    """Return what to say where a law has no constant of the name that an argument gives, with those that it has."""
    return f"{name}={shown(value)}: {of} has no such constant{nearest(name, value, held)}; it has {_listed(held)}"


def _check(
    function: Callable[..., Any],
    further: Further | None,
    checks: Mapping[str, Check],
    given: Sequence[Any],
    named: Mapping[str, Any],
) -> None:
    signature = inspect.signature(function)
    own = {name: p for name, p in signature.parameters.items() if p.kind not in _ANY}
    passed = [name for name in named if name not in own]
    others = () if further is None or not passed else tuple(further())
    try:
        bound = signature.bind(*given, **named)
    except TypeError:
        raise TypeError(_why(function.__name__, signature, given, named, others)) from None
    if further is not None and not set(passed) <= set(others):
        raise TypeError(_why(function.__name__, signature, given, named, others))
    values = {name: value for name, value in bound.arguments.items() if name in own}
    for name, value in {**values, **{name: named[name] for name in passed}}.items():
        if name in checks and not (value is None and name in own and own[name].default is None):
            checks[name](name, value)


def _why(
    function: str,
    signature: inspect.Signature,
    given: Sequence[Any],
    named: Mapping[str, Any],
    others: Sequence[str] = (),
) -> str:
    """Return what is wrong with the arguments of a call that cannot be bound, and what it takes."""
    every = {name: p for name, p in signature.parameters.items() if name != "self" and p.kind not in _ANY}
    bare = [name for name, p in signature.parameters.items() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    takes = f"{function}() takes {_listed([f'{name}=' for name in every])}"
    any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())
    if any_name:
        takes += " and others by name" + (": see its help" if others else "")
    for name in named:
        if name not in every and not (any_name and (name in others or not others)):
            near = difflib.get_close_matches(name, (*every, *others), n=1, cutoff=0.6)
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


def _is_number(value: object) -> bool:
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the largest float
        return False
