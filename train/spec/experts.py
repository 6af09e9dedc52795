"""Mixtures of experts: what their keys may say, and with what they do not go together, before anything starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from train.spec.config import ModelConfig, RunConfig
from train.spec.counts import experts_per_token

Reasons = Iterable[tuple[bool, str]]


def resolve_experts(model: ModelConfig) -> ModelConfig:
    """Return the model section with the number of experts of a token filled; ValueError where keys contradict."""
    if model.experts < 0 or model.experts == 1:
        raise ValueError(f"model.experts={model.experts} is not allowed: 2 or more, or 0 for dense layers")
    if not model.experts:
        _check_dense(model)
        return model
    chosen = experts_per_token(model)
    if not 1 <= chosen <= model.experts:
        raise ValueError(
            f"model.experts_per_token={chosen} is not allowed with model.experts={model.experts}: 1 to {model.experts}"
        )
    if model.shared_experts < 0:
        raise ValueError(f"model.shared_experts={model.shared_experts} is not allowed: 0 (none) or more")
    if model.balance_weight < 0:
        raise ValueError(f"model.balance_weight={model.balance_weight} is not allowed: 0 (off) or positive")
    return replace(model, experts_per_token=chosen)


def _check_dense(model: ModelConfig) -> None:
    plain = ModelConfig()
    for name in ("experts_per_token", "shared_experts", "router_score", "balance_weight"):
        value, usual = getattr(model, name), getattr(plain, name)
        if value != usual:
            said = "null" if usual is None else usual
            raise ValueError(
                f"model.{name}={value} has no meaning with model.experts=0: set model.experts, or leave it {said}"
            )


def check_experts(config: RunConfig) -> None:
    """Raise ValueError, with the reason, where layers of experts cannot run with the rest of a config."""
    if not config.model.experts:
        return
    parallel, precision = config.parallel, config.precision.name
    reasons: Reasons = (
        (
            parallel.tp > 1,
            f"parallel.tp={parallel.tp} does not cut layers of experts: use parallel.tp=1 and parallel.dp_shard",
        ),
        (
            parallel.pp > 1,
            f"the loss that balances experts does not pass the stages of parallel.pp={parallel.pp}: use parallel.pp=1",
        ),
        (
            precision in ("fp8", "fp16"),
            f"products of experts have no precision={precision}: use precision=bf16 or fp32",
        ),
        (
            config.model.mup_base_width is not None,
            f"model.mup_base_width={config.model.mup_base_width} has no rule for routers: leave it null and give "
            "optim.lr",
        ),
        (
            config.model.init_from is not None,
            "model.init_from has weights of dense models only: leave it null",
        ),
        (
            config.compile.cuda_graphs,
            "compile.cuda_graphs=true replays fixed sizes, and those of experts change: use compile.cuda_graphs=false",
        ),
    )
    for holds, why in reasons:
        if holds:
            raise ValueError(f"model.experts={config.model.experts} is refused here: {why}")
