from __future__ import annotations

from dataclasses import replace

import pytest

from study.config.dotted import flat
from study.records.point import Point
from study.status.filters import Condition, _unknown, as_typed, matching, parse
from train.spec.config import BudgetConfig, ModelConfig, RunConfig


def make(width: int, lr: float, seed: int, tied: bool = False, window: int | None = None) -> Point:
    base = RunConfig()
    model = ModelConfig(width=width, tied_embeddings=tied, window=window)
    config = replace(base, model=model, optim=replace(base.optim, lr=lr), seed=seed, budget=BudgetConfig(tokens=1000))
    return Point(f"w{width}-s{seed}", config)


POINTS = {p.key: p for p in (make(64, 1e-3, 1), make(128, 3e-4, 2, tied=True), make(512, 1e-4, 3, window=32))}


@pytest.mark.parametrize(
    ("text", "widths"),
    [
        ("model.width=128", {128}),
        ("model.width == 1.28e2", {128}),
        ("model.width=64,512", {64, 512}),
        ("model.width!=64,512", {128}),
        ("optim.lr<1e-3", {128, 512}),
        ("optim.lr<=1e-3", {64, 128, 512}),
        ("seed>1", {128, 512}),
        ("seed >= 3", {512}),
        ("model.tied_embeddings=true", {128}),
        ("model.window=null", {64, 128}),
        ("model.window>8", {512}),
        ("model.position=rope", {64, 128, 512}),
    ],
)
def test_conditions(text: str, widths: set[int]) -> None:
    assert {POINTS[key].config.model.width for key in matching(POINTS, [parse(text)])} == widths


def test_of_keys_that_are_spelt_alike_the_nearest_three_are_named() -> None:
    config = {f"section_of_many_letters.{leaf}": 1 for leaf in ("rates", "rated", "ratio", "rate_")}
    assert _unknown("x.rate", config).count("section_of_many_letters") == 3


def test_several_conditions_narrow_the_choice() -> None:
    assert matching(POINTS, [parse("model.width>64"), parse("seed<3")]) == {"w128-s2"}
    assert matching(POINTS, [parse("model.width=64"), parse("seed=3")]) == set()
    assert matching(POINTS, []) == set(POINTS)


def test_the_words_of_a_condition() -> None:
    assert parse("a.b=1, 2") == Condition("a.b", "=", ("1", "2"))
    assert parse("a.b!=x").text == "a.b!=x"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("width", "is not a condition: write model.width=512"),
        ("model.width=", "is not a condition"),
        ("model.width=1,,2", "empty value"),
        ("width=64", "have no key 'width': did you mean model.width"),
        ("model.widht=64", "did you mean model.width"),
        ("model.width=256", "no point has that: model.width is 64, 128, 512"),
        ("model.width=wide", "model.width is a number, 'wide' is not"),
        ("model.tied_embeddings=yes", "is true or false, not 'yes'"),
        ("model.position<rope", "is text: only = and != compare it"),
        ("model.window=64", "no point has that: model.window is 32, null"),
        ("optim.lr=1", "no point has that: optim.lr is 0.0001, 0.0003, 0.001"),
        ("model.tied_embeddings>1", "no point has that: model.tied_embeddings is false, true"),
        ("model.window>many", "model.window is a number, 'many' is not"),
        ("model.qqqqqqqq=1", "python -m study.sweep --help lists every key"),
        ("modle.widht=1", "did you mean model.width"),
        ("zzzzzzzzzzzzzz.widht=1", "did you mean model.width"),
        ("seed=1.5,x", "seed is a number, 'x' is not"),
    ],
)
def test_what_cannot_be_chosen_is_said(text: str, part: str) -> None:
    with pytest.raises(ValueError, match="--where") as caught:
        matching(POINTS, [parse(text)])
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), (False, "false"), ([1, None], "[1,null]"), (("a",), "[a]"), (3e-4, "0.0003"),
     (2.0, "2"), (7, "7"), ("rope", "rope")],
)  # fmt: skip
def test_values_are_said_as_they_are_typed(value: object, text: str) -> None:
    assert as_typed(value) == text


def test_lists_are_met_whole_or_by_one_of_their_items() -> None:
    assert flat({"a": {"b": {"c": 1}, "d": 2}, "e": 3}) == {"a.b.c": 1, "a.d": 2, "e": 3}
    layers = ((3, 4), (3, 5), (2, 4))
    points = {
        point.key: Point(point.key, replace(point.config, parallel=replace(point.config.parallel, pp_layers=each)))
        for point, each in zip(POINTS.values(), layers, strict=True)
    }
    assert matching(points, [parse("parallel.pp_layers=3")]) == {"w64-s1", "w128-s2"}
    assert matching(points, [parse("parallel.pp_layers!=3")]) == {"w512-s3"}
    assert matching(points, [parse("parallel.pp_layers=5,2")]) == {"w128-s2", "w512-s3"}


def test_at_most_eight_values_are_listed_by_size() -> None:
    points = {p.key: p for p in (make(64, 1e-3, seed) for seed in range(20, 9, -1))}
    with pytest.raises(ValueError, match=r"seed is 10, 11, 12, 13, 14, 15, 16, 17 and 3 more$"):
        matching(points, [parse("seed=1")])
    eight = dict(list(points.items())[:8])
    with pytest.raises(ValueError, match=r"seed is 13, 14, 15, 16, 17, 18, 19, 20$"):
        matching(eight, [parse("seed=1")])


def test_no_points_meet_any_condition() -> None:
    assert matching({}, [parse("any.thing=1")]) == set()
