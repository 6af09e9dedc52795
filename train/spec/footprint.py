"""How much memory one rank of a run needs, from its config alone: weights, gradients, moments and activations."""

from __future__ import annotations

from dataclasses import dataclass, replace

from train.spec import activations, optimizers
from train.spec.accounting import step
from train.spec.config import RunConfig
from train.spec.counts import Weight, block_weights, end_weights
from train.spec.mesh import Axes, share_of_batch, strategy
from train.spec.pipeline_layout import micro_batches, share_of, stages_per_rank, waiting_passes
from train.spec.shard_shapes import gathered, largest_shards

ACTIVATION_BYTES = {"cpu": 1 << 30, "cuda": 8 << 30}
"""What the activations of one micro-batch are planned to take at most, by device type [bytes]."""
CPU_BYTES_PER_TOKEN = 4 * 34
"""Bytes of each token, channel and block by which a CPU's micro-batch is chosen, whatever its format.

More than are kept (train.spec.activations): the number stays, as sums over other micro-batches have other last digits.
"""
CPU_TOKENS = 4096
"""Tokens of a micro-batch on a CPU. At width 128, 4 layers, 1 thread: 512 tokens at once take 11 % longer per token,
1,024 take 2-3 %, 8,192 and more win nothing (at width 64 they lose 2-6 %: they outgrow the caches)."""


@dataclass(frozen=True)
class Footprint:
    """Memory that one rank needs [bytes].

    states: weights, gradients and moments that stay on its device. gathered: whole weights (and with parallel.zero=1 or
    in a pipeline gradients) beside its shards of them. activations: those of the micro-batches that wait for their
    backward passes. fetched: moments that are there for the update only, when activations are gone. host: what lies on
    the CPU instead. further: what a pipeline's fullest rank has at its peak beyond what it holds of all others.
    """

    states: int
    activations: int
    gathered: int = 0
    fetched: int = 0
    host: int = 0
    further: int = 0

    @property
    def total(self) -> int:
        """The most that its device holds at once [bytes]."""
        return self.states + self.gathered + max(self.activations, self.fetched) + self.further


def footprint(config: RunConfig, axes: Axes, device: str) -> Footprint:
    """Return what the fullest rank needs on a device of type cpu or cuda. An estimate from above.

    Weights and gradients are fp32, moments as `precision.optimizer_state` says; a half-precision run holds a copy of
    the weights more. Sharding cuts all of it over dp_shard x cp, tp and pp cut it always; a rank's share of each weight
    is counted as it is cut, rounded up (train.spec.shard_shapes). In a pipeline, whose ranks differ, it is no less than
    the largest peak that train.spec.accounting finds.
    """
    weights, moments = max((_states(config, axes, rank) for rank in range(axes.pp)), key=sum)
    offload = config.memory.offload if device == "cuda" else "none"
    on_device = {"parameters": 0, "optimizer": weights}.get(offload, weights + moments)
    found = Footprint(
        on_device,
        _activations(config, axes, device),
        _gathered(config, axes),
        fetched=moments if offload == "optimizer" else 0,
        host=weights + moments - on_device,
    )
    if axes.pp == 1:
        return found
    sequences = _sequences(config, axes, device)
    peak = max(step.of_rank(config, axes, device, sequences, rank).peak.total for rank in range(axes.pp))
    return replace(found, further=max(0, peak - found.total))


def _states(config: RunConfig, axes: Axes, rank: int) -> tuple[int, int]:
    """Return what the fullest of those that share a pipeline rank's part holds: weights and gradients, and moments."""
    layers, block, ends = _part(config, axes, rank)
    hidden = layers * largest_shards([weight for weight in block if len(weight.shape) > 1], axes.fsdp, axes.tp, axes.ep)
    total = layers * largest_shards(block, axes.fsdp, axes.tp, axes.ep) + largest_shards(ends, axes.fsdp, axes.tp)
    moments = optimizers.moments(config.optim.name, hidden, total)
    copy = 0 if config.precision.name == "fp32" else 2
    return total * (8 + copy), moments * (2 if config.precision.optimizer_state == "bf16" else 4)


def _gathered(config: RunConfig, axes: Axes) -> int:
    """Return what FSDP2 holds whole beside the shards: all of it, or two blocks and the embedding or head at a time.

    Padding is held as well. A pipeline keeps weights gathered and gradients whole until its last micro-batch, at every
    stage of ZeRO (torch.distributed.pipelining).
    """
    alone = strategy(config.parallel, axes) != "fsdp" if axes.pp > 1 else axes.fsdp == 1
    if alone:
        return 0
    size = 4 if config.precision.name == "fp32" else 2
    if config.parallel.zero == 1 or axes.pp > 1:
        size += 4
    return size * max(_together(config, axes, rank) for rank in range(axes.pp))


def _together(config: RunConfig, axes: Axes, rank: int) -> int:
    """Return how many of a pipeline rank's weights are gathered at a time, in numbers."""
    layers, block, ends = _part(config, axes, rank)
    one = gathered(block, axes.fsdp, axes.tp, axes.ep)
    each = [gathered([weight], axes.fsdp, axes.tp) for weight in ends]
    whole = layers * one + sum(each)
    if config.parallel.zero < 3 or axes.pp > 1:
        return whole
    return min(whole, 2 * one + max(each, default=0))


def _part(config: RunConfig, axes: Axes, rank: int) -> tuple[int, list[Weight], list[Weight]]:
    """Return how many blocks a pipeline rank has, a block's weights and those beside blocks."""
    layers, first, last = share_of(config, axes.pp, rank)
    ends = end_weights(config.model, config.data.vocab_size, first, last)
    return layers, list(block_weights(config.model).values()), list(ends.values())


def _activations(config: RunConfig, axes: Axes, device: str) -> int:
    """Return what the micro-batches that wait keep, what one of them needs at work, and the head's part."""
    parallel, waiting = config.parallel, 1.0
    sequences = _sequences(config, axes, device)
    if axes.pp > 1:
        count = -(-share_of_batch(config, axes) // sequences)
        together = min(count, parallel.pp_micro_batches or count)
        waiting = waiting_passes(parallel, micro_batches(parallel, together))
    kept, once = of_a_token(config, axes, device)
    tokens = sequences * config.data.sequence_length
    return int(tokens * (waiting * kept + once)) + activations.of_head(config, tokens // axes.cp, device) // axes.tp


def _sequences(config: RunConfig, axes: Axes, device: str) -> int:
    """Return the sequences of a micro-batch: as given, or what is planned; of a pipeline as many as fill it."""
    given, share = config.parallel.micro_batch_sequences, share_of_batch(config, axes)
    if given is not None:
        return given
    planned = min(share, micro_batch_sequences(config, axes, device))
    return planned if axes.pp == 1 else max(1, min(planned, share // (axes.pp * stages_per_rank(config.parallel))))


def of_a_token(config: RunConfig, axes: Axes, device: str) -> tuple[float, float]:
    """Return bytes of each token on a rank: of each micro-batch that waits, and of the one at work besides."""
    layers, memory = -(-config.model.layers // axes.pp), config.memory
    whole = activations.block(config, device).on(axes)
    cut = axes.tp * axes.cp
    once = activations.at_work(config, device) / cut
    every = {"full": 1, "budget": 1, "every": memory.every}.get(memory.checkpointing)
    kept = whole
    if every is not None:  # a budget can do with what `full` keeps
        kept = (activations.block(config, device, "full").on(axes) + (every - 1) * whole) / every
    elif memory.checkpointing == "selective":
        kept = activations.block(config, device, "selective").on(axes)
    if memory.checkpointing != "none":
        once += whole  # a block's activations are made again beside what is kept
    return layers * kept + activations.ends(config, device) / cut, once


def micro_batch_sequences(config: RunConfig, axes: Axes, device: str) -> int:
    """Return how many sequences are planned to go through the model at once: what `ACTIVATION_BYTES` hold, at least 1.

    On a CPU that is what is done, and there is no more to win past `CPU_TOKENS`. On a GPU it is the least that memory
    is planned for: a run takes what its GPU has (train.memory.micro_batch).
    """
    length = config.data.sequence_length
    if device == "cpu":
        per_token = CPU_BYTES_PER_TOKEN * config.model.width * config.model.layers
        return max(1, min(ACTIVATION_BYTES["cpu"] // per_token, CPU_TOKENS) // length)
    return max(1, int(ACTIVATION_BYTES[device] // sum(of_a_token(config, axes, device))) // length)
