"""From a number of parameters to models that have it: depth, width and heads of decoders with SwiGLU blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

ASPECTS = (("deep", 64.0), ("balanced", 100.0), ("wide", 150.0))
"""Width per layer aimed at: loss is flat over this range at equal size (Kaplan et al. 2020, figure 5)."""


@dataclass(frozen=True)
class Shape:
    """A decoder: layers, width [channels], heads of `head_dim` channels; `params` in the kind asked for."""

    name: str
    layers: int
    width: int
    heads: int
    head_dim: int
    params: int

    @property
    def overrides(self) -> str:
        """How python -m study.sweep is told: overrides of the model."""
        return f"model.width={self.width} model.layers={self.layers} model.head_dim={self.head_dim}"


def propose(params: float, kind: str = "total", vocabulary: int = 50_000) -> tuple[Shape, ...]:
    """Return a deep, a balanced and a wide model of about this many parameters; empty where none comes within 15 %.

    `kind` says what is counted: matmul (blocks' matrices and the head), total (blocks, embedding and untied head),
    non_embedding or anything else (blocks). A block has 4 w^2 (attention) + 3 w m (SwiGLU of width m, 8/3 w
    rounded up to 16) parameters.

    >>> for shape in propose(7e9, "non_embedding"):
    ...     print(shape.name, shape.layers, shape.width, shape.heads, f"{shape.params:.3g}")
    deep 53 3328 26 7.05e+09
    balanced 37 3968 31 7e+09
    wide 29 4480 35 6.99e+09
    """
    return tuple(offers(params, kind, vocabulary))


def offers(params: float, kind: str = "total", vocabulary: int = 50_000) -> Iterator[Shape]:
    """Yield the models of `propose`; who takes the first only does not wait for the others."""
    if not math.isfinite(params) or params <= 0:
        return
    tables = {"matmul": 1, "total": 2}.get(kind, 0) * vocabulary
    found: list[Shape] = []
    for name, aspect in ASPECTS:
        width = min(_widths(params), key=lambda width: _off(width, params, tables, aspect))
        best = _shape(name, width, params, tables)
        new = all((best.layers, best.width) != (other.layers, other.width) for other in found)
        if new and abs(best.params / params - 1) < 0.15:
            found.append(best)
            yield best


def _widths(params: float) -> range:
    step = 8 if params < 3e5 else 16 if params < 2e6 else 64 if params < 5e8 else 128
    return range(step, max(65536, step + 1), step) if params > 1e12 else range(step, 32768, step)


def _sized(width: int, params: float, tables: int) -> tuple[int, int]:
    """Return the layers of this width whose size is nearest to `params`, and that size."""
    block = 4 * width * width + 3 * width * (-(-8 * width // 48) * 16)
    layers = max(1, round((params - tables * width) / block))
    return layers, layers * block + tables * width


def _off(width: int, params: float, tables: int, aspect: float) -> float:
    """Return how far a shape of this width is from what is wanted."""
    layers, size = _sized(width, params, tables)
    return abs(math.log(size / params)) + 0.15 * abs(math.log(width / layers / aspect))


def _shape(name: str, width: int, params: float, tables: int) -> Shape:
    """Return the shape of this width with the nearest size."""
    layers, size = _sized(width, params, tables)
    head = 128 if width >= 2048 and width % 128 == 0 else 64 if width % 64 == 0 else 16 if width % 16 == 0 else 8
    return Shape(name, layers, width, max(1, width // head), min(head, width), size)
