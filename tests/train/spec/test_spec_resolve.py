"""Resolving fills every derived value, is idempotent, and refuses contradictions by name."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from train.model.transformer import Transformer
from train.optim.build import make_optimizer
from train.spec.config import (
    BudgetConfig,
    DataConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    ScheduleConfig,
    SourceConfig,
)
from train.spec.counts import flops_per_token, params
from train.spec.footprint import footprint
from train.spec.mesh import Axes
from train.spec.resolve import resolve


def config(**budget: float) -> RunConfig:
    return RunConfig(budget=BudgetConfig(**budget))  # type: ignore[arg-type]


@given(
    width=st.integers(1, 16).map(lambda n: 32 * n),
    layers=st.integers(1, 8),
    flops=st.floats(1e10, 1e18),
    tied=st.booleans(),
)
def test_resolving_twice_is_resolving_once(width: int, layers: int, flops: float, tied: bool) -> None:
    model = ModelConfig(width=width, layers=layers, tied_embeddings=tied)
    once = resolve(RunConfig(model=model, budget=BudgetConfig(flops=flops)))
    assert resolve(once) == once
    assert once.budget.tokens is not None
    assert once.budget.tokens % once.data.sequence_length == 0
    exact = once.budget.tokens * flops_per_token(once.model, once.data.vocab_size, once.data.sequence_length)
    one_sequence = once.data.sequence_length * exact / once.budget.tokens
    assert abs(exact - flops) <= one_sequence


def test_two_ways_of_saying_a_run_are_one_run() -> None:
    by_ratio = resolve(config(tokens_per_param=20))
    assert by_ratio.budget.tokens is not None
    assert resolve(config(tokens=by_ratio.budget.tokens)) == by_ratio
    explicit = replace(by_ratio, model=replace(by_ratio.model, mlp_width=176, kv_heads=2))
    assert resolve(explicit) == by_ratio


@pytest.mark.parametrize(
    ("width", "head"),
    [(12, 12), (24, 12), (60, 12), (84, 12), (108, 12), (32, 8), (256, 32), (512, 64), (768, 64), (1000, 50)],
)
def test_the_derived_head_is_an_even_divisor_near_an_eighth_of_the_width(width: int, head: int) -> None:
    model = resolve(replace(config(tokens=10**6), model=ModelConfig(width=width, head_dim=None))).model
    assert model.head_dim == head


def test_lr_scale_multiplies_the_rule_once() -> None:
    plain = resolve(config(tokens=10**6)).optim
    scaled = resolve(replace(config(tokens=10**6), optim=OptimConfig(lr_scale=0.5))).optim
    assert plain.lr is not None
    assert scaled.lr == pytest.approx(plain.lr / 2)
    assert scaled.lr_scale == 1.0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (config(), ["budget.tokens, budget.flops, budget.tokens_per_param"]),
        (config(tokens=10**6, tokens_per_param=1), ["budget.tokens and budget.tokens_per_param disagree"]),
        (config(tokens=-5), ["budget.tokens=-5", "positive"]),
        (replace(config(tokens=10**6), model=ModelConfig(width=50)), ["model.width=50", "take width 64"]),
        (replace(config(tokens=10**6), model=ModelConfig(kv_heads=3)), ["model.kv_heads=3", "2 query heads"]),
        (replace(config(tokens=10**6), model=ModelConfig(head_dim=31)), ["model.head_dim=31", "odd"]),
        (replace(config(tokens=10**6), data=DataConfig(vocab_size=2_000_000)), ["data.vocab_size=2000000", "1048576"]),
        (
            replace(config(tokens=10**6), data=DataConfig(sources=(SourceConfig("a", weight=0.0),))),
            ["data.sources", "weight=0.0 of a"],
        ),
        (
            replace(config(tokens=10**6), data=DataConfig(sources=(SourceConfig("a b"),))),
            ["data.sources", "name='a b'"],
        ),
        (replace(config(tokens=10**6), model=ModelConfig(window=0)), ["model.window=0", "positive"]),
        (replace(config(tokens=10**6), model=ModelConfig(global_every=2)), ["model.global_every=2", "model.window"]),
        (
            replace(config(tokens=10**6), model=ModelConfig(logit_softcap=-1.0)),
            ["model.logit_softcap=-1.0", "0 for none"],
        ),
        (replace(config(tokens=10**6), model=ModelConfig(rope_factor=2.0)), ["model.rope_factor=2.0", "choose how"]),
        (
            replace(config(tokens=10**6), model=ModelConfig(rope_scaling="yarn", rope_factor=0.5)),
            ["model.rope_factor=0.5", "only become longer"],
        ),
        (
            replace(config(tokens=10**6), model=ModelConfig(position="alibi", rope_scaling="ntk", rope_factor=2.0)),
            ["model.rope_scaling=ntk", "model.position=alibi"],
        ),
        (
            replace(config(tokens=10**6), model=ModelConfig(rope_original_length=64)),
            ["model.rope_original_length=64", "no meaning"],
        ),
        (
            replace(config(tokens=10**6), schedule=ScheduleConfig(name="wsd", warmup_fraction=0.9)),
            ["schedule.warmup_fraction", "overlap"],
        ),
    ],
)
def test_contradictions_are_named(changed: RunConfig, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        resolve(changed)
    for word in words:
        assert word in str(caught.value)


def test_counts_of_a_model_by_hand() -> None:
    model = ModelConfig(width=64, layers=2, head_dim=32, kv_heads=1, mlp_width=176, qk_norm=True)
    attention = 64 * 64 + 2 * 64 * 32 + 64 * 64
    blocks = 2 * (attention + 3 * 64 * 176)
    norms = 2 * (2 * 64 + 2 * 32) + 64
    counted = params(model, 4096)
    assert counted.matmul == blocks + 4096 * 64
    assert counted.non_embedding == blocks + norms
    assert counted.total == blocks + norms + 2 * 4096 * 64
    assert params(replace(model, tied_embeddings=True), 4096).total == blocks + norms + 4096 * 64
    assert flops_per_token(model, 4096, 128) == 6 * counted.matmul + 12 * 2 * 64 * 128


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", ["adamw", "muon", "sgd"])
def test_planned_moments_are_those_that_the_optimizer_keeps(name: str, tied: bool) -> None:
    shape = ModelConfig(width=16, layers=2, head_dim=8, tied_embeddings=tied)
    planned = resolve(RunConfig(model=shape, budget=BudgetConfig(tokens=4096), optim=OptimConfig(name=name, lr=0.1)))
    vocabulary = planned.data.vocab_size
    model = Transformer(planned.model, vocabulary, planned.data.sequence_length)
    weights = list(model.named_parameters())
    optimizer = make_optimizer(weights, model.specs, planned.model, planned.optim)
    for _, weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    kept = sum(v.nbytes for state in optimizer.state.values() for key, v in state.items() if key != "step")
    held = sum(8 * weight.numel() for _, weight in weights)  # weights and gradients in fp32
    assert footprint(planned, Axes(), "cpu").states == held + kept
