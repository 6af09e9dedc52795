"""Conditions on points' configs, as `--where model.width=512,768` gives them. Pure."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from study.config.dotted import flat
from study.records.point import Point

OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
WORDS: Mapping[str, Any] = {"null": None, "none": None, "true": True, "false": False}
SHOWN = 8


@dataclass(frozen=True)
class Condition:
    """One `--where`: the value at a dotted key compared with a value, or for = and != with any of several."""

    key: str
    sign: str
    values: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return it as it was written."""
        return f"{self.key}{self.sign}{','.join(self.values)}"


def parse(text: str) -> Condition:
    """Return the condition that a text says. Raises ValueError that shows how one is written."""
    found = re.fullmatch(r"\s*([\w.]+)\s*(!=|<=|>=|==|=|<|>)\s*(.*?)\s*", text)
    if not found or not found[3]:
        raise ValueError(
            f"--where {text!r} is not a condition: write model.width=512, model.width=512,768 or 'optim.lr<1e-3' "
            "(= != < <= > >=)"
        )
    sign = "=" if found[2] == "==" else found[2]
    values = tuple(part.strip() for part in found[3].split(",")) if sign in ("=", "!=") else (found[3],)
    if not all(values):
        raise ValueError(f"--where {text!r} has an empty value between its commas")
    return Condition(found[1], sign, values)


def matching(points: Mapping[str, Point], conditions: Sequence[Condition]) -> set[str]:
    """Return the keys of the points that meet every condition.

    Raises ValueError for a key that no config has (naming the nearest ones), for a value that cannot be compared, and
    where no point has the value (naming the values there are).
    """
    values = {key: flat(asdict(point.config)) for key, point in points.items()}
    chosen = set(points)
    for condition in conditions:
        chosen &= _matching(values, condition)
    return chosen


def as_typed(value: Any) -> str:
    """Return a config's value as a person types it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(as_typed, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _matching(values: Mapping[str, Mapping[str, Any]], condition: Condition) -> set[str]:
    with_key = {key: config[condition.key] for key, config in values.items() if condition.key in config}
    if values and not with_key:
        raise ValueError(f"--where {condition.text}: {_unknown(condition.key, next(iter(values.values())))}")
    found = {key for key, value in with_key.items() if _matches(value, condition)}
    if not found and with_key:
        there = sorted({as_typed(value) for value in with_key.values()}, key=_by_size)
        more = f" and {len(there) - SHOWN} more" if len(there) > SHOWN else ""
        raise ValueError(
            f"--where {condition.text}: no point has that: {condition.key} is {', '.join(there[:SHOWN])}{more}"
        )
    return found


def _matches(value: Any, condition: Condition) -> bool:
    wanted = [_as(value, text, condition) for text in condition.values]
    if condition.sign == "=":
        return any(_equal(value, one) for one in wanted)
    if condition.sign == "!=":
        return not any(_equal(value, one) for one in wanted)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False  # null and text are neither more nor less than a number
    return bool(OPERATORS[condition.sign](value, wanted[0]))


def _as(value: Any, text: str, condition: Condition) -> Any:
    """Return the text as a value of the type in the config. Raises ValueError where it is not one."""
    if text.lower() in WORDS and not isinstance(value, str):
        return WORDS[text.lower()]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number or (condition.sign not in ("=", "!=") and not isinstance(value, str)):
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"--where {condition.text}: {condition.key} is a number, {text!r} is not") from None
    if isinstance(value, bool):
        raise ValueError(f"--where {condition.text}: {condition.key} is true or false, not {text!r}")
    if condition.sign not in ("=", "!="):
        raise ValueError(f"--where {condition.text}: {condition.key} is text: only = and != compare it")
    return text


def _equal(value: Any, wanted: Any) -> bool:
    if isinstance(value, list | tuple):
        return as_typed(value) == wanted or any(as_typed(item) == wanted for item in value)
    if value is None or wanted is None or isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    return bool(value == wanted)


def _unknown(key: str, config: Mapping[str, Any]) -> str:
    leaf = key.rsplit(".", 1)[-1]
    same = [name for name in config if name.rsplit(".", 1)[-1] == leaf]
    near = same or difflib.get_close_matches(key, config, n=3, cutoff=0.6)
    if not near:
        by_leaf = {name.rsplit(".", 1)[-1]: name for name in config}
        near = [by_leaf[name] for name in difflib.get_close_matches(leaf, by_leaf, n=3, cutoff=0.6)]
    hint = f"did you mean {' or '.join(near)}?" if near else "python -m study.sweep --help lists every key"
    return f"the points' configs have no key {key!r}: {hint}"


def _by_size(text: str) -> tuple[bool, float, str]:
    try:
        return (False, float(text), text)
    except ValueError:
        return (True, 0.0, text)
