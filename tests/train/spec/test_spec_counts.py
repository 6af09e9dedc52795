"""Counts against the weights of real models, derived widths by hand, and FLOPs with and without windows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from train.model.transformer import Transformer
from train.spec.config import ModelConfig
from train.spec.counts import Params, flops_per_token, head_dim, kv_heads, mlp_width, params, window_of
from train.spec.decoder import resolve_model

CONF = Path(__file__).resolve().parents[3] / "conf" / "model"
VOCABULARY = 1000


def counted(model: ModelConfig) -> Params:
    """Return the counts of a real model's weights, by their names."""
    with torch.device("meta"):
        made = Transformer(replace(model, layers=2), VOCABULARY, 16)
    sizes = {name: weight.numel() for name, weight in made.named_parameters()}
    embedding = sizes["embedding.weight"]
    head = sizes.get("output.weight", 0)
    one = sum(size for name, size in sizes.items() if name.startswith("blocks.0."))
    assert one == sum(size for name, size in sizes.items() if name.startswith("blocks.1."))
    gains = sum(size for name, size in sizes.items() if name.startswith("blocks.0.") and name.endswith("norm.weight"))
    blocks = model.layers * one
    total = embedding + head + blocks + sizes["norm.weight"]
    experts = model.layers * sum(size for name, size in sizes.items() if name.startswith("blocks.0.mlp.experts."))
    idle = experts * (model.experts - (model.experts_per_token or 0)) // max(1, model.experts)
    return Params(
        total=total,
        embedding=embedding,
        non_embedding=blocks - idle + sizes["norm.weight"],
        matmul=blocks - idle - model.layers * gains + (head or embedding),
        active=total - idle,
    )


@pytest.mark.parametrize("preset", sorted(path.stem for path in CONF.glob("*.yaml")))
def test_counts_are_those_of_the_real_weights(preset: str) -> None:
    model = resolve_model(ModelConfig(**yaml.safe_load((CONF / f"{preset}.yaml").read_text())), 128)
    for tied in (False, True):
        for norms in (False, True):
            changed = replace(model, tied_embeddings=tied, qk_norm=norms)
            assert params(changed, VOCABULARY) == counted(changed)
    few = replace(model, kv_heads=1)
    assert params(few, VOCABULARY) == counted(few)


@pytest.mark.parametrize(
    ("width", "hidden"), [(1, 16), (6, 16), (7, 32), (48, 128), (54, 144), (55, 160), (64, 176), (66, 176), (67, 192)]
)
def test_hidden_width_is_eight_thirds_rounded_up_to_sixteen(width: int, hidden: int) -> None:
    found = mlp_width(ModelConfig(width=width))
    assert (found, type(found)) == (hidden, int)
    assert mlp_width(ModelConfig(width=width, mlp_width=5)) == 5


@pytest.mark.parametrize(
    ("width", "size"),
    [
        (2, 2), (7, 7), (9, 9), (10, 10), (11, 11), (12, 12), (13, 13), (14, 2), (22, 2), (26, 2), (36, 12), (96, 12),
        (104, 8), (112, 14), (117, 117), (512, 64), (520, 52), (528, 48), (1040, 52), (1056, 48), (4096, 64),
    ],
)  # fmt: skip
def test_a_derived_head_is_an_even_divisor_of_at_most_an_eighth(width: int, size: int) -> None:
    model = ModelConfig(width=width, head_dim=None)
    assert (head_dim(model), type(head_dim(model))) == (size, int)
    assert head_dim(replace(model, head_dim=5)) == 5
    assert (kv_heads(model), type(kv_heads(model))) == (width // size, int)
    assert kv_heads(replace(model, kv_heads=3)) == 3


@pytest.mark.parametrize(
    ("window", "every", "windows"),
    [
        (None, 0, [None] * 4),
        (8, 0, [8] * 4),
        (8, 1, [None] * 4),
        (8, 2, [8, None, 8, None]),
        (8, 3, [8, 8, None, 8]),
        (8, 5, [8] * 4),
    ],
)
def test_windows_and_what_they_save(window: int | None, every: int, windows: list[int | None]) -> None:
    model = ModelConfig(width=64, layers=4, head_dim=16, window=window, global_every=every)
    assert [window_of(model, layer) for layer in range(4)] == windows
    keys = sum(100 if seen is None else seen for seen in windows)
    assert flops_per_token(model, 50, 100) == 6 * params(model, 50).matmul + 12 * 64 * keys
    assert flops_per_token(model, 50, 5) == 6 * params(model, 50).matmul + 12 * 64 * 4 * 5, (
        "no more keys than there are"
    )
