"""A model's shape for a number of parameters."""

from __future__ import annotations

from dataclasses import replace

from train.spec.accounting.parameters import parameters
from train.spec.config import ModelConfig

SMALLEST, WIDEST = 64, 32768


def shape_for(
    params: float,
    vocab_size: int = 50304,
    *,
    aspect_ratio: float = 100.0,
    like: ModelConfig | None = None,
    total: bool = True,
) -> ModelConfig:
    """Return a decoder of about `params` parameters, its width in whole heads.

    Of each width the number of layers that comes nearest, and of all that are within 2 % of the target (or of the
    nearest, if none is) the one whose width per layer is nearest to `aspect_ratio` (100 to 128 in Llama and GPT-3).
    like: its other settings, among them head_dim (None: 64 up to a width of 1,024, else 128). total: `params` counts
    all weights, else those without embedding and head. ValueError for fewer than one layer of 64 channels has.
    """
    base = like or ModelConfig(head_dim=None)
    shapes = [shape for width in _widths() if (shape := _at_width(base, width, params, vocab_size, total)) is not None]
    if not shapes or params < 1:
        least = _size(_of_width(base, SMALLEST, 1), vocab_size, total)
        raise ValueError(
            f"params={params:g} with vocab_size={vocab_size} is not possible: one layer of {SMALLEST} channels has "
            f"{least:,}; ask for that many at least, or take a smaller vocabulary"
        )
    misses = {shape: abs(_size(shape, vocab_size, total) / params - 1.0) for shape in shapes}
    allowed = max(0.02, min(misses.values()))
    near = [shape for shape, miss in misses.items() if miss <= allowed]
    return min(near, key=lambda shape: max(r := shape.width / shape.layers / aspect_ratio, 1.0 / r))


def _widths() -> range:
    return range(SMALLEST, WIDEST + 1, SMALLEST)


def _at_width(base: ModelConfig, width: int, params: float, vocab_size: int, total: bool) -> ModelConfig | None:
    """Return the shape of this width whose size is nearest; None where no number of layers is allowed."""
    head = _of_width(base, width, 1).head_dim
    if head is None or width % head:
        return None
    one, two = (_size(_of_width(base, width, layers), vocab_size, total) for layers in (1, 2))
    layers = round((params - one) / (two - one)) + 1
    return _of_width(base, width, layers) if layers >= 1 else None


def _of_width(base: ModelConfig, width: int, layers: int) -> ModelConfig:
    head = base.head_dim or (64 if width <= 1024 else 128)
    return replace(base, width=width, layers=layers, head_dim=head)


def _size(model: ModelConfig, vocab_size: int, total: bool) -> int:
    counts = parameters(model, vocab_size)
    return counts.total if total else counts.non_embedding
