"""What a step is given: rows of tokens, what is to be predicted, and where documents begin."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from train.spec.labels import IGNORED
from train.spec.micro_batch import even_parts

if TYPE_CHECKING:  # whoever only reads rows needs no torch
    import torch
    from torch import Tensor

Integers: TypeAlias = npt.NDArray[np.int64]
Array = TypeVar("Array")
Other = TypeVar("Other")


@dataclass(frozen=True)
class Sequences(Generic[Array]):
    """Sequences of one length, (sequences, length) int64: `Rows` as they are read, a `Batch` of tensors from then on.

    targets: the next token, `IGNORED` where none is trained on. positions: of a token within its document; None:
    within its row. documents: the number of a token's document within its row; None: the row is one document.
    """

    inputs: Array
    targets: Array
    positions: Array | None = None
    documents: Array | None = None

    def __len__(self) -> int:
        return len(cast(Any, self.inputs))

    @property
    def arrays(self) -> tuple[Array, Array, Array | None, Array | None]:
        """Inputs, targets, positions, documents."""
        return self.inputs, self.targets, self.positions, self.documents

    def each(self, change: Callable[[Array], Other]) -> Sequences[Other]:
        """Return the sequences with all of their arrays changed alike."""
        positions = None if self.positions is None else change(self.positions)
        documents = None if self.documents is None else change(self.documents)
        return Sequences(change(self.inputs), change(self.targets), positions, documents)

    def part(self, start: int, stop: int) -> Sequences[Array]:
        """Return sequences start to stop, without copying."""
        return self.each(lambda array: cast(Any, array)[start:stop])

    def split(self, most: int) -> list[Sequences[Array]]:
        """Return the fewest micro-batches of at most `most` sequences, as equal as can be."""
        ends = itertools.accumulate(even_parts(len(self), most), initial=0)
        return [self.part(start, stop) for start, stop in itertools.pairwise(ends)]

    def valid(self) -> int:
        """Return how many targets are trained on; of sequences on the CPU."""
        return int((cast(Any, self.targets) != IGNORED).sum())

    def padded(self: Batch, count: int) -> Batch:
        """Return `count` sequences: these, padded with empty ones that are not trained on.

        Ranks that compute together have to run the same number of micro-batches, whoever got a sequence more.
        """
        import torch

        missing = count - len(self)
        if missing == 0:
            return self
        longer = self.each(lambda tensor: torch.cat((tensor, tensor.new_zeros(missing, tensor.shape[1]))))
        longer.targets[len(self) :] = IGNORED
        return longer

    def to(self: Batch, device: torch.device) -> Batch:
        """Return the batch on a device; the copy to a GPU does not hold up the CPU."""
        if device.type == "cpu":
            return self
        return self.each(lambda tensor: tensor.contiguous().pin_memory().to(device, non_blocking=True))


Rows: TypeAlias = Sequences[Integers]
Batch: TypeAlias = Sequences["Tensor"]
