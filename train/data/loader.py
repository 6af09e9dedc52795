"""Sequences of tokens from a prepared folder: memory-mapped, and in an order that is a pure function of the index."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from train.data.order import permuted
from train.spec.manifest import SPLITS, Manifest, check_sizes, read_manifest

Tokens: TypeAlias = npt.NDArray[np.int64]

_BLOCK = 4096
"""Positions whose windows are worked out together, so that the arithmetic of the order costs little per step."""


class TokenSequences:
    """The training sequences of one split of a prepared folder.

    The split is one long row of tokens, cut into `windows` windows of ``sequence_length + 1`` tokens with stride
    `sequence_length` (the last token of one is the first of the next: inputs and targets are the two shifted views);
    what remains at the end is not used. The order of the windows is a permutation seeded by (seed, epoch), so the
    number of sequences consumed is the whole state of the data. Raises ValueError when the folder is not prepared, a
    shard has another size than the manifest says, or the split is shorter than one window.
    """

    def __init__(self, folder: str | Path, split: str, sequence_length: int, seed: int) -> None:
        if split not in SPLITS:
            raise ValueError(f"split={split!r} is not allowed: choose one of {', '.join(SPLITS)}")
        if sequence_length < 1:
            raise ValueError(f"data.sequence_length={sequence_length} is not allowed: it must be at least 1")
        self.folder = Path(folder)
        self.split = split
        self.sequence_length = sequence_length
        self.seed = seed
        self.manifest: Manifest = read_manifest(self.folder)
        check_sizes(self.folder, self.manifest, (split,))
        shards = self.manifest.splits[split].shards
        self._shards = [_mapped(self.folder / shard.file, shard.tokens) for shard in shards]
        self._ends = np.cumsum([shard.tokens for shard in shards], dtype=np.int64)
        self.tokens: int = int(self._ends[-1]) if shards else 0
        self.windows: int = (self.tokens - 1) // sequence_length
        if self.windows < 1:
            raise ValueError(
                f"{self.folder}: the {split} split has {self.tokens} tokens, one sequence needs {sequence_length + 1}: "
                f"lower data.sequence_length={sequence_length} or give more text"
            )
        self._span = min(_BLOCK, self.windows)  # so a block touches two epochs at most
        self._block: tuple[int, Tokens] = (-1, np.empty(0, dtype=np.int64))

    def sequences(self, start: int, count: int) -> Tokens:
        """Return sequences number start to start + count of the endless seeded order.

        Shape (count, sequence_length + 1). Every epoch of `windows` sequences holds each window once.
        """
        if start < 0 or count < 0:
            raise ValueError(f"start={start}, count={count} is not allowed: neither can be negative")
        return self._windows(self._order(start, count))

    def validation(self, count: int) -> Tokens:
        """Return `count` windows of the validation split, evenly spread, always the same ones: (count, length + 1).

        Raises ValueError when there are not that many.
        """
        if self.split != "validation":
            return TokenSequences(self.folder, "validation", self.sequence_length, self.seed).validation(count)
        if not 1 <= count <= self.windows:
            raise ValueError(
                f"eval.sequences={count} is not allowed: {self.folder} has {self.windows} validation sequences of "
                f"{self.sequence_length} tokens; lower eval.sequences or data.sequence_length, or prepare more text "
                "(data.max_bytes, data.validation_fraction)"
            )
        return self._windows(np.arange(count, dtype=np.int64) * self.windows // count)

    def _order(self, start: int, count: int) -> Tokens:
        """Return the windows at positions start to start + count."""
        windows = np.empty(count, dtype=np.int64)
        done = 0
        while done < count:
            number, first = divmod(start + done, self._span)
            if self._block[0] != number:
                self._block = (number, self._ordered_block(number))
            take = min(count - done, self._span - first)
            windows[done : done + take] = self._block[1][first : first + take]
            done += take
        return windows

    def _ordered_block(self, number: int) -> Tokens:
        positions = np.arange(number * self._span, (number + 1) * self._span, dtype=np.int64)
        epochs, indices = np.divmod(positions, self.windows)
        block = np.empty(self._span, dtype=np.int64)
        for epoch in np.unique(epochs):
            inside = epochs == epoch
            block[inside] = permuted(indices[inside], self.windows, self.seed, int(epoch))
        return block

    def _windows(self, windows: Tokens) -> Tokens:
        length = self.sequence_length + 1
        rows = np.empty((len(windows), length), dtype=np.int64)
        starts = windows * self.sequence_length
        shards = np.searchsorted(self._ends, starts, side="right")
        for row, start, number in zip(rows, starts.tolist(), shards.tolist(), strict=True):
            begin = start - (int(self._ends[number]) - len(self._shards[number]))
            filled = 0
            shard = number
            while filled < length:  # a window may continue in the next shard
                piece = self._shards[shard][begin : begin + length - filled]
                row[filled : filled + len(piece)] = piece
                filled += len(piece)
                shard, begin = shard + 1, 0
        return rows


def _mapped(path: Path, tokens: int) -> npt.NDArray[np.uint16]:
    if tokens == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype=np.uint16)
    return np.asarray(np.memmap(path, dtype="<u2", mode="r", shape=(tokens,)))
