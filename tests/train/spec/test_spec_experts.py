"""Keys of experts: what is derived, what contradicts, and what does not go together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from train.spec.accounting.step import of_rank
from train.spec.communication.messages import Message
from train.spec.communication.step import step_messages
from train.spec.config import BudgetConfig, CompileConfig, ModelConfig, ParallelConfig, RunConfig
from train.spec.counts import block_weights
from train.spec.later import without
from train.spec.mesh import axes
from train.spec.pipeline_layout import share_of
from train.spec.resolve import resolve
from train.spec.shard_shapes import gathered, largest_shard
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

    names = {"experts", "experts_per_token", "shared_experts", "router_score", "balance_weight", "router_bias_speed"}
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
        (
            "model",
            {"router_bias_speed": -1.0},
            r"model.router_bias_speed=-1.0 is not allowed: 0 \(no bias\) or positive",
        ),
        ("model", {"experts": 0, "router_bias_speed": 0.1}, r"model.router_bias_speed=0.1 has no meaning"),
        ("model", {"experts": 0, "experts_per_token": 2}, r"model.experts_per_token=2 has no meaning .* leave it null"),
        ("model", {"experts": 0, "router_score": "sigmoid"}, r"model.router_score=sigmoid has no meaning"),
        ("model", {"mup_base_width": 32}, r"model.experts=8 is refused here: model.mup_base_width=32 has no rule"),
        ("parallel", {"tp": 2}, r"parallel.tp=2 does not cut layers of experts: use parallel.tp=1"),
        ("parallel", {"ep": 0}, r"parallel.ep=0 is not allowed"),
        ("parallel", {"ep": 3}, r"parallel.ep=3 does not divide model.experts=8: .* it may be 1, 2, 4, 8"),
        ("parallel", {"ep": 4, "dp_shard": 2}, r"parallel.ep=4 does not divide dp_shard x cp = 2"),
        ("parallel", {"ep": 2, "dp_shard": 2, "strategy": "fsdp1"}, r"parallel.ep=2 needs parallel.strategy=fsdp"),
        ("parallel", {"ep": 2, "dp_shard": 14}, r"model.width=64 cannot be cut over dp_shard x cp / ep = 7 ranks"),
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


def test_ranks_share_experts_that_there_are_and_blocks_are_not_compiled() -> None:
    shared = changed("parallel", ep=2, dp_shard=2, dp_replicate=1)
    assert axes(resolve(shared).parallel, 2).expert_fsdp == 1
    with pytest.raises(ValueError, match=r"parallel.ep=2 with compile.blocks=true is refused"):
        resolve(replace(shared, compile=CompileConfig(blocks=True)))
    with pytest.raises(ValueError, match=r"parallel.ep=2 shares experts and model.experts=0 has none"):
        resolve(replace(shared, model=ModelConfig()))


def test_what_ranks_of_experts_hold_is_cut_by_both() -> None:
    model = replace(resolve(CONFIG).model, mlp_width=96)
    weights = block_weights(model)
    gate_up, router = weights["mlp.experts.gate_up"], weights["mlp.router"]
    assert largest_shard(gate_up, 16, ep=4) == gate_up.numbers // 16
    assert gathered([gate_up], 16, ep=4) == gate_up.numbers // 4
    assert gathered([router], 16, ep=4) == router.numbers


def test_biases_of_experts_are_on_the_sheet_and_in_the_messages() -> None:
    """Four bytes of each expert and layer that a rank has; its loads are summed once a step over ranks with tokens."""
    plain = resolve(replace(changed("model", layers=4), parallel=ParallelConfig(pp=2, dp_shard=2, dp_replicate=1)))
    biased = replace(plain, model=replace(plain.model, router_bias_speed=0.001))
    shape = axes(plain.parallel, 4)
    layers = share_of(biased, 2, 0)[0]
    assert 1 <= layers < 4
    one, other = (of_rank(config, shape, "cuda", 1, 0) for config in (plain, biased))
    for before, after in zip(one.moments, other.moments, strict=True):
        assert after.parts["weights"] - before.parts["weights"] == 4 * 8 * layers
    more = set(step_messages(biased, shape, 0)) - set(step_messages(plain, shape, 0))
    assert more == {Message("all_reduce", "tokens", 2, 8 * 8 * layers, 1, "tokens of experts", "update")}
