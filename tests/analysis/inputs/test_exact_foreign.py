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


@pytest.mark.parametrize(
    ("name", "values", "found"),
    [
        ("experts", [1, 4] * 4, ["1", "4"]),
        ("experts", [1.0, 16.0] * 4, ["1", "16"]),
        ("dropout", [0.5, 0.1] * 4, ["0.1", "0.5"]),
        ("hidden_size", [64, 128] * 4, ["64", "128"]),
        ("seed", [1, 2] * 4, None),
        ("Init Seed", [1, 2] * 4, None),
        ("run_id", [1, 2] * 4, None),
        ("seed2", [1, 2] * 4, None),
        ("experts", [1, 1, 4, 4] * 2, None),
        ("experts", [1, 4, 1, 1, 4, 4, 1, 1], None),
        ("experts", [1, 4, 1, 4, 4, 4, 1, 1], ["1", "4"]),
        ("experts", [float("nan"), 4.0] * 4, None),
        ("runtime", [1.5, 1.7, 2.5, 2.7, 3.5, 3.7, 4.5, 4.7], None),
    ],
)
def test_numbers_that_rows_of_equal_size_and_tokens_differ_in_are_settings(
    name: str, values: list[float], found: list[str] | None
) -> None:
    """A seed, a measurement, and what goes with the size are none; one cell of two values may be a slip."""
    table = pd.DataFrame({name: values, "params": [1.0, 1.0, 2.0, 2.0] * 2, "tokens": [5.0] * 4 + [6.0] * 4})
    assert foreign.settings(table, ()) == ({} if found is None else {name: found})
    assert foreign.settings(table.drop(columns="tokens"), ()) == {}


def test_cells_are_compared_as_text_as_numbers_or_as_yes_and_no() -> None:
    assert foreign._equal(pd.Series(["1.0", "1", "2", "x"]), "1").tolist() == [True, True, False, False]
    assert foreign._equal(pd.Series([0.5, 1.0]), "1e0").tolist() == [False, True]
    assert foreign._equal(pd.Series(["a ", "b"]), "a").tolist() == [True, False]
    assert foreign._equal(pd.Series(["True", "false"]), "1").tolist() == [True, False]


def test_of_two_counts_of_parameters_the_one_that_compute_goes_by_is_proposed() -> None:
    """FLOPs are 6 x active x tokens; without tokens or FLOPs the first one stands."""
    table = pd.DataFrame({"total_params": [4e8, 8e8], "active_params": [1e8, 2e8], "tokens": [1e9, 1e9]})
    table["flops"] = 6 * table["active_params"] * table["tokens"]
    assert "columns=params:active_params;" in foreign.missing(table, ["params"], PATH)
    assert "columns=params:total_params;" in foreign.missing(table.drop(columns="flops"), ["params"], PATH)
    table["total_params"] = table["active_params"] * 1.02
    assert "columns=params:total_params;" in foreign.missing(table, ["params"], PATH), "both are as near"
