"""What the parameters of a study's own run say of its points."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from study.records.point import Point
from study.tracking.state import StoreState
from study.tracking.study_params import LONGEST, POINTS, SWEPT, apart, send, study_params
from tests.study.support.fake_store import FakeStore
from train.spec.config import RunConfig


def points(*changes: dict[str, Any]) -> list[Point]:
    """Return points of the default config with these values by dotted keys, which are their overrides too."""
    made = []
    for i, change in enumerate(changes):
        config = asdict(RunConfig())
        for key, value in change.items():
            section, _, name = key.rpartition(".")
            (config[section] if section else config)[name] = value
        made.append(Point(f"{i:012x}", json.dumps(config), tuple(f"{key}={value}" for key, value in change.items())))
    return made


def told(*changes: dict[str, Any]) -> dict[str, str]:
    made = points(*changes)
    return study_params(made, apart(made), str)


def test_few_values_are_listed_in_order_and_of_many_the_ends_are_told() -> None:
    few = told(*({"model.width": width, "seed": 1} for width in (96, 16, 64)))
    assert (few[POINTS], few[SWEPT]) == ("3", "model.width")
    assert (few["model.width"], few["seed"]) == ("16, 64, 96", "1")
    many = told(*({"budget.flops": 1e12 * (1 + i)} for i in range(30)))
    assert many["budget.flops"] == "1e+12 to 3e+13 (30 values)"
    named = told(*({"data.source": f"corpus-{i}-{'x' * 90}"} for i in range(12)))
    assert named["data.source"].startswith("corpus-0-") and named["data.source"].endswith("…")
    assert len(named["data.source"]) == LONGEST < 500


def test_dense_models_and_experts_are_told_apart_and_what_is_unset_is_left_out() -> None:
    assert told({"seed": 0})["model.family"] == "dense transformer"
    mixed = told({"model.experts": 0}, {"model.experts": 8})
    assert mixed["model.family"] == "dense transformer, mixture of experts"
    assert mixed["model.experts"] == "0, 8"
    assert "data.source" not in mixed and "budget.flops" not in mixed
    assert told() == {}
    assert SWEPT not in told({"seed": 0})


@pytest.mark.parametrize(("search", "sent"), [(None, True), ("over", True), ("", False)])
def test_a_search_is_told_once_its_points_are_known(search: str | None, sent: bool) -> None:
    store, target = FakeStore(), StoreState()
    target.parent = store.create("1", "s", None, {})
    some = points({"seed": 0}, {"seed": 1})
    assert send(store, target, some, apart(some), str, search=search) is sent
    assert (POINTS in store.held(target.parent).params) is sent
    calls = store.calls
    assert not send(store, target, some, apart(some), str, search=search), "nothing is sent twice"
    assert store.calls == calls
