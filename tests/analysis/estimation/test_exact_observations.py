"""Columns and groups as a law reads them, by literal tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.estimation import observations
from analysis.estimation.observations import by_first, cells, column, inputs, order, read
from analysis.inputs.dataset import Rows, rows
from analysis.laws.registry import FORMS
from analysis.laws.sum_of_powers import SURFACE

TABLE = {"params": [1e6, 1e6, 4e6, 1.004e6], "tokens": [2e7, 4e7, 2e7, 3e7], "loss": [3.0, 2.9, 2.8, 2.95]}


def test_rows_by_their_values_whatever_the_file_says() -> None:
    columns = {"params": [2.0, 1, 1, 1, 1], "tokens": [0.5, 5, 3, 3, 3], "loss": [0.5, 0.5, 7, 6, 6]}
    data = Rows({name: np.array(values) for name, values in columns.items()}, np.array([0, 0, 0, 4, 2]))
    assert order(data, SURFACE).tolist() == [4, 3, 2, 1, 0]
    assert order(data, SURFACE).dtype == np.int64
    assert len(data) == 5


def test_inputs_are_positive_and_of_one_length() -> None:
    found = inputs({"params": 1e6, "tokens": [1e7, 2e7]}, SURFACE)
    assert found.tolist() == [[1e6, 1e6], [1e7, 2e7]]
    for bad, shown in ((0.0, "0"), (-1.0, "-1"), (np.nan, "nan"), (np.inf, "inf")):
        said = rf"column 'tokens': positive numbers are needed, not {shown} \(1 of 2 values\)"
        with pytest.raises(ValueError, match=said):
            inputs({"params": [1e6, 1e6], "tokens": [5.0, bad]}, SURFACE)
    with pytest.raises(ValueError, match=r"column 'params': positive numbers are needed, not 0 \(2 of 3 values\)"):
        inputs({"params": [0.0, 1.0, -3.0], "tokens": [1.0, 1.0, 1.0]}, SURFACE)
    with pytest.raises(ValueError, match=r"column 'params': positive numbers are needed, not 0$"):
        inputs({"params": 0.0, "tokens": [1.0, 1.0]}, SURFACE)
    assert inputs({"params": [1e-9], "tokens": [1.0]}, SURFACE).tolist() == [[1e-9], [1.0]]


def test_sizes_runs_and_settings_of_a_table() -> None:
    data = read({**TABLE, "lr": [1.0, 1.0, 1.0, 1.0]}, SURFACE)
    assert data.size.tolist() == [0, 0, 1, 0], "sizes within half a per cent are one"
    assert data.run_numbers.tolist() == [0, 1, 2, 3]
    assert len(set(cells(data, SURFACE).tolist())) == 4
    assert set(data.columns) == {"params", "tokens", "lr", "loss"}
    some = data.take(np.array([False, True, True, False]))
    assert (some.loss.tolist(), some.size.tolist(), some.keys, len(some.budget)) == ([2.9, 2.8], [0, 1], (), 0)
    named = read({**TABLE, "run": ["b", "a", "b", "c"], "size_group": [5, 7, 7, 7]}, SURFACE)
    assert named.run_numbers.tolist() == [1, 0, 1, 2]
    assert named.size.tolist() == [0, 1, 1, 1]
    short = read({**TABLE, "lr": [1.0]}, SURFACE)
    assert "lr" not in short.columns
    with pytest.raises(ValueError, match="loss has 3 values, the inputs 4; give one a run"):
        read({**TABLE, "loss": [1.0, 2.0, 3.0]}, SURFACE)


@pytest.mark.parametrize("empty", ["", None, np.nan, pd.NA])
def test_rows_without_a_name_are_no_group(empty: object) -> None:
    """As one group they would share errors; a fit of the command takes such rows as runs of their own, too."""
    for runs in (["a", empty, "b", empty], [1.0, empty, 2.0, empty]):
        table = pd.DataFrame({**TABLE, "run": pd.Series(runs, dtype=object), "size_group": ["s", "s", "s", empty]})
        data = read(table, SURFACE)
        assert data.run is None and data.run_numbers.tolist() == [0, 1, 2, 3]
        assert data.size.tolist() == [0, 0, 1, 0], "by params"


def test_sizes_of_laws_that_do_not_read_them() -> None:
    compute: Any = FORMS["compute"]
    assert compute.inputs == ("flops",)
    flops = {"flops": [1e12, 1e13, 1e14], "loss": [3.0, 2.5, 2.2]}
    assert read({**flops, "params": [1e6, 2e6, 1e6]}, compute).size.tolist() == [0, 1, 0]
    assert read(flops, compute).size.tolist() == [0, 1, 2]
    for unknown in ([1e6, 0.0, 1e6], [1e6, np.nan, 1e6]):
        assert read({**flops, "params": unknown}, compute).size.tolist() == [0, 1, 2]
    assert read({**flops, "params": [0.5, 0.5, 3.0]}, compute).size.tolist() == [0, 0, 1]


def test_sizes_of_laws_of_another_count() -> None:
    form: Any = FORMS["moe"]
    name = next(n for n in form.inputs if n.startswith("params"))
    others = {n: [2.0, 2.0, 2.0] for n in form.inputs if n != name}
    data = read({**others, name: [4e6, 1e6, 4e6], "loss": [1.0, 2.0, 3.0]}, form)
    assert data.size.tolist() == [1, 0, 1]
    if name != "params":
        both = read({**others, name: [4e6, 1e6, 4e6], "params": [1e6, 2e6, 3e6], "loss": [1.0, 2.0, 3.0]}, form)
        assert both.size.tolist() == [1, 0, 1], "the count that the law reads comes first"


def test_settings_are_equal_to_nine_digits_of_their_logs() -> None:
    def told(**more: Any) -> list[int]:
        table = {"params": [1e6] * 3, "tokens": [2e7] * 3, "loss": [3.0, 2.9, 2.8], **more}
        return [int(number) for number in cells(read(table, SURFACE), SURFACE)]

    assert told() == [0, 0, 0]
    assert told(lr=[1e-3, 2e-3, 1e-3]) == [0, 1, 0]
    assert told(warmup_tokens=[0.0, 5.0, 0.0]) == [0, 1, 0]
    assert told(setting_group=[0.0, -1.0, 1.0]) == [1, 0, 1], "ln 1 is 0 too, and codes are no magnitudes"
    assert told(lr=[np.nan, 1.0, 2.0]) == [0, 0, 0], "what a row lacks tells no setting"
    near = [1e6, 1e6 * (1 + 2e-10), 1e6 * (1 + 4e-9)]
    assert len(set(told(params=near))) == 2


def test_columns_of_tables_and_of_rows() -> None:
    assert column(pd.DataFrame({"x": [1, 2]}), "x").tolist() == [1.0, 2.0]
    held = rows(
        ("a", "b"), params=np.array([2.0, 2.0]), tokens=np.array([3.0, 4.0]), flops=np.array([1.0, 9.0]),
        loss=np.array([5.0, 6.0]), run=np.array([1, 0]), extra={"lr": np.array([7.0, 8.0])},
    )  # fmt: skip
    assert column(held, "lr").tolist() == [7.0, 8.0]
    data = read(held, SURFACE)
    assert (data.run_numbers.tolist(), data.size.tolist()) == ([1, 0], [0, 0])
    assert data is held
    assert observations.optional_column(held, "missing") is None
    assert observations.optional_column({"x": 3.0}, "x") == np.array([3.0])
    with pytest.raises(ValueError, match=r"chinchilla \(.*\) needs it; there are x, y$"):
        column({"x": [1], "y": [1]}, "params", SURFACE)
    with pytest.raises(ValueError, match=r"no column 'params': it is needed; there are c0, .*, c29$"):
        column({f"c{i}": [1] for i in range(40)}, "params")
    with pytest.raises(ValueError, match="column 'x' holds what is not a number"):
        column({"x": ["one"]}, "x")


def test_groups_counted_as_they_come() -> None:
    assert by_first(np.array([7, 3, 7, 9, 3, 1])).tolist() == [0, 1, 0, 2, 1, 3]
    assert by_first(np.array([5])).tolist() == [0]
