"""The counts of train.spec against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from train.model.init import initialise
from train.model.transformer import Transformer
from train.spec.config import ModelConfig
from train.spec.counts import flops_per_token, params

SHAPES = [
    ModelConfig(width=64, layers=2, head_dim=32),
    ModelConfig(width=64, layers=3, head_dim=16, kv_heads=2),
    ModelConfig(width=96, layers=1, head_dim=32, kv_heads=1, tied_embeddings=True),
    ModelConfig(width=64, layers=2, head_dim=32, qk_norm=False, tied_embeddings=True),
    ModelConfig(width=32, layers=1, head_dim=8, mlp_width=100, kv_heads=4, qk_norm=False),
]


@pytest.mark.parametrize("config", SHAPES)
@pytest.mark.parametrize("vocab_size", [257, 1000])
def test_parameters_are_counted_exactly(config: ModelConfig, vocab_size: int) -> None:
    model = Transformer(config, vocab_size, 8)
    counts = params(config, vocab_size)
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    assert sum(sizes.values()) == counts.total
    assert sizes["embedding.weight"] == counts.embedding
    assert (
        sum(n for name, n in sizes.items() if name not in ("embedding.weight", "output.weight")) == counts.non_embedding
    )
    blocks = sum(w.numel() for name, w in model.named_parameters() if w.dim() >= 2 and name.startswith("blocks"))
    assert blocks + model.head.numel() == counts.matmul


@pytest.mark.parametrize("config", SHAPES)
@pytest.mark.parametrize("length", [16, 40])
def test_flops_are_those_that_torch_counts(config: ModelConfig, length: int) -> None:
    vocab_size, batch = 300, 3
    model = Transformer(config, vocab_size, length)
    initialise(model, 0)
    tokens = torch.randint(0, vocab_size, (batch, length))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        torch.autograd.backward(model(tokens, tokens))
    assert counter.get_total_flops() == flops_per_token(config, vocab_size, length) * batch * length
