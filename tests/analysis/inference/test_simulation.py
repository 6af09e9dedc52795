"""Simulated studies: the default interval covers where sizes share errors, and others do not."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.inference.coverage import Errors, coverage
from tests.analysis import studies

LAW = {"E": 1.817218, "A": 477.826, "B": 2143.417, "alpha": 0.347310, "beta": 0.367172}


def test_errors_have_the_spread_that_they_say() -> None:
    size = np.repeat(np.arange(2000), 5)
    drawn = Errors(0.003, 0.004).drawn(size, np.random.default_rng(0))
    means = drawn.reshape(2000, 5).mean(axis=1)
    assert means.std() == pytest.approx(np.sqrt(0.004**2 + 0.003**2 / 5), rel=0.05)
    assert Errors(0.003, 0.0, df=None).drawn(size, np.random.default_rng(0)).std() == pytest.approx(0.003, rel=0.03)


def test_methods_see_the_same_studies_and_a_seed_repeats_them() -> None:
    design = studies.isoflop(0)[["params", "tokens"]]
    law = dict(zip(("E", "A", "B", "alpha", "beta"), studies.LAW, strict=True))
    small = {"studies": 4, "resamples": 20, "errors": Errors(0.002, 0.0)}
    one = coverage(design, law, methods=("delta",), **small)  # type: ignore[arg-type]
    two = coverage(design, law, methods=("default", "delta"), **small)  # type: ignore[arg-type]
    assert one["delta"] == two["delta"]
    with pytest.raises(ValueError, match="method 'wald' is not known"):
        coverage(design, law, methods=("wald",))
    with pytest.raises(ValueError, match="quantity='c'"):
        coverage(design, law, quantity="c", studies=1)


@pytest.mark.slow
def test_the_default_covers_and_intervals_over_rows_are_too_short() -> None:
    design = studies.chinchilla()[["params", "tokens"]]
    found = coverage(design, LAW, methods=("default", "rows", "delta"), studies=120, resamples=200)
    assert 0.92 <= found["default"]["coverage"] <= 0.995
    assert found["rows"]["coverage"] < found["default"]["coverage"]
    assert found["delta"]["coverage"] < 0.9
    assert found["default"]["width"] > found["rows"]["width"]
