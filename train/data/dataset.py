"""Training rows of prepared corpora, in an order that is a pure function of the row's number."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from train.data.batch import Integers, Rows
from train.data.mixture import Mixture
from train.data.origins import Finder, Origin
from train.data.packing import Packing, packing_of
from train.data.rows import merged
from train.data.shuffle import SeededOrder
from train.data.token_stream import TokenStream
from train.spec.config import DataConfig
from train.spec.manifest import Manifest, folder, members, read_manifest


class TokenSequences:
    """The rows of one split of one prepared folder, in the endless order seeded by (seed, epoch).

    So the number of rows consumed is the whole state of the data. Raises ValueError when the folder is not prepared, a
    shard has another size than the manifest says, or the split is shorter than one row.
    """

    def __init__(
        self, folder: str | Path, split: str, sequence_length: int, seed: int, packing: str = "concatenate"
    ) -> None:
        if sequence_length < 1:
            raise ValueError(f"data.sequence_length={sequence_length} is not allowed: it must be at least 1")
        self.folder = Path(folder)
        self.split = split
        self.sequence_length = sequence_length
        self.seed = seed
        self.stream = TokenStream(self.folder, split)
        self.manifest: Manifest = self.stream.manifest
        self.tokens = self.stream.tokens
        self.packing: Packing = packing_of(packing, self.stream, sequence_length)
        self.windows: int = self.packing.rows
        self.order = SeededOrder(self.windows, seed)

    def rows(self, start: int, count: int) -> Rows:
        """Return rows number start to start + count of the endless seeded order."""
        if start < 0 or count < 0:
            raise ValueError(f"start={start}, count={count} is not allowed: neither can be negative")
        return self.packing.read(self.order.run(start, count))

    def sequences(self, start: int, count: int) -> Integers:
        """Return rows number start to start + count as windows: (count, sequence_length + 1)."""
        return _windows(self.rows(start, count))

    def validation(self, count: int) -> Integers:
        """Return `count` windows of the validation split, evenly spread: (count, sequence_length + 1)."""
        held_out = TokenSequences(self.folder, "validation", self.sequence_length, self.seed)
        return _windows(held_out.spread(count))

    def spread(self, count: int) -> Rows:
        """Return `count` rows evenly spread over the split, always the same ones, in the order of the text.

        Raises ValueError when there are not that many.
        """
        if not 1 <= count <= self.windows:
            raise ValueError(
                f"eval.sequences={count} is not allowed: {self.folder} has {self.windows} {self.split} sequences of "
                f"{self.sequence_length} tokens; lower eval.sequences or data.sequence_length, or prepare more text "
                "(data.max_bytes, data.validation_fraction)"
            )
        return self.packing.read(np.arange(count, dtype=np.int64) * self.windows // count)


@dataclass(frozen=True)
class Source:
    """One corpus of a mixture: its name, its share of the rows, and its training rows."""

    name: str
    weight: float
    rows: TokenSequences


class TrainingData:
    """The training rows of a config, from one corpus or from several mixed by weight.

    Row r is the same whatever the number of ranks, of micro-batches, or of restarts; the number of rows consumed is
    the whole state. An exhausted source is read again in a new order while the others go on.
    """

    def __init__(self, sources: Sequence[Source], seed: int) -> None:
        self.sources = tuple(sources)
        self.names = tuple(source.name for source in sources)
        self._mixture = Mixture([source.weight for source in sources], seed) if len(sources) > 1 else None
        self._finders = [Finder(source.rows.stream, source.name) for source in sources]

    def rows(self, start: int, count: int) -> Rows:
        """Return rows number start to start + count of the global order."""
        if self._mixture is None:
            return self.sources[0].rows.rows(start, count)
        pieces = []
        for source, places, numbers in self._drawn(start, count):
            packing = self.sources[source].rows.packing
            pieces.append((places, packing.read(numbers)))
        return merged(pieces, count) if pieces else self.sources[0].rows.rows(0, 0)

    def origins(self, start: int, count: int) -> list[Origin]:
        """Return which documents rows start to start + count were trained on, row by row."""
        found: list[Origin] = []
        for source, places, numbers in self._drawn(start, count):
            packing = self.sources[source].rows.packing
            for place, number in zip(places.tolist(), numbers.tolist(), strict=True):
                for begin, tokens in packing.pieces(number):
                    found += self._finders[source].origins(start + place, begin, tokens)
        return sorted(found, key=lambda origin: origin.row)

    def consumed(self, rows: int) -> dict[str, int]:
        """Return how many rows of each source are among the first `rows`."""
        counts = [rows] if self._mixture is None else self._mixture.consumed(rows).tolist()
        return dict(zip(self.names, counts, strict=True))

    def epochs(self, rows: int) -> float:
        """Return how often the source that is read most is read in the first `rows` rows."""
        counts = self.consumed(rows).values()
        return max(count / source.rows.windows for source, count in zip(self.sources, counts, strict=True))

    def state(self, rows: int) -> dict[str, dict[str, int]]:
        """Return where each source stands after `rows` rows: rows read, whole epochs, and rows into the next one."""
        return {
            source.name: {"rows": count, "epochs": count // source.rows.windows, "into": count % source.rows.windows}
            for source, count in zip(self.sources, self.consumed(rows).values(), strict=True)
        }

    def _drawn(self, start: int, count: int) -> list[tuple[int, Integers, Integers]]:
        """Return, by source: its number, the places of its rows in the batch, and their numbers in its packing."""
        if self._mixture is None:
            return [(0, np.arange(count, dtype=np.int64), self.sources[0].rows.order.run(start, count))]
        which, index = self._mixture.draw(start, count)
        drawn = []
        for source in np.unique(which).tolist():
            places = np.flatnonzero(which == source)
            drawn.append((source, places, self.sources[source].rows.order.at(index[places])))
        return drawn


def open_training(config: DataConfig, root: str | Path, seed: int) -> TrainingData:
    """Return the training rows that the data section names; ValueError where a corpus is missing or too short."""
    where = folder(config, root)
    manifest = read_manifest(where)
    sources = []
    weights = [source.weight for source in config.sources] or [1.0]
    for (name, place), weight in zip(members(where, manifest), weights, strict=True):
        own = _seed_of(seed, name) if config.sources else seed
        rows = TokenSequences(place, "train", config.sequence_length, own, config.packing)
        sources.append(Source(name, weight, rows))
    return TrainingData(sources, seed)


def _seed_of(seed: int, name: str) -> int:
    """Return the seed of one source's order: its own, and not changed by the sources beside it."""
    return seed + int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "little")


def _windows(rows: Rows) -> Integers:
    return np.concatenate([rows.inputs, rows.targets[:, -1:]], axis=1)
