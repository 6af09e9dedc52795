"""Which rows thinning keeps, at which size a table is refused, and by what number, by hand."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest

from analysis.inputs import large
from analysis.planning.next_runs import next_runs


def test_every_so_many_checkpoints_are_kept_and_the_last_of_each_run() -> None:
    table = pd.DataFrame(
        {
            "run": ["a", "b", "a", "a", "b", "a", "a", "c"],
            "tokens": [50, "20", 10, 30, 10, 20, 40, None],
            "loss": range(8),
        }
    )
    kept = {every: large.thinned(table, every)["loss"].tolist() for every in (1, 2, 3, 4, 5, 99)}
    assert kept == {
        1: [0, 1, 2, 3, 4, 5, 6, 7],
        2: [0, 1, 2, 3, 7],  # of a 50, 30, 10; of b 20; c's only one
        3: [0, 1, 5, 7],  # of a 50 and 20
        4: [0, 1, 2, 7],
        5: [0, 1, 7],
        99: [0, 1, 7],
    }
    assert large.thinned(table, 0) is table and large.thinned(table, 1) is table


def test_runs_without_tokens_are_thinned_in_their_order_and_tables_without_runs_row_by_row() -> None:
    table = pd.DataFrame({"run": ["a", "a", "b", "a", "b"], "loss": range(5)})
    assert large.thinned(table, 2)["loss"].tolist() == [0, 3, 4]
    assert large.thinned(table[["loss"]], 2)["loss"].tolist() == [0, 2, 4]
    assert large.thinned(table[["loss"]], 3)["loss"].tolist() == [0, 3]


def rows(lengths: list[int]) -> pd.DataFrame:
    return pd.DataFrame({"run": np.repeat(np.arange(len(lengths)), lengths)})


def refused(table: pd.DataFrame, kept: int) -> str:
    with pytest.raises(ValueError) as error:
        large.refuse_read(table, kept, "table.csv")
    return str(error.value)


def test_a_quarter_of_a_million_rows_is_read_and_no_row_more() -> None:
    few = rows([1])
    large.refuse_read(few, 250_000, "table.csv")
    said = "table.csv has 250001 rows, and at most 250000 are read: more take minutes and many gigabytes. "
    assert refused(few, 250_001).startswith(said)


def test_a_table_without_runs_is_thinned_to_what_is_fitted() -> None:
    for count, every in ((250_001, 13), (260_000, 13), (260_001, 14), (1_000_000, 50)):
        assert f"gigabytes. thin={every} keeps one row in so many. " in refused(
            pd.DataFrame({"loss": np.zeros(count)}), count
        )


def test_more_runs_than_are_fitted_cannot_be_thinned() -> None:
    said = refused(rows([13] * 20_001), 260_013)
    assert "They are of 20001 runs, and laws are fitted to at most 20000; thin= keeps the last row of every run" in said
    assert "thin=3 keeps of every run one checkpoint in so many" in refused(rows([13] * 20_000), 260_000)


@pytest.mark.parametrize(
    ("lengths", "every"),
    [
        ([1000] * 251, 3),  # 334 of each are 83,834, 500 were too many
        ([100] * 10_000, 10),  # 10 of each are 100,000
        ([100] * 10_001, 12),  # 10 of each are 10 too many; 11 leaves 10 as well, 12 leaves 9
        ([12] * 20_000, 0),
        ([99] * 20_000, 20),  # 5 of each are 100,000
        ([26] * 20_000, 6),
        ([25] * 20_000, 5),
    ],
)
def test_the_least_thinning_that_leaves_a_hundred_thousand_is_advised(lengths: list[int], every: int) -> None:
    table = rows(lengths)
    if not every:
        large.refuse_read(table, len(table), "table.csv")
        return
    assert f"thin={every} keeps of every run" in refused(table, len(table))
    assert sum(math.ceil(length / every) for length in lengths) <= 100_000
    assert sum(math.ceil(length / (every - 1)) for length in lengths) > 100_000


def frame(count: int, runs: str = "") -> pd.DataFrame:
    return pd.DataFrame({"used": np.arange(count + 5) < count, "run": np.full(count + 5, runs)})


def test_twenty_thousand_rows_are_fitted_and_no_row_more() -> None:
    large.refuse_fitted(frame(20_000), 1)
    large.refuse_fitted(frame(20_000, "a"), 1)
    for count, thin, every in ((20_001, 1, 2), (40_000, 1, 2), (40_001, 1, 3), (20_001, 3, 4), (30_000, 2, 3)):
        with pytest.raises(ValueError) as error:
            large.refuse_fitted(frame(count), thin)
        said = f"{count} rows are to be fitted, and at most 20000 are: thin={every} keeps one row in so many. where="
        assert str(error.value).startswith(said)
    with pytest.raises(ValueError, match=r"20001 rows .* at most 20000 are; thin= keeps the last row of every run\."):
        large.refuse_fitted(frame(20_001, "a"), 1)


def test_next_runs_are_chosen_for_2500_and_no_run_more() -> None:
    large.refuse_weighed(frame(2_500), 1)
    for thin, every in ((1, 2), (3, 4)):
        with pytest.raises(ValueError) as error:
            large.refuse_weighed(frame(2_501), thin)
        said = "2501 runs would be weighed with each other to choose the next ones, and at most 2500 are: "
        assert str(error.value).startswith(f"{said}thin={every} keeps one row in so many. where=")
    with pytest.raises(ValueError, match="at most 2500 are: thin=2 keeps"):
        next_runs(frame(2_501))


@pytest.mark.parametrize(
    ("asked", "count", "found"),
    [(1000, 0, 200), (1000, 5_000, 200), (1000, 5_001, 199), (1000, 10_000, 100), (1000, 20_000, 50), (1000, 10**6, 50),
     (120, 100, 120), (0, 100, 0), (30, 10**6, 30)],
)  # fmt: skip
def test_resamples_beside_a_fit_cost_no_more_than_of_five_thousand_rows(asked: int, count: int, found: int) -> None:
    assert large.resamples(asked, count) == found


@pytest.mark.parametrize(("cores", "found"), [(1, 1), (2, 2), (4, 4), (64, 4), (None, 1)])
def test_threads_of_a_large_fit_are_the_cores_up_to_four(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, found: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert [large.threads(0, count) for count in (0, 4_999, 5_000, 10**6)] == [1, 1, found, found]
    assert large.threads(3, 10) == large.threads(3, 10**6) == 3


@pytest.fixture
def quiet() -> Iterator[logging.Logger]:
    """The logger of long fits, without what earlier tests made of it."""
    log = large.log
    before = log.handlers[:], log.level, log.propagate
    log.handlers.clear()
    log.setLevel(logging.NOTSET)
    yield log
    log.handlers[:], log.propagate = before[0], before[2]
    log.setLevel(before[1])


def test_a_long_fit_says_once_what_it_is_at(quiet: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    large.told(4_999)
    assert quiet.handlers == []
    quiet.info("unheard")
    large.told(5_000)
    assert len(quiet.handlers) == 1
    large.told(10**6)
    assert len(quiet.handlers) == 1 and quiet.propagate is False
    quiet.info("fitting %s", "E")
    quiet.debug("not that much")
    said = capsys.readouterr()
    assert said.out == "" and said.err.endswith(" fitting E\n") and said.err.count("\n") == 1
