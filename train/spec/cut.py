"""How weights are cut over the ranks that share them: their shapes, rows that can be shared evenly, and their sizes.

FSDP2 cuts a weight's first axis into runs of whole rows, as many on each rank as on the first, whose share is rounded
up; what the last ranks lack is padding in every message. Where a weight's own rows cannot be shared evenly, its numbers
are laid out in other, shorter rows: the same numbers in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from train.spec.config import ModelConfig
from train.spec.counts import head_dim, kv_heads, mlp_width

Shape = tuple[int, ...]
Box = tuple[slice, ...]

SLACK = 0.01
"""How much more than its fair share of a matrix the first rank may hold before the matrix is laid out anew."""


@dataclass(frozen=True)
class Weight:
    """A weight's shape and the axes that it is cut along, as its train.model.params.ParamSpec says, without torch.

    tp_dim: by tensor parallelism, None: each rank holds it whole. fsdp_dim: by FSDP within tensor parallelism.
    """

    shape: Shape
    tp_dim: int | None = None
    fsdp_dim: int = 0

    def on_tensor_rank(self, tp: int) -> Shape:
        """Return the shape of what one of `tp` tensor-parallel ranks has."""
        axis = self.tp_dim
        if axis is None:
            return self.shape
        return (*self.shape[:axis], -(-self.shape[axis] // tp), *self.shape[axis + 1 :])


def block_weights(model: ModelConfig) -> dict[str, Weight]:
    """Return one block's weights by their names in the block."""
    width, hidden, size = model.width, mlp_width(model), head_dim(model)
    norm, head_norm = Weight((width,)), Weight((size,))
    head_norms = {"attention.query_norm.weight": head_norm, "attention.key_norm.weight": head_norm}
    return {
        "attention_norm.weight": norm,
        "attention.qkv": Weight((width + 2 * kv_heads(model) * size, width), tp_dim=0),
        "attention.out": Weight((width, width), tp_dim=1),
        **(head_norms if model.qk_norm else {}),
        "mlp_norm.weight": norm,
        "mlp.gate_up": Weight((2, hidden, width), tp_dim=1, fsdp_dim=1),
        "mlp.down": Weight((width, hidden), tp_dim=1),
    }


def end_weights(model: ModelConfig, vocab_size: int, first: bool = True, last: bool = True) -> dict[str, Weight]:
    """Return the weights beside the blocks, in the part of a model that has its first or last layer."""
    matrix = Weight((vocab_size, model.width), tp_dim=0)
    found: dict[str, Weight] = {}
    if first or (last and model.tied_embeddings):
        found["embedding.weight"] = matrix
    if last:
        found["norm.weight"] = Weight((model.width,))
        if not model.tied_embeddings:
            found["output.weight"] = matrix
    return found


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


def held(weight: Weight, ranks: int, tp: int = 1) -> int:
    """Return how many numbers of a weight the fullest of `ranks` holds; times `ranks` they are what is gathered.

    Within tensor parallelism weights keep their shape.
    """
    if tp > 1:
        shape, axis = weight.on_tensor_rank(tp), weight.fsdp_dim
    else:
        shape, axis = laid_out(weight.shape, ranks), 0
    return -(-shape[axis] // ranks) * math.prod(shape) // shape[axis]


def fullest(weights: Iterable[Weight], ranks: int, tp: int = 1) -> int:
    """Return how many numbers of all these weights the fullest of `ranks` holds."""
    return sum(held(weight, ranks, tp) for weight in weights)


def fair(weights: Iterable[Weight], ranks: int, tp: int = 1) -> float:
    """Return how many it would be if every weight could be shared to the last number."""
    return sum(math.prod(weight.on_tensor_rank(tp)) for weight in weights) / ranks


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
