"""Second pass: documents to shards of tokens with their index."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from train.data.corpus.parts import parts_of
from train.data.corpus.spool import Documents
from train.data.corpus.tokenizer import Encoder, encoder
from train.spec.manifest import LossMask, Shard

SMALLEST_SHARD = 4 << 20
LARGEST_SHARD = 256 << 20
SHARDS = 64


@dataclass(frozen=True)
class ShardTask:
    """One shard to write: `tokenizer` is its JSON (None: bytes), `stem` its path without ``.bin`` and ``.idx``.

    width: bytes of one token.
    """

    documents: Documents
    tokenizer: str | None
    separator: int
    stem: Path
    width: int = 2


def plan(  # noqa: PLR0917 - the parts of a task, in its order
    documents: Documents, split: str, tokenizer: str | None, separator: int, folder: Path, width: int = 2
) -> Iterator[ShardTask]:
    """Yield the shards of a split: about 64 of equal text, of 4 to 256 MiB each. A function of the sizes only."""
    starts = np.cumsum(documents.size) - documents.size
    target = min(max(int(documents.size.sum()) // SHARDS, SMALLEST_SHARD), LARGEST_SHARD)
    edges = np.flatnonzero(np.diff(starts // target)) + 1
    bounds = [0, *edges.tolist(), len(documents)]
    for number, (first, last) in enumerate(pairwise(bounds)):
        stem = folder / f"{split}-{number:05d}"
        yield ShardTask(documents.part(slice(first, last)), tokenizer, separator, stem, width)


def write(task: ShardTask) -> tuple[Shard, int]:
    """Write one shard, its index and, where something does not count, its loss mask.

    Return its entry of the manifest and the size of its text [bytes]. Each part of a document is encoded on its own, as
    a prompt is when there is no completion yet. The separator counts where the part before it does.
    """
    encode = _encoder(task.tokenizer, task.width)
    end = np.array([task.separator], dtype=f"<u{task.width}").tobytes()
    offsets, tokens, size = [0], 0, 0
    masked = _Masked()
    hashed = hashlib.sha256()
    path, index = task.stem.with_suffix(".bin"), task.stem.with_suffix(".idx")
    with path.open("wb", buffering=1 << 20) as stream:
        for document in task.documents.texts():
            parts = parts_of(document)
            for number, (text, counts) in enumerate(parts, 1):
                encoded = encode(text) + end if number == len(parts) else encode(text)
                stream.write(encoded)
                hashed.update(encoded)
                begin, tokens, size = tokens, tokens + len(encoded) // task.width, size + len(text)
                if not counts:
                    masked.add(begin, tokens, len(text))
            offsets.append(tokens)
        to_disk(stream)
    shard = Shard(
        file=path.name,
        tokens=tokens,
        documents=len(task.documents),
        sha256=hashed.hexdigest(),
        index=index.name,
        index_sha256=_write_numbers(index, offsets),
        mask=masked.write(task.stem.with_suffix(".mask")),
    )
    return shard, size


@dataclass
class _Masked:
    """What the loss does not count of a shard: where runs of its tokens begin and end, and how much text they are."""

    edges: list[int] = field(default_factory=list)
    bytes: int = 0

    def add(self, begin: int, end: int, size: int) -> None:
        """Add the tokens from `begin` to `end`, of `size` bytes of text; a run goes on where the last one ended."""
        self.bytes += size
        if begin == end:
            return
        if self.edges and self.edges[-1] == begin:
            self.edges.pop()
        else:
            self.edges.append(begin)
        self.edges.append(end)

    def write(self, path: Path) -> LossMask | None:
        """Write the mask and return its entry; None, and no file, where everything counts."""
        if not self.edges:
            return None
        tokens = sum(self.edges[1::2]) - sum(self.edges[::2])
        return LossMask(path.name, len(self.edges), _write_numbers(path, self.edges), tokens, self.bytes)


def _write_numbers(path: Path, numbers: list[int]) -> str:
    """Write numbers as uint64 (little-endian); return the file's SHA-256."""
    content = np.array(numbers, dtype="<u8").tobytes()
    with path.open("wb") as stream:
        stream.write(content)
        to_disk(stream)
    return hashlib.sha256(content).hexdigest()


def to_disk(stream: IO[Any]) -> None:
    """Return once what was written to `stream` would outlive a power cut."""
    stream.flush()
    os.fsync(stream.fileno())


@lru_cache(maxsize=1)
def _encoder(tokenizer: str | None, width: int) -> Encoder:
    """Keep the words seen by a process from shard to shard."""
    return encoder(tokenizer, width)
