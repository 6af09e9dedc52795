"""The best size at any budget, as the study's own run in MLflow tells it, against the fit itself."""

from typing import Any

import pytest

import analysis
from analysis.values.json_values import to_json
from study.tracking.best_sizes import best_sizes, growth
from study.tracking.study_note import Row, Study, note

POINTS = [
    {"flops": 1e16, "params": 6e6, "tokens": 2e8, "loss": 1.7, "intervals": {"params": [5e6, 7e6]}},
    {"flops": 1e17, "params": 15e6, "tokens": 8e8, "loss": 1.36, "intervals": {"params": [9e6, 30e6]}},
]
GROWTH = {
    "params": {"value": 15e6, "exponent": 0.4, "reference_flops": 1e17},
    "tokens": {"value": 8e8, "exponent": 0.6, "reference_flops": 1e17},
}
PLAN: dict[str, Any] = {"approach": "valleys", "loss_from": "frontier", "path": POINTS, "growth": GROWTH}


def test_inside_and_beyond_the_runs_the_table_has_what_the_fit_answers() -> None:
    runs = analysis.fit("docs/example-runs.csv", resamples=0, sensitivity=False)
    fit = to_json(runs.result)
    largest = fit["runs"]["largest_flops"]
    table = {one.flops: one for one in best_sizes(fit, [largest, 0.11 * largest])}
    assert max(table) == pytest.approx(1000 * largest), "a hundred times the recommended budget"
    assert {largest, 0.11 * largest} <= set(table)
    for flops, one in table.items():
        exact = runs.optimum(flops)
        assert (one.params, one.tokens) == pytest.approx((exact.params, exact.tokens), rel=0.03), flops
        assert one.loss == pytest.approx(exact.loss, rel=1e-3), flops


def test_budgets_are_those_of_the_study_whole_decades_and_two_decades_beyond() -> None:
    fit = {"recommendation": PLAN}
    found = best_sizes(fit, [1.001e16, 3e16])
    assert [one.flops for one in found] == [1.001e16, 3e16, 1e17, 1e18, 1e19], "budgets that are close are one"
    middle = best_sizes(fit, [10**16.5])[1]
    assert (middle.params, middle.tokens) == pytest.approx(((6e6 * 15e6) ** 0.5, (2e8 * 8e8) ** 0.5))
    assert (middle.low, middle.high) == pytest.approx(((5e6 * 9e6) ** 0.5, (7e6 * 30e6) ** 0.5))
    far = found[-2]
    assert (far.params, far.tokens) == pytest.approx((15e6 * 10**0.4, 8e8 * 10**0.6))
    assert (far.loss, far.low) == (None, None), "the valleys give no loss there, and no interval"
    assert best_sizes(fit, [1e15])[0].params == pytest.approx(6e6 / 10**0.4), "below the runs too"


def test_the_description_says_it_in_readable_numbers() -> None:
    rows = [Row("w8", "r1", 1e16, {}), Row("w16", "r2", 1e16, {})]
    text = note(Study("7", "p", rows, "2 completed", {"recommendation": PLAN, "runs": {"largest_flops": 3e16}}))
    assert "| 1e16 | 6.00M | 5.00M to 7.00M | 200M | 1.700 |\n" in text
    assert "| 1e18 | 37.7M |  | 3.18B |  |\n" in text
    assert "The largest run had 3e16 FLOPs; what lies beyond is extrapolated. Any other budget C" in text
    assert growth({"recommendation": PLAN}) == "N\\* = 15.0M (C/1e17)^0.400, D\\* = 800M (C/1e17)^0.600"


@pytest.mark.parametrize("fit", [{}, {"recommendation": None}, {"recommendation": {"params": 1e6, "growth": {}}}])
def test_without_a_path_there_is_no_table(fit: dict[str, Any]) -> None:
    assert best_sizes(fit, [1e16]) == []
    assert growth(fit) == ""
    assert "Best size" not in note(Study("7", "p", [Row("w8", "r1", 1e16, {})], "1 completed", fit))


def test_without_exponents_the_table_ends_with_the_path() -> None:
    found = best_sizes({"recommendation": {**PLAN, "growth": {}}}, [1e15, 1e16])
    assert [one.flops for one in found] == [1e16, 1e17]
