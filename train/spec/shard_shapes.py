"""The shapes of shards: rows that ranks can share evenly, and how much the fullest rank holds.

FSDP2 cuts a weight's first axis into runs of whole rows, as many on each rank as on the first, whose share is rounded
up; what the last ranks lack is padding in every message. Where a weight's own rows cannot be shared evenly, its numbers
are stored in shorter rows: the same numbers in the same order. So checkpoints keep the weight's own shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache

from train.spec.counts import Shape, Weight

Region = tuple[slice, ...]

SLACK = 0.01
"""How much more than its fair share of a matrix the first rank may hold before it is stored in other rows."""


def excess(rows: int, ranks: int) -> float:
    """Return how much more than its fair share the first of `ranks` has of `rows` rows, 0 where it has no more."""
    return -(-rows // ranks) * ranks / rows - 1.0


def stored_shape(shape: Shape, ranks: int) -> Shape:
    """Return the shape in which a weight's numbers are stored so that `ranks` can share its first axis evenly.

    Vectors, and what one rank has alone, stay as they are. A matrix, or several, are rows of the weight's own length
    where these can be shared with at most `SLACK` more for the first rank, or rows of the largest fraction of it.
    """
    if ranks == 1 or len(shape) < 2:
        return shape
    columns = shape[-1]
    rows = math.prod(shape[:-1])
    parts = next((n for n in range(1, columns + 1) if columns % n == 0 and excess(rows * n, ranks) <= SLACK), columns)
    return rows * parts, columns // parts


@lru_cache(maxsize=65536)
def largest_shard(weight: Weight, ranks: int, tp: int = 1, ep: int = 1) -> int:
    """Return how many numbers of a weight the fullest of `ranks` holds.

    Within tensor parallelism weights keep their shape, and so do experts that `ep` of the ranks share.
    """
    if ep > 1 and weight.experts:
        return (
            -(-weight.shape[weight.fsdp_dim] // (ranks // ep)) * weight.numbers // ep // weight.shape[weight.fsdp_dim]
        )
    if tp > 1:
        shape, axis = weight.on_tensor_rank(tp), weight.fsdp_dim
    else:
        shape, axis = stored_shape(weight.shape, ranks), 0
    return -(-shape[axis] // ranks) * math.prod(shape) // shape[axis]


def largest_shards(weights: Iterable[Weight], ranks: int, tp: int = 1, ep: int = 1) -> int:
    """Return how many numbers of all these weights the fullest of `ranks` holds."""
    return sum(largest_shard(weight, ranks, tp, ep) for weight in weights)


def gathered(weights: Iterable[Weight], ranks: int, tp: int = 1, ep: int = 1) -> int:
    """Return how many numbers one of `ranks` has while all these weights are gathered, with padding."""
    return sum(largest_shard(one, ranks, tp, ep) * (ranks // ep if one.experts else ranks) for one in weights)


def regions_of_run(shape: Shape, start: int, stop: int) -> Iterator[Region]:
    """Yield the regions that numbers `start` to `stop` of a tensor are, counted row by row, in that order."""
    inner = math.prod(shape[1:])
    while start < stop:
        index, offset = divmod(start, inner)
        if offset == 0 and stop - start >= inner:
            count = (stop - start) // inner
            yield (slice(index, index + count), *(slice(0, size) for size in shape[1:]))
            start += count * inner
        else:
            end = min(stop, (index + 1) * inner)
            for region in regions_of_run(shape[1:], offset, end - index * inner):
                yield (slice(index, index + 1), *region)
            start = end
