"""The best size by budget, as the study's own run in MLflow tells it: the table of fit.json, and no other."""

from typing import Any

import pytest

import analysis
from analysis.text import numbers
from analysis.values.json_values import to_json
from study.tracking.study_note import Row, Study, note

OPTIMA = [
    {
        "budget_flops": 1e16, "params": 6e6, "tokens": 2e8, "tokens_per_param": 33.3, "loss": 1.7, "beyond": False,
        "intervals": {"params": [5e6, 7e6]},
    },
    {
        "budget_flops": 1e18, "params": 37.7e6, "tokens": 3.18e9, "tokens_per_param": 84.4, "loss": None,
        "beyond": True, "intervals": {"params": None},
    },
]  # fmt: skip
GROWTH = {
    "params": {"value": 15e6, "exponent": 0.4, "reference_flops": 1e17, "interval": [0.3, 0.5]},
    "tokens": {"value": 8e8, "exponent": 0.6, "reference_flops": 1e17, "interval": [0.5, 0.7]},
}
PLAN: dict[str, Any] = {"approach": "valleys", "loss_from": "frontier", "optima": OPTIMA, "growth": GROWTH}
ROWS = [Row("w8", "r1", 1e16, {})]


def described(fit: dict[str, Any]) -> str:
    return note(Study("7", "p", ROWS, "1 completed", fit))


def test_the_description_says_it_in_readable_numbers() -> None:
    text = described({"recommendation": PLAN, "runs": {"largest_flops": 3e16}})
    assert "| 1e16 | 6.00M | 5.00M to 7.00M | 200M | 1.700 |\n" in text
    assert "| 1e18 | 37.7M |  | 3.18B |  |\n" in text
    assert "The largest run had 3e16 FLOPs; what lies beyond is extrapolated. Any other budget C [FLOPs]: about" in text
    assert "about N\\* = 15.0M (C / 1e17)^0.400, exponent 0.300 to 0.500; D\\* = 800M (C / 1e17)^0.600" in text


def test_it_has_every_budget_of_the_fit_and_what_the_fit_answers() -> None:
    runs = analysis.fit("docs/example-runs.csv", resamples=0, sensitivity=False)
    text = described(to_json(runs.result))
    frame = runs.optima()
    assert len(frame) > 5
    for flops in frame["budget_flops"]:
        best = runs.optimum(flops)
        size, tokens, loss = numbers.amount(best.params), numbers.amount(best.tokens), numbers.number(best.loss, 4)
        assert f"| {numbers.scientific(flops, 3)} | {size} |  | {tokens} | {loss} |\n" in text


@pytest.mark.parametrize("fit", [{}, {"recommendation": None}, {"recommendation": {"params": 1e6, "growth": {}}}])
def test_without_a_table_of_the_fit_there_is_none(fit: dict[str, Any]) -> None:
    assert "Best size" not in described(fit)
    assert "Any other budget" not in described(fit)


def test_without_exponents_no_law_of_other_budgets_is_told() -> None:
    assert "Any other budget" not in described({"recommendation": {**PLAN, "growth": {}}})
