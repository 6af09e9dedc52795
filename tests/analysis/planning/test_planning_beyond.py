"""Whether a law is one beyond its runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.approaches.cost import Cost
from analysis.approaches.loss_laws import Closed, Fitted
from analysis.laws.registry import FORMS
from analysis.planning.beyond import quickening

PRICE = Cost.six()
SIZES = (1e6, 1.6e7)
BUDGETS = (1e15, 1e16)


@pytest.mark.parametrize(
    "constants",
    [
        (1.69, 406.4, 410.7, 0.34, 0.28),
        (0.0, 406.4, 410.7, 0.34, 0.28),  # without a floor each decade gains the same
        (0.5, 1e5, 30.0, 0.9, 0.1),
    ],
)
@pytest.mark.parametrize("budgets", [BUDGETS, (1e16, 1e16)])
def test_sums_of_powers_gain_ever_less(constants: tuple[float, ...], budgets: tuple[float, float]) -> None:
    assert quickening(Closed(np.array([constants])), PRICE, SIZES, budgets) == ""


def test_a_law_that_bent_to_noise_falls_ever_faster() -> None:
    form = FORMS["farseer"]
    # as 22 runs gave it whose losses lay 3 % beside any law: its exponent of D grows with N, without an end
    natural = np.array(
        [[-1.48758e-50, 7.00678, 0.40981, 8.65443e-16, 2.30593, 14.8988, 1.51494e-10, 1.37789, -0.271845]]
    )
    law = Fitted(form, form.internal(natural, np.zeros(2)), np.zeros(2), PRICE)
    found = quickening(law, PRICE, SIZES, BUDGETS)
    assert found.startswith("its loss falls ever faster: ")
    assert found.endswith(" % beyond")
    assert "for ten times the compute up to 1e16 FLOPs" in found


def test_the_first_draw_is_the_law() -> None:
    rising = Closed(np.array([[1.69, 406.4, 410.7, 0.34, 0.28], [math.nan] * 5]))
    assert quickening(rising, PRICE, SIZES, BUDGETS) == ""
    assert quickening(Closed(np.array([[math.nan] * 5])), PRICE, SIZES, BUDGETS) != ""
