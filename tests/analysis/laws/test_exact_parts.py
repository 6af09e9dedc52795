"""Parts of the laws at the ends of what they are given: names that are near none, grids in parts, small exponents."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.laws import sum_of_powers
from analysis.laws.kaplan import scales
from analysis.laws.registry import resolve
from analysis.laws.sum_of_powers import FRONTIER, FRONTIER_NO_FLOOR, NO_FLOOR, SURFACE


def test_a_name_is_proposed_where_one_is_near() -> None:
    with pytest.raises(ValueError, match=r"form=chinchila is not known; did you mean form=chinchilla\?; take a name"):
        resolve("chinchila")
    with pytest.raises(ValueError, match="form=sine is not known; take a name or a formula that"):
        resolve("sine")


def test_each_power_has_the_numbers_of_its_coefficient_and_of_its_exponent() -> None:
    assert SURFACE.pairs == ((1, 3), (2, 4))
    assert FRONTIER.pairs == ((1, 2),)
    assert NO_FLOOR.pairs == ((0, 2), (1, 3))
    assert FRONTIER_NO_FLOOR.pairs == ((0, 1),)


def test_candidates_of_more_rows_than_are_kept_at_once_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.linspace(-2.0, 2.0, 5)[None], np.log(2.0 + np.exp(-0.3 * np.linspace(-2.0, 2.0, 5)))
    whole = FRONTIER.candidates(x, y)
    monkeypatch.setattr(sum_of_powers, "CACHED", 4)
    parts = FRONTIER.candidates(x, y)
    np.testing.assert_allclose(parts.theta, whole.theta)
    assert parts.scores is not None and whole.scores is not None
    np.testing.assert_allclose(parts.scores, whole.scores)


def test_kaplans_scales_are_least_squares_at_small_exponents_too() -> None:
    """An exponent of 0.02 raises a loss of 3 to the 50th power: the columns are small, and no less apart for that."""
    n, d = np.log([1e7, 1e8, 1e9, 1e7, 1e9]), np.log([1e9, 4e9, 1e9, 1e10, 1e10])
    n_c, d_c, alpha = 28.0, 30.0, 0.02
    loss = (np.exp(n_c - n) + np.exp(d_c - d)) ** alpha
    found = scales({"params": n, "tokens": d}, np.log(3.0 * loss)[None], np.array([alpha]), np.array([alpha]))
    more = np.log(3.0) / alpha
    assert found["N_c"] == pytest.approx([n_c + more], abs=1e-6)
    assert found["D_c"] == pytest.approx([d_c + more], abs=1e-6)
