"""The Step Law's rates and batches at sizes worked out by hand, and which configs are frozen ones."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from train.spec.config import RunConfig
from train.spec.later import is_frozen, keys
from train.spec.scaling_rules import batch_tokens, peak_lr


@pytest.mark.parametrize(
    ("params", "tokens", "rate"), [(10**9, 10**11, 0.001632), (10**3, 10**9, 0.05), (10**8, 10**10, 0.004159)]
)
def test_rates_of_the_step_law(params: int, tokens: int, rate: float) -> None:
    assert peak_lr(params, tokens) == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize(
    ("tokens", "length", "batch"),
    [(10**11, 2048, 541 * 2048), (10**6, 1024, 4 * 1024), (3000, 1024, 3000), (500, 1024, 1024)],
)
def test_batches_of_the_step_law(tokens: int, length: int, batch: int) -> None:
    assert batch_tokens(tokens, length) == batch


def test_a_frozen_config_has_every_key_of_the_first_schema() -> None:
    whole: dict[str, Any] = asdict(RunConfig())
    assert is_frozen(whole)
    assert not is_frozen({})
    assert not is_frozen({name: value for name, value in whole.items() if name != "seed"})
    model = {name: value for name, value in whole["model"].items() if name != "width"}
    assert not is_frozen({**whole, "model": model})
    later = [name.partition(".")[2] for name in keys() if name.startswith("model.") and name.count(".") == 1]
    assert later
    older = {name: value for name, value in whole["model"].items() if name not in later}
    assert is_frozen({**whole, "model": older}), "what came later need not be there"
