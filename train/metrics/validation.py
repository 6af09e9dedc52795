"""What a validation gives: the loss, by source and by position in the sequence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from train.state import TrainState


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


PAST_LOWEST = 5e-3
"""A last loss further above the lowest than this share is said: validations differ by less on their own."""


def past_lowest(state: TrainState, epochs: float | None) -> str:
    """Return in words that a run ended above its lowest validation loss, after so many epochs; "" where it did not."""
    last, lowest = state.validation_loss, state.lowest_loss
    if last is None or lowest is None or not last > lowest * (1.0 + PAST_LOWEST):
        return ""
    text = f"validation was lowest, {lowest:.4f} nats/token, after {100 * state.lowest_at / state.tokens:.0f} % "
    text += f"of the tokens and ended {100 * (last / lowest - 1.0):.1f} % above it: the run overfits"
    return text + (f", having read its text {epochs:.1f} times" if epochs is not None and epochs > 1 else "")


def bits_per_byte(nats_per_token: float, bytes_per_token: float) -> float:
    """Return a loss as bits per byte of text, comparable between tokenizers."""
    return nats_per_token / math.log(2) / bytes_per_token
