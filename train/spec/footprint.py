"""How much memory one rank of a run needs, from its config alone: weights, gradients, moments and activations."""

from __future__ import annotations

from dataclasses import dataclass

from train.spec import optimizers
from train.spec.config import ModelConfig, RunConfig
from train.spec.counts import Weight, block_weights, end_weights
from train.spec.mesh import Axes
from train.spec.pipeline_layout import micro_batches, share_of, stages_per_rank, waiting_passes
from train.spec.shard_shapes import largest_shard, largest_shards

KEPT_PER_TOKEN = 34
"""Values kept for the backward pass per token, channel and block (Korthikanti et al. 2022, attention not stored)."""
KEPT_SELECTED = 16
"""The same where the elementwise rest is computed again (12.5 seen on a CPU, where 21 to 27 are kept without that)."""
KEPT_RECOMPUTED = 2
"""The same where the block is computed again from its input, which is one."""
ACTIVATION_BYTES = {"cpu": 1 << 30, "cuda": 8 << 30}
"""What the activations of one micro-batch may take by default, by device type [bytes]."""
CPU_TOKENS = 4096
"""Tokens of a micro-batch on a CPU. At width 128, 4 layers, 1 thread: 512 tokens at once take 11 % longer per token,
1,024 take 2-3 %, 8,192 and more win nothing (at width 64 they lose 2-6 %: they outgrow the caches)."""


@dataclass(frozen=True)
class Footprint:
    """Memory that one rank needs [bytes].

    states: weights, gradients and moments that stay on its device. gathered: whole weights (and with parallel.zero=1
    gradients) beside its shards of them. activations: those of the micro-batches that wait for their backward passes.
    fetched: moments that are there for the update only, when activations are gone. host: what lies on the CPU instead.
    """

    states: int
    activations: int
    gathered: int = 0
    fetched: int = 0
    host: int = 0

    @property
    def total(self) -> int:
        """The most that its device holds at once [bytes]."""
        return self.states + self.gathered + max(self.activations, self.fetched)


def footprint(config: RunConfig, axes: Axes, device: str) -> Footprint:
    """Return what the fullest rank needs on a device of type cpu or cuda. An estimate from above.

    Weights and gradients are fp32, moments as `precision.optimizer_state` says; a half-precision run holds a copy of
    the weights more. Sharding cuts all of it over dp_shard x cp, tp and pp cut it always; a rank's share of each weight
    is counted as it is cut, rounded up (train.spec.shard_shapes).
    """
    weights, moments = max((_states(config, axes, rank) for rank in range(axes.pp)), key=sum)
    activations, gathered = _activations(config, axes, device), _gathered(config, axes)
    offload = config.memory.offload if device == "cuda" else "none"
    if offload == "parameters":
        return Footprint(0, activations, gathered, host=weights + moments)
    if offload == "optimizer":
        return Footprint(weights, activations, gathered, fetched=moments, host=moments)
    return Footprint(weights + moments, activations, gathered)


def _states(config: RunConfig, axes: Axes, rank: int) -> tuple[int, int]:
    """Return what the fullest of those that share a pipeline rank's part holds: weights and gradients, and moments."""
    layers, block, ends = _part(config, axes, rank)
    hidden = layers * largest_shards([weight for weight in block if len(weight.shape) > 1], axes.fsdp, axes.tp)
    total = layers * largest_shards(block, axes.fsdp, axes.tp) + largest_shards(ends, axes.fsdp, axes.tp)
    moments = optimizers.moments(config.optim.name, hidden, total)
    copy = 0 if config.precision.name == "fp32" else 2
    return total * (8 + copy), moments * (2 if config.precision.optimizer_state == "bf16" else 4)


def _gathered(config: RunConfig, axes: Axes) -> int:
    """Return what FSDP2 holds whole beside the shards: all of it, or two blocks and the embedding or head at a time.

    Padding is held as well.
    """
    if axes.fsdp == 1:
        return 0
    size = 4 if config.precision.name == "fp32" else 2
    if config.parallel.zero == 1:
        size += 4
    return size * axes.fsdp * max(_together(config, axes, rank) for rank in range(axes.pp))


def _together(config: RunConfig, axes: Axes, rank: int) -> int:
    """Return how many of a pipeline rank's weights are gathered at a time, in numbers of one shard."""
    layers, block, ends = _part(config, axes, rank)
    one = largest_shards(block, axes.fsdp, axes.tp)
    each = [largest_shard(weight, axes.fsdp, axes.tp) for weight in ends]
    whole = layers * one + sum(each)
    return min(whole, 2 * one + max(each, default=0)) if config.parallel.zero == 3 else whole


def _part(config: RunConfig, axes: Axes, rank: int) -> tuple[int, list[Weight], list[Weight]]:
    """Return how many blocks a pipeline rank has, a block's weights and those beside blocks."""
    layers, first, last = share_of(config, axes.pp, rank)
    ends = end_weights(config.model, config.data.vocab_size, first, last)
    return layers, list(block_weights(config.model).values()), list(ends.values())


def _activations(config: RunConfig, axes: Axes, device: str) -> int:
    model, length = config.model, config.data.sequence_length
    sequences, waiting = config.parallel.micro_batch_sequences, 1.0
    assert config.batch.tokens is not None, "the config is resolved"
    share = -(-(config.batch.tokens // length) // axes.data)
    if sequences is None:
        sequences = min(share, micro_batch_sequences(model, length, device))
    if axes.pp > 1:
        if config.parallel.micro_batch_sequences is None:
            sequences = max(1, min(sequences, share // (axes.pp * stages_per_rank(config.parallel))))
        count = -(-share // sequences)
        together = min(count, config.parallel.pp_micro_batches or count)
        waiting = waiting_passes(config.parallel, micro_batches(config.parallel, together))
    size = 4 if config.precision.name == "fp32" else 2
    layers = -(-model.layers // axes.pp)
    kept = layers * waiting * _kept(config) + (KEPT_PER_TOKEN if _recomputes(config) else 0)
    return int(size * model.width * kept) * sequences * length // (axes.tp * axes.cp)


def _kept(config: RunConfig) -> float:
    """Return how many values a block keeps per token and channel; a budget can do with what `full` keeps."""
    memory = config.memory
    every = {"full": 1, "budget": 1, "every": memory.every}.get(memory.checkpointing)
    if every is not None:
        return (KEPT_RECOMPUTED + (every - 1) * KEPT_PER_TOKEN) / every
    return KEPT_SELECTED if memory.checkpointing == "selective" else KEPT_PER_TOKEN


def _recomputes(config: RunConfig) -> bool:
    """Whether a block's activations are made again beside what is kept."""
    return config.memory.checkpointing != "none"


def micro_batch_sequences(model: ModelConfig, sequence_length: int, device: str) -> int:
    """Return how many sequences go through the model at once: as many as `ACTIVATION_BYTES` hold, at least one.

    Counts about 34 fp32 values per token, channel and block kept for the backward pass. Logits do not count, they never
    exist as a whole (kernels.linear_cross_entropy). On a CPU there is no more to win past `CPU_TOKENS`.
    """
    per_token = 4 * KEPT_PER_TOKEN * model.width * model.layers
    tokens = ACTIVATION_BYTES[device] // per_token
    if device == "cpu":
        tokens = min(tokens, CPU_TOKENS)
    return max(1, tokens // sequence_length)
