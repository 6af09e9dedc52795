"""First pass: raw files to spool files of documents in normal form, and the choice of documents by content hash.

Spooling freezes the text: the tokenizer and the shards are made from what was read once, even when the source changes
meanwhile, and every format looks the same from here on. It costs the size of the text on disk while preparing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from train.data.corpus.clean import digest, left_out_by_content, normalised
from train.data.corpus.parts import joined
from train.data.corpus.readers import Columns, documents
from train.data.corpus.tally import Tally
from train.data.corpus.walk import SourceFile

Words: TypeAlias = npt.NDArray[np.uint64]

DIGEST_BYTES = 32


@dataclass(frozen=True)
class SpoolTask:
    """Files for one process to read; `rules`: leave out generated text (the environment's sources only)."""

    files: tuple[SourceFile, ...]
    columns: Columns
    rules: bool
    path: Path


@dataclass(frozen=True)
class Spooled:
    """What one process read: digests (32 bytes each) and sizes [bytes] of its documents, in the spool's order."""

    path: Path
    digests: bytes
    sizes: tuple[int, ...]
    broken: Tally
    left_out: Tally


@dataclass(frozen=True)
class Documents:
    """The chosen documents, in the order of their hashes: where each lies."""

    spools: tuple[Path, ...]
    spool: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.size)

    def part(self, which: npt.NDArray[np.bool_] | slice) -> Documents:
        """Return some of the documents, in the same order."""
        return Documents(self.spools, self.spool[which], self.offset[which], self.size[which])

    def texts(self) -> Iterator[bytes]:
        """Yield the documents in the order of their hashes, reading each from its spool."""
        maps: dict[int, npt.NDArray[np.uint8]] = {}
        for number, offset, size in zip(self.spool.tolist(), self.offset.tolist(), self.size.tolist(), strict=True):
            if number not in maps:
                maps[number] = np.memmap(self.spools[number], dtype=np.uint8, mode="r")
            yield maps[number][offset : offset + size].tobytes()


@dataclass(frozen=True)
class Choice:
    """The documents of both splits, and how many were left out because they are there twice or over max_bytes."""

    train: Documents
    validation: Documents
    duplicates: int
    over_max_bytes: int


def spool(task: SpoolTask) -> Spooled:
    """Read the files of `task` into its spool file. Raises ValueError when a container is damaged."""
    digests, sizes = bytearray(), []
    broken, left_out = Tally(), Tally()
    with task.path.open("wb", buffering=1 << 20) as stream:
        for file in task.files:
            for raw in documents(file, task.columns):
                if raw.broken is not None:
                    broken.add(raw.name, raw.broken)
                    continue
                try:
                    text = joined(raw.parts) if raw.parts else normalised(raw.content)
                except UnicodeDecodeError as error:
                    broken.add(raw.name, f"not UTF-8 (byte {error.start})")
                    continue
                except ValueError as error:
                    broken.add(raw.name, str(error))
                    continue
                why = "empty" if not text else left_out_by_content(text) if task.rules else None
                if why:
                    left_out.add(raw.name, why)
                    continue
                stream.write(text)
                digests += digest(text)
                sizes.append(len(text))
    return Spooled(task.path, bytes(digests), tuple(sizes), broken, left_out)


def choose(spools: Sequence[Spooled], validation_fraction: float, max_bytes: int | None) -> Choice:
    """Return which documents are in the corpus and in which split: a function of their content only.

    Documents are ordered by their hash; of equal ones the first stays; the order is cut before the document that would
    pass `max_bytes`. The second 8 bytes of the hash, as a share of 2^64, below `validation_fraction`: held out.
    """
    words = np.frombuffer(b"".join(s.digests for s in spools), dtype=">u8").reshape(-1, DIGEST_BYTES // 8)
    keys = words.astype(np.uint64)
    size = np.array([n for s in spools for n in s.sizes], dtype=np.int64)
    number = np.repeat(np.arange(len(spools)), [len(s.sizes) for s in spools]).astype(np.int64)
    offset = np.concatenate([_starts(s.sizes) for s in spools]) if spools else np.empty(0, dtype=np.int64)

    order = np.lexsort(tuple(keys[:, column] for column in reversed(range(keys.shape[1]))))
    first = np.ones(len(order), dtype=bool)
    ordered = keys[order]
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    order = order[first]
    unique = len(order)
    if max_bytes is not None:
        order = order[: int(np.searchsorted(np.cumsum(size[order]), max_bytes, side="right"))]
    held_out = keys[order, 1] < np.uint64(int(validation_fraction * 2**64))
    chosen = Documents(tuple(s.path for s in spools), number[order], offset[order], size[order])
    return Choice(
        train=chosen.part(~held_out),
        validation=chosen.part(held_out),
        duplicates=len(first) - unique,
        over_max_bytes=unique - len(order),
    )


def _starts(sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    ends = np.cumsum(np.array(sizes, dtype=np.int64), dtype=np.int64)
    return ends - np.array(sizes, dtype=np.int64)
