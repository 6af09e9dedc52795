"""The bias of losses in mid-schedule: exact where it is exact, robust where a row is something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.diagnostics import schedule
from analysis.inputs import columns
from tests.analysis import studies

SIZE = np.linspace(-2.0, 2.0, 9)


def test_a_bias_that_grows_with_size_is_found_exactly() -> None:
    above = 0.012 + 0.004 * (SIZE - 0.3)
    bias, keep = schedule._bias(SIZE, above)
    np.testing.assert_allclose(bias, above, atol=1e-12)
    assert keep.all()


def test_two_sizes_have_one_bias() -> None:
    size = np.repeat([-1.0, 1.0], 4)
    above = np.array([0.01, 0.01, 0.01, 0.01, 0.012, 0.012, 0.012, 0.012])
    np.testing.assert_allclose(schedule._bias(size, above)[0], 0.011)
    third = size.copy()
    third[0] += 0.0004  # to three decimals they are two
    np.testing.assert_allclose(schedule._bias(third, above)[0], 0.011)
    third[0] += 0.001
    bias, _ = schedule._bias(third, above)
    assert bias[-1] - bias[1] == pytest.approx(0.002, abs=1e-6)


@pytest.mark.parametrize(
    ("off", "kept"),
    [
        (0.0049, True),  # five times a thousandth, the least scatter taken
        (0.0051, False),
        (0.30, False),  # no schedule's
        (-0.30, False),
    ],
)
def test_a_row_too_far_from_the_others_stays_out(off: float, kept: bool) -> None:
    above = np.full(9, 0.01)
    above[4] += off
    flat = np.where(np.arange(9) % 2, -1.0, 1.0)  # two sizes: the bias is the mean of those kept
    bias, keep = schedule._bias(flat, above)
    rest = np.arange(9) != 4
    assert keep[rest].all()
    near = abs(off - float(bias[4] - 0.01)) <= 0.005
    assert keep[4] == near
    assert kept == keep[4] or abs(off) < 0.006
    if not keep[4]:
        np.testing.assert_allclose(bias, 0.01, atol=1e-12)


def test_rows_scatter_by_a_robust_measure() -> None:
    """Row 20 moves the mean by off / 21: of 0.03 it is 0.0286 away and five spreads are 5 * 1.4826 * 0.0034."""
    size = np.where(np.arange(21) % 4 < 2, -1.0, 1.0)
    wiggle = np.where(np.arange(21) % 2, 0.002, -0.002)
    for off, kept in ((0.020, True), (0.030, False)):
        above = 0.01 + wiggle
        above[20] = 0.01 + off
        assert schedule._bias(size, above)[1][20] == kept


def test_a_bias_of_a_quarter_is_no_schedules() -> None:
    spread = np.linspace(0.20, 0.248, 9)
    assert schedule._bias(SIZE, spread)[1].all()
    above = np.concatenate((np.full(8, 0.2499), [0.25]))
    assert schedule._bias(np.repeat([0.0, 1.0, 0.0], 3), above)[1].tolist() == [True] * 8 + [False]
    with pytest.raises(ValueError, match=r"the unfinished runs lie \+34.9 % from the law of the finished ones"):
        schedule._bias(SIZE, np.full(9, np.log(1.349)))
    four = np.concatenate((np.full(4, 0.01), np.full(5, 0.4)))
    _, keep = schedule._bias(np.repeat([0.0, 1.0, 0.0], 3), four)
    assert keep.tolist() == [True] * 4 + [False] * 5
    with pytest.raises(ValueError, match="too far for a schedule"):
        schedule._bias(SIZE, np.concatenate((np.full(3, 0.01), np.full(6, 0.4))))


def test_what_was_found_is_said() -> None:
    found = schedule._said(np.log([1.01, 1.03]), np.array([0.002, -0.002]), 2)
    assert found.code == "mid_schedule_corrected"
    assert found.message == (
        "2 rows in mid-schedule were corrected by -1.00 to -3.00 %, which is how far they lie from the law of the "
        "finished runs; the rest scatters by 0.20 %; 2 lie too far and stay out"
    )
    assert "stay out" not in schedule._said(np.log([1.01]), np.array([0.0]), 0).message


def frame(finished: int, unfinished: int, sizes: int = 5, bias: float = 0.02) -> pd.DataFrame:
    """Return a tidy frame with so many finished runs and unfinished ones, whose losses are `bias` in ln too high."""
    budgets, ratios = tuple(np.geomspace(1e12, 1e14, 6)), tuple(np.geomspace(2, 60, sizes))
    table = studies.isoflop(0, budgets=budgets, ratios=ratios).iloc[: finished + unfinished].reset_index(drop=True)
    mid = np.arange(len(table)) >= finished
    out = pd.DataFrame({
        "key": [f"r{i}" for i in range(len(table))], "params": table["params"], "tokens": table["tokens"],
        "flops": table["flops"], "flops_budget": np.nan, "loss": table["loss"] * np.where(mid, np.exp(bias), 1.0),
        "used": ~mid, "drop_code": np.where(mid, "mid_schedule", ""), "drop_reason": np.where(mid, "why", ""),
    })  # fmt: skip
    for name in columns.COLUMNS:
        if name not in out:
            out[name] = np.nan if name in columns.EXTRA else ""
    out.attrs["checks"] = ("before",)
    return out


def test_the_bias_is_taken_out() -> None:
    given = frame(20, 6)
    given["loss"] *= np.where(np.arange(26) == 22, 1.5, 1.0)
    found = schedule.corrected(given)
    truth = studies.loss(studies.LAW, given["params"], given["tokens"])
    fine = np.arange(26) != 22
    np.testing.assert_allclose(found["loss"][fine], truth[fine], rtol=2e-4)
    assert found["used"].tolist() == fine.tolist()
    assert found.loc[22, "drop_code"] == "mid_schedule"
    assert found["loss"].to_numpy()[22] == given["loss"].to_numpy()[22]
    assert set(found.loc[fine, "drop_reason"]) == {""}
    first, check = found.attrs["checks"]
    assert first == "before"
    assert "5 rows in mid-schedule were corrected by -2.0" in check.message
    assert "the rest scatters by 0.0" in check.message
    assert "1 lie too far and stay out" in check.message
    assert given.loc[25, "drop_code"] == "mid_schedule", "the given frame stays as it is"
    assert given.attrs["checks"] == ("before",)


def test_a_bias_that_grows_with_size_goes_by_size() -> None:
    given = frame(20, 10, bias=0.0)
    grown = 0.02 + 0.004 * np.log(given["params"] / 1e6)
    found = schedule.corrected(given.assign(loss=given["loss"] * np.exp(np.where(given["used"], 0.0, grown))))
    np.testing.assert_allclose(found["loss"], given["loss"], rtol=2e-4)


def test_losses_below_one_are_losses() -> None:
    given = frame(12, 4)
    found = schedule.corrected(given.assign(loss=0.2 * given["loss"]))
    assert found["used"].all()


@pytest.mark.parametrize(("finished", "unfinished"), [(8, 4), (8, 5), (9, 4)])
def test_eight_finished_and_four_unfinished_are_enough(finished: int, unfinished: int) -> None:
    found = schedule.corrected(frame(finished, unfinished))
    assert found["used"].all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (frame(7, 6), "7 finished runs of 7 sizes and 6 unfinished ones; 8 of 3 sizes and 4 are needed"),
        (frame(12, 3), "12 finished runs of 12 sizes and 3 unfinished ones"),
        (frame(12, 6).assign(params=lambda t: np.where(np.arange(18) % 2, 1e6, 2e6)), "12 finished runs of 2 sizes"),
        (frame(12, 0), "no row is in mid-schedule; leave it out"),
        (frame(12, 4).assign(tokens=lambda t: np.where(np.arange(16) == 15, 0.0, t["tokens"])), "and 3 unfinished"),
    ],
)
def test_too_few_to_measure_a_bias_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        schedule.corrected(given)


def test_three_sizes_are_enough() -> None:
    given = frame(12, 6)
    sizes = np.resize([1e6, 2e6, 4e6], 18)
    truth = studies.loss(studies.LAW, sizes, given["tokens"])
    found = schedule.corrected(given.assign(params=sizes, loss=truth * np.where(given["used"], 1.0, np.exp(0.01))))
    np.testing.assert_allclose(found["loss"], truth, rtol=1e-3)
