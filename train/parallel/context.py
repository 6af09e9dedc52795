"""Context parallelism: ranks share each sequence, and gather each other's keys and values.

A causal sequence cut into equal runs would give the last rank most of the work. It is cut into two chunks a rank
instead, and rank r of n has chunks r and 2n - 1 - r: together they see as many keys on every rank. Keys and values of
all ranks are gathered in one message a block (Llama 3 does the same, Dubey et al. 2024, section 3.3.2: it works with
any mask, and with few key/value heads they are small beside the queries); each chunk attends to those up to its end.
Ring attention (torch's `context_parallel`, which passes keys and values on instead) is not offered: it has no kernel on
a CPU, where every layout is tested.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from train.data.batch import Batch
from train.model.attention.gqa import Attend
from train.model.moe import MoE
from train.model.transformer import Block, Transformer
from train.parallel.collectives import gather, total
from train.parallel.mesh import Mesh


@dataclass(frozen=True)
class Chunks:
    """Which two chunks of a sequence a rank has."""

    rank: int
    size: int

    def cut(self, tensor: Tensor) -> Tensor:
        """Return this rank's part of (..., length): its early chunk, then its late one."""
        chunks = tensor.reshape(*tensor.shape[:-1], 2 * self.size, -1)
        return torch.cat((chunks[..., self.rank, :], chunks[..., -1 - self.rank, :]), -1)

    def seen(self, length: int) -> tuple[tuple[int, int], ...]:
        """Return for both chunks of a sequence of `length` how many queries there are and how many keys they see.

        The queries are the last of the keys.
        """
        chunk = length // (2 * self.size)
        return (chunk, (self.rank + 1) * chunk), (chunk, (2 * self.size - self.rank) * chunk)


def cut_batch(batch: Batch, mesh: Mesh) -> Batch:
    """Return this rank's part of each sequence; positions say where its tokens were. Documents stay whole.

    Which documents there are is asked about keys, and those come from all ranks.
    """
    if mesh.axes.cp == 1:
        return batch
    chunks = Chunks(mesh.rank("cp"), mesh.axes.cp)
    positions = batch.positions
    if positions is None:
        positions = torch.arange(batch.inputs.shape[1]).expand_as(batch.inputs)
    return Batch(chunks.cut(batch.inputs), chunks.cut(batch.targets), chunks.cut(positions), batch.documents)


def share_sequences(module: Transformer, mesh: Mesh) -> None:
    """Make the attention of every block see the keys and values of all ranks of cp."""
    chunks = Chunks(mesh.rank("cp"), mesh.axes.cp)
    across = Across(chunks, mesh.group("cp"))
    module.pieces = lambda length: chunks.seen(length * chunks.size)
    for block in module.blocks.values():
        assert isinstance(block, Block)
        block.attention.across = across
        if isinstance(block.mlp, MoE):
            block.mlp.over_sequence = partial(total, group=across.group)


@dataclass(frozen=True)
class Across:
    """Attention of this rank's two chunks of queries over everyone's keys and values."""

    chunks: Chunks
    group: dist.ProcessGroup

    def __call__(self, attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return attention's output for q (batch, length, heads, head_dim), both chunks one after the other."""
        k, v = self._everyones(k, v)
        mixed, start = [], 0
        for queries, keys in self.chunks.seen(k.shape[1]):
            mixed.append(attend(q[:, start : start + queries], k[:, :keys], v[:, :keys]))
            start += queries
        return torch.cat(mixed, 1)

    def _everyones(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return all keys and values in the order of the sequence: early chunks by rank, then late ones backwards."""
        both = gather(torch.stack((k, v)).unsqueeze(0), self.group, dim=0)  # (ranks, 2, batch, length, heads, head_dim)
        early, late = both.chunk(2, dim=3)
        parts = [*early.unbind(0), *reversed(late.unbind(0))]
        k, v = torch.cat(parts, 2).unbind(0)
        return k, v
