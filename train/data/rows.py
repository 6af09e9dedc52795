"""Making and joining rows as they are read, before they go to a device."""

from __future__ import annotations

import numpy as np

from train.data.batch import Integers, Rows


def from_windows(windows: Integers) -> Rows:
    """Return windows (rows, length + 1) as inputs and the targets one token later: views, nothing is copied."""
    return Rows(windows[:, :-1], windows[:, 1:])


def masked(rows: Rows, separator: int) -> Rows:
    """Return the rows with positions and documents: a document begins with the separator that precedes it.

    So the separator is the first token of its document and predicts the first word; the last word predicts the next
    separator. Every position is trained on, none across a boundary.
    """
    begins = rows.inputs == separator
    documents = np.cumsum(begins, axis=1, dtype=np.int64)
    here = np.arange(rows.inputs.shape[1], dtype=np.int64)
    start = np.maximum.accumulate(np.where(begins, here, 0), axis=1)
    return Rows(rows.inputs, rows.targets, here - start, documents)


def merged(pieces: list[tuple[Integers, Rows]], count: int) -> Rows:
    """Return one set of `count` rows from pieces, each with the places of its rows."""
    first = pieces[0][1]
    if len(pieces) == 1 and len(first) == count and bool((pieces[0][0] == np.arange(count)).all()):
        return first

    def field(name: str) -> Integers:
        whole = np.empty((count, first.inputs.shape[1]), dtype=np.int64)
        for places, rows in pieces:
            whole[places] = getattr(rows, name)
        return whole

    if first.documents is None:
        return Rows(field("inputs"), field("targets"))
    return Rows(field("inputs"), field("targets"), field("positions"), field("documents"))


def joined(parts: list[Rows]) -> Rows:
    """Return the rows of all parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    ends = np.cumsum([len(part) for part in parts])
    places = [np.arange(end - len(part), end) for end, part in zip(ends, parts, strict=True)]
    return merged(list(zip(places, parts, strict=True)), int(ends[-1]))
