"""Mixtures of experts: what their keys may say, and with what they do not go together, before anything starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from train.spec.config import ModelConfig, RunConfig
from train.spec.counts import experts_per_token, mlp_width

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
    if model.router_bias_speed < 0:
        raise ValueError(f"model.router_bias_speed={model.router_bias_speed} is not allowed: 0 (no bias) or positive")
    return replace(model, experts_per_token=chosen)


def _check_dense(model: ModelConfig) -> None:
    plain = ModelConfig()
    for name in ("experts_per_token", "shared_experts", "router_score", "balance_weight", "router_bias_speed"):
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
            precision in ("fp8", "fp16"),
            f"products of experts have no precision={precision}: use precision=bf16 or fp32",
        ),
        (
            config.model.mup_base_width is not None,
            f"model.mup_base_width={config.model.mup_base_width} has no rule for routers: leave it null and give "
            "optim.lr",
        ),
        (
            config.compile.cuda_graphs,
            "compile.cuda_graphs=true replays fixed sizes, and those of experts change: use compile.cuda_graphs=false",
        ),
    )
    for holds, why in reasons:
        if holds:
            raise ValueError(f"model.experts={config.model.experts} is refused here: {why}")


def check_shared_experts(config: RunConfig, ranks: int | None) -> None:
    """Raise ValueError, with the reason, where ranks cannot share experts. ranks: dp_shard x cp, where it is known."""
    parallel, model = config.parallel, config.model
    ep, said = parallel.ep, f"parallel.ep={parallel.ep}"
    if ep < 1:
        raise ValueError(f"{said} is not allowed: at least one rank has the experts")
    if ep == 1:
        return
    if not model.experts:
        raise ValueError(f"{said} shares experts and model.experts=0 has none: set model.experts, or parallel.ep=1")
    if model.experts % ep:
        sizes = ", ".join(str(size) for size in range(1, model.experts + 1) if model.experts % size == 0)
        raise ValueError(
            f"{said} does not divide model.experts={model.experts}: each rank has as many; it may be {sizes}"
        )
    ranks = ranks or (None if parallel.dp_shard is None else parallel.dp_shard * parallel.cp)
    if parallel.strategy not in ("auto", "fsdp"):
        raise ValueError(
            f"{said} needs parallel.strategy=fsdp, not {parallel.strategy}: shards know whose experts they are"
        )
    if config.compile.blocks:
        raise ValueError(
            f"{said} with compile.blocks=true is refused: as many rows come as others send, another number every time; "
            "use compile.blocks=false"
        )
    if ranks is None:
        return
    if ranks % ep:
        raise ValueError(
            f"{said} does not divide dp_shard x cp = {ranks}: ranks that share experts are some of those that share "
            f"all weights; set parallel.dp_shard to a multiple of {ep}"
        )
    for name, size in (("width", model.width), ("mlp_width", mlp_width(model))):
        if size % (ranks // ep):
            raise ValueError(
                f"model.{name}={size} cannot be cut over dp_shard x cp / ep = {ranks // ep} ranks, as the experts of "
                f"parallel.ep={ep} are: choose a multiple of {ranks // ep}, or another parallel.ep"
            )
