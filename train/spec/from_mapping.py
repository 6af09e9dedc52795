"""Reading plain mappings into the config's dataclasses, with errors that name the key and the nearest valid one."""

from __future__ import annotations

import difflib
import functools
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")


def read(kind: type[T], mapping: Mapping[str, Any], where: str = "") -> T:
    """Return the dataclass `kind` made from `mapping`, checking every key, type and choice.

    Missing keys take their defaults. An int is accepted where a float is wanted, a float that is a whole number
    (``1e6``) where an int is wanted, and text that says a number or a truth. Raises ValueError that names the key, the
    value and what is allowed.
    """
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    hints = _hints(typing.cast(Any, kind))
    for name in mapping:
        if name not in known:
            raise ValueError(unknown_key(_join(where, str(name)), _join(where, ""), list(known)))
    values: dict[str, Any] = {}
    for name, spec in known.items():
        if name in mapping:
            path = _join(where, name)
            values[name] = _value(hints[name], mapping[name], path)
            choices = spec.metadata.get("choices", ())
            if choices and values[name] is not None and values[name] not in choices:
                raise ValueError(f"{path}={values[name]!r} is not allowed: choose one of {', '.join(choices)}")
        elif spec.default is MISSING and spec.default_factory is MISSING:
            raise ValueError(f"{_join(where, name)} is missing")
    return kind(**values)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def unknown_key(path: str, prefix: str, known: list[str]) -> str:
    """Return the message for an unknown key: it names the nearest valid key, else lists them all."""
    near = difflib.get_close_matches(path.rpartition(".")[2], known, cutoff=0.5)
    if near:
        return f"unknown key {path!r}: did you mean {prefix + near[0]!r}?"
    return f"unknown key {path!r}: the keys here are {', '.join(prefix + k for k in sorted(known))}"


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _value(hint: Any, value: Any, path: str) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None:
        if type(None) in options:
            return None
        raise ValueError(f"{path}=null is not allowed: it takes {_name(hint)}")
    for option in options:
        if is_dataclass(option) and isinstance(option, type):
            if not isinstance(value, Mapping):
                own = f"a section with keys of its own, such as {path}.{fields(option)[0].name}"
                raise ValueError(f"{path}={value!r} is not allowed: it is {own}")
            return read(option, value, path)
        origin = typing.get_origin(option)
        if origin in (tuple, list) and isinstance(value, list | tuple):
            item = typing.get_args(option)[0]
            return origin(_value(item, v, f"{path}[{i}]") for i, v in enumerate(value))
        if origin is dict and isinstance(value, Mapping):
            return dict(value)
        converted = _scalar(option, value)
        if converted is not None:
            return converted
    quotes = ""
    if str in options and isinstance(value, int | float):
        said = str(value).lower() if isinstance(value, bool) else value
        quotes = f": put it in quotes, as '{path}=\"{said}\"'"
    raise ValueError(f"{path}={value!r} is not allowed: it takes {_name(hint)}{quotes}")


def _scalar(kind: Any, value: Any) -> Any:
    if kind is Any:
        return value
    if isinstance(value, str):
        return value if kind is str else _from_text(kind, value)
    if kind is bool or isinstance(value, bool):
        return value if kind is bool and isinstance(value, bool) else None
    if kind is float and isinstance(value, int | float):
        return float(value) if math.isfinite(value) else None
    if kind is int and isinstance(value, int | float):
        return int(value) if float(value).is_integer() else None
    return None


def _from_text(kind: Any, text: str) -> Any:
    """Return the number or truth that a text says: variables of the environment are text, and so is 4e7 in YAML 1.1."""
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower())
    try:
        return _scalar(kind, int(text) if text.lstrip("+-").isdigit() else float(text))
    except ValueError:
        return None


def _name(hint: Any) -> str:
    names = {
        int: "a whole number",
        float: "a finite number",
        str: "text",
        bool: "true or false",
        type(None): "null",
        tuple: "a list in [ ]",
        list: "a list in [ ]",
        dict: "keys with values in { }",
    }
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return " or ".join(names.get(typing.get_origin(o) or o, getattr(o, "__name__", str(o))) for o in options)
