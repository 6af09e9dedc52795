"""How long causal attention takes in one block: scores, their softmax, and passes over queries, keys and values.

Documents' masks, soft caps and ALiBi, which torch's FlexAttention does, were not measured: they count as plain ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from train.spec.step_time.device import ALIKE, IN_STEP, Device, distance

CHANNEL = 0.612
"""Cost of a channel of a score, over that of the FLOPs in both passes at the rate of products."""
SOFTMAX = 922.0
"""Cost of a score whatever its channels, in FLOPs of bf16 products. Both are a fit to five shapes of cuDNN's attention
alone on an H200, forward and backward, within 4 % of each: 64 x 12 x 1024 x 64 1.38 ms, 8 x 16 x 4096 x 128 3.70 ms,
2 x 32 x 8192 x 128 (8 key/value heads) 7.1 ms, 80 x 4 and 80 x 6 x 512 x 64 0.2185 and 0.3168 ms
(benchmarks/trainer_notes.md)."""
CPU_SOFTMAX = 930.0
"""The same of a CPU rank, in FLOPs of its own products: the median of five shapes of torch's attention alone on an AMD
EPYC core, 128 to 512 tokens of 4 to 64 channels a head, which lie between 630 and 1,570; the core was busy."""
PRODUCTS = {"forward": 2, "backward": 5}
"""Products with each score: scores and their values; scores again and four gradients (Dao 2023, "FlashAttention-2").
Of the small shapes above the forward pass takes 21 % of the time, where this says 29 %."""
TILE = 128
"""Queries of a tile (FlashAttention-3, Shah et al. 2024, heads of 64 to 128): scores on the diagonal are made whole."""


@dataclass(frozen=True)
class Attention:
    """Of one block and rank. heads, groups: of queries, of keys and values. queries: of a sequence that it has.

    keys: that the last of them sees. window: that each sees at most. size: bytes of a number. format: of products.
    """

    sequences: int
    heads: int
    groups: int
    channels: int
    queries: int
    keys: int
    window: int
    size: int
    format: str

    @property
    def scores(self) -> float:
        """Scores that are made, those on the diagonal's tiles included."""
        seen = self.window * (1 - self.window / (2 * self.keys)) if self.window < self.keys else self.keys / 2
        return self.sequences * self.heads * self.queries * min(float(self.keys), seen + TILE / 2)

    def seconds(self, device: Device, phase: str) -> float:
        """Return how long its forward or backward pass takes; as measured, where the profile has a shape near it."""
        return self._correction(device) * self._expected(device, phase)

    def _expected(self, device: Device, phase: str) -> float:
        products = PRODUCTS[phase]
        every = sum(PRODUCTS.values())
        if device.type == "cpu":
            each = (2 * every * self.channels + CPU_SOFTMAX) / device.rate(self.format)
        else:
            each = CHANNEL * 2 * every * self.channels / device.rate(self.format) + SOFTMAX / device.rate("bf16")
        return products / every * self.scores * each + self._moved(phase) / device.memory

    def _correction(self, device: Device) -> float:
        """Return how many times as long the nearest measured attention took as is expected of it in a step."""
        here = (self.keys, self.channels)
        near = [
            (apart, one) for one in device.attention if (apart := distance(here, (one.length, one.channels))) <= ALIKE
        ]
        if not near or self.size != 2 or self.window < self.keys:
            return 1.0
        one = min(near, key=lambda found: found[0])[1]
        heads, length = one.heads, one.length
        same = Attention(one.sequences, heads, heads, one.channels, length, length, length, 2, self.format)
        return one.seconds / IN_STEP / sum(same._expected(device, phase) for phase in PRODUCTS)

    def _moved(self, phase: str) -> float:
        """Return the bytes of its passes: in the backward pass also an fp32 sum, cleared, added to and read."""
        tokens = self.sequences * self.queries
        wide = tokens * self.heads * self.channels
        narrow = self.sequences * self.keys * self.groups * self.channels
        if phase == "forward":
            return self.size * (2.0 * wide + 2.0 * narrow)
        return self.size * (4.0 * wide + 4.0 * narrow) + 12.0 * wide
