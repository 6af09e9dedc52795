"""Which documents were in a step: from rows back to source, shard and place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from train.data.batch import Integers
from train.data.token_stream import TokenStream


@dataclass(frozen=True)
class Origin:
    """A run of tokens that one row was trained on.

    row: number of the row in the global order. shard: path of the shard file. document: its number within the shard.
    offset: where the run begins in the shard [tokens]; tokens: how long it is.
    """

    row: int
    source: str
    shard: str
    document: int
    offset: int
    tokens: int


class Finder:
    """Looks up documents by position in a stream; keeps the index of the shards it looked at last."""

    def __init__(self, stream: TokenStream, source: str) -> None:
        self._stream, self._source = stream, source
        self._index = lru_cache(maxsize=8)(stream.index)

    def origins(self, row: int, start: int, tokens: int) -> Iterator[Origin]:
        """Yield the documents of a run of the stream, cut at the ends of documents and shards."""
        while tokens > 0:
            shard = self._stream.shard_of(start)
            begin = start - self._stream.shard_start(shard)
            index: Integers = self._index(shard)
            document = int(np.searchsorted(index, begin, side="right")) - 1
            here = min(tokens, int(index[document + 1]) - begin)
            path = str(self._stream.folder / self._stream.shards[shard].file)
            yield Origin(row, self._source, path, document, begin, here)
            start, tokens = start + here, tokens - here
