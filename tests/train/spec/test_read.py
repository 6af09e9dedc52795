"""Reading mappings into dataclasses: every key, type and choice is checked, and the error says what to do."""

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.spec.config import RunConfig
from train.spec.read import read


def test_defaults_survive_a_round_trip() -> None:
    config = RunConfig()
    assert read(RunConfig, asdict(config)) == config


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"model": {"widht": 3}}, ["'model.widht'", "did you mean 'model.width'?"]),
        ({"modle": {}}, ["'modle'", "did you mean 'model'?"]),
        ({"zzz": 1}, ["'zzz'", "budget", "schedule"]),
        ({"model": {"width": "wide"}}, ["model.width='wide'", "a whole number"]),
        ({"model": {"width": 1.5}}, ["model.width=1.5", "a whole number"]),
        ({"model": {"width": None}}, ["model.width=null", "a whole number"]),
        ({"model": {"width": True}}, ["model.width=True", "a whole number"]),
        ({"model": {"qk_norm": 1}}, ["model.qk_norm=1", "true or false"]),
        ({"optim": {"eps": float("nan")}}, ["optim.eps=nan", "a finite number"]),
        ({"schedule": {"name": "cosin"}}, ["schedule.name='cosin'", "cosine, wsd, linear, constant"]),
        ({"model": {"width": "64.5"}}, ["model.width='64.5'", "a whole number"]),
        ({"optim": {"eps": "nan"}}, ["optim.eps='nan'", "a finite number"]),
        ({"model": 3}, ["model=3", "a section with keys of its own"]),
    ],
)
def test_bad_values_are_named(mapping: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        read(RunConfig, mapping)
    for word in words:
        assert word in str(caught.value)


@given(st.integers(1, 10**9))
def test_whole_floats_are_ints_and_ints_are_floats(value: int) -> None:
    config = read(RunConfig, {"budget": {"tokens": float(value), "flops": value}})
    assert config.budget.tokens == value
    assert isinstance(config.budget.tokens, int)
    assert isinstance(config.budget.flops, float)


def test_text_that_says_a_number_is_one() -> None:
    config = read(
        RunConfig, {"budget": {"tokens": "4e7", "flops": "1e12"}, "model": {"qk_norm": "False", "width": "64"}}
    )
    assert (config.budget.tokens, config.budget.flops, config.model.width) == (40_000_000, 1e12, 64)
    assert config.model.qk_norm is False
    assert read(RunConfig, {"data": {"name": "64"}}).data.name == "64"
