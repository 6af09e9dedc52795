"""Keys that came after runs had been frozen without them: what such a run has for them, so that it stays what it is.

A frozen config holds every key of its time. A key that is added later has a *former* value in the schema
(`key(..., former=…)`): the one by which a run is what it was before there was the key. Frozen configs without the key
have that value, whatever the default is now, and a config that has it says the same with and without it: `without`
leaves it out of whatever is hashed or compared. Any other value counts. So a new key orphans no finished run, and a
default that differs from the former value makes other runs, as it should. A former value never changes, and is one that
resolving leaves as it is; a key without one is of the first schema, and always counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

from train.spec.config import RunConfig
from train.spec.from_mapping import read


def without(config: Mapping[str, Any], kind: type = RunConfig) -> dict[str, Any]:
    """Return a config of plain values without the later keys that have their former value, nor sections left empty."""
    formers, inner = _schema(kind)
    kept: dict[str, Any] = {}
    for name, value in config.items():
        if name in formers and _plain(value) == _plain(formers[name]):
            continue
        kept[name] = _inside(value, inner[name], without) if name in inner else value
        if value and kept[name] == {}:
            del kept[name]
    return kept


def filled(config: Mapping[str, Any], kind: type = RunConfig) -> dict[str, Any]:
    """Return a frozen config of plain values with the former values of the later keys that it was frozen without."""
    formers, inner = _schema(kind)
    full = {name: value for name, value in formers.items() if name not in config} | dict(config)
    for name, section in inner.items():
        if name in full:
            full[name] = _inside(full[name], section, filled)
        elif _all_later(section):
            full[name] = filled({}, section)
    return full


def read_run(config: Mapping[str, Any], where: str = "") -> RunConfig:
    """Return the run of a mapping: one that was frozen as it was then, one that people wrote with today's defaults.

    A frozen config has every key of the first schema, which nobody writes by hand. ValueError as of `read`.
    """
    return read(RunConfig, filled(config) if is_frozen(config) else config, where)


def is_frozen(config: Mapping[str, Any], kind: type = RunConfig) -> bool:
    """Whether a config of plain values has every key of the first schema."""
    formers, inner = _schema(kind)
    for spec in fields(kind):
        if spec.name in formers or (spec.name in inner and _all_later(inner[spec.name])):
            continue
        if spec.name not in config:
            return False
        value = config[spec.name]
        if spec.name in inner and isinstance(value, Mapping) and not is_frozen(value, inner[spec.name]):
            return False
    return True


def keys(kind: type = RunConfig, prefix: str = "") -> dict[str, Any]:
    """Return the later keys with their former values, as `section.key`."""
    formers, inner = _schema(kind)
    found = {f"{prefix}{name}": value for name, value in formers.items()}
    for name, section in inner.items():
        found |= keys(section, f"{prefix}{name}.")
    return found


@cache
def _schema(kind: type) -> tuple[dict[str, Any], dict[str, type]]:
    """Return the former values of a section's own later keys, and its sections (also those that lists hold)."""
    formers = {spec.name: spec.metadata["former"] for spec in fields(kind) if "former" in spec.metadata}
    inner: dict[str, type] = {}
    for name, hint in get_type_hints(kind).items():
        for one in (hint, *get_args(hint)):
            if isinstance(one, type) and is_dataclass(one):
                inner[name] = one
    return formers, inner


def _all_later(section: type) -> bool:
    formers, inner = _schema(section)
    return all(spec.name in formers or spec.name in inner for spec in fields(section))


def _inside(value: Any, section: type, change: Callable[[Mapping[str, Any], type], dict[str, Any]]) -> Any:
    """Return a section, or a list of them, changed."""
    if isinstance(value, Mapping):
        return change(value, section)
    if isinstance(value, list | tuple):
        return [change(one, section) if isinstance(one, Mapping) else one for one in value]
    return value


def _plain(value: Any) -> Any:
    """Return a value as JSON gives it back."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, Sequence) and not isinstance(value, str) else value
