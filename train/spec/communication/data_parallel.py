"""What data-parallel ranks send: copies of a model (DDP), shards of one (FSDP2, FSDP1), copies of shards (HSDP).

ZeRO's stages are Rajbhandari et al. 2020, hybrid sharding is Zhao et al. 2023 ("PyTorch FSDP"). When what is gathered
and summed is what train.parallel.fsdp, fsdp1 and ddp make torch do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from train.spec.communication.messages import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Message
from train.spec.communication.stages import MicroBatches, Stage, short
from train.spec.config import RunConfig
from train.spec.counts import Weight, block_weights, end_weights
from train.spec.mesh import Axes, strategy
from train.spec.shard_shapes import largest_shard, largest_shards

FULL = 4
"""Bytes of a number of weights and gradients as they are kept: fp32."""
FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
"""Sizes at which DDP closes its first bucket and the others [bytes] (torch.distributed: _DEFAULT_FIRST_BUCKET_BYTES,
bucket_cap_mb)."""
BUCKETS = "gradients"
"""What messages of DDP's buckets say they are of."""
FLAT_ALIGNMENT = 16
"""Bytes to which FSDP1 aligns each weight within a flat one, in the format that is gathered."""


@dataclass(frozen=True)
class Unit:
    """Weights that are gathered in one message.

    numbers: of the fullest rank's shard. size: of that shard as it is sent [bytes]. again: whether they are freed after
    a forward pass where parallel.zero=3, and so gathered again for the backward pass. axis: over which they are cut.
    """

    of: str
    numbers: int
    size: int
    again: bool
    axis: str = "fsdp"


def data_parallel(config: RunConfig, axes: Axes, stage: Stage, micro: MicroBatches) -> Iterator[Message]:
    """Yield what one rank sends for one stage in a step, by the strategy of the config."""
    how = strategy(config.parallel, axes)
    if how == "ddp":
        yield from _ddp(config, axes)
    elif how == "fsdp1":
        yield from _fsdp1(config, axes, micro)
    elif how == "fsdp":
        for unit, times in units(config, axes, stage).items():
            for one in _fsdp(config, axes, unit, micro):
                yield replace(one, count=times * one.count)
        yield from _fp8_scales(config, axes, stage, micro)


def units(config: RunConfig, axes: Axes, stage: Stage) -> Mapping[Unit, int]:
    """Return what FSDP2 gathers at once, and how often: blocks, embedding and head apart, and the rest with the root.

    A tied weight that is needed at both ends of the pass stays with the root.
    """
    ends = end_weights(config.model, config.data.vocab_size, stage.first, stage.last)
    weights = block_weights(config.model)
    shared = {name: weights.pop(name) for name, one in list(weights.items()) if one.experts and axes.ep > 1}
    narrow = Counter(_in_fp8(config, number) for number in stage.blocks)
    found = Counter({_unit("block", weights, config, axes, again=True, fp8=fp8): n for fp8, n in narrow.items()})
    if shared and stage.blocks:
        found[replace(_unit("experts", shared, config, axes, again=True), axis="expert_fsdp")] += len(stage.blocks)
    apart = [("head", "output.weight", False)] if "output.weight" in ends else []
    if "embedding.weight" in ends and ("output.weight" in ends or not stage.last):
        apart.append(("embedding", "embedding.weight", True))
    for of, name, again in apart:
        found[_unit(of, {name: ends.pop(name)}, config, axes, again=again)] += 1
    if ends:
        found[_unit("root", ends, config, axes, again=False)] += 1
    return found


def _unit(
    of: str, weights: dict[str, Weight], config: RunConfig, axes: Axes, *, again: bool, fp8: bool = False
) -> Unit:
    numbers = largest_shards(weights.values(), axes.fsdp, axes.tp, axes.ep)
    size = numbers * short(config)
    if fp8:
        size -= sum(largest_shard(one, axes.fsdp, axes.tp) for one in weights.values() if len(one.shape) > 1)
    return Unit(of, numbers, size, again)


def _fsdp(config: RunConfig, axes: Axes, unit: Unit, micro: MicroBatches) -> Iterator[Message]:
    ranks = axes.fsdp if unit.axis == "fsdp" else axes.expert_fsdp

    def gathered(count: int, phase: str) -> Message:
        return Message(ALL_GATHER, unit.axis, ranks, unit.size * ranks, count, f"weights of {unit.of}", phase)

    once, every, zero = micro.passes or 1, len(micro.sizes), config.parallel.zero
    if zero == 3 and unit.again:
        yield gathered(every, "forward")
        # A pipeline frees weights after a forward pass only, and its passes alternate: however they do, of every run of
        # backward passes the first one gathers, and the forward pass after it need not.
        yield gathered(micro.passes or every, "backward")
    else:
        yield gathered(every if zero == 3 and not micro.passes else once, "forward")
    sums = once if micro.passes or zero == 1 else every
    reduced = reduce_bytes(config) * unit.numbers
    of = f"gradients of {unit.of}"
    yield Message(REDUCE_SCATTER, unit.axis, ranks, reduced * ranks, sums, of, "backward")
    if config.precision.reduce == "fp32" and not micro.passes:
        sums = 1
    yield Message(ALL_REDUCE, "dp_replicate", axes.dp_replicate, reduced, sums, of, "backward")


def _fp8_scales(config: RunConfig, axes: Axes, stage: Stage, micro: MicroBatches) -> Iterator[Message]:
    """Yield what finds the largest magnitudes of weights that are gathered in fp8, before every forward pass."""
    products = sum(len(weight.shape) > 1 for weight in block_weights(config.model).values())
    found = FULL * products * sum(_in_fp8(config, number) for number in stage.blocks)
    yield Message(ALL_REDUCE, "fsdp", axes.fsdp, found, len(micro.sizes), "largest magnitudes", "forward")


def _in_fp8(config: RunConfig, block: int) -> bool:
    keep = config.precision.fp8_keep_blocks
    return config.precision.fp8_gather and keep <= block < config.model.layers - keep


def reduce_bytes(config: RunConfig) -> int:
    """Return the bytes of a number of sharded gradients while they are summed."""
    return 2 if config.precision.reduce == "bf16" and config.precision.name != "fp32" else FULL


def _fsdp1(config: RunConfig, axes: Axes, micro: MicroBatches) -> Iterator[Message]:
    block, ends = block_weights(config.model), end_weights(config.model, config.data.vocab_size)
    count = len(micro.sizes)
    for name, weights, times in (("block", block, config.model.layers * count), ("root", ends, count)):
        numbers = flat_numbers(list(weights.values()), short(config), axes.fsdp)
        whole, reduced = numbers * short(config), numbers * reduce_bytes(config)
        yield Message(ALL_GATHER, "fsdp", axes.fsdp, whole, times, f"weights of {name}", "forward")
        if config.parallel.zero == 3 and name == "block":
            yield Message(ALL_GATHER, "fsdp", axes.fsdp, whole, times, f"weights of {name}", "backward")
        of = f"gradients of {name}"
        yield Message(REDUCE_SCATTER, "fsdp", axes.fsdp, reduced, times, of, "backward")
        part = reduced // axes.fsdp
        yield Message(ALL_REDUCE, "dp_replicate", axes.dp_replicate, part, times, of, "backward")


def flat_numbers(weights: Sequence[Weight], itemsize: int, ranks: int) -> int:
    """Return how many numbers FSDP1's flat weight has, with what aligns each of them and makes it divisible."""
    step, total = FLAT_ALIGNMENT // itemsize, 0
    for weight in weights:
        total = -(-total // step) * step + weight.numbers
    return -(-total // ranks) * ranks


def _ddp(config: RunConfig, axes: Axes) -> Iterator[Message]:
    ranks = axes.data * axes.cp
    for size in ddp_buckets(config):
        yield Message(ALL_REDUCE, "tokens", ranks, size, 1, BUCKETS, "backward")
    yield Message(ALL_REDUCE, "tokens", ranks, 4 * len(_ddp_weights(config)), 1, "which weights were used", "backward")


def ddp_buckets(config: RunConfig) -> list[int]:
    """Return the sizes of DDP's messages [bytes], in the order of their weights; they are sent from the last to the
    first."""
    given = config.parallel.ddp_bucket_mib
    limits = (FIRST_BUCKET, BUCKET) if given is None else (int(given * (1 << 20)),) * 2
    return buckets([FULL * weight.numbers for weight in _ddp_weights(config)], *limits)


def _ddp_weights(config: RunConfig) -> list[Weight]:
    """Return the weights in the order of the module: embedding, blocks, final norm and head."""
    block, ends = block_weights(config.model), end_weights(config.model, config.data.vocab_size)
    return [ends.pop("embedding.weight"), *list(block.values()) * config.model.layers, *ends.values()]


def buckets(sizes: Sequence[int], first: int = FIRST_BUCKET, cap: int = BUCKET) -> list[int]:
    """Return the sizes of DDP's buckets [bytes]: weights in their order, a bucket closed once it is full."""
    found, limit = [0], first
    for size in sizes:
        if found[-1] >= limit:
            found.append(0)
            limit = cap
        found[-1] += size
    return found
