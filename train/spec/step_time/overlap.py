"""What of a step's messages compute does not hide.

FSDP gathers the next block's weights while a block computes, and sums the last one's gradients meanwhile. So of each
pass what is longer than its compute is exposed, and what nothing runs beside: the gather before the first block, the
sum after the last. DDP sums buckets of gradients one after the other during the last backward pass, each once all of
its gradients are there: what ends after that pass is exposed. Messages within a layer wait for it. ZeRO-1, and copies
of shards that are summed in fp32, sum gradients once a step, so in the last backward pass too.
"""

from __future__ import annotations

from collections.abc import Mapping

from train.spec.communication.data_parallel import BUCKETS, FULL, ddp_buckets
from train.spec.communication.messages import SEND, Message
from train.spec.config import RunConfig
from train.spec.counts import end_weights

NAMES = {
    "fsdp": "fsdp", "expert_fsdp": "fsdp", "dp_replicate": "dp", "tokens": "dp", "tp": "tp", "cp": "cp", "ep": "ep",
    "pp": "pp", "ends": "pp",
}  # fmt: skip
"""Axes of messages as `StepTime.exposed` names them; others keep their name."""
WITHIN = ("tp", "cp", "ep")
"""Those whose messages are sent within a layer, which waits for them."""
CONTENTION = 16.0
"""What a byte sent beside compute takes of it, in bytes of passes over memory: both share memory, multiprocessors and
power. By bytes rather than seconds, as a slower network takes more of these for the same bytes.

Calibrated on one row, ours-1b-fsdp-x2 of benchmarks/results/trainer_peers.json (399.4 ms).
"""
FIRST, LAST = ("weights of embedding", "weights of root"), ("gradients of embedding", "gradients of root")
"""Messages beside which nothing runs (train.spec.communication.data_parallel.units)."""


_LAST_PASS = "last backward"


def exposed(
    seconds: Mapping[Message, float],
    config: RunConfig,
    room: tuple[float, float],
    memory: float,
    micro_batches: int = 1,
) -> dict[str, float]:
    """Return the seconds that a step waits for messages, by axis. seconds: of each message, as often as it is sent.

    room: seconds of compute in the forward and in the backward passes of all micro-batches, all taken to be alike.
    memory: bandwidth of passes over it [B/s]. What a pipeline sends between its stages is left out.
    """
    found: dict[str, float] = {}
    beside: dict[str, dict[str, float]] = {"forward": {}, "backward": {}, _LAST_PASS: {}}
    late = _late_share(seconds, config, room[1] / micro_batches)
    for message, taken in seconds.items():
        if message.collective == SEND:
            continue
        axis, waited = NAMES.get(message.axis, message.axis), taken
        if message.of == BUCKETS:
            waited = late * taken + (1.0 - late) * CONTENTION * message.sent / memory
        elif _beside_compute(message):
            bare = _nothing_beside(message)
            hidden = beside[_LAST_PASS if _once_a_step(message, config) else message.phase]
            hidden[axis] = hidden.get(axis, 0.0) + (1.0 - bare) * taken
            waited = bare * taken + (1.0 - bare) * CONTENTION * message.sent / memory
        elif message.axis == "tp" and config.parallel.async_tp and message.of not in _ENDS:
            waited = taken / message.ranks  # cut into as many pieces, all but one of which run beside products
        found[axis] = found.get(axis, 0.0) + waited
    ordinary = {axis: taken / micro_batches for axis, taken in beside["backward"].items()}
    last = dict(ordinary)
    for axis, taken in beside[_LAST_PASS].items():
        last[axis] = last.get(axis, 0.0) + taken
    each = room[1] / micro_batches
    for count, hidden, there in ((1, beside["forward"], room[0]), (micro_batches - 1, ordinary, each), (1, last, each)):
        whole = sum(hidden.values())
        for axis, taken in hidden.items():
            if whole > there:
                found[axis] += count * (whole - there) * taken / whole
    return {axis: value for axis, value in found.items() if value > 0.0}


def _late_share(seconds: Mapping[Message, float], config: RunConfig, backward: float) -> float:
    """Return the share of DDP's messages that is under way after the last backward pass, which takes so long [s].

    Compute is taken to be spread over weights by their size. The embedding's gradient takes none, but is complete last.
    """
    each = {message.size: taken / message.count for message, taken in seconds.items() if message.of == BUCKETS}
    whole = sum(taken for message, taken in seconds.items() if message.of == BUCKETS)
    if whole == 0.0:
        return 0.0
    sizes = ddp_buckets(config)
    embedding = FULL * end_weights(config.model, config.data.vocab_size)["embedding.weight"].numbers
    computing = sum(sizes) - (0 if config.model.tied_embeddings else embedding)
    end, before = 0.0, sum(sizes)
    for size in reversed(sizes):
        before -= size  # bytes of weights whose gradients are complete later
        end = max(end, backward * (1.0 - max(0, before - embedding) / computing)) + each[size]
    return min(1.0, (end - backward) / whole)


_ENDS = frozenset((
    "embedded tokens", "gradients of embedded tokens", "input of the head", "gradient of the head's input",
    "statistics of logits", "gradients of norms",
))  # fmt: skip
"""Messages of tensor parallelism beside blocks, which asynchronous tensor parallelism leaves as they are."""


def _beside_compute(message: Message) -> bool:
    """Say whether compute runs beside a message: weights and gradients of data parallelism."""
    kinds = ("weights of", "gradients of")
    return NAMES.get(message.axis) in ("fsdp", "dp") and message.of.startswith(kinds)


def _once_a_step(message: Message, config: RunConfig) -> bool:
    """Say whether the last micro-batch alone sends a message, of those that FSDP2 sends outside pipelines."""
    parallel = config.parallel
    if not message.of.startswith("gradients of") or parallel.pp > 1 or parallel.strategy == "fsdp1":
        return False
    return parallel.zero == 1 or (message.axis == "dp_replicate" and config.precision.reduce == "fp32")


def _nothing_beside(message: Message) -> float:
    """Return the share of such a message that nothing runs beside: one gather before the first block, one last sum."""
    return 1.0 / message.count if message.of in (*FIRST, *LAST) else 0.0
