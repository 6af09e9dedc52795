"""What of a step's messages compute does not hide.

FSDP gathers the next block's weights while a block computes, and sums the last one's gradients meanwhile; DDP sums
buckets of gradients during the backward pass. So of each pass what is longer than its compute is exposed, and what
nothing runs beside: the gather before the first block, the sum after the last. Messages within a layer wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from train.spec.communication.messages import SEND, Message
from train.spec.config import RunConfig

NAMES = {"fsdp": "fsdp", "dp_replicate": "dp", "tokens": "dp", "tp": "tp", "cp": "cp", "pp": "pp", "ends": "pp"}
"""Axes of messages as `StepTime.exposed` names them; others keep their name."""
CONTENTION = 1.19
"""What a second of hidden messages takes of compute, as both share memory, multiprocessors and power [s].

Calibrated on one row, ours-1b-fsdp-x2 of benchmarks/results/trainer_peers.json (399.4 ms).
"""
FIRST, LAST = ("weights of embedding", "weights of root"), ("gradients of embedding", "gradients of root")
"""Messages beside which nothing runs (train.spec.communication.data_parallel.units)."""


def exposed(seconds: Mapping[Message, float], config: RunConfig, forward: float, backward: float) -> dict[str, float]:
    """Return the seconds that a step waits for messages, by axis. seconds: of each message, as often as it is sent.

    forward, backward: seconds of compute in both passes. What a pipeline sends between its stages is left out.
    """
    found: dict[str, float] = {}
    hidden = {"forward": 0.0, "backward": 0.0}
    by_axis: dict[str, dict[str, float]] = {}
    for message, taken in seconds.items():
        if message.collective == SEND:
            continue
        axis = NAMES.get(message.axis, message.axis)
        bare = taken
        if _beside_compute(message):
            bare = _nothing_beside(message, taken)
            of = by_axis.setdefault(axis, dict.fromkeys(hidden, 0.0))
            of[message.phase] += taken - bare
            hidden[message.phase] += taken - bare
        elif message.axis == "tp" and config.parallel.async_tp and message.of not in _ENDS:
            bare = taken / message.ranks  # cut into as many pieces, all but one of which run beside products
        found[axis] = found.get(axis, 0.0) + bare
    for phase, room in (("forward", forward), ("backward", backward)):
        over = max(0.0, hidden[phase] - room)
        for axis, of in by_axis.items():
            if hidden[phase]:
                share = of[phase] / hidden[phase]
                found[axis] += share * (over + CONTENTION * (hidden[phase] - over))
    return {axis: value for axis, value in found.items() if value > 0.0}


_ENDS = frozenset((
    "embedded tokens", "gradients of embedded tokens", "input of the head", "gradient of the head's input",
    "statistics of logits", "gradients of norms",
))  # fmt: skip
"""Messages of tensor parallelism beside blocks, which asynchronous tensor parallelism leaves as they are."""


def _beside_compute(message: Message) -> bool:
    """Say whether compute runs beside a message: weights and gradients of data parallelism."""
    kinds = ("weights of", "gradients of", "gradients")
    return NAMES.get(message.axis) in ("fsdp", "dp") and message.of.startswith(kinds)


def _nothing_beside(message: Message, taken: float) -> float:
    """Return the part of such a message that nothing runs beside: one gather before the first block, one last sum."""
    if message.of in (*FIRST, *LAST, "gradients"):
        return taken / message.count
    return 0.0
