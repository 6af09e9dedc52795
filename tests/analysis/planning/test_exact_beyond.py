"""What a law may say beyond its runs, by losses that are given, and where the best size is looked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from analysis.approaches.cost import Cost
from analysis.planning.beyond import _lowest, quickening

PRICE = Cost.six()


class Drawn:
    """A law of one draw whose loss is a function of ln N and ln D."""

    def __init__(self, loss: Callable[[Any, Any], Any]) -> None:
        self.loss = loss

    def row(self, number: int) -> Drawn:
        """Return the draw."""
        assert number == 0
        return self


def of_budgets(losses: dict[float, float]) -> Any:
    """Return a law whose loss depends on 6 N D alone."""
    at = np.log(np.array(sorted(losses)))
    values = np.log(np.array([losses[budget] for budget in sorted(losses)]))
    return Drawn(lambda n, d: np.exp(np.interp(n + d + math.log(6), at, values)))


def falling(*drops: float, first: float = 1e15, second: float = 1e16) -> str:
    """Say what is wrong with a law whose ln loss falls so much from decade to decade, the first within its runs."""
    ends = [first, second, 10 * second, 100 * second]
    logs = [1.0]
    for drop, begin, end in zip(drops, ends[:-1], ends[1:], strict=True):
        logs.append(logs[-1] - drop * math.log10(end / begin))
    law = of_budgets({end: math.exp(log) for end, log in zip(ends, logs, strict=True)})
    return quickening(law, PRICE, (1e6, 1e7), (first, second))


@pytest.mark.parametrize(
    ("drops", "fine"),
    [
        ((0.1, 0.1, 0.1), True),
        ((0.1, 0.124, 0.15), True),
        ((0.1, 0.126, 0.1), False),
        ((0.1, 0.1, 0.124), True),
        ((0.1, 0.1, 0.126), False),
        ((0.1, 0.2, 0.1), False),
        ((0.0, 0.0, 0.0), True),
        ((-0.1, 0.001, 0.0), False),
        ((0.1, 0.0, -0.1), True),
    ],
)
def test_a_decade_may_gain_a_quarter_more_than_the_one_before(drops: tuple[float, ...], fine: bool) -> None:
    assert (falling(*drops) == "") is fine


def test_the_decades_that_fall_faster_are_named() -> None:
    assert falling(0.1, 0.3, 0.1) == (
        "its loss falls ever faster: 9.52 % for ten times the compute up to 1e16 FLOPs, 25.9 % beyond"
    )
    assert falling(0.1, 0.1, 0.5).endswith("9.52 % for ten times the compute up to 1e17 FLOPs, 39.3 % beyond")


def test_a_slope_within_the_runs_is_taken_over_twofold_compute_at_least() -> None:
    assert falling(0.1, 0.3, 0.1, first=5e15) != "" and falling(0.1, 0.3, 0.1, first=4.9e15) != ""
    assert falling(0.1, 0.3, 0.1, first=5.1e15) == "", "the runs are at one budget, so to say"


@pytest.mark.parametrize(
    ("size", "off"), [(1e3, 0.0), (1e6, 0.0), (1e10, 0.0), (5e2, math.log(2)), (1e11, math.log(10))]
)
def test_the_best_size_is_looked_for_up_to_a_thousand_times_beyond_the_runs(size: float, off: float) -> None:
    law: Any = Drawn(lambda n, d: np.abs(n - math.log(size)))
    assert _lowest(law, PRICE, (1e6, 1e7), 1e15) == pytest.approx(off, abs=0.01)


def test_tokens_are_what_the_budget_buys_of_each_size() -> None:
    law: Any = Drawn(lambda n, d: np.where(n > math.log(1e6), np.exp(d), np.nan))
    assert _lowest(law, PRICE, (1e6, 1e7), 1e18) == pytest.approx(1e18 / 6 / 1e10, rel=0.02)
    nothing: Any = Drawn(lambda n, d: np.full_like(n, np.nan))
    assert _lowest(nothing, PRICE, (1e6, 1e7), 1e18) == math.inf
