"""All that one rank sends in a step, by what the trainer does with its config: nothing is estimated.

Evaluations, checkpoints, the flags that ranks raise between steps, and Muon's exchange of matrices are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator

from train.spec.communication.data_parallel import FULL, data_parallel
from train.spec.communication.experts import exchanges
from train.spec.communication.layers import context_parallel, stream_bytes, tensor_parallel
from train.spec.communication.messages import ALL_REDUCE, SEND, Message, between_ranks
from train.spec.communication.stages import MicroBatches, Stage, micro_batches_of, stages
from train.spec.config import RunConfig
from train.spec.counts import end_weights
from train.spec.mesh import Axes
from train.spec.pipeline_layout import layers_of, rank_of
from train.spec.shard_shapes import largest_shard

COUNT = 8
"""Bytes of what ranks add up as one number: tokens, losses, the gradient norm's square, in fp64."""


def step_messages(config: RunConfig, axes: Axes, rank: int = 0, device: str = "cuda") -> tuple[Message, ...]:
    """Return what the fullest rank of a resolved config sends in a step; `rank`: its place in the pipeline.

    device: cpu or cuda, which decides the micro-batch where the config leaves it open, and the head's chunks.
    """
    micro = micro_batches_of(config, axes, device)
    found: list[Message] = []
    for stage in stages(config, axes, rank):
        found += data_parallel(config, axes, stage, micro)
        if axes.tp > 1:
            found += tensor_parallel(config, axes, stage, micro, device)
        found += context_parallel(config, axes, stage, micro)
        if axes.ep > 1:
            found += exchanges(config, axes, stage, micro)
    found += pipeline(config, axes, rank, micro)
    found += _counts(axes)
    found += _loads(config, axes, rank)
    return _together(between_ranks(found))


def pipeline(config: RunConfig, axes: Axes, rank: int, micro: MicroBatches) -> Iterator[Message]:
    """Yield what one rank of the pipeline sends on: every micro-batch's stream, and its gradient back.

    What it receives is as much. Stages that are neighbours on one rank send nothing.
    """
    if axes.pp == 1:
        return
    mine = stages(config, axes, rank)
    size = stream_bytes(config, axes, 1) // axes.tp
    for stage in mine:
        for sequences, count in micro.counts.items():
            if not stage.last and rank_of(config.parallel, stage.number + 1) != rank:
                yield Message(SEND, "pp", axes.pp, size * sequences, count, "residual stream", "forward")
            if not stage.first and rank_of(config.parallel, stage.number - 1) != rank:
                yield Message(SEND, "pp", axes.pp, size * sequences, count, "gradient of the stream", "backward")
    last = rank_of(config.parallel, len(layers_of(config)) - 1)
    if config.model.tied_embeddings and last != 0 and rank in (0, last):
        yield Message(ALL_REDUCE, "ends", 2, FULL * _tied(config, axes, mine), 1, "gradient of the embedding", "update")


def _tied(config: RunConfig, axes: Axes, mine: tuple[Stage, ...]) -> int:
    stage = next(stage for stage in mine if stage.first or stage.last)
    ends = end_weights(config.model, config.data.vocab_size, stage.first, stage.last)
    return largest_shard(ends["embedding.weight"], axes.fsdp, axes.tp)


def _counts(axes: Axes) -> Iterator[Message]:
    tokens = axes.data * axes.cp
    yield Message(ALL_REDUCE, "tokens", tokens, COUNT, 1, "tokens of the step", "forward")
    yield Message(ALL_REDUCE, "tokens", tokens, COUNT, 1, "loss", "update")
    yield Message(ALL_REDUCE, "pp", axes.pp, COUNT, 1, "loss", "update")
    yield Message(ALL_REDUCE, "world", axes.size, COUNT, 1, "gradient norm", "update")


def _loads(config: RunConfig, axes: Axes, rank: int) -> Iterator[Message]:
    """Yield how many tokens went to each expert of a rank's layers, by which their biases move."""
    if config.model.router_bias_speed:
        blocks = sum(len(stage.blocks) for stage in stages(config, axes, rank))
        size = COUNT * blocks * config.model.experts
        yield Message(ALL_REDUCE, "tokens", axes.data * axes.cp, size, 1, "tokens of experts", "update")


def _together(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return messages that differ in their count alone as one, in the order in which they come first."""
    counts: dict[tuple[str, str, int, int, str, str], int] = {}
    for one in messages:
        key = (one.collective, one.axis, one.ranks, one.size, one.of, one.phase)
        counts[key] = counts.get(key, 0) + one.count
    return tuple(
        Message(collective, axis, ranks, size, count, of, phase)
        for (collective, axis, ranks, size, of, phase), count in counts.items()
    )
