"""From the global order of rows to the batch of this rank, read ahead where that pays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import torch

from train.data.batch import Batch
from train.data.prefetch import Prefetch
from train.data.rows import Rows

Reader: TypeAlias = Prefetch[tuple[int, int], Batch]
"""Answers (first row, rows of all ranks) with this rank's part, on the CPU, padded to the largest rank's part."""

AHEAD = {"cuda": 2}
"""Batches read ahead by default, by device type: on a CPU the thread would take from the cores that compute."""


class RowSource(Protocol):
    """Training rows by their number in the global order."""

    def rows(self, start: int, count: int) -> Rows:
        """Return rows number start to start + count."""


class Shares(Protocol):
    """Which sequences of a global batch are whose (train.parallel.mesh)."""

    def share(self, count: int) -> range:
        """Return which of `count` sequences are this rank's."""

    def most(self, count: int) -> int:
        """Return the largest share of `count` sequences."""


def make_reader(
    data: RowSource, mesh: Shares, cut: Callable[[Batch], Batch], device: torch.device, depth: int | None
) -> Reader:
    """Return what reads this rank's batches, `depth` of them ahead; on a GPU into pinned memory.

    cut: returns this rank's part of each sequence (train.parallel.context).
    """
    pinned = device.type == "cuda"

    def read(request: tuple[int, int]) -> Batch:
        start, count = request
        share = mesh.share(count)
        rows = data.rows(start + share.start, len(share))
        batch = cut(Batch.of_rows(rows).padded(mesh.most(count)))
        return batch.each(lambda tensor: tensor.contiguous().pin_memory()) if pinned else batch

    return Prefetch(read, AHEAD.get(device.type, 0) if depth is None else depth)
