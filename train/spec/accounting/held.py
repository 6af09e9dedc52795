"""What a rank holds whatever goes through it: weights, moments and gradients, shards and what is gathered of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from train.spec import optimizers
from train.spec.config import RunConfig
from train.spec.counts import Weight, block_weights, end_weights
from train.spec.mesh import Axes, strategy
from train.spec.pipeline_layout import blocks_of, share_of
from train.spec.shard_shapes import gathered, largest_shard, largest_shards


@dataclass(frozen=True)
class Numbers:
    """Numbers of some weights on one rank: its shard of them, and what it has while they are gathered (with padding).

    whole: without tensor parallelism's other ranks. matrices: of `whole`, in hidden matrices.
    """

    shard: int
    gathered: int
    whole: int
    matrices: int


@dataclass(frozen=True)
class Part:
    """What a rank of the pipeline has: blocks alike, by their numbers in the model, and the weights beside them.

    sharded: FSDP2 holds the weights. ddp: DistributedDataParallel does, whose buckets are the gradients all the time.
    """

    block_numbers: tuple[int, ...]
    first: bool
    last: bool
    block: Numbers
    embedding: Numbers
    head: Numbers
    rest: Numbers
    sharded: bool
    ddp: bool

    @property
    def blocks(self) -> int:
        """How many blocks it has."""
        return len(self.block_numbers)

    @property
    def shard(self) -> int:
        """Numbers of weights that the rank holds."""
        return self.blocks * self.block.shard + self.embedding.shard + self.head.shard + self.rest.shard

    @property
    def gathered(self) -> int:
        """The same while all of them are gathered."""
        return self.blocks * self.block.gathered + self.embedding.gathered + self.head.gathered + self.rest.gathered

    @property
    def largest_end(self) -> Numbers:
        """The larger of embedding and head."""
        return max(self.embedding, self.head, key=lambda numbers: numbers.gathered)


def part_of(config: RunConfig, axes: Axes, rank: int) -> Part:
    """Return what one rank of the pipeline has."""
    _, first, last = share_of(config, axes.pp, rank)
    how = strategy(config.parallel, axes)
    found = end_weights(config.model, config.data.vocab_size, first, last)
    embedding = {name: found.pop(name) for name in ("embedding.weight",) if name in found}
    head = {name: found.pop(name) for name in ("output.weight",) if name in found}
    ranks = axes.fsdp if how.startswith("fsdp") else 1

    def numbers(weights: Mapping[str, Weight]) -> Numbers:
        return _numbers(weights, ranks, axes.tp, axes.ep)

    return Part(
        blocks_of(config, axes.pp, rank),
        first,
        last,
        numbers(block_weights(config.model)),
        numbers(embedding),
        numbers(head),
        numbers(found),
        sharded=how.startswith("fsdp"),
        ddp=how == "ddp",
    )


def moments(config: RunConfig, part: Part, ranks: int, tp: int, ep: int = 1) -> int:
    """Return the bytes of the optimizer's state of a part, cut over `ranks` of FSDP, without its counts of steps."""
    matrices = {name: w for name, w in block_weights(config.model).items() if len(w.shape) > 1}
    hidden = part.blocks * largest_shards(matrices.values(), ranks if part.sharded else 1, tp, ep)
    each = 2 if config.precision.optimizer_state == "bf16" else 4
    return each * optimizers.moments(config.optim.name, hidden, part.shard)


def rounding(config: RunConfig, part: Part, ranks: int, tp: int, ep: int = 1) -> int:
    """Return what the update has of the largest weight while its moments are rounded to bf16, 0 where they are not.

    Both moments in fp32, random bits, and what says which numbers are finite (train.precision.stochastic_rounding).
    """
    if config.precision.optimizer_state != "bf16":
        return 0
    cut = ranks if part.sharded else 1
    blocks = (largest_shard(one, cut, tp, ep) for one in block_weights(config.model).values())
    largest = max(part.embedding.shard, part.head.shard, *blocks)
    return 4 * largest * 4 + largest


def _numbers(weights: Mapping[str, Weight], ranks: int, tp: int, ep: int) -> Numbers:
    local = {
        name: math.prod(weight.on_tensor_rank(tp)) // (ep if weight.experts else 1) for name, weight in weights.items()
    }
    return Numbers(
        largest_shards(weights.values(), ranks, tp, ep),
        gathered(weights.values(), ranks, tp, ep),
        sum(local.values()),
        sum(local[name] for name, weight in weights.items() if len(weight.shape) > 1),
    )
