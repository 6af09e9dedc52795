"""Filling every derived value of a config, so that a frozen config holds numbers only."""

from __future__ import annotations

import re
from dataclasses import replace

from train.spec import largest, mesh, recipe, scaling_rules
from train.spec.config import BudgetConfig, DataConfig, ModelConfig, RunConfig
from train.spec.counts import flops_per_token, params
from train.spec.decoder import resolve_model
from train.spec.extensions import canonical
from train.spec.manifest import BYTES_VOCABULARY, LARGEST_VOCABULARY
from train.spec.pipeline_layout import fitting_stages


def resolve(config: RunConfig, begun: bool = False) -> RunConfig:
    """Return the config with every derivable None filled; ValueError where values contradict each other.

    Idempotent, so a frozen config resolves to itself. `begun`: it is one of a run that has begun
    (train.spec.deprecated).
    """
    largest.check(config)
    recipe.check_mup(config)
    data = _resolve_data(config.data)
    model = resolve_model(config.model, data.sequence_length)
    tokens = _tokens(config.budget, model, data)
    batch = config.batch.tokens
    if batch is None:
        batch = scaling_rules.batch_tokens(tokens, data.sequence_length)
    _check_positive("batch.tokens", batch)
    if batch % data.sequence_length:
        raise ValueError(
            f"batch.tokens={batch} is not a multiple of data.sequence_length={data.sequence_length}: "
            f"the nearest is {max(1, round(batch / data.sequence_length)) * data.sequence_length}"
        )
    optim = recipe.optimizer(config, params(model, data.vocab_size), tokens)
    recipe.check_schedule(config)
    recipe.check_ramp(config, min(batch, tokens))
    recipe.check_watching(config)
    recipe.check_checkpoints(config)
    recipe.check_running(config)
    resolved = replace(
        config,
        model=model,
        data=data,
        batch=replace(config.batch, tokens=min(batch, tokens)),
        optim=optim,
        budget=BudgetConfig(tokens=tokens, flops=config.budget.flops, tokens_per_param=None),
        parallel=replace(config.parallel, pp_stages=fitting_stages(config.parallel, model.layers)),
    )
    mesh.check(resolved, saves=False, begun=begun)
    return resolved


def _resolve_data(data: DataConfig) -> DataConfig:
    for name in ("vocab_size", "sequence_length"):
        _check_positive(f"data.{name}", getattr(data, name))
    if data.max_bytes is not None:
        _check_positive("data.max_bytes", data.max_bytes)
    if not 0 < data.validation_fraction < 1:
        raise ValueError(f"data.validation_fraction={data.validation_fraction} is not between 0 and 1")
    for source in data.sources:
        if source.weight <= 0:
            raise ValueError(
                f"data.sources: weight={source.weight} of {source.name} is not positive: leave the source out"
            )
        if not re.fullmatch(r"[\w.-]+", source.name):
            raise ValueError(f"data.sources: name={source.name!r} is not allowed: letters, digits and . _ - only")
    data = replace(
        data,
        extensions=canonical(data.extensions, data.source),
        sources=tuple(
            replace(one, extensions=canonical(one.extensions, one.source, f"data.sources.{place}.extensions"))
            for place, one in enumerate(data.sources)
        ),
    )
    if data.tokenizer == "bytes" and data.vocab_size != BYTES_VOCABULARY:
        return replace(data, vocab_size=BYTES_VOCABULARY)
    if data.vocab_size > LARGEST_VOCABULARY:
        raise ValueError(f"data.vocab_size={data.vocab_size} is too large: at most {LARGEST_VOCABULARY}")
    return data


def _tokens(budget: BudgetConfig, model: ModelConfig, data: DataConfig) -> int:
    """Return the token budget as whole sequences: exactly one way of saying it, or tokens with their flops label."""
    given = [name for name in ("tokens", "flops", "tokens_per_param") if getattr(budget, name) is not None]
    if not given:
        raise ValueError("budget is empty: give one of budget.tokens, budget.flops, budget.tokens_per_param")
    for name in given:
        _check_positive(f"budget.{name}", getattr(budget, name))
    by_flops = by_ratio = None
    if budget.flops is not None:
        by_flops = budget.flops / flops_per_token(model, data.vocab_size, data.sequence_length)
    if budget.tokens_per_param is not None:
        by_ratio = budget.tokens_per_param * params(model, data.vocab_size).matmul
    wanted = next(float(w) for w in (budget.tokens, by_flops, by_ratio) if w is not None)
    tokens = max(1, round(wanted / data.sequence_length)) * data.sequence_length
    for other in (by_flops, by_ratio):
        if other is not None and abs(other - tokens) > max(data.sequence_length, 1e-9 * other):
            raise ValueError(f"{' and '.join('budget.' + g for g in given)} disagree: give only one of them")
    return tokens


def _check_positive(name: str, value: float) -> None:
    if value <= 0:
        raise ValueError(f"{name}={value} is not allowed: it must be positive")
