"""Models of a size: against a search through every width and depth."""

from __future__ import annotations

import math

import pytest

from analysis.planning import shapes


def block(width: int) -> int:
    """Parameters of a block: four square matrices, and three of a SwiGLU as wide as 8/3, rounded up to 16."""
    return 4 * width**2 + 3 * width * 16 * math.ceil(8 * width / 3 / 16)


def best(params: float, step: int, aspect: float, tables: int) -> tuple[int, int, int]:
    """Return width, layers and parameters of the shape that is nearest in size, and 15 % as much in its aspect."""
    found = []
    for width in range(step, 9000, step):
        layers = max(1, round((params - tables * width) / block(width)))
        size = layers * block(width) + tables * width
        off = abs(math.log(size / params)) + 0.15 * abs(math.log(width / layers / aspect))
        found.append((off, width, layers, size))
    return min(found)[1:]


@pytest.mark.parametrize(
    ("params", "kind", "tables", "step"),
    [
        (2e5, "non_embedding", 0, 8), (2.9e5, "total", 2, 8), (3e5, "total", 2, 16), (1.9e6, "matmul", 1, 16),
        (2e6, "matmul", 1, 64), (4e8, "total", 2, 64), (5e8, "matmul", 1, 128), (7e9, "non_embedding", 0, 128),
    ],
)  # fmt: skip
def test_shapes_are_the_nearest_of_all(params: float, kind: str, tables: int, step: int) -> None:
    expected: dict[tuple[int, int], int] = {}
    for aspect in (64.0, 100.0, 150.0):
        width, layers, size = best(params, step, aspect, tables * 257)
        if abs(size / params - 1) < 0.15:
            expected.setdefault((width, layers), size)
    found = shapes.propose(params, kind, 257)
    assert {(one.width, one.layers): one.params for one in found} == expected
    assert all(one.heads * one.head_dim == one.width for one in found)


def test_offers_are_made_one_by_one() -> None:
    assert next(shapes.offers(7e9, "matmul", 257)) == shapes.propose(7e9, "matmul", 257)[0]
    assert next(shapes.offers(7e9)) == next(shapes.offers(7e9, "total", 50_000)) == shapes.propose(7e9)[0]
    assert next(shapes.offers(0.0), None) is None


def test_without_a_vocabulary_fifty_thousand_tokens_are_counted() -> None:
    assert shapes.propose(7e9) == shapes.propose(7e9, "total", 50_000) != shapes.propose(7e9, "total", 60_000)
    one = shapes.propose(7e9)[0]
    assert one.params == one.layers * block(one.width) + 2 * 50_000 * one.width


@pytest.mark.parametrize(
    ("params", "count"),
    [(1024, 1), (1024 / 1.149, 1), (1024 / 1.151, 0), (1024 / 0.851, 1), (1024 / 0.849, 0), (0, 0), (-1024, 0),
     (math.inf, 0), (math.nan, 0)],
)  # fmt: skip
def test_a_size_is_offered_once_and_within_15_per_cent_only(params: float, count: int) -> None:
    """The smallest block has 8 channels: 4 * 64 + 3 * 8 * 32 = 1024 parameters."""
    found = shapes.propose(params, "non_embedding")
    assert [(one.name, one.layers, one.width, one.params) for one in found] == [("deep", 1, 8, 1024)] * count


@pytest.mark.parametrize(
    ("width", "heads", "head_dim"),
    [(8, 1, 8), (24, 3, 8), (16, 1, 16), (48, 3, 16), (64, 1, 64), (192, 3, 64), (1984, 31, 64), (1920, 30, 64),
     (2048, 16, 128), (2112, 33, 64), (2176, 17, 128), (2064, 129, 16), (2056, 257, 8)],
)  # fmt: skip
def test_heads_are_as_wide_as_divides_the_width(width: int, heads: int, head_dim: int) -> None:
    shape = shapes._shape("deep", width, 1e9, 0)
    assert (shape.heads, shape.head_dim, type(shape.heads)) == (heads, head_dim, int)
    assert shape.overrides == f"model.width={width} model.layers={shape.layers} model.head_dim={head_dim}"


def test_models_beyond_a_trillion_parameters_are_wider_than_32_thousand() -> None:
    assert max(shapes._widths(1e12)) == 32768 - 128
    assert max(shapes._widths(1.1e12)) == 65536 - 128
    assert min(shapes._widths(1e12)) == min(shapes._widths(2e12)) == 128
