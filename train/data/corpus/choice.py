"""Which of the documents that were read are in the corpus, and in which split: by their hashes."""

from __future__ import annotations

import os
import resource
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from train.data.corpus.spool import DOCUMENT, Spooled

MOST_OPEN = 1100
"""Spools held open at once: all of a source (see source_files.CHUNKS), where the system lets a process open so many."""


@dataclass(frozen=True)
class Documents:
    """The chosen documents, in the order of their hashes: where each lies [spool, bytes], its kind and its hash.

    kind: number in `kinds`; digest: four words of each, or of none in a copy that is sent to a process.
    """

    spools: tuple[Path, ...]
    spool: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int32]
    kinds: tuple[str, ...]
    digest: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.size)

    def part(self, which: npt.NDArray[np.int64] | slice) -> Documents:
        """Return some of the documents, in the same order."""
        return replace(
            self,
            spool=self.spool[which],
            offset=self.offset[which],
            size=self.size[which],
            kind=self.kind[which],
            digest=self.digest[which],
        )

    def without_digests(self) -> Documents:
        """Return the documents as they are sent to a process."""
        return replace(self, digest=self.digest[:0])

    def texts(self) -> Iterator[bytes]:
        """Yield the documents in the order of their hashes, reading each from its spool."""
        with _Opened(self.spools) as opened:
            for number, offset, size in zip(self.spool.tolist(), self.offset.tolist(), self.size.tolist(), strict=True):
                yield opened.read(number, offset, size)


class _Opened:
    """Files held open, the least used closed when there are too many.

    They are read, not mapped: what is mapped counts as a process's memory, whoever could take it back.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._open: OrderedDict[int, int] = OrderedDict()
        self._most = max(8, min(MOST_OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))

    def __enter__(self) -> _Opened:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Return `size` bytes of a file from `offset`."""
        descriptor = self._open.get(number)
        if descriptor is None:
            if len(self._open) >= self._most:
                os.close(self._open.popitem(last=False)[1])
            descriptor = self._open[number] = os.open(self._paths[number], os.O_RDONLY)
        else:
            self._open.move_to_end(number)
        found = os.pread(descriptor, size, offset)
        while len(found) < size:  # one call reads 2 GiB at most
            more = os.pread(descriptor, size - len(found), offset + len(found))
            if not more:
                raise OSError(f"{self._paths[number]} ends early: another process changed it")
            found += more
        return found


@dataclass(frozen=True)
class Choice:
    """The documents of both splits, and how many were left out because they are there twice or over max_bytes."""

    train: Documents
    validation: Documents
    duplicates: int
    over_max_bytes: int


def choose(spools: Sequence[Spooled], validation_fraction: float, max_bytes: int | None) -> Choice:
    """Return which documents are in the corpus and in which split: a function of their content only.

    Documents are ordered by their hash; of equal ones the first stays; the order is cut before the document that would
    pass `max_bytes`. The second 8 bytes of the hash, as a share of 2^64, below `validation_fraction`: held out. Takes
    about 170 bytes of memory a document.
    """
    found = _all(spools)
    order = np.lexsort(tuple(found.digest[:, column] for column in reversed(range(found.digest.shape[1]))))
    first = np.ones(len(order), dtype=bool)
    first[1:] = False
    for column in range(found.digest.shape[1]):
        ordered = found.digest[order, column]
        first[1:] |= ordered[1:] != ordered[:-1]
    order = order[first]
    unique = len(order)
    if max_bytes is not None:
        order = order[: int(np.searchsorted(np.cumsum(found.size[order]), max_bytes, side="right"))]
    held_out = found.digest[order, 1] < np.uint64(int(validation_fraction * 2**64))
    return Choice(
        train=found.part(order[~held_out]),
        validation=found.part(order[held_out]),
        duplicates=len(first) - unique,
        over_max_bytes=unique - len(order),
    )


def _all(spools: Sequence[Spooled]) -> Documents:
    """Return all documents, in the order in which they were read."""
    count = sum(one.documents for one in spools)
    kinds = tuple(sorted({kind for one in spools for kind in one.kinds}))
    found = Documents(
        spools=tuple(one.text for one in spools),
        spool=np.empty(count, dtype=np.int32),
        offset=np.empty(count, dtype=np.int64),
        size=np.empty(count, dtype=np.int64),
        kind=np.empty(count, dtype=np.int32),
        kinds=kinds,
        digest=np.empty((count, DOCUMENT["digest"].shape[0]), dtype=np.uint64),
    )
    begin = 0
    for number, one in enumerate(spools):
        index = one.read_index()
        here = slice(begin, begin + len(index))
        begin = here.stop
        found.digest[here] = index["digest"]
        found.size[here] = index["size"]
        found.offset[here] = np.cumsum(found.size[here]) - found.size[here]
        found.spool[here] = number
        found.kind[here] = np.array([kinds.index(kind) for kind in one.kinds], dtype=np.int32)[index["kind"]]
    assert begin == count
    return found
