"""Bytes that copies around messages move within a rank's memory: into the message and out of it."""

from __future__ import annotations

from collections.abc import Iterable

from train.spec.communication.data_parallel import FULL, reduce_bytes
from train.spec.communication.messages import ALL_GATHER, REDUCE_SCATTER, Message
from train.spec.communication.stages import short
from train.spec.config import RunConfig

STATISTICS = "statistics of logits"
"""A message of tensor parallelism that is as it is needed (kernels.cross_entropy.math)."""


def copied(messages: Iterable[Message], config: RunConfig) -> float:
    """Return the bytes read and written around the messages of a step."""
    moved = 0.0
    for message in messages:
        if message.axis in ("fsdp", "expert_fsdp"):
            moved += _weights(message, config)
        elif message.axis in ("tp", "cp") and message.collective in (ALL_GATHER, REDUCE_SCATTER):
            # Parts of sequences are put in their order in a tensor of their own (train.parallel.collectives).
            fused = message.of == STATISTICS or (message.axis == "tp" and config.parallel.async_tp)
            moved += 0.0 if fused else 2.0 * message.volume
    return moved


def _weights(message: Message, config: RunConfig) -> float:
    """Return the bytes around a message of FSDP.

    What is gathered is read and written once more, as each weight is laid out by itself; the shard before is read in
    fp32 and written in the format that is sent. Gradients are read in the format of products and written in that of
    the sum (torch.distributed.fsdp, _fsdp_collectives.py: all_gather_copy_in, split_with_sizes_copy, chunk_cat).
    """
    if message.collective == ALL_GATHER:
        return 2.0 * message.volume + message.volume / message.ranks * (FULL / short(config) + 1.0)
    if message.collective == REDUCE_SCATTER:
        sent = reduce_bytes(config)
        return message.volume * (short(config) + sent) / sent
    return 0.0
