"""Parameters and FLOPs by component against torch's own, for shapes at random; shapes for a target."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from train.memory.activation_checkpointing import modes, wrap
from train.model.init import initialise
from train.model.transformer import Transformer
from train.spec.accounting import kv_cache
from train.spec.accounting.flops import per_token, recomputed
from train.spec.accounting.parameters import parameters
from train.spec.accounting.shapes import shape_for
from train.spec.config import MemoryConfig, ModelConfig
from train.spec.counts import flops_per_token, head_dim, kv_heads, params


@st.composite
def experts(draw: st.DrawFn) -> dict[str, Any]:
    """Return the keys of any mixture of experts, or none."""
    count = draw(st.sampled_from([0, 0, 2, 5]))
    if not count:
        return {}
    each, shared = draw(st.integers(1, count)), draw(st.integers(0, 2))
    speed = draw(st.sampled_from([0.0, 0.01]))
    return {"experts": count, "experts_per_token": each, "shared_experts": shared, "router_bias_speed": speed}


@st.composite
def shapes(draw: st.DrawFn) -> ModelConfig:
    """Return any decoder of the trainer's: heads, shared keys, norms of heads, tied or not, positions, windows."""
    head, heads = draw(st.sampled_from([4, 8, 16])), draw(st.sampled_from([1, 2, 4, 6]))
    groups = draw(st.sampled_from([n for n in (1, 2, 3, 6) if heads % n == 0]))
    return ModelConfig(
        width=head * heads,
        layers=draw(st.integers(1, 4)),
        head_dim=head,
        kv_heads=draw(st.sampled_from([None, groups])),
        mlp_width=draw(st.one_of(st.none(), st.integers(1, 80))),
        qk_norm=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        position=draw(st.sampled_from(["rope", "alibi", "none"])),
        **draw(experts()),
    )


VOCABULARIES = st.integers(2, 700)


@given(shapes(), VOCABULARIES)
@settings(deadline=None, max_examples=60)
def test_parameters_by_component_are_those_of_the_module(model: ModelConfig, vocabulary: int) -> None:
    with torch.device("meta"):
        module = Transformer(model, vocabulary, 8)
    sizes = {name: weight.numel() for name, weight in module.named_parameters()}

    def of(*parts: str) -> int:
        return sum(n for name, n in sizes.items() if any(part in name for part in parts))

    found = parameters(model, vocabulary)
    assert found.embedding == of("embedding.weight")
    assert found.attention == of("attention.qkv", "attention.out")
    assert found.mlp == of(".mlp.")
    if model.experts:
        rows = sum(
            weight.shape[0] != model.experts for name, weight in module.named_parameters() if ".experts." in name
        )
        assert not rows
        idle = of(".experts.") * (model.experts - (model.experts_per_token or 0)) // model.experts
        assert found.idle == idle == found.total - found.active
    else:
        assert found.idle == 0
    assert found.norms == of("norm")
    assert found.head == of("output.weight")
    assert found.total == sum(sizes.values()) == params(model, vocabulary).total
    assert found.active == params(model, vocabulary).active
    assert found.non_embedding - found.idle == params(model, vocabulary).non_embedding
    assert found.matmul == params(model, vocabulary).matmul


def counted(model: ModelConfig, vocabulary: int, length: int, memory: MemoryConfig) -> tuple[int, int]:
    """Return the FLOPs of a token that torch counts in the forward pass and in both."""
    module = Transformer(model, vocabulary, length)
    initialise(module, 0)
    wrap(list(module.blocks.values()), modes(memory, model.layers))
    tokens = torch.randint(0, vocabulary, (2, length))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        loss = module(tokens, tokens)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as backward:
        torch.autograd.backward(loss)
    done, again = forward.get_total_flops(), backward.get_total_flops()
    assert done % (2 * length) == again % (2 * length) == 0
    return done // (2 * length), (done + again) // (2 * length)


@given(shapes(), VOCABULARIES, st.integers(2, 24))
@settings(deadline=None, max_examples=25)
def test_flops_are_those_that_torch_counts(model: ModelConfig, vocabulary: int, length: int) -> None:
    found = per_token(model, vocabulary, length)
    forward, both = counted(model, vocabulary, length, MemoryConfig())
    assert both == found.training == flops_per_token(model, vocabulary, length)
    # The head makes its gradients where it makes its loss (kernels.cross_entropy.linear).
    assert forward == found.forward + 2 * found.head
    assert found.without_attention == 6 * parameters(model, vocabulary).matmul
    assert found.without_head == found.training - 6 * vocabulary * model.width


@given(shapes(), st.sampled_from([("full", 1), ("every", 2), ("every", 3), ("selective", 1)]))
@settings(deadline=None, max_examples=25)
def test_what_is_made_again_is_what_torch_counts_more(model: ModelConfig, policy: tuple[str, int]) -> None:
    memory = MemoryConfig(checkpointing=policy[0], every=policy[1])
    _, both = counted(model, 300, 12, memory)
    assert both - per_token(model, 300, 12).training == recomputed(model, 12, memory)


def test_a_window_bounds_what_scores_cost() -> None:
    model = ModelConfig(width=64, layers=4, head_dim=16, window=8, global_every=4)
    assert per_token(model, 300, 32).scores == 4 * 64 * (3 * 8 + 32)
    again = recomputed(model, 32, MemoryConfig(checkpointing="every", every=3))
    one = 2 * (4 * 64 * 64 + 2 * 176 * 64)
    assert again == 2 * one + 4 * 64 * (8 + 32), "blocks 0 and 3, the last with all keys"


@given(shapes())
@settings(deadline=None, max_examples=20)
def test_a_key_value_cache_is_as_large_as_ours(model: ModelConfig) -> None:
    each = 2 * kv_heads(model) * head_dim(model) * model.layers
    assert kv_cache.per_token(model) == 2 * each
    assert kv_cache.of_sequences(model, 3, 5, bytes_per_number=4) == 4 * each * 15
    assert kv_cache.of_sequences(model, 1, 1, tp=kv_heads(model), pp=model.layers) == 4 * head_dim(model)


@pytest.mark.parametrize("target", [2e6, 1e7, 1.5e8, 1e9, 7e9, 3e10, 7e10, 4e11])
def test_a_shape_for_a_target_has_about_that_many(target: float) -> None:
    vocabulary = 4096 if target < 1e8 else 50304
    for total in (True, False):
        shape = shape_for(target, vocabulary, total=total)
        counts = parameters(shape, vocabulary)
        assert abs((counts.total if total else counts.non_embedding) / target - 1) <= 0.02
        assert shape.width % head_dim(shape) == 0
        assert 1 / 2 <= shape.width / shape.layers / 100 <= 2 or target < 1e9, "as deep as published models are"


def test_a_shape_keeps_the_other_settings_and_says_what_is_too_small() -> None:
    like = ModelConfig(head_dim=128, tied_embeddings=True, qk_norm=False)
    shape = shape_for(1e9, like=like)
    assert (shape.head_dim, shape.tied_embeddings, shape.qk_norm, shape.width % 128) == (128, True, False, 0)
    deep, flat = (shape_for(1e9, aspect_ratio=ratio) for ratio in (30, 300))
    assert deep.width < flat.width and deep.layers > flat.layers
    with pytest.raises(ValueError, match=r"params=1000 with vocab_size=50304 is not possible: .* has 6,4\d\d,\d\d\d"):
        shape_for(1000)
    assert math.isfinite(parameters(shape_for(1e12), 50304).total)
