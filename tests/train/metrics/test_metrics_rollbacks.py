"""Rollbacks in metrics.jsonl: which of them a resumed run has behind it, and the numbers of their paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.metrics.file import MetricsFile, Rollback, from_here


@pytest.mark.parametrize(
    ("went_to", "step", "known"),
    [
        ("", 10, []),
        ("10", 10, [1]),
        ("10 10", 10, [1, 2]),
        ("10 15", 15, [2]),  # the checkpoint of step 15 knows the first
        ("10 15", 10, [1]),  # the checkpoint of step 15 is lost: what the second began is, too
        ("10 15 10", 10, [1, 2, 3]),  # the run had counted the second when it went back further
        ("10 15 10 20", 10, [1, 2, 3]),
        ("10", 5, []),
        ("10 15 10*", 10, [1, 3]),  # * as checkpoints were lost: then the second was not counted
        ("10 15 10* 20 10", 10, [1, 3, 4, 5]),
        ("10 15 20 15* 10", 10, [1, 2, 4, 5]),
        ("10 25 15* 30 10* 20 10", 10, [1, 5, 6, 7]),
        ("10 5*", 10, [1]),
        ("20 5* 10", 5, [2]),
    ],
)
def test_which_rollbacks_a_resumed_run_knows(went_to: str, step: int, known: list[int]) -> None:
    rollbacks = [
        Rollback(number, 40, int(to.strip("*")), 0, 0, None if "*" in to else number)
        for number, to in enumerate(went_to.split(), 1)
    ]
    assert [one.path for one in from_here(rollbacks, step)] == known


def test_a_path_has_a_larger_number_than_the_one_before_it_where_the_file_has_lost_its_end(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "m.jsonl")
    metrics.path = 5  # as the checkpoint says that the run resumed from, and would not look for rollbacks before it
    metrics.write("rollback", 7, 70, Rollback(0, 7, 4, 40, 99, 1).metrics())
    assert (metrics.path, metrics.written.rollbacks[0].path) == (6, 6)
    metrics.close()
