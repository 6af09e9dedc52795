"""Shapes that are only planned with, against published figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from train.spec.accounting.flops import per_token
from train.spec.accounting.kv_cache import per_token as cache_per_token
from train.spec.accounting.parameters import parameters
from train.spec.accounting.planned import Experts, GroupedAttention, LatentAttention, PlannedShape
from train.spec.config import ModelConfig

DEEPSEEK_V3 = PlannedShape(
    7168,
    61,
    129280,
    LatentAttention(128, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128, query_rank=1536),
    mlp_width=18432,
    experts=Experts(256, active=8, width=2048, shared=1, dense_layers=3, router_bias=True),
    predicted=1,
)
"""config.json of deepseek-ai/DeepSeek-V3; DeepSeek-AI 2024, "DeepSeek-V3 technical report" (arXiv 2412.19437), section
4.2: 671B in total, 37B of them active. Its model card counts 14B more for the module that predicts a second token,
with copies of embedding and head."""
MIXTRAL = PlannedShape(4096, 32, 32000, GroupedAttention(32, 8, 128), experts=Experts(8, active=2, width=14336))
"""Jiang et al. 2024, "Mixtral of experts" (arXiv 2401.04088): 46.7B in total, 12.9B active (table 1: 13B)."""
# Grattafiori et al. 2024, "The Llama 3 herd of models" (arXiv 2407.21783), table 3, and the weights' own counts.
LLAMA = {8.03: (4096, 32, 14336), 70.55: (8192, 80, 28672), 405.85: (16384, 126, 53248)}


def dense(width: int, layers: int, hidden: int) -> PlannedShape:
    return PlannedShape(width, layers, 128256, GroupedAttention(width // 128, 8, 128), hidden)


def test_deepseek_v3() -> None:
    assert DEEPSEEK_V3.total == pytest.approx(671e9, rel=0.001)
    assert DEEPSEEK_V3.active == pytest.approx(37e9, rel=0.02)
    ends = 2 * 129280 * 7168
    assert DEEPSEEK_V3.predicting + ends == pytest.approx(14e9, rel=0.05)
    # "DeepSeek-V2" (arXiv 2405.04434), table 1: (d_c + d_h^R) l numbers a token.
    assert DEEPSEEK_V3.cache_per_token(1) == (512 + 64) * 61


def test_mixtral() -> None:
    assert MIXTRAL.total == pytest.approx(46.7e9, rel=0.001)
    assert MIXTRAL.active == pytest.approx(12.9e9, rel=0.002)


@pytest.mark.parametrize(("billions", "shape"), LLAMA.items())
def test_llama_3(billions: float, shape: tuple[int, int, int]) -> None:
    planned = dense(*shape)
    assert planned.total == planned.active == pytest.approx(billions * 1e9, rel=0.001)
    width, layers, hidden = shape
    model = ModelConfig(width=width, layers=layers, head_dim=128, kv_heads=8, mlp_width=hidden, qk_norm=False)
    assert planned.total == parameters(model, 128256).total
    assert planned.matmul_active == parameters(model, 128256).matmul
    assert planned.training_flops(8192) == per_token(model, 128256, 8192).training
    assert planned.cache_per_token() == cache_per_token(model)
    tied = replace(planned, tied_embeddings=True)
    assert tied.total == parameters(replace(model, tied_embeddings=True), 128256).total
    assert tied.matmul_active == planned.matmul_active


def test_experts_by_hand() -> None:
    shape = PlannedShape(
        8, 3, 10, GroupedAttention(2, 1, 4), 5, Experts(4, active=2, width=3, shared=1, dense_layers=1), predicted=2
    )
    attention = 2 * 8 * 3 * 4
    dense_block, sparse_block = attention + 3 * 8 * 5, attention + 4 * 8 + 3 * 8 * 3 * 5
    assert shape.total == 2 * 80 + 8 + 3 * 16 + dense_block + 2 * sparse_block
    assert shape.active == shape.total - 2 * 2 * 3 * 8 * 3
    assert shape.matmul_active == shape.active - 80 - 8 - 3 * 16
    assert shape.predicting == 2 * (sparse_block + 16 + 2 * 64 + 24)
    alone = replace(shape, predicted=0)
    used = sparse_block - 2 * 3 * 8 * 3
    each = 6 * (used + 2 * 64 + 80) + 3 * 4 * 8 * 7
    assert alone.training_flops(7) == 6 * shape.matmul_active + 3 * 3 * 4 * 8 * 7
    assert shape.training_flops(7) == alone.training_flops(7) + 2 * each
    biased = replace(shape, experts=Experts(4, 2, 3, 1, 1, router_bias=True))
    assert biased.total - shape.total == 2 * 4
    assert biased.matmul_active == shape.matmul_active


def test_queries_without_a_latent_come_from_the_stream() -> None:
    latent = LatentAttention(4, kv_rank=8, nope_dim=4, rope_dim=2, value_dim=3)
    assert latent.weights(16) == 16 * 24 + 16 * 10 + 8 * 28 + 12 * 16
    assert (latent.norms, latent.cached, latent.score_flops) == (8, 10, 2 * 4 * 9)
