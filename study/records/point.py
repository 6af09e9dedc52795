"""A point is its frozen config: canonical JSON and the key that is its hash.

The key is of what the losses depend on: the scientific sections with every key of the schema as it first was, and of
keys that came later only what differs from their former value, by which a run is what it was before there was the key
(train.spec.later). So the key of a point stays the same when the schema grows, and a config of today that says the same
has it too. A default that is changed makes another key, since a frozen config holds the value.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from typing import Any, get_type_hints

from train.spec.config import SCIENTIFIC, ModelConfig, RunConfig
from train.spec.counts import flops_per_token
from train.spec.from_mapping import read
from train.spec.later import filled, without


@dataclass(frozen=True)
class Point:
    """A frozen config, its key, and the overrides that a person would recognise it by."""

    key: str
    config: RunConfig
    overrides: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """The budget [tokens]; 0 where it says none."""
        return self.config.budget.tokens or 0

    @property
    def parent(self) -> str | None:
        """What the run goes on from, as its config says it."""
        return self.config.schedule.parent

    @property
    def flops_per_token(self) -> float:
        """Training FLOPs of a token, by train.spec.counts."""
        data = self.config.data
        return float(flops_per_token(self.config.model, data.vocab_size, data.sequence_length))


def canonical(config: Mapping[str, Any]) -> str:
    """Return the scientific part of a resolved run config as canonical JSON: sorted keys, no spaces, no NaN."""
    science = without({name: config[name] for name in SCIENTIFIC if name in config})
    # Where the text lay does not matter: its content does, and that is the fingerprint.
    data = {name: value for name, value in science["data"].items() if name != "source"}
    data["sources"] = [{k: v for k, v in source.items() if k != "source"} for source in data.get("sources", ())]
    science["data"] = data
    return json.dumps(science, sort_keys=True, separators=(",", ":"), allow_nan=False)


def key_of(config: Mapping[str, Any]) -> str:
    """Return the point's key: the first 12 hex digits of the SHA-256 of its canonical JSON."""
    return hashlib.sha256(canonical(config).encode()).hexdigest()[:12]


def point(config: RunConfig, overrides: tuple[str, ...] = ()) -> Point:
    """Return the point of a resolved config (see train.spec.resolve)."""
    return Point(key_of(asdict(config)), config, overrides)


KEY = re.compile(r"[0-9A-Za-z_-]{1,64}")
HEAD, TAIL = '{"key":"', ',"overrides":'


class StoredPoint(Point):
    """A point of a study's file."""

    def __init__(self, line: str, key: str, overrides: tuple[str, ...]) -> None:
        for name, value in (("_line", line), ("key", key), ("overrides", overrides)):
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        """Return the config, built from the line; any other name that is not there is an AttributeError."""
        if name != "config":
            raise AttributeError(name)
        config = _run_config(json.loads(self.__dict__["_line"])["config"])
        object.__setattr__(self, name, config)
        return config

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Point):
            return NotImplemented
        return (self.key, self.config, self.overrides) == (other.key, other.config, other.overrides)

    def __hash__(self) -> int:
        return hash(self.key)

    @cached_property
    def tokens(self) -> int:
        """The budget [tokens]; 0 where it says none. Kept: a look that sees bad ends asks for it three times."""
        found = self._section("budget")
        return super().tokens if found is None else int(json.loads(found).get("tokens") or 0)

    @property
    def parent(self) -> str | None:
        """What the run goes on from, as its config says it."""
        found = self._section("schedule")
        if found is None:
            return super().parent
        said = None if '"parent":null' in found else json.loads(found).get("parent")
        return None if said is None else str(said)

    @property
    def flops_per_token(self) -> float:
        """Training FLOPs of a token, by train.spec.counts."""
        model, data = self._section("model"), self._section("data")
        return super().flops_per_token if model is None or data is None else _flops_per_token(model, data)

    def _section(self, name: str) -> str | None:
        """Return the text of a section that holds no other; None where it is not found as that."""
        line = self.__dict__["_line"]
        mark = f'"{name}":{{'
        start = line.find(mark)
        if start < 0 or line.find(mark, start + 1) >= 0:
            return None
        begin = start + len(mark) - 1
        text: str = line[begin : line.find("}", begin) + 1]
        return None if "{" in text[1:] else text


def stored(line: str) -> Point:
    """Return the point of a line. Raises ValueError, KeyError or TypeError where it is not one."""
    if line.startswith(HEAD) and line.endswith("]}"):
        key, _, _ = line[len(HEAD) :].partition('"')
        _check_key(key)
        overrides = json.loads(line[line.rindex(TAIL) + len(TAIL) : -1])
        if line[len(HEAD) + len(key) :].startswith('","config":{') and isinstance(overrides, list):
            return StoredPoint(line, key, tuple(overrides))
    entry = json.loads(line)
    _check_key(entry["key"])
    return Point(entry["key"], _run_config(entry["config"]), tuple(entry["overrides"]))


def _check_key(key: str) -> None:
    """Raise ValueError where a key is no name of a folder in the study: runs lie, and are removed, under their keys."""
    if not KEY.fullmatch(key):
        raise ValueError(key)


@cache
def _flops_per_token(model: str, data: str) -> float:
    said = json.loads(data)
    shape = ModelConfig(**_values(filled(json.loads(model), ModelConfig)))
    return float(flops_per_token(shape, said["vocab_size"], said["sequence_length"]))


def _run_config(config: Mapping[str, Any]) -> RunConfig:
    """Return the config of a line we wrote: built directly, and read with every check if it does not fit."""
    hints, config = _hints(), filled(config)
    try:
        parts = {n: hints[n](**_values(v)) if isinstance(v, dict) else v for n, v in config.items()}
        return RunConfig(**parts)
    except (TypeError, KeyError):
        return read(RunConfig, config)


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(RunConfig)


def _values(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section's values with JSON's lists as tuples; TypeError where one holds sections of its own."""
    values = {}
    for name, value in section.items():
        if isinstance(value, list) and any(isinstance(one, dict) for one in value):
            raise TypeError(name)
        values[name] = tuple(value) if isinstance(value, list) else value
    return values
