from __future__ import annotations

from dataclasses import replace

import pytest

from study.point import Point
from study.where import Condition, matching, parse
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


def test_several_conditions_narrow_the_choice() -> None:
    assert matching(POINTS, [parse("model.width>64"), parse("seed<3")]) == {"w128-s2"}
    assert matching(POINTS, [parse("model.width=64"), parse("seed=3")]) == set()
    assert matching(POINTS, []) == set(POINTS)


def test_the_words_of_a_condition() -> None:
    assert parse("a.b=1, 2") == Condition("a.b", "=", ("1", "2"))
    assert parse("a.b!=x").text == "a.b!=x"


@pytest.mark.parametrize(
    ("text", "said"),
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
    ],
)
def test_what_cannot_be_chosen_is_said(text: str, said: str) -> None:
    with pytest.raises(ValueError, match="--where") as caught:
        matching(POINTS, [parse(text)])
    assert said in str(caught.value)
