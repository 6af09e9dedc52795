"""What expert parallelism sends: rows to their experts and back, and how many (train.parallel.experts)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from train.spec.communication.messages import ALL_TO_ALL, Message
from train.spec.communication.stages import MicroBatches, Stage, recomputed, short
from train.spec.config import RunConfig
from train.spec.counts import experts_per_token
from train.spec.mesh import Axes

NUMBER = 8
"""Bytes of the number of rows that go to an expert, an int64."""


def exchanges(config: RunConfig, axes: Axes, stage: Stage, micro: MicroBatches) -> Iterator[Message]:
    """Yield what one rank of expert parallelism sends for one stage in a step, where each rank has its even share.

    Rows to experts, and gradients of what they made, are as many on every rank, whatever is chosen; rows back, and
    gradients of what arrived, are those that came. What is made again is sent again, both ways.
    """
    model = config.model
    for sequences, count in micro.counts.items():
        tokens = sequences * config.data.sequence_length // axes.cp
        layers, again = len(stage.blocks), recomputed(config, stage)
        sent = list(
            expert_parallel(
                tokens=tokens, width=model.width, chosen=experts_per_token(model), itemsize=short(config),
                ranks=axes.ep, layers=1, micro_batches=count,
            )
        )  # fmt: skip
        sent.append(Message(ALL_TO_ALL, "ep", axes.ep, NUMBER * model.experts, count, "tokens of experts", "forward"))
        for one in sent:
            yield replace(one, count=layers * one.count)
            if one.phase == "forward":
                yield replace(one, count=again * one.count, of=f"{one.of}, recomputed", phase="backward")


def expert_parallel(
    *, tokens: int, width: int, chosen: int, itemsize: int, ranks: int, layers: int, micro_batches: int,
    capacity: float = 1.0,
) -> Iterator[Message]:  # fmt: skip
    """Yield what one rank of `ranks` that share experts sends in a step (Lepikhin et al. 2020, "GShard").

    tokens: of a micro-batch on the rank. chosen: experts of a token. itemsize: bytes of a number of the stream. layers:
    with experts. capacity: room of an expert over its even share, all of which is sent where buffers are of one size.
    Each layer sends tokens to their experts and takes them back, and does so with their gradients.
    """
    if chosen < 1 or ranks < 1 or capacity <= 0:
        raise ValueError(f"chosen={chosen}, ranks={ranks}, capacity={capacity}: each has to be positive")
    size = int(tokens * chosen * width * itemsize * capacity)
    for phase, suffix in (("forward", ""), ("backward", ", gradients")):
        for of in ("tokens to experts", "tokens from experts"):
            yield Message(ALL_TO_ALL, "ep", ranks, size, layers * micro_batches, of + suffix, phase)
