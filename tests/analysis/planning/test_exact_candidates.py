"""Candidates: the sizes of a family against a plain loop, and the cross with budgets at its limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.approaches.cost import Cost
from analysis.planning import candidates, shapes
from analysis.planning.candidates import Size, cross, family, ratios

BLOCKS = {48: 27_648, 64: 50_176, 96: 110_592, 128: 200_704, 192: 442_368}
"""Parameters of a block by width, by hand: 4 w^2 + 3 w m, m = 8/3 w rounded up to a multiple of 16."""


def block(width: int) -> int:
    return 4 * width * width + 3 * width * 16 * math.ceil(width / 6)


def table(shapes_run: list[tuple[int, int]], head: float = 1000.0, factors: Any = 1.0) -> pd.DataFrame:
    """Return used runs of (width, layers) with `head` parameters a channel beside the blocks, times `factors`."""
    params = np.array([layers * block(width) + head * width for width, layers in shapes_run], dtype=float)
    return pd.DataFrame(
        {
            "params": params * factors, "tokens": 20 * params, "used": True, "width": [w for w, _ in shapes_run],
            "layers": [d for _, d in shapes_run],
        }
    )  # fmt: skip


def expected(shapes_run: list[tuple[int, int]], reach: float, step: int, head: float = 1000.0) -> set[tuple[int, int]]:
    """Return the shapes of a family by a plain loop over all widths."""
    ordered = sorted(shapes_run)
    widths, layers = [w for w, _ in ordered], [d for _, d in ordered]
    limit = max(reach, *(d * block(w) + head * w for w, d in ordered))
    found = set(ordered)
    for k in range(max(1, math.floor(0.7 * widths[0]) // step), 400):
        w = k * step
        deep = float(np.interp(w, widths, layers)) if w <= widths[-1] else w * layers[-1] / widths[-1]
        if round(deep) * block(w) + head * w <= limit:
            found.add((w, round(deep)))
    return found


def test_a_block_by_hand() -> None:
    for width, count in BLOCKS.items():
        assert float(candidates._block(np.array([float(width)]))[0]) == count == block(width)


@pytest.mark.parametrize(
    ("ran", "reach", "step"),
    [
        ([(64, 2), (128, 5), (192, 6)], 6e6, 64),
        ([(96, 3), (160, 4)], 5e6, 32),  # begins at 64, below the smallest that was run
        ([(64, 2), (96, 3)], 1e6, 32),  # begins at 32
        ([(192, 1), (64, 8), (128, 4)], 1e3, 64),  # wide ones are shallow; nothing beyond what was run
        ([(128, 20), (192, 2), (64, 1)], 4e6, 64),  # more parameters is not wider
    ],
)
def test_a_family_of_known_shapes(ran: list[tuple[int, int]], reach: float, step: int) -> None:
    found = family(table(ran), "total", reach)
    assert {(size.width, size.layers) for size in found} == expected(ran, reach, step)
    for size in found:
        assert size.width is not None
        assert size.layers is not None
        assert size.params == pytest.approx(size.layers * block(size.width) + 1000 * size.width)
    assert [size.params for size in found] == sorted(size.params for size in found)


def test_a_family_ends_at_its_reach() -> None:
    """One layer of a width that 6 divides has 12 w^2 parameters to the last one."""
    ran = table([(42, 1), (48, 1)], head=0.0)
    for reach, widths in ((12 * 66**2, [30, 36, 42, 48, 54, 60, 66]), (12 * 66**2 - 1, [30, 36, 42, 48, 54, 60])):
        assert [size.width for size in family(ran, "total", reach)] == [24, *widths]
    wide = family(table([(480, 1), (48, 1)], head=0.0), "total", 1.0)
    assert [size.width for size in wide] == [48, 96, 144, 192, 240, 288, 336, 384, 432, 480]


def test_shapes_that_do_not_explain_their_counts_are_offered_as_they_are() -> None:
    ran = [(64, 2), (128, 5), (192, 6)]
    for factor, own in ((1.009, False), (1.012, True), (0.988, True)):
        found = family(table(ran, factors=np.array([1.0, factor, 1.0])), "total", 2e7)
        assert (len(found) == 3) == own
        assert {(64, 2), (128, 5), (192, 6)} <= {(size.width, size.layers) for size in found}
    found = family(table(ran, factors=np.array([1.0, 1.012, 1.0])), "total", 2e7)
    assert found[1] == Size(1.012 * (5 * block(128) + 128_000), 128, 5)


def test_runs_without_shapes_get_proposed_ones() -> None:
    bare = pd.DataFrame({"params": [2e9, 8e9], "used": True, "width": [None, 256], "layers": [None, 4]})
    for reach, last in ((3e10, 3e10), (1e9, 4e9)):
        found = family(bare, "non_embedding", reach)
        assert len(found) == 24
        np.testing.assert_allclose([size.params for size in found], np.geomspace(1e9, last, 24))
        for size in found:
            offer = shapes.propose(size.params, "non_embedding")[0]
            assert (size.width, size.layers) == (offer.width, offer.layers)
    unused = pd.concat([bare, bare.assign(params=1.0, used=False)])
    assert family(unused, "total", 3e10)[0].params == pytest.approx(1e9)


def test_sizes_without_a_shape_are_offered_bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "propose", lambda params, kind: ())
    bare = pd.DataFrame({"params": [20.0, 40.0], "used": True, "width": [None, 256], "layers": [None, 4]})
    found = family(bare, "total", 100.0)
    assert found[0] == Size(pytest.approx(10.0), None, None)  # type: ignore[arg-type]
    assert found[-1] == Size(pytest.approx(100.0), None, None)  # type: ignore[arg-type]


def test_two_known_shapes_are_a_family_and_one_is_not() -> None:
    assert len(family(table([(64, 2)], head=1e8), "total", 1e6)) == 24
    assert {(64, 2), (128, 5)} <= {(size.width, size.layers) for size in family(table([(64, 2), (128, 5)]), "total", 1)}
    assert len(family(table([(64, 2), (64, 2)], head=1e8), "total", 1e6)) == 24, "one shape run twice"


def sizes(*params: float) -> tuple[Size, ...]:
    return tuple(Size(n) for n in params)


def test_sizes_within_a_factor_of_four_of_the_best() -> None:
    wide = (0.0, np.inf)
    found = cross(sizes(2.4e5, 2.5e5, 1e6, 4e6, 4.1e6), Cost.six(), np.array([1e15]), np.array([1e6]), wide)
    assert found.params.tolist() == [2.5e5, 1e6, 4e6]
    np.testing.assert_allclose(found.tokens, 1e15 / 6 / found.params, rtol=1e-12)
    assert found.flops.tolist() == [1e15] * 3
    assert [size.params for size in found.sizes] == [2.5e5, 1e6, 4e6]
    assert len(found) == 3
    far = cross(sizes(1.0, 1000.0), Cost.six(), np.array([1e9]), np.array([100.0]), wide)
    assert far.params.tolist() == [1000.0], "the nearest by its ratio where none is near"


def test_budgets_have_their_own_best_and_price() -> None:
    price = Cost(1e6, 1.0, 0.5, 0.5)
    found = cross(sizes(1e6, 4e7), price, np.array([1e14, 1e16]), np.array([1e6, 4e7]), (0.0, np.inf))
    assert found.params.tolist() == [1e6, 4e7]
    assert found.flops.tolist() == [1e14, 1e16]
    np.testing.assert_allclose(found.tokens, [1e14 / (9e6), 1e16 / (6 * 4e7 * (1 + 0.5 * 40**-0.5))], rtol=1e-12)


def test_tokens_per_parameter_at_their_limits_are_kept() -> None:
    given = (sizes(5e5, 1e6, 2e6), Cost.six(), np.array([1e15]), np.array([1e6]))
    every = cross(*given, (0.0, np.inf))
    per_param = every.tokens / every.params
    assert len(cross(*given, (per_param.min(), per_param.max()))) == 3
    assert cross(*given, (per_param.min() * 1.01, per_param.max())).params.tolist() == [5e5, 1e6]
    assert cross(*given, (per_param.min(), per_param.max() * 0.99)).params.tolist() == [1e6, 2e6]
    assert len(cross(*given, (0.0, 1e-3))) == 0
    assert cross(sizes(1e6), Cost.six(), np.array([6e12 * 0.99, 6e12 * 1.01]), np.array([1e6, 1e6])).flops.tolist() == [
        6e12 * 1.01
    ]
    assert cross(sizes(1e6), Cost.six(), np.array([1.79e16, 1.81e16]), np.array([1e6, 1e6])).flops.tolist() == [1.79e16]


def test_many_sizes_are_thinned_to_fifteen_with_both_ends() -> None:
    dense = sizes(*np.geomspace(5e5, 2e6, 29))
    found = cross(dense, Cost.six(), np.array([1e15]), np.array([1e6]), (0.0, np.inf))
    assert found.sizes == dense[::2]
    fifteen = cross(dense[:15], Cost.six(), np.array([1e15]), np.array([1e6]), (0.0, np.inf))
    assert fifteen.sizes == dense[:15]


def test_candidates_may_have_the_ratios_that_the_runs_have() -> None:
    def limits(*of: float) -> tuple[float, float]:
        return ratios(pd.DataFrame({"params": 1e6, "tokens": [1e6 * r for r in of], "used": True}))

    assert limits(2.0, 30.0) == (1.0, 3000.0)
    assert limits(0.5, 30.0) == (0.5, 3000.0)
    assert limits(2.0, 5000.0) == (1.0, 5000.0)
    spoilt = pd.DataFrame({"params": 1e6, "tokens": [1.0, 2e7], "used": [False, True]})
    assert ratios(spoilt) == (1.0, 3000.0)
