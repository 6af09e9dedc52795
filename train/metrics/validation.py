"""What a validation gives: the loss, by source and by position in the sequence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Validation:
    """What a validation gave, in nats per token.

    loss: the sources' losses, weighted as they are mixed in training. sources: each one's, where there are several.
    positions: by the first position of each range, where ranges are asked for; weighted likewise.
    """

    loss: float
    bytes_per_token: float
    sources: Mapping[str, float] = field(default_factory=dict)
    source_bytes: Mapping[str, float] = field(default_factory=dict)
    positions: Mapping[int, float] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """Return the numbers by the names under which they are recorded."""
        values = {"loss": self.loss, "bits_per_byte": bits_per_byte(self.loss, self.bytes_per_token)}
        for name, loss in self.sources.items():
            values[f"loss/{name}"] = loss
            values[f"bits_per_byte/{name}"] = bits_per_byte(loss, self.source_bytes[name])
        return values | {f"loss/position_{first}": loss for first, loss in self.positions.items()}


def bits_per_byte(nats_per_token: float, bytes_per_token: float) -> float:
    """Return a loss as bits per byte of text, comparable between tokenizers."""
    return nats_per_token / math.log(2) / bytes_per_token
