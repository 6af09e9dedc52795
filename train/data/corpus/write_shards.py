"""Second pass: documents to shards of tokens with their index."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from train.data.corpus.spool import Documents
from train.data.corpus.tokenizer import Encoder, encoder
from train.spec.manifest import Shard

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


def write(task: ShardTask) -> Shard:
    """Write one shard and its index, and return its entry of the manifest."""
    encode = _encoder(task.tokenizer, task.width)
    end = np.array([task.separator], dtype=f"<u{task.width}").tobytes()
    offsets, tokens = [0], 0
    hashed = hashlib.sha256()
    path, index = task.stem.with_suffix(".bin"), task.stem.with_suffix(".idx")
    with path.open("wb", buffering=1 << 20) as stream:
        for text in task.documents.texts():
            encoded = encode(text) + end
            stream.write(encoded)
            hashed.update(encoded)
            tokens += len(encoded) // task.width
            offsets.append(tokens)
        to_disk(stream)
    content = np.array(offsets, dtype="<u8").tobytes()
    with index.open("wb") as stream:
        stream.write(content)
        to_disk(stream)
    return Shard(
        file=path.name,
        tokens=tokens,
        documents=len(task.documents),
        sha256=hashed.hexdigest(),
        index=index.name,
        index_sha256=hashlib.sha256(content).hexdigest(),
    )


def to_disk(stream: IO[Any]) -> None:
    """Return once what was written to `stream` would outlive a power cut."""
    stream.flush()
    os.fsync(stream.fileno())


@lru_cache(maxsize=1)
def _encoder(tokenizer: str | None, width: int) -> Encoder:
    """Keep the words seen by a process from shard to shard."""
    return encoder(tokenizer, width)
