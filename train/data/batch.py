"""What a step is given: rows of tokens, what is to be predicted, and where documents begin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from train.data.rows import Rows
from train.spec.labels import IGNORED


def even_parts(count: int, most: int) -> list[int]:
    """Return `count` sequences cut into the fewest micro-batches of at most `most`, as equal as can be."""
    passes = -(-count // most)
    return [count * (i + 1) // passes - count * i // passes for i in range(passes)]


@dataclass(frozen=True)
class Batch:
    """Sequences of one rank, (sequences, length) int64 each.

    targets: the next token, `IGNORED` where none is trained on. positions: of a token within its document; None:
    within its row. documents: the number of a token's document within its row; None: the row is one document.
    """

    inputs: Tensor
    targets: Tensor
    positions: Tensor | None = None
    documents: Tensor | None = None

    @staticmethod
    def of(rows: Tensor) -> Batch:
        """Return the batch of plain rows of tokens (sequences, length + 1), every token of which counts."""
        return Batch(rows[:, :-1], rows[:, 1:])

    @staticmethod
    def of_rows(rows: Rows) -> Batch:
        """Return the batch of what was read."""
        arrays = (rows.inputs, rows.targets, rows.positions, rows.documents)
        inputs, targets, positions, documents = (None if a is None else torch.from_numpy(a) for a in arrays)
        assert inputs is not None and targets is not None
        return Batch(inputs, targets, positions, documents)

    def __len__(self) -> int:
        return len(self.inputs)

    def each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with all of its tensors changed alike."""
        positions = None if self.positions is None else change(self.positions)
        documents = None if self.documents is None else change(self.documents)
        return Batch(change(self.inputs), change(self.targets), positions, documents)

    def part(self, start: int, stop: int) -> Batch:
        """Return sequences start to stop."""
        return self.each(lambda tensor: tensor[start:stop])

    def padded(self, count: int) -> Batch:
        """Return `count` sequences: these and, where they are fewer, empty ones of which nothing is trained on.

        Ranks that compute together have to run the same number of micro-batches, whoever got a sequence more.
        """
        missing = count - len(self)
        if missing == 0:
            return self
        longer = self.each(lambda tensor: torch.cat((tensor, tensor.new_zeros(missing, tensor.shape[1]))))
        longer.targets[len(self) :] = IGNORED
        return longer

    def valid(self) -> int:
        """Return how many targets are trained on; for a batch on the CPU."""
        return int((self.targets != IGNORED).sum())

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device; the copy to a GPU does not hold up the CPU."""
        if device.type == "cpu":
            return self
        return self.each(lambda tensor: tensor.contiguous().pin_memory().to(device, non_blocking=True))
