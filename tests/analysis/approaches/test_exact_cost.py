"""What a token costs: the formula in numbers, its slope, and the runs that show more than 6 N D."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.approaches.cost import Cost, cost
from analysis.inputs.dataset import Rows, rows

N = np.array([1e7, 1e8, 1e9])
D = np.array([1e9, 2e9, 3e9])


def runs(ratio: object, params: np.ndarray = N, tokens: np.ndarray = D) -> Rows:
    """Return runs whose FLOPs are 6 N D times `ratio`."""
    flops = 6.0 * params * tokens * np.asarray(ratio)
    keys = tuple(f"r{i}" for i in range(len(params)))
    return rows(keys, params=params, tokens=tokens, flops=flops, loss=np.full(len(params), 3.0))


def test_six_is_six_n() -> None:
    assert Cost.six() == Cost(1.0, 1.0, 0.0, 0.0)
    value, slope = Cost.six().log_per_token(np.log(N))
    np.testing.assert_allclose(np.exp(value), 6 * N, rtol=1e-13)
    np.testing.assert_allclose(slope, 1.0)


@pytest.mark.parametrize(
    ("price", "params", "flops"),
    [
        (Cost(1e8, 1.0, 0.5, 0.3), 1e8, 6 * 1e8 * 1.5),
        (Cost(1e8, 1.2, 0.5, 0.3), 1e8, 6 * 1.2 * 1e8 * 1.5),
        (Cost(1e8, 1.0, 0.5, 0.5), 4e8, 6 * 4e8 * 1.25),
        (Cost(1e8, 1.0, 0.5, 0.5), 2.5e7, 6 * 2.5e7 * 2.0),
        (Cost(1e8, 0.9, 0.0, 0.0), 3e7, 6 * 0.9 * 3e7),
    ],
)
def test_flops_per_token_by_hand(price: Cost, params: float, flops: float) -> None:
    assert float(np.exp(price.log_per_token(np.log(np.array([params])))[0][0])) == pytest.approx(flops, rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.0, 3.0), st.floats(0.0, 0.9), st.floats(15.0, 25.0))
def test_the_slope_is_that_of_the_value(extra: float, fall: float, at: float) -> None:
    price, step = Cost(1e8, 1.1, extra, fall), 1e-4
    ends = price.log_per_token(np.array([at - step, at + step]))[0]
    slope = price.log_per_token(np.array([at]))[1][0]
    assert slope == pytest.approx((ends[1] - ends[0]) / (2 * step), abs=1e-6)


def test_attention_that_falls_with_size_is_found_as_it_is() -> None:
    middle = 1e8
    price = cost(runs(1 + 0.4 * (N / middle) ** -0.3))
    assert price.reference == pytest.approx(middle)
    assert (price.ratio, price.extra, price.fall) == pytest.approx((1.0, 0.4, 0.3), rel=1e-9)
    small = cost(runs(1 + 0.0105 * (N / middle) ** -0.3))
    assert (small.ratio, small.extra, small.fall) == pytest.approx((1.0, 0.0105, 0.3), rel=1e-6)


@pytest.mark.parametrize(
    "ratio",
    [
        1 + 0.4 * (N / 1e8) ** 0.3,  # rises with size
        1 + 0.4 * (N / 1e8) ** -1.4,  # falls faster than a share of the width can
        np.array([1.3, 1.1, 1.0005]),  # one run is as good as 6 N D
        np.array([0.97, 0.95, 0.9]),
        np.ones(3),
    ],
)
def test_other_counts_are_a_constant_ratio(ratio: np.ndarray) -> None:
    price = cost(runs(ratio))
    assert (price.extra, price.fall) == (0.0, 0.0)
    assert price.ratio == pytest.approx(float(np.prod(ratio)) ** (1 / 3), rel=1e-12)
    assert price.reference == pytest.approx(1e8)


def test_two_sizes_show_no_fall_and_three_do() -> None:
    two = np.array([1e7, 1e7, 1e9])
    assert cost(runs(1 + 0.4 * (two / 1e8) ** -0.3, two)).extra == 0.0
    assert cost(runs(1 + 0.4 * (N / 1e8) ** -0.3, N)).extra > 0.0


def test_the_least_excess_that_counts_is_a_thousandth() -> None:
    for first, falls in ((6_006_000.0, False), (6_006_060.0, True)):
        flops = np.array([1.02 * 6e4, 1.01 * 6e5, first])
        three = rows(
            ("a", "b", "c"), params=np.array([10.0, 100.0, 1000.0]), tokens=np.full(3, 1000.0), flops=flops,
            loss=np.ones(3),
        )  # fmt: skip
        assert (cost(three).fall > 0) == falls
