"""Keys of experts: what is derived, what contradicts, and what does not go together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from train.spec.config import BudgetConfig, ModelConfig, RunConfig
from train.spec.later import without
from train.spec.resolve import resolve
from train.spec.step_graph import obstacle

CONFIG = RunConfig(model=ModelConfig(experts=8), budget=BudgetConfig(tokens=10**6))


def changed(section: str, **keys: Any) -> RunConfig:
    return replace(CONFIG, **{section: replace(getattr(CONFIG, section), **keys)})


def test_a_token_goes_through_two_experts_unless_it_is_said() -> None:
    assert resolve(CONFIG).model.experts_per_token == 2
    assert resolve(changed("model", experts_per_token=3)).model.experts_per_token == 3
    assert resolve(RunConfig(budget=CONFIG.budget)).model.experts_per_token is None


def test_a_dense_model_is_what_it_was() -> None:
    from dataclasses import asdict

    names = {"experts", "experts_per_token", "shared_experts", "router_score", "balance_weight"}
    assert not names & set(without(asdict(ModelConfig()), ModelConfig))


def test_a_step_of_experts_is_no_graph() -> None:
    assert "model.experts=8" in (obstacle(resolve(CONFIG), "cuda", 1) or "")


@pytest.mark.parametrize(
    ("section", "keys", "message"),
    [
        ("model", {"experts": 1}, r"model.experts=1 is not allowed: 2 or more, or 0"),
        ("model", {"experts_per_token": 9}, r"model.experts_per_token=9 is not allowed with model.experts=8: 1 to 8"),
        ("model", {"shared_experts": -1}, r"model.shared_experts=-1 is not allowed"),
        ("model", {"balance_weight": -1.0}, r"model.balance_weight=-1.0 is not allowed"),
        ("model", {"experts": 0, "experts_per_token": 2}, r"model.experts_per_token=2 has no meaning .* leave it null"),
        ("model", {"experts": 0, "router_score": "sigmoid"}, r"model.router_score=sigmoid has no meaning"),
        ("model", {"mup_base_width": 32}, r"model.experts=8 is refused here: model.mup_base_width=32 has no rule"),
        ("model", {"init_from": "weights"}, r"model.init_from has weights of dense models only"),
        ("parallel", {"tp": 2}, r"parallel.tp=2 does not cut layers of experts: use parallel.tp=1"),
        ("parallel", {"pp": 2}, r"parallel.pp=2: use parallel.pp=1"),
        ("precision", {"name": "fp8"}, r"no precision=fp8: use precision=bf16 or fp32"),
        ("compile", {"blocks": True, "cuda_graphs": True}, r"compile.cuda_graphs=true replays fixed sizes"),
    ],
)
def test_what_cannot_be_is_refused_before_it_starts(section: str, keys: dict[str, Any], message: str) -> None:
    config = changed(section, **keys)
    if "mup_base_width" in keys:
        config = replace(config, optim=replace(config.optim, lr=0.01))
    with pytest.raises(ValueError, match=message):
        resolve(config)
