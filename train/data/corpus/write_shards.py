"""Second pass: documents to shards of tokens with their index."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from train.data.corpus.choice import Documents
from train.data.corpus.done import fresh, key_of, record, recorded
from train.data.corpus.parts import parts_of
from train.data.corpus.tokenizer import WORDS_KEPT, Encoder, encoder, special_tokens
from train.spec.from_mapping import read
from train.spec.manifest import OFFSET_BYTES, Kind, LossMask, Shard

SMALLEST_SHARD = 4 << 20
LARGEST_SHARD = 256 << 20
SHARDS = 64


@dataclass(frozen=True)
class Places:
    """Where shards go, where is said which are finished, and where files are while they are written."""

    shards: Path
    records: Path
    scratch: Path


@dataclass(frozen=True)
class ShardTask:
    """One shard to write: `tokenizer` is its JSON (None: bytes), `stem` its name without ``.bin`` and ``.idx``.

    key: names the shard by what it is made from; width: bytes of one token; size: of its text [bytes]; words: how many
    its process remembers with their tokens.
    """

    documents: Documents
    tokenizer: str | None
    separator: int
    stem: str
    places: Places
    key: str
    width: int
    size: int
    words: int = WORDS_KEPT


@dataclass(frozen=True)
class Written:
    """A shard's entry of the manifest, the size of its text [bytes], and what of it is of which kind.

    special: how many special tokens its text became, as it has their names.
    """

    shard: Shard
    size: int
    kinds: tuple[Kind, ...]
    special: int = 0


def plan(  # noqa: PLR0917 - the parts of a task, in its order
    documents: Documents,
    split: str,
    tokenizer: str | None,
    separator: int,
    places: Places,
    width: int,
    words: int = WORDS_KEPT,
) -> Iterator[ShardTask]:
    """Yield the shards of a split: about 64 of equal text, of 4 to 256 MiB each. A function of the sizes only."""
    starts = np.cumsum(documents.size) - documents.size
    target = min(max(int(documents.size.sum()) // SHARDS, SMALLEST_SHARD), LARGEST_SHARD)
    edges = np.flatnonzero(np.diff(starts // target)) + 1
    bounds = [0, *edges.tolist(), len(documents)]
    described = None if tokenizer is None else hashlib.sha256(tokenizer.encode("utf-8")).hexdigest()
    for number, (first, last) in enumerate(pairwise(bounds)):
        part = documents.part(slice(first, last))
        stem = f"{split}-{number:05d}"
        content = hashlib.sha256(part.digest.tobytes() + part.kind.tobytes()).hexdigest()
        key = key_of("shard", stem, content, documents.kinds, described, separator, width)
        size = int(part.size.sum())
        yield ShardTask(part.without_digests(), tokenizer, separator, stem, places, key, width, size, words)


def written(task: ShardTask) -> Written | None:
    """Return the shard of a task that has been finished before; None: it has not."""
    found = recorded(task.places.records / f"{task.stem}.json", task.key)
    return None if found is None else read(Written, found)


def write(task: ShardTask) -> Written:
    """Write one shard, its index and, where something does not count, its loss mask.

    Each part of a document is encoded on its own, as a prompt is when there is no completion yet. The separator counts
    where the part before it does.
    """
    encode = _encoder(task.tokenizer, task.width, task.words)
    end = np.array([task.separator], dtype=f"<u{task.width}").tobytes()
    named, special = np.array(special_tokens(task.tokenizer), dtype=np.int64), 0
    offsets, sizes, tokens = [0], list[int](), 0
    masked = _Masked()
    hashed = hashlib.sha256()
    path, index, mask = (task.places.shards / f"{task.stem}{suffix}" for suffix in (".bin", ".idx", ".mask"))
    with fresh(path, task.places.scratch) as stream:
        for document in task.documents.texts():
            parts = parts_of(document)
            size = 0
            for number, (text, counts) in enumerate(parts, 1):
                encoded = encode(text)
                if len(named):
                    special += int(np.isin(np.frombuffer(encoded, dtype=f"<u{task.width}"), named).sum())
                encoded = encoded + end if number == len(parts) else encoded
                stream.write(encoded)
                hashed.update(encoded)
                begin, tokens, size = tokens, tokens + len(encoded) // task.width, size + len(text)
                if not counts:
                    masked.add(begin, tokens, len(text))
            offsets.append(tokens)
            sizes.append(size)
    shard = Shard(
        file=path.name,
        tokens=tokens,
        documents=len(task.documents),
        sha256=hashed.hexdigest(),
        index=index.name,
        index_sha256=_write_numbers(index, offsets, task.places.scratch),
        mask=masked.write(mask, task.places.scratch),
    )
    found = Written(shard, sum(sizes), _by_kind(task.documents, offsets, sizes), special)
    files = {path: tokens * task.width, index: len(offsets) * OFFSET_BYTES}
    if shard.mask is not None:
        files[mask] = shard.mask.numbers * OFFSET_BYTES
    record(task.places.records / f"{task.stem}.json", task.key, files, asdict(found), task.places.scratch)
    return found


def _by_kind(documents: Documents, offsets: list[int], sizes: list[int]) -> tuple[Kind, ...]:
    """Return how many documents, bytes and tokens there are of each kind."""
    found = np.zeros((len(documents.kinds), 3), dtype=np.int64)
    each = np.array([sizes, np.diff(offsets)], dtype=np.int64)
    np.add.at(found, documents.kind, np.vstack([np.ones_like(each[:1]), each]).T)
    rows = zip(documents.kinds, found.tolist(), strict=True)
    return tuple(Kind(kind, many, size, tokens) for kind, (many, size, tokens) in rows if many)


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

    def write(self, path: Path, scratch: Path) -> LossMask | None:
        """Write the mask and return its entry; None, and no file, where everything counts."""
        if not self.edges:
            return None
        tokens = sum(self.edges[1::2]) - sum(self.edges[::2])
        return LossMask(path.name, len(self.edges), _write_numbers(path, self.edges, scratch), tokens, self.bytes)


def _write_numbers(path: Path, numbers: list[int], scratch: Path) -> str:
    """Write numbers as uint64 (little-endian); return the file's SHA-256."""
    content = np.array(numbers, dtype="<u8").tobytes()
    with fresh(path, scratch) as stream:
        stream.write(content)
    return hashlib.sha256(content).hexdigest()


@lru_cache(maxsize=1)
def _encoder(tokenizer: str | None, width: int, words: int) -> Encoder:
    """Keep the words seen by a process from shard to shard."""
    return encoder(tokenizer, width, words)
