"""Activations of blocks and ends against what autograd saves, byte for byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch.distributed as dist
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from kernels.core import dispatch
from tests.train.spec.accounting.test_accounting_counts import experts
from tests.train.spec.saved_tensors import saved
from train.memory.activation_checkpointing import modes, wrap
from train.model.transformer import Transformer
from train.parallel.experts import Exchange, expert_layers
from train.precision.float8 import convert
from train.spec.accounting import kept
from train.spec.config import DataConfig, MemoryConfig, ModelConfig, ParallelConfig, PrecisionConfig, RunConfig
from train.spec.counts import block_weights
from train.spec.mesh import Axes


def config_of(model: ModelConfig, precision: str, length: int = 16, vocabulary: int = 64) -> RunConfig:
    data = DataConfig(sequence_length=length, vocab_size=vocabulary)
    return RunConfig(model, data, precision=PrecisionConfig(name=precision))


def weights_kept(config: RunConfig, per_number: int) -> int:
    """Return the bytes of one block's casts, which autograd saves too."""
    return per_number * sum(w.numbers for w in block_weights(config.model).values() if len(w.shape) > 1)


@st.composite
def models(draw: st.DrawFn) -> ModelConfig:
    head, heads = draw(st.sampled_from([8, 16])), draw(st.sampled_from([2, 4]))
    return ModelConfig(
        width=head * heads,
        layers=2,
        head_dim=head,
        kv_heads=draw(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0])),
        mlp_width=draw(st.sampled_from([None, 48, 80])),
        qk_norm=draw(st.booleans()),
        position=draw(st.sampled_from(["rope", "rope", "none", "alibi"])),
        window=draw(st.sampled_from([None, None, 8])),
        **draw(experts()),
        router_score=draw(st.sampled_from(["softmax", "sigmoid"])),
        balance_weight=draw(st.sampled_from([0.0, 0.01])),
    )


ONE_KEY = ModelConfig(width=32, layers=2, head_dim=8, kv_heads=1, mlp_width=48, qk_norm=False, position="none")
"""Four heads that share one key, without rotations: what lies side by side is kept as views."""


@given(models(), st.sampled_from(["fp32", "bf16"]), st.sampled_from([1, 2, 4]))
@example(ONE_KEY, "bf16", 2)
@example(replace(ONE_KEY, kv_heads=2), "bf16", 2)
@example(replace(ONE_KEY, position="alibi", window=8), "fp32", 4)
@settings(deadline=None, max_examples=30)
def test_a_block_on_a_cpu_keeps_exactly_what_is_said(model: ModelConfig, precision: str, sequences: int) -> None:
    config = config_of(model, precision)
    one, two = (saved(config, layers, sequences, False, lambda module: None) for layers in (1, 2))
    found = two - one - (weights_kept(config, 2) if precision == "bf16" else 0)
    assert found == kept.block_bytes(config, Axes(), "cpu", "none", sequences)


@given(models(), st.sampled_from(["fp32", "bf16"]))
@settings(deadline=None, max_examples=15)
def test_a_checkpointed_block_keeps_its_input(model: ModelConfig, precision: str) -> None:
    config = config_of(replace(model, position="rope", window=None), precision)
    whole = MemoryConfig(checkpointing="full")
    one, two = (
        saved(
            config,
            layers,
            2,
            False,
            lambda module: wrap(list(module.blocks.values()), modes(whole, len(module.blocks))),
        )
        for layers in (1, 2)
    )
    assert two - one == kept.block_bytes(config, Axes(), "cpu", "full", 2)


@pytest.mark.parametrize(("precision", "cast"), [("bf16", 2), ("fp32", 0), ("fp8", 1)])
@pytest.mark.parametrize("width", [256, 768])
@pytest.mark.parametrize("qk_norm", [True, False])
def test_a_block_on_a_gpu_keeps_exactly_what_is_said(
    precision: str, cast: int, width: int, qk_norm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Operators that run on CUDA can be called, with tensors that have shapes and no numbers.
    monkeypatch.setattr(dispatch._Choice, "interpreted", True)
    monkeypatch.setattr(dispatch._Choice, "mode", "triton")
    model = ModelConfig(width=width, head_dim=64, qk_norm=qk_norm)
    routed = replace(model, experts=6, experts_per_token=3, shared_experts=1)
    for one in (model, routed) if precision != "fp8" else (model,):
        config = config_of(one, precision, length=64)
        assert on_gpu(config, cast) == kept.block_bytes(config, Axes(), "cuda", "none", 2)


def on_gpu(config: RunConfig, cast: int) -> int:
    """Return the bytes that autograd saves of one block, without casts of weights, which take `cast` a number."""
    precision = config.precision.name

    def narrowed(module: Transformer) -> None:
        if precision == "fp8":
            convert({int(name): block for name, block in module.blocks.items()}, len(module.blocks), config.precision)

    one, two = (saved(config, layers, 2, True, narrowed) for layers in (1, 2))
    factors = 4 * 8 if precision == "fp8" else 0  # of both tensors of four products
    return two - one - weights_kept(config, cast) - factors


def test_rows_that_come_from_other_ranks_keep_their_order() -> None:
    parallel = ParallelConfig(ep=2, dp_shard=2)
    config = replace(config_of(ModelConfig(width=32, head_dim=8, experts=6), "fp32"), parallel=parallel)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        assert dist.group.WORLD is not None
        alone = Exchange(dist.group.WORLD)

        def shared(module: Transformer) -> None:
            for layer in expert_layers(module):
                layer.exchange = alone

        one, two = (saved(config, layers, 2, False, shared) for layers in (1, 2))
    finally:
        dist.destroy_process_group()
    assert two - one == kept.block_bytes(config, Axes(), "cpu", "none", 2)
