"""Frozen dataclasses as plain JSON values, and back."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from train.spec import calls

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """Return dataclasses, tuples and numbers, also NumPy's, as plain JSON values; what is not finite becomes None."""
    if type(value) is str:  # most of what a file of many rows holds
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_json(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    value = value.item() if callable(getattr(value, "item", None)) else value
    if value is None or isinstance(value, bool | int | str):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def from_json(kind: type[T], value: Any, where: str = "fit.json") -> T:
    """Return `value`, as `to_json` wrote it, as an instance of `kind`; ValueError names what is missing or of another
    type.
    """
    result: T = _build(kind, value, where)
    return result


def _build(kind: Any, value: Any, where: str) -> Any:
    """Return `value` as the type `kind`."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _build(next(a for a in inner if a is not types.NoneType), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(value, "a list", where)
        each = inner if inner[-1] is not Ellipsis else (inner[0],) * len(value)
        if len(each) != len(value):
            raise _wrong(value, f"a list of {len(each)}", where)
        return tuple(_build(t, item, f"{where}[{i}]") for i, (t, item) in enumerate(zip(each, value, strict=True)))
    if origin is dict:
        if not isinstance(value, dict):
            raise _wrong(value, "an object", where)
        return {name: _build(inner[1], item, f"{where}.{name}") for name, item in value.items()}
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(typing.cast(type, kind), value, where)
    if kind is float:
        return math.nan if value is None else _float(value, where)
    if kind in _PLAIN and type(value) is not kind:
        raise _wrong(value, _PLAIN[kind], where)
    return value


_PLAIN: Mapping[Any, str] = {str: "a text", bool: "true or false", int: "a whole number"}


def _float(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(value, "a number", where)
    try:
        return float(value)
    except OverflowError:
        raise _wrong(value, "a number below 1e308", where) from None


def _wrong(value: Any, wanted: str, where: str) -> ValueError:
    return ValueError(
        f"{where} is {calls.shown(value)}, not {wanted}; was it written by another version? run analysis.fit again"
    )


def _build_dataclass(kind: type, value: Any, where: str) -> Any:
    """Return a mapping as the dataclass `kind`; unknown keys are left out, so that newer files stay readable."""
    if not isinstance(value, dict):
        raise _wrong(value, "an object", where)
    found: dict[str, Any] = {}
    for name, hint, needed in _fields(kind):
        if name in value:
            item = value[name]
            # Texts by themselves: they are most of what a file of many rows holds.
            found[name] = item if hint is str and type(item) is str else _build(hint, item, f"{where}.{name}")
        elif needed:
            raise ValueError(f"{where} has no key {name!r}; was it written by another version? run analysis.fit again")
    return kind(**found)


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, Any, bool], ...]:
    """Return each field's name, type, and whether it must be there.

    Types are resolved from their text, which takes longer than all else: once a class, not once for every row left out.
    """
    hints = typing.get_type_hints(kind)
    missing = dataclasses.MISSING
    return tuple(
        (f.name, hints[f.name], f.default is missing and f.default_factory is missing) for f in dataclasses.fields(kind)
    )
