"""A point is its frozen config: canonical JSON and the key that is its hash.

The key is of what the losses depend on: the scientific sections with every key of the schema as it first was, and of
keys that came later only what differs from their former value, by which a run is what it was before there was the key
(train.spec.later). So the key of a point stays the same when the schema grows, and a config of today that says the same
has it too. A default that is changed makes another key, since a frozen config holds the value.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from train.spec import counts
from train.spec.config import SCIENTIFIC, ModelConfig, RunConfig
from train.spec.from_mapping import read
from train.spec.later import filled, without

T = TypeVar("T")


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


def flops_per_token(config: RunConfig) -> float:
    """Return the training FLOPs of a token, by train.spec.counts."""
    return float(counts.flops_per_token(config.model, config.data.vocab_size, config.data.sequence_length))


@cache
def flops_per_token_of(model: str, data: str) -> float:
    """Return the training FLOPs of a token by the JSON of the sections `model` and `data`."""
    said = json.loads(data)
    return float(counts.flops_per_token(_model(model), said["vocab_size"], said["sequence_length"]))


@cache
def matmul_params_of(model: str, data: str) -> int:
    """Return the weights that take part in matrix products by the JSON of the sections `model` and `data`."""
    return counts.params(_model(model), json.loads(data)["vocab_size"]).matmul


def _model(section: str) -> ModelConfig:
    """Return the model by the JSON of its section. ValueError as of `run_config`."""
    said = filled(json.loads(section), ModelConfig)
    try:
        return ModelConfig(**_values(said))
    except TypeError:
        return _read(ModelConfig, said, "model")


def _read(kind: type[T], said: Mapping[str, Any], where: str = "") -> T:
    """Return what a frozen config says, read with every check; ValueError says which code knows what it says."""
    try:
        return read(kind, said, where)
    except ValueError as error:
        raise ValueError(
            f"a point of this study was frozen by other code ({error}): use the code that made it, of which the "
            "study's folder code has the commit and the changes"
        ) from None


def run_config(config: Mapping[str, Any]) -> RunConfig:
    """Return the config of a line we wrote: built directly, and read with every check if it does not fit.

    ValueError where this code does not know a key or a value, as where a point was frozen by a later version.
    """
    hints, config = _hints(), filled(config)
    try:
        parts = {n: hints[n](**_values(v)) if isinstance(v, dict) else v for n, v in config.items()}
        if not all(type(getattr(parts[section], name)) in kinds for section, name, kinds in _types()):
            return _read(RunConfig, config)
        if any(getattr(parts[section], name) not in allowed for section, name, allowed in _choices()):
            return _read(RunConfig, config)
        return RunConfig(**parts)
    except (TypeError, KeyError, AttributeError):
        return _read(RunConfig, config)


@cache
def _types() -> tuple[tuple[str, str, frozenset[type]], ...]:
    """Return the types that a key's value may have, by section and name; keys that hold sections are left out."""
    found = []
    for section, kind in _hints().items():
        for name, hint in get_type_hints(kind).items() if is_dataclass(kind) else ():
            options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
            kinds = {get_origin(option) or option for option in options}
            if kinds <= {int, float, str, bool, tuple, dict, NoneType}:
                found.append((section, name, frozenset(kinds | ({int} if float in kinds else set()))))
    return tuple(found)


@cache
def _choices() -> tuple[tuple[str, str, tuple[Any, ...]], ...]:
    """Return the keys whose values are some of a few, by section and name."""
    return tuple(
        (section, spec.name, (*spec.metadata["choices"], None))
        for section, kind in _hints().items()
        if is_dataclass(kind)
        for spec in fields(kind)
        if spec.metadata.get("choices")
    )


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
