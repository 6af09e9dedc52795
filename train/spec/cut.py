"""How weights are cut over the ranks that share them: shapes by name, rows that can be shared evenly, and their sizes.

FSDP2 cuts a weight's first axis into runs of whole rows, as many on each rank as on the first, whose share is rounded
up; what the last ranks lack is padding in every message. Where a weight's own rows cannot be shared evenly, its numbers
are laid out in other, shorter rows: the same numbers in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from train.spec.config import ModelConfig
from train.spec.counts import head_dim, kv_heads, mlp_width

Shape = tuple[int, ...]
Box = tuple[slice, ...]

SLACK = 0.01
"""How much more than its fair share of a matrix the first rank may hold before the matrix is laid out anew."""

TENSOR = {
    "embedding.weight": 0,
    "output.weight": 0,
    "attention.qkv": 0,
    "attention.out": 1,
    "mlp.gate_up": 1,
    "mlp.down": 1,
}
"""Along which axis tensor parallelism cuts a weight, by the end of its name; norms each rank holds whole."""


def block_shapes(model: ModelConfig) -> dict[str, Shape]:
    """Return the shapes of one block's weights by their names in the block."""
    width, hidden, size = model.width, mlp_width(model), head_dim(model)
    norms = {"attention.query_norm.weight": (size,), "attention.key_norm.weight": (size,)} if model.qk_norm else {}
    return {
        "attention_norm.weight": (width,),
        "attention.qkv": (width + 2 * kv_heads(model) * size, width),
        "attention.out": (width, width),
        **norms,
        "mlp_norm.weight": (width,),
        "mlp.gate_up": (2, hidden, width),
        "mlp.down": (width, hidden),
    }


def end_shapes(model: ModelConfig, vocab_size: int, first: bool = True, last: bool = True) -> dict[str, Shape]:
    """Return the shapes of the weights beside the blocks, in the part of a model that has its first or last layer."""
    matrix = (vocab_size, model.width)
    found: dict[str, Shape] = {}
    if first or (last and model.tied_embeddings):
        found["embedding.weight"] = matrix
    if last:
        found["norm.weight"] = (model.width,)
        if not model.tied_embeddings:
            found["output.weight"] = matrix
    return found


def on_tensor_rank(name: str, shape: Shape, tp: int) -> Shape:
    """Return the shape of what one of `tp` tensor-parallel ranks has of a weight."""
    axis = next((axis for end, axis in TENSOR.items() if name.endswith(end)), None)
    if axis is None:
        return shape
    return (*shape[:axis], -(-shape[axis] // tp), *shape[axis + 1 :])


def excess(rows: int, ranks: int) -> float:
    """Return how much more than its fair share the first of `ranks` has of `rows` rows, 0 where it has no more."""
    return -(-rows // ranks) * ranks / rows - 1.0


def laid_out(shape: Shape, ranks: int) -> Shape:
    """Return the shape in which a weight's numbers are stored so that `ranks` can share its first axis evenly.

    Vectors, and what one rank has alone, stay as they are. A matrix, or several, are rows of the weight's own length
    where these can be shared with at most `SLACK` more for the first rank, or rows of the largest fraction of it.
    """
    if ranks == 1 or len(shape) < 2:
        return shape
    columns = shape[-1]
    rows = math.prod(shape[:-1])
    parts = next(
        (n for n in range(1, columns + 1) if columns % n == 0 and excess(rows * n, ranks) <= SLACK),
        columns,
    )
    return rows * parts, columns // parts


def held(name: str, shape: Shape, ranks: int, tp: int = 1) -> int:
    """Return how many numbers of a weight the fullest of `ranks` holds; times `ranks` they are what is gathered.

    Within tensor parallelism weights keep their shape, and gate and up are cut along their hidden channels.
    """
    if tp > 1:
        shape = on_tensor_rank(name, shape, tp)
        axis = 1 if len(shape) == 3 else 0
    else:
        shape, axis = laid_out(shape, ranks), 0
    return -(-shape[axis] // ranks) * math.prod(shape) // shape[axis]


def fullest(shapes: Mapping[str, Shape], ranks: int, tp: int = 1) -> int:
    """Return how many numbers of all these weights the fullest of `ranks` holds."""
    return sum(held(name, shape, ranks, tp) for name, shape in shapes.items())


def fair(shapes: Mapping[str, Shape], ranks: int, tp: int = 1) -> float:
    """Return how many it would be if every weight could be shared to the last number."""
    return sum(math.prod(on_tensor_rank(name, shape, tp)) for name, shape in shapes.items()) / ranks


def boxes(shape: Shape, start: int, stop: int) -> Iterator[Box]:
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
            for box in boxes(shape[1:], offset, end - index * inner):
                yield (slice(index, index + 1), *box)
            start = end
