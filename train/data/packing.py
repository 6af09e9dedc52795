"""How the running text of a stream becomes rows of one length: windows, masked windows, or whole documents fitted in.

Every packing numbers its rows from 0, and says for each row which pieces of the stream its targets are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from train.data.batch import Integers, Rows
from train.data.best_fit import fit
from train.data.rows import from_windows, masked
from train.data.token_stream import TokenStream
from train.spec.labels import IGNORED

PACKINGS = ("concatenate", "mask", "fit")


class Packing(Protocol):
    """Rows number 0 to `rows` of one stream."""

    rows: int

    def read(self, numbers: Integers) -> Rows:
        """Return these rows in this order."""

    def pieces(self, number: int) -> list[tuple[int, int]]:
        """Return (start, tokens) in the stream of every run of tokens that are a row's targets, in order."""


def packing_of(name: str, stream: TokenStream, length: int) -> Packing:
    """Return the packing that data.packing names; ValueError when the stream is too short for one row."""
    if name not in PACKINGS:
        raise ValueError(f"data.packing={name!r} is not allowed: choose one of {', '.join(PACKINGS)}")
    if stream.tokens <= length:
        raise ValueError(
            f"{stream.folder}: the {stream.split} split has {stream.tokens} tokens, one sequence needs {length + 1}: "
            f"lower data.sequence_length={length} or give more text"
        )
    packing: Packing = Fitted(stream, length) if name == "fit" else Windows(stream, length, mask=name == "mask")
    return LossMasked(packing, stream) if stream.masked else packing


class LossMasked:
    """The rows of another packing, in which targets that the loss does not count are ignored."""

    def __init__(self, packing: Packing, stream: TokenStream) -> None:
        self._packing, self._stream = packing, stream
        self.rows, self.pieces = packing.rows, packing.pieces

    def read(self, numbers: Integers) -> Rows:
        """Return these rows in this order."""
        rows = self._packing.read(numbers)
        targets = rows.targets.copy()
        for row, number in zip(targets, numbers.tolist(), strict=True):
            at = 0
            for start, tokens in self.pieces(number):
                self._stream.ignore(start, row[at : at + tokens])
                at += tokens
        return replace(rows, targets=targets)


class Windows:
    """The stream cut into windows of ``length + 1`` tokens with stride `length`; what remains at the end is not used.

    The last token of a window is the first of the next: inputs and targets are its two shifted views. With `mask`,
    attention and positions stay within documents (see `train.data.rows.masked`); without, they run on.
    """

    def __init__(self, stream: TokenStream, length: int, *, mask: bool) -> None:
        self._stream, self._length, self._mask = stream, length, mask
        self.rows = (stream.tokens - 1) // length

    def read(self, numbers: Integers) -> Rows:
        """Return these windows in this order."""
        windows = np.empty((len(numbers), self._length + 1), dtype=np.int64)
        for row, number in zip(windows, numbers.tolist(), strict=True):
            self._stream.copy(number * self._length, row)
        rows = from_windows(windows)
        return masked(rows, self._stream.separator) if self._mask else rows

    def pieces(self, number: int) -> list[tuple[int, int]]:
        """Return the one run of targets of a window."""
        return [(number * self._length + 1, self._length)]


class Fitted:
    """Whole documents fitted into rows; longer ones are cut every `length` tokens, and only their rest is fitted.

    A document of n tokens, its separator included, takes n positions: the separator before it predicts its first
    token, its last one the separator. What stays free at a row's end is padding: separators whose targets are ignored,
    one document of their own. Rows are the same in every epoch, their order is not.
    """

    def __init__(self, stream: TokenStream, length: int) -> None:
        self._stream, self._length = stream, length
        starts = stream.document_starts()
        self._packed = fit(starts[:-1], np.diff(starts), length)
        self.rows = len(self._packed)

    def read(self, numbers: Integers) -> Rows:
        """Return these rows in this order."""
        shape = (len(numbers), self._length)
        inputs = np.full(shape, self._stream.separator, dtype=np.int64)
        targets = np.full(shape, IGNORED, dtype=np.int64)
        positions, documents = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
        for row, number in enumerate(numbers.tolist()):
            at, count = 0, 0
            for start, tokens in self.pieces(number):
                end = at + tokens
                self._stream.copy(start, targets[row, at:end])
                if start > 0:
                    self._stream.copy(start - 1, inputs[row, at : at + 1])
                inputs[row, at + 1 : end] = targets[row, at : end - 1]
                positions[row, at:end] = np.arange(tokens)
                documents[row, at:end] = count
                at, count = end, count + 1
            positions[row, at:] = np.arange(self._length - at)
            documents[row, at:] = count
        return Rows(inputs, targets, positions, documents)

    def pieces(self, number: int) -> list[tuple[int, int]]:
        """Return the pieces of documents in a row, in order."""
        return self._packed.row(number)
