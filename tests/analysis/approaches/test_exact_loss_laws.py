"""Laws that plans rest on: best sizes and budgets worked out by hand, up to the ends of what is searched."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from analysis.approaches.cost import Cost
from analysis.approaches.loss_laws import Closed, Fitted, lowest
from analysis.inputs.dataset import Array

SIX = Cost.six()


class Twins:
    """The form 1/N^0.3 + 1/D^0.3: of equal constants, so that N and D are equal wherever the compute is best spent."""

    inputs = ("params", "tokens")

    def log_value(self, theta: Array, x: Array) -> Array:
        """Return ln of the loss at ln N and ln D."""
        return np.asarray(np.log(np.exp(-0.3 * x[0]) + np.exp(-0.3 * x[1])))


def twins() -> Fitted:
    form: Any = Twins()
    return Fitted(form, np.zeros((2, 1)), np.zeros(2), SIX)


@pytest.mark.parametrize("log_tokens", [0.5, 23.0, 69.5])
def test_equal_constants_have_equal_size_and_tokens(log_tokens: float) -> None:
    assert twins().matched(log_tokens) == pytest.approx([log_tokens] * 2, abs=1e-5)
    assert np.log(twins().budget_of(SIX, log_tokens)) == pytest.approx([math.log(6) + 2 * log_tokens] * 2, abs=1e-5)


@pytest.mark.parametrize("log_tokens", [-3.0, 75.0])
def test_a_size_that_is_not_among_those_searched_is_none(log_tokens: float) -> None:
    assert np.isnan(twins().matched(log_tokens)).all()
    assert np.isnan(twins().budget_of(SIX, log_tokens)).all()


@pytest.mark.parametrize("extra", [0.0, 1e-9])
def test_the_best_size_is_none_where_it_lies_beyond_the_sizes(extra: float) -> None:
    # Equal constants: N* = D* = sqrt(C / 6), ln N* = 20. The second price is searched, the first solved for.
    law, price = Closed(np.array([[1.0, 100.0, 100.0, 0.3, 0.3]])), Cost(1e9, 1.0, extra, 0.1)
    budget = 6.0 * math.exp(40.0)
    assert law.best(price, budget, (19.0, 21.0)) == pytest.approx([20.0], abs=1e-6)
    for ends in ((20.5, 30.0), (10.0, 19.5)):
        assert np.isnan(law.best(price, budget, ends)).all()


def test_the_lowest_place_is_none_at_an_end() -> None:
    assert lowest(lambda at: (at - 3.3) ** 2, (0.0, 10.0), 2) == pytest.approx([3.3] * 2, abs=1e-6)
    assert np.isnan(lowest(lambda at: at, (0.0, 10.0), 1)).all()
    assert np.isnan(lowest(lambda at: -at, (0.0, 10.0), 1)).all()
    assert np.isnan(lowest(lambda at: np.full_like(at, np.inf), (0.0, 10.0), 1)).all()
