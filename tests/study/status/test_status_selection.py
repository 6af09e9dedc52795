"""Choosing points by state, key and config."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import pytest

from study.commands import add_selection
from study.records.point import Point
from study.status.selection import by_key, choose, one_point, parse_states, selected
from study.status.states import PointState, PointStatus
from train.spec.config import RunConfig

STATUSES = [
    PointStatus("aa1", PointState.COMPLETED),
    PointStatus("ab2", PointState.FAILED),
    PointStatus("b3", PointState.FAILED),
    PointStatus("c4", PointState.RUNNING),
]
POINTS = {s.key: Point(s.key, replace(RunConfig(), seed=n)) for n, s in enumerate(STATUSES)}


def keys(default: str = "all", **given: Any) -> list[str]:
    options = argparse.Namespace(**{"state": None, "points": [], "point": [], "where": [], **given})
    return [status.key for status in selected(options, STATUSES, POINTS, default)]


def test_states_are_a_list_and_all_is_every_one() -> None:
    assert parse_states("failed, running,") == {"failed", "running"}
    assert parse_states("failed,all") == frozenset(PointState)
    parser = argparse.ArgumentParser()
    add_selection(parser, "failed", "states")
    assert parser.parse_args(["--state", "failed", "--state", "cancelled,running"]).state == "failed,cancelled,running"
    assert parser.parse_args([]).state is None
    with pytest.raises(ValueError, match=r"--state 'done' is not a state: choose among .*completed.*, or all"):
        parse_states("failed,done")


def test_the_beginning_of_a_key_names_one_point_or_says_why_not() -> None:
    assert by_key(STATUSES, "ab").key == "ab2"
    with pytest.raises(ValueError, match=r"'a' begins 2 keys \(aa1, ab2\): give more of it"):
        by_key(STATUSES, "a")
    with pytest.raises(ValueError, match=r"no point begins with 'z': the keys are aa1, ab2, b3, c4$"):
        by_key(STATUSES, "z")
    many = [PointStatus(f"k{n}", PointState.PENDING) for n in range(7)]
    with pytest.raises(ValueError, match=r"the keys are k0, k1, k2, k3, k4, …$"):
        by_key(many, "z")
    with pytest.raises(ValueError, match=r"the keys are k0, k1, k2, k3, k4$"):
        by_key(many[:5], "z")
    with pytest.raises(ValueError, match=r"'k' begins 7 keys \(k0, k1, k2, k3, k4\)"):
        by_key(many, "k")


@pytest.mark.parametrize(("given", "said"), [([], "none was given"), (["aa1", "b3"], r"2 were given \(aa1, b3\)")])
def test_one_point_is_neither_none_nor_two(given: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=rf"beginning of it: {said}; python -m study status s lists them"):
        one_point(argparse.Namespace(points=given[:1], point=given[1:], study="s"))
    assert one_point(argparse.Namespace(points=[], point=["ab"])) == "ab"


def test_a_job_as_slurm_names_it_is_its_point() -> None:
    jobs = {"aa1": "7_0", "ab2": "7_1", "b3": "8_0", "c4": "8_0"}
    ran = [replace(status, job_id=jobs[status.key]) for status in STATUSES]
    assert by_key(ran, "7_1").key == "ab2"
    with pytest.raises(ValueError, match=r"'8_0' is the job of 2 points \(b3, c4\): give the key of one"):
        by_key(ran, "8_0")
    with pytest.raises(ValueError, match="no point begins with '7'"):
        by_key(ran, "7")


def test_those_named_come_in_the_studys_order_whatever_their_state() -> None:
    assert [s.key for s in choose(STATUSES, frozenset(), ["c", "aa"])] == ["aa1", "c4"]
    assert [s.key for s in choose(STATUSES, frozenset({"failed"}), [])] == ["ab2", "b3"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, ["ab2", "b3"]),
        ({"state": "all"}, ["aa1", "ab2", "b3", "c4"]),
        ({"state": "running"}, ["c4"]),
        ({"points": ["aa"], "point": ["c"]}, ["aa1", "c4"]),
        ({"points": ["aa", "b3"], "state": "failed"}, ["b3"]),
        ({"where": ["seed>1"]}, ["b3"]),
        ({"where": ["seed>=1", "seed<2"]}, ["ab2"]),
        ({"points": ["aa", "c"], "where": ["seed>1"]}, ["c4"]),
    ],
)
def test_keys_states_and_conditions_narrow_each_other(given: dict[str, Any], found: list[str]) -> None:
    assert keys("failed", **given) == found
