"""The law's loss beside every run, by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from analysis.laws.registry import FORMS
from analysis.results.predicted import with_prediction

RUNS = pd.DataFrame({"params": [1e4, 1e6], "tokens": [1e6, 1e6], "flops": [6e10, 6e12], "used": [True, False]})
LAW = {"E": 1.5, "A": 100.0, "B": 200.0, "alpha": 0.5, "beta": 0.5}


def fit(form: str, **params: float) -> Any:
    return SimpleNamespace(form=form, params=params)


def test_the_prediction_is_that_of_the_law_with_this_formula() -> None:
    found = with_prediction(fit(FORMS["chinchilla"].text, **LAW), RUNS)["predicted"]
    assert found[0] == pytest.approx(1.5 + 100 / 100 + 200 / 1000) and math.isnan(found[1]), "what was not used"


@pytest.mark.parametrize(
    "given",
    [fit("no law of ours", **LAW), fit(FORMS["chinchilla"].text, E=1.5, A=100.0), fit(FORMS["downstream"].text)],
)
def test_without_the_law_or_its_constants_there_is_none(given: Any) -> None:
    assert with_prediction(given, RUNS)["predicted"].isna().all()
