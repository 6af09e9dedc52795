"""The fixed sequences that a run is validated on, source by source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from train.data.batch import Integers, Rows
from train.data.dataset import TokenSequences
from train.data.rows import joined
from train.spec.config import RunConfig
from train.spec.labels import IGNORED
from train.spec.manifest import folder, members, read_manifest


@dataclass(frozen=True)
class ValidationSet:
    """Held-out rows, and which source each is from.

    source (rows,) numbers into `names`; `weights` are the sources' shares of the training rows (they sum to 1), and
    `source_bytes` their bytes of text per token.
    """

    rows: Rows
    source: Integers
    names: tuple[str, ...]
    weights: tuple[float, ...]
    source_bytes: tuple[float, ...]

    @property
    def bytes_per_token(self) -> float:
        """Bytes of text per token of the weighted mixture."""
        return math.fsum(w * size for w, size in zip(self.weights, self.source_bytes, strict=True))


def open_validation(config: RunConfig) -> ValidationSet:
    """Return eval.sequences held-out rows, as many of each source, evenly spread over it, always the same ones.

    Raises ValueError where a source has too few, or where none of their tokens counts.
    """
    data, wanted = config.data, config.eval.sequences
    where = folder(data, config.runtime.data_root)
    places = members(where, read_manifest(where))
    if wanted < len(places):
        raise ValueError(f"eval.sequences={wanted} is too few: each of the {len(places)} sources needs at least one")
    weights = [source.weight for source in data.sources] or [1.0]
    counts = [wanted * (n + 1) // len(places) - wanted * n // len(places) for n in range(len(places))]
    parts, sizes = [], []
    for (_, place), count in zip(places, counts, strict=True):
        rows = TokenSequences(Path(place), "validation", data.sequence_length, config.seed, data.packing)
        parts.append(_counting(rows, count))
        sizes.append(rows.manifest.bytes_per_token)
    return ValidationSet(
        joined(parts),
        np.repeat(np.arange(len(places)), counts),
        tuple(name for name, _ in places),
        tuple(weight / math.fsum(weights) for weight in weights),
        tuple(sizes),
    )


def _counting(corpus: TokenSequences, count: int) -> Rows:
    """Return `count` rows of a source, of which the loss counts some tokens."""
    rows = corpus.spread(count)
    if not (rows.targets != IGNORED).any():
        raise ValueError(
            f"eval.sequences: the loss counts no token of the {count} validation sequences of {corpus.folder}: raise it"
        )
    return rows
