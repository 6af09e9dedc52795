"""A model that is not trained: its weights, what a forward pass has at work, what generation keeps."""

from __future__ import annotations

from dataclasses import dataclass

from train.spec import activations
from train.spec.accounting import held, kept, kv_cache
from train.spec.accounting.held import Part
from train.spec.config import RunConfig
from train.spec.mesh import Axes


@dataclass(frozen=True)
class Frozen:
    """What one rank holds of a model without gradients [bytes].

    weights: in the format of products, cut as the layout says. gathered: whole blocks beside them. at_work: of a micro-
    batch in one block, and a chunk of logits.
    """

    weights: int
    gathered: int
    at_work: int

    @property
    def total(self) -> int:
        """While it computes."""
        return self.weights + self.gathered + self.at_work


def frozen(config: RunConfig, axes: Axes, sequences: int, device: str = "cuda") -> Frozen:
    """Return what the fullest rank holds for forward passes of so many sequences."""
    size = kept.number_bytes(config)
    tokens = sequences * config.data.sequence_length // axes.cp
    parts = [held.part_of(config, axes, rank) for rank in range(axes.pp)]
    found = max(parts, key=lambda part: part.shard)
    logits = kept.head(config, axes, device, tokens, True).logits
    # Of a block: gate, up and their product, or queries, keys and values, beside the residual stream and its norm.
    work = round(tokens * activations.at_work(config, device) / axes.tp)
    return Frozen(size * found.shard, size * gathered(config, found), work + logits)


def gathered(config: RunConfig, part: Part) -> int:
    """Return the numbers of weights that a forward pass without gradients has whole beside shards."""
    if not part.sharded:
        return 0
    if config.parallel.zero < 3:
        return part.gathered
    return max(2 * part.block.gathered, part.largest_end.gathered)


def cache(config: RunConfig, axes: Axes, sequences: int) -> int:
    """Return the keys and values of so many sequences of whole length on one rank [bytes]."""
    tokens, size = config.data.sequence_length, kept.number_bytes(config)
    return kv_cache.of_sequences(config.model, sequences, tokens, tp=axes.tp, pp=axes.pp, bytes_per_number=size)
