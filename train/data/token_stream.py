"""The tokens of one split of a prepared corpus as one long row, memory-mapped from its shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from train.spec.corpus_files import beginning, check_sizes
from train.spec.labels import IGNORED
from train.spec.manifest import SPLITS, Manifest, Shard, read_manifest, token_bytes

Tokens: TypeAlias = npt.NDArray[np.int64]


class TokenStream:
    """One split of a prepared folder: `tokens` tokens, each document followed by the separator.

    Raises ValueError when the folder is not prepared or a shard has another size than the manifest says; reading raises
    it when a shard holds a number that is no token of the vocabulary, showing how the file begins.
    """

    def __init__(self, folder: str | Path, split: str) -> None:
        if split not in SPLITS:
            raise ValueError(f"split={split!r} is not allowed: choose one of {', '.join(SPLITS)}")
        self.folder = Path(folder)
        self.split = split
        self.manifest: Manifest = read_manifest(self.folder)
        check_sizes(self.folder, self.manifest, (split,))
        self.separator = self.manifest.separator_token
        self.vocab_size = self.manifest.tokenizer.vocab_size
        self.shards: tuple[Shard, ...] = self.manifest.splits[split].shards
        width = token_bytes(self.vocab_size)
        self._maps = [_mapped(self.folder / shard.file, shard.tokens, width) for shard in self.shards]
        self._ends = np.cumsum([shard.tokens for shard in self.shards], dtype=np.int64)
        self.tokens: int = int(self._ends[-1]) if self.shards else 0
        self._masks = [self._mask(shard) for shard in self.shards]
        self.masked = any(len(mask) for mask in self._masks)

    def copy(self, start: int, into: Tokens) -> None:
        """Fill `into` with the tokens from position `start` on; a piece may go on in the next shard."""
        shard = self.shard_of(start)
        begin = start - self.shard_start(shard)
        filled = 0
        while filled < len(into):
            piece = self._maps[shard][begin : begin + len(into) - filled]
            into[filled : filled + len(piece)] = piece
            if piece.size and int(piece.max()) >= self.vocab_size:
                raise ValueError(self._not_a_token(shard, begin, piece))
            filled += len(piece)
            shard, begin = shard + 1, 0

    def ignore(self, start: int, targets: Tokens) -> None:
        """Set to `IGNORED` those of `targets`, the tokens from position `start` on, that the loss does not count."""
        shard = self.shard_of(start)
        begin = start - self.shard_start(shard)
        while len(targets):
            here = targets[: self.shards[shard].tokens - begin]
            edges = self._masks[shard]
            first, last = np.searchsorted(edges, (begin, begin + len(here)), side="right")
            inside = np.searchsorted(edges[first:last], np.arange(begin, begin + len(here)), side="right")
            here[(first + inside) % 2 == 1] = IGNORED
            targets, shard, begin = targets[len(here) :], shard + 1, 0

    def shard_of(self, position: int) -> int:
        """Return the number of the shard that holds a position of the stream."""
        return int(np.searchsorted(self._ends, position, side="right"))

    def shard_start(self, shard: int) -> int:
        """Return the position of a shard's first token in the stream."""
        return int(self._ends[shard]) - self.shards[shard].tokens

    def index(self, shard: int) -> npt.NDArray[np.int64]:
        """Return where the documents of a shard begin, and its end: (documents + 1,) [tokens from the shard's start].

        Raises ValueError, showing how the file begins, when these are not growing numbers from 0 to the shard's end.
        """
        entry = self.shards[shard]
        path = self.folder / entry.index
        starts = np.fromfile(path, dtype="<u8").astype(np.int64)
        ends_right = len(starts) == entry.documents + 1 and starts[0] == 0 and starts[-1] == entry.tokens
        if not ends_right or (np.diff(starts) < 1).any():
            raise ValueError(
                f"{path} is damaged: it does not hold {entry.documents + 1} growing offsets from 0 to {entry.tokens}; "
                f"it begins with {beginning(path)}. Run `python -m train.prepare --verify` on {self.folder}"
            )
        return starts

    def document_starts(self) -> npt.NDArray[np.int64]:
        """Return where every document begins in the stream, and its end: (documents + 1,) [tokens]."""
        starts = [self.index(n)[:-1] + self.shard_start(n) for n in range(len(self.shards))]
        return np.concatenate([*starts, np.array([self.tokens], dtype=np.int64)])

    def _mask(self, shard: Shard) -> npt.NDArray[np.int64]:
        """Return where runs of tokens that do not count begin and end in a shard; ValueError as of `index`."""
        if shard.mask is None:
            return np.empty(0, dtype=np.int64)
        path = self.folder / shard.mask.file
        edges = np.fromfile(path, dtype="<u8").astype(np.int64)
        tokens = int((edges[1::2] - edges[::2]).sum())
        if (np.diff(edges) < 1).any() or not 0 <= edges[0] < edges[-1] <= shard.tokens or tokens != shard.mask.tokens:
            raise ValueError(
                f"{path} is damaged: it does not hold {len(edges)} growing offsets around {shard.mask.tokens} tokens; "
                f"it begins with {beginning(path)}. Run `python -m train.prepare --verify` on {self.folder}"
            )
        return edges

    def _not_a_token(self, shard: int, begin: int, piece: npt.NDArray[Any]) -> str:
        where = int(np.argmax(piece >= self.vocab_size))
        path = self.folder / self.shards[shard].file
        return (
            f"{path} is damaged: token {begin + where} is {int(piece[where])}, the vocabulary has {self.vocab_size}; "
            f"it begins with {beginning(path)}. Run `python -m train.prepare --verify` on {self.folder}"
        )


def _mapped(path: Path, tokens: int, width: int) -> npt.NDArray[Any]:
    kind = f"<u{width}"
    if tokens == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype=kind)
    return np.asarray(np.memmap(path, dtype=kind, mode="r", shape=(tokens,)))
