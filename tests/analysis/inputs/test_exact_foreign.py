"""Tables from elsewhere: which column is proposed, which cells count as numbers, which columns are settings."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from analysis.inputs import foreign

PATH = Path("t.csv")
HINT = "; flop_rule=6ND computes the one of params, tokens, flops that is not there"


@pytest.mark.parametrize(
    ("columns", "names", "said"),
    [
        (["x"], ["loss"], "t.csv has no column 'loss'; map with columns=loss:COLUMN. It has x"),
        (["val_loss"], ["loss"], "t.csv has no column 'loss'; map with perhaps columns=loss:val_loss. It has val_loss"),
        (["val loss"], ["loss"],
         "t.csv has no column 'loss'; map with perhaps 'columns=loss:val loss'. It has val loss"),
        (["x"], ["flops"], f"t.csv has no column 'flops'; map with columns=flops:COLUMN{HINT}. It has x"),
        (["val_loss"], ["flops", "loss"],
         f"t.csv has no columns 'flops', 'loss'; map with perhaps columns=loss:val_loss{HINT}. It has val_loss"),
        (["x"], ["tokens", "flops"],
         f"t.csv has no columns 'tokens', 'flops'; map with columns=tokens:COLUMN,flops:COLUMN{HINT}. It has x"),
    ],
)  # fmt: skip
def test_a_mapping_is_proposed(columns: list[str], names: list[str], said: str) -> None:
    assert foreign.missing(pd.DataFrame({name: [1.0] for name in columns}), names, PATH) == said


def test_the_nearest_column_is_named_where_one_is_near() -> None:
    table = pd.DataFrame({"width": [1.0], "zzz": [2.0]})
    with pytest.raises(ValueError, match="has no column 'widht'; did you mean 'width'\\?; it has width, zzz"):
        foreign._present(table, "widht", PATH)
    with pytest.raises(ValueError, match="has no column 'seed'; it has width, zzz"):
        foreign._present(table, "seed", PATH)


def test_a_column_of_half_numbers_is_read_and_of_fewer_is_not() -> None:
    values, bad = foreign.numbers(pd.DataFrame({"a": ["1", "x", "2", "y", "", "nan"]}), "a", PATH)
    assert values[[0, 2]].tolist() == [1.0, 2.0] and bad == {1: "x", 3: "y"}
    with pytest.raises(ValueError, match="column 'a' holds what is not a number"):
        foreign.numbers(pd.DataFrame({"a": ["1", "x", "y", ""]}), "a", PATH)
    assert foreign.numbers(pd.DataFrame({"a": [True, False]}), "a", PATH)[0].tolist() == [1.0, 0.0]
    assert foreign.numbers(pd.DataFrame({"a": [3, 4]}), "a", PATH)[0].tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    ("count", "rows", "found"),
    [(1, 8, False), (2, 4, True), (2, 3, False), (12, 24, True), (12, 23, False), (13, 52, False)],
)  # fmt: skip
def test_settings_are_text_of_two_to_twelve_values(count: int, rows: int, found: bool) -> None:
    texts = [f"v{n % count:02}" for n in range(rows)]
    table = pd.DataFrame({"kind": texts, "params": [float(n) for n in range(rows)], "number": range(rows)})
    wanted = {"kind": sorted(set(texts))} if found else {}
    assert foreign.settings(table, ()) == wanted
    assert foreign.settings(table.drop(columns="params"), ()) == wanted
    assert foreign.settings(table, ("kind",)) == {}


def test_a_name_of_the_size_is_no_setting() -> None:
    table = pd.DataFrame({"name": ["s", "s", "m", "m"], "params": [1.0, 1.0, 2.0, 2.0], "flag": [True, False] * 2})
    assert foreign.settings(table, ()) == {}
    assert foreign.settings(table.assign(params=[1.0, 3.0, 2.0, 2.0]), ()) == {"name": ["m", "s"]}


def test_cells_are_compared_as_text_as_numbers_or_as_yes_and_no() -> None:
    assert foreign._equal(pd.Series(["1.0", "1", "2", "x"]), "1").tolist() == [True, True, False, False]
    assert foreign._equal(pd.Series([0.5, 1.0]), "1e0").tolist() == [False, True]
    assert foreign._equal(pd.Series(["a ", "b"]), "a").tolist() == [True, False]
    assert foreign._equal(pd.Series(["True", "false"]), "1").tolist() == [True, False]
