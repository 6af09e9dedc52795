"""What a block waits for within its layers: messages of ranks that share its tensors, sequences and experts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from train.spec.communication.experts import exchanges
from train.spec.communication.layers import context_parallel, tensor_parallel
from train.spec.communication.messages import Message, between_ranks
from train.spec.communication.stages import MicroBatches, Stage
from train.spec.config import RunConfig
from train.spec.mesh import Axes
from train.spec.step_time import overlap
from train.spec.step_time.copies import copied


@dataclass(frozen=True)
class Waits:
    """Of a micro-batch [s]. exposed: for messages. copies: for what lays them out."""

    exposed: float = 0.0
    copies: float = 0.0

    def __add__(self, other: Waits) -> Waits:
        return Waits(self.exposed + other.exposed, self.copies + other.copies)

    def times(self, blocks: int) -> Waits:
        """Return that of so many blocks."""
        return Waits(blocks * self.exposed, blocks * self.copies)


def messages(config: RunConfig, axes: Axes, size: int, mode: str, device: str) -> tuple[Message, ...]:
    """Return what one block sends within its layers in a micro-batch of `size` sequences, forward and backward.

    mode: what is kept of the block (train.spec.accounting.kept). device: cpu or cuda.
    """
    number = 0 if mode == "full" else 1  # with memory.every the first block is made again, and the second is not
    stage, micro = Stage(0, number, number + 1, first=False, last=False), MicroBatches((size,))
    found = list(context_parallel(config, axes, stage, micro))
    if axes.tp > 1:
        found += tensor_parallel(config, axes, stage, micro, device)
    if axes.ep > 1:
        found += exchanges(config, axes, stage, micro)
    return tuple(one for one in between_ranks(found) if one.phase != "update")  # those are once a step


def waits(seconds: Mapping[Message, float], config: RunConfig, memory: float) -> Waits:
    """Return what these messages make a block wait for. seconds: of each. memory: bandwidth of passes over it [B/s]."""
    waited = overlap.exposed(seconds, config, (math.inf, math.inf), memory)
    return Waits(sum(waited.values()), copied(seconds, config) / memory)
