"""Columns that are mapped with a factor, and which of two counts of parameters is proposed, by literal tables."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from analysis.estimation import observations
from analysis.inputs import foreign, large
from analysis.laws.registry import FORMS
from analysis.laws.sum_of_powers import SURFACE

PATH = Path("t.csv")


def test_a_column_is_multiplied_by_the_factor_that_is_given() -> None:
    table = pd.DataFrame({"size_m": [70.0, 160.0], "loss": [3.0, 2.5]})
    found = foreign.mapped(table, {"params": "size_m*1e6"}, ("params", "loss"), PATH)
    assert found["params"].tolist() == [7e7, 1.6e8]
    mixed = pd.DataFrame({"size_m": ["70", "many"], "loss": [3.0, 2.5]})
    assert foreign.mapped(mixed, {"params": "size_m*1e6"}, ("params",), PATH)["params"].tolist() == [7e7, "many"]


def test_the_count_is_proposed_of_which_flops_are_six_a_token() -> None:
    """Not that of which they are seven: 6/7 of it comes first in the table."""
    table = pd.DataFrame({"fewer_params": [6e8, 1.2e9], "all_params": [7e8, 1.4e9], "tokens": [1e9, 1e9]})
    table["flops"] = 6.0 * table["all_params"] * table["tokens"]
    assert "columns=params:all_params;" in foreign.missing(table, ["params"], PATH)


@pytest.mark.parametrize(("runs", "length", "every"), [(2, 13, 3), (3, 20, 7), (1, 30, 3)])
def test_thinning_is_as_coarse_as_what_may_be_left_asks_for(
    runs: int, length: int, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten rows may be left: 2 runs keep 5 of 13; 3 runs keep 4 of 20 at every sixth, which is too many."""
    monkeypatch.setattr(large, "MOST_READ", 25)
    monkeypatch.setattr(large, "LEFT", 10)
    table = pd.DataFrame({"run": [str(k) for k in range(runs) for _ in range(length)]})
    with pytest.raises(ValueError, match=f"thin={every} keeps of every run one checkpoint in so many"):
        large.refuse_read(table, runs * length, "table.csv")


def test_counts_in_words_are_numbers_and_losses_in_words_are_not() -> None:
    table = {"params": ["70M", "1.3B"], "loss": ["2.5", "3"], "lr": ["1B", "x"]}
    assert observations.column(table, "params").tolist() == [7e7, 1.3e9]
    assert observations.column(table, "loss").tolist() == [2.5, 3.0]
    with pytest.raises(ValueError, match="column 'lr' holds what is not a number"):
        observations.column(table, "lr")
    with pytest.raises(ValueError, match="column 'params' holds what is not a number \\('many' in row 2\\)"):
        observations.column({"params": ["70M", "many"]}, "params")


def test_one_value_is_every_runs_and_two_of_three_are_none() -> None:
    assert observations.inputs({"params": 1e8, "tokens": [1e9, 2e9, 4e9]}, SURFACE).tolist() == [
        [1e8, 1e8, 1e8], [1e9, 2e9, 4e9],
    ]  # fmt: skip
    for lengths in ((2, 3), (3, 2)):
        params, tokens = ([1e8 * (k + 1) for k in range(count)] for count in lengths)
        said = f"different numbers of values: params has {lengths[0]}, tokens has {lengths[1]}; give one a run"
        with pytest.raises(ValueError, match=said):
            observations.inputs({"params": params, "tokens": tokens}, FORMS["chinchilla"])
