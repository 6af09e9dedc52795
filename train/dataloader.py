"""From the global order of rows to the batch of this rank, read ahead where that pays."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import torch

from train.data.batch import Batch
from train.data.prefetch import Prefetch
from train.data.rows import Rows
from train.parallel.context import cut_batch
from train.parallel.mesh import Mesh

Reader: TypeAlias = Prefetch[tuple[int, int], Batch]
"""Answers (first row, rows of all ranks) with this rank's part, on the CPU, padded to the largest rank's part."""

AHEAD = {"cuda": 2}
"""Batches read ahead by default, by device type: on a CPU the thread would take from the cores that compute."""


class RowSource(Protocol):
    """Training rows by their number in the global order."""

    def rows(self, start: int, count: int) -> Rows:
        """Return rows number start to start + count."""


def make_reader(data: RowSource, mesh: Mesh, device: torch.device, depth: int | None) -> Reader:
    """Return what reads this rank's batches, `depth` of them ahead; on a GPU into pinned memory."""
    pinned = device.type == "cuda"

    def read(request: tuple[int, int]) -> Batch:
        start, count = request
        share = mesh.share(count)
        rows = data.rows(start + share.start, len(share))
        batch = cut_batch(Batch.of_rows(rows).padded(mesh.most(count)), mesh)
        return batch.each(lambda tensor: tensor.contiguous().pin_memory()) if pinned else batch

    return Prefetch(read, AHEAD.get(device.type, 0) if depth is None else depth)
