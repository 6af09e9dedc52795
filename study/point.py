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
from dataclasses import asdict, dataclass
from typing import Any

from train.spec.config import SCIENTIFIC, RunConfig
from train.spec.counts import flops_per_token
from train.spec.later import without


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
