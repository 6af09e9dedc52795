"""Counts written in words, 1.3B or 300M: read in tables as on the command line, and nowhere else."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from analysis.estimation import observations
from analysis.inputs.rows import from_csv
from analysis.text import commandline, numbers

WORDS = ("1.3B", "300M", "2e9 ", "70m", " 12.5 K", "4T", "125000000")
VALUES = [1.3e9, 3e8, 2e9, 7e7, 12500.0, 4e12, 1.25e8]
TABLE = pd.DataFrame({"params": WORDS, "tokens": WORDS, "flops": WORDS, "loss": range(3, 10), "batch_tokens": "1e6"})


@pytest.mark.parametrize("word", WORDS)
def test_a_table_and_the_command_line_read_the_same_words(word: str) -> None:
    key = commandline.Key("budget", "FLOPs", read=commandline.number)
    assert commandline.parse([f"budget={word}"], [key])["budget"] == VALUES[WORDS.index(word)]


@pytest.mark.parametrize("digits", (3, 9))
def test_what_is_written_is_read(digits: int) -> None:
    for value in VALUES:
        assert numbers.read(numbers.count(value, digits)) == numbers.read(numbers.amount(value, digits)) == value


@pytest.mark.parametrize("word", ("8 bits", "45%", "1.3 Bits", "B", "1e9B", "1,3B", "3G", "1.3BB", "", "1 000M"))
def test_other_words_are_no_numbers(word: str) -> None:
    assert math.isnan(numbers.read(word))


@pytest.mark.parametrize("kind", ("csv", "jsonl"))
def test_counts_in_words_are_read_from_files(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    TABLE.to_csv(path, index=False) if kind == "csv" else TABLE.to_json(path, orient="records", lines=True)
    found = from_csv(path).sort_values("loss")
    assert [found[name].tolist() for name in ("params", "tokens", "flops")] == [VALUES] * 3
    assert found["used"].all()


def test_json_lines_have_the_digits_of_csv(tmp_path: Path) -> None:
    table = pd.read_csv("docs/example-runs.csv")
    table.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    table.to_csv(tmp_path / "a.csv", index=False)
    pd.testing.assert_frame_equal(from_csv(tmp_path / "a.jsonl"), from_csv(tmp_path / "a.csv"))


def test_commas_in_counts_are_read_where_they_are_said_to_be_decimal(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("params;tokens;flops;loss\n1,3B;26B;2,028e20;2,1\n1.300M;3B;1e20;2,25\n")
    found = from_csv(path).sort_values("loss")  # 2,1 tells: commas are decimal, points are of thousands
    assert (found["params"].tolist(), found["tokens"].tolist()) == ([1.3e9, 1.3e9], [2.6e10, 3e9])


def test_a_mapped_column_is_read_too_and_rows_are_kept_by_its_words() -> None:
    table = TABLE.rename(columns={"params": "size"})
    columns = {"params": "size"}
    assert len(from_csv(Path("table"), columns=columns, table=table, where={"size": ">=300M"})) == 4
    assert from_csv(Path("table"), columns=columns, table=table, where={"params": "1300M"})["params"].tolist() == [
        1.3e9
    ]
    with pytest.raises(ValueError, match="map with perhaps columns=params:size; flop_rule"):
        from_csv(Path("table"), table=table)
    with pytest.raises(ValueError, match=r"column 'size' holds .*'1.3B' in row 1\).*gives no factor"):
        from_csv(Path("table"), columns={"params": "size*1e6"}, table=table)


def test_checkpoints_are_thinned_by_tokens_in_words() -> None:
    tokens = ["1B", "2B", "900M", "3B"]
    table = pd.DataFrame({"params": 1e8, "tokens": tokens, "flops": 1e18, "loss": [3, 2.8, 3.1, 2.7], "run": "a"})
    kept = from_csv(Path("table"), table=table, thin=2)
    assert sorted(kept["tokens"]) == [1e9, 3e9]  # the last one, and every other before it


@pytest.mark.parametrize("name", ("loss", "batch_tokens"))
def test_other_columns_are_no_counts(name: str) -> None:
    with pytest.raises(ValueError, match=f"column '{name}' holds what is not a number \\('4K' in row 1\\); K, M, B"):
        from_csv(Path("table"), table=TABLE.assign(**{name: "4K"}))


def test_a_cell_that_cannot_be_read_is_named_with_its_row_and_column() -> None:
    found = from_csv(Path("table"), table=TABLE.assign(tokens=[*WORDS[:-1], "45%"]))
    assert found.set_index("key").loc["row7", "drop_reason"] == "tokens is '45%', which is not a number"
    with pytest.raises(
        ValueError, match=r"column 'params' holds what is not a number \('8 bits' in row 2\); write plain"
    ):
        from_csv(Path("table"), table=TABLE.assign(params=["1B", *["8 bits"] * 6]))


def test_laws_read_the_words_of_a_data_frame() -> None:
    assert observations.column(TABLE, "params").tolist() == VALUES
    with pytest.raises(ValueError, match=r"column 'params' holds what is not a number \('45%' in row 1\)"):
        observations.column({"params": ["45%", "1B"]}, "params")
