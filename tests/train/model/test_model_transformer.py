"""The transformer against its formulas, written out plainly in fp64."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.rope.api import rope
from train.model.attention.gqa import Attention
from train.model.init import initialise
from train.model.norm import Norm
from train.model.rope import rotations
from train.model.transformer import Transformer
from train.runtime.distributed import World
from train.spec.config import ModelConfig, OptimConfig, RunConfig
from train.spec.counts import head_dim
from train.spec.labels import IGNORED
from train.trainer import Trainer


def plain_attention(layer: Attention, x: Tensor, config: ModelConfig) -> Tensor:
    """Attention for one sequence (length, width), one head and one position at a time, in fp64."""
    dim, heads, groups = head_dim(config), layer.query_heads, layer.kv_heads
    projected = (x @ layer.qkv.double().t()).view(len(x), groups, -1, dim)

    def turned(vector: Tensor, position: int, weight: Tensor | None) -> Tensor:
        if weight is not None:
            vector = vector / torch.sqrt((vector**2).mean() + config.norm_eps) * weight.double()
        out = torch.empty_like(vector)
        for pair in range(dim // 2):
            angle = position * config.rope_theta ** (-2 * pair / dim)
            a, b = vector[2 * pair], vector[2 * pair + 1]
            out[2 * pair] = a * math.cos(angle) - b * math.sin(angle)
            out[2 * pair + 1] = a * math.sin(angle) + b * math.cos(angle)
        return out

    q_weight = layer.query_norm.weight if layer.query_norm else None
    k_weight = layer.key_norm.weight if layer.key_norm else None
    mixed = torch.zeros(len(x), heads, dim, dtype=torch.float64)
    for head in range(heads):
        group = head // (heads // groups)
        keys = torch.stack([turned(projected[t, group, -2], t, k_weight) for t in range(len(x))])
        values = projected[:, group, -1]
        for t in range(len(x)):
            query = turned(projected[t, group, head % (heads // groups)], t, q_weight)
            weights = torch.softmax(keys[: t + 1] @ query / math.sqrt(dim), 0)
            mixed[t, head] = weights @ values[: t + 1]
    return mixed.flatten(1) @ layer.out.double().t()


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_attention_is_its_formula(kv_heads: int, qk_norm: bool) -> None:
    config = ModelConfig(width=32, layers=1, head_dim=8, kv_heads=kv_heads, qk_norm=qk_norm)
    model = Transformer(config, 10, 6)
    initialise(model, 3)
    layer = model.blocks["0"].attention
    assert isinstance(layer, Attention)
    with torch.no_grad():
        for norm in (layer.query_norm, layer.key_norm):
            if norm is not None:
                norm.weight.normal_(1.0, 0.3)
        x = torch.randn(2, 6, 32)
        ours = layer(x, model.rope, {(6, 6): None})
        for sequence in range(2):
            wanted = plain_attention(layer, x[sequence].double(), config)
            torch.testing.assert_close(ours[sequence].double(), wanted, rtol=1e-5, atol=1e-6)


def test_rope_keeps_lengths_and_sees_only_distances() -> None:
    turns = rotations(ModelConfig(head_dim=8, rope_theta=100.0), 20)
    q, k = torch.randn(1, 1, 1, 8).expand(1, 20, 1, 8), torch.randn(1, 1, 1, 8).expand(1, 20, 1, 8)
    assert turns is not None
    turned_q, turned_k = (x[0, :, 0] for x in rope(q, k, turns))
    torch.testing.assert_close(turned_q.norm(dim=1), q[0, :, 0].norm(dim=1))
    scores = turned_q @ turned_k.t()
    for distance in range(-10, 10):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-5)
    assert scores.std() > 1e-3


def test_blocks_are_given_real_numbers_for_which_the_compiler_has_code() -> None:
    model = Transformer(ModelConfig(width=16, layers=1, head_dim=8, kv_heads=1), 10, 6)
    initialise(model, 3)
    given: list[torch.Tensor] = []
    model.blocks["0"].register_forward_pre_hook(lambda _, inputs: given.append(inputs[1]))
    tokens = torch.randint(0, 10, (2, 6))
    plain, numbered = model(tokens), model(tokens, positions=torch.arange(6).expand(2, 6))
    torch.testing.assert_close(plain, numbered)
    assert [rope.is_complex() for rope in given] == [False, False]


@pytest.mark.parametrize(("z_loss", "smoothing"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.2), (0.1, 0.2)])
def test_gradients_are_those_of_the_objective_and_the_loss_is_the_cross_entropy(
    z_loss: float, smoothing: float
) -> None:
    config = ModelConfig(width=16, layers=1, head_dim=8, logit_softcap=3.0, mup_base_width=4, mup_base_head_dim=8)
    model = Transformer(config, 30, 6).double()
    initialise(model, 4)
    model.penalise(OptimConfig(z_loss=z_loss, label_smoothing=smoothing))
    tokens, targets = torch.randint(0, 30, (3, 6)), torch.randint(0, 30, (3, 6))
    targets[0, :4] = IGNORED
    logits = model(tokens).flatten(0, 1)
    counted = targets.flatten() != IGNORED
    plain = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")
    objective = F.cross_entropy(
        logits, targets.flatten(), ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
    )
    objective = objective + z_loss * logits[counted].logsumexp(-1).square().sum()
    loss = model(tokens, targets)
    torch.testing.assert_close(loss, plain, rtol=1e-12, atol=0)
    weights = list(model.parameters())
    for ours, theirs in zip(torch.autograd.grad(loss, weights), torch.autograd.grad(objective, weights), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens, targets), plain, rtol=1e-12, atol=0)
        model.each = True
        each = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="none")
        torch.testing.assert_close(model(tokens, targets).flatten(), each, rtol=1e-12, atol=1e-15)


def test_the_config_says_what_is_trained_on_besides_the_cross_entropy(tiny: RunConfig, tmp_path: Path) -> None:
    def first(**penalties: float) -> list[float]:
        config = replace(tiny, optim=replace(tiny.optim, **penalties))  # type: ignore[arg-type]
        return [float(found) for found in Trainer(config, tmp_path, World(), torch.device("cpu")).train_step()]

    loss, norm = first()
    for penalties in ({"z_loss": 0.1}, {"label_smoothing": 0.3}):
        same, other = first(**penalties)
        assert same == pytest.approx(loss, rel=1e-6)
        assert other != pytest.approx(norm, rel=1e-2)


@pytest.mark.parametrize("tied", [False, True])
def test_no_token_sees_a_later_one(tied: bool) -> None:
    model = Transformer(ModelConfig(width=32, layers=2, head_dim=8, kv_heads=2, tied_embeddings=tied), 30, 12)
    initialise(model, 1)
    tokens = torch.randint(0, 30, (1, 12))
    changed = tokens.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 30
    with torch.no_grad():
        difference = (model(tokens) - model(changed)).abs().amax(-1)[0]
    assert (difference[:7] == 0).all()
    assert (difference[7:] > 0).all()


def test_initialisation_is_scaled_by_depth_and_seeded() -> None:
    config = ModelConfig(width=128, layers=8, head_dim=32)
    model = Transformer(config, 1000, 8)
    initialise(model, 5)
    std = {name: weight.std().item() for name, weight in model.named_parameters() if weight.dim() >= 2}
    base = 128**-0.5
    for name, value in std.items():
        wanted = base
        if name.endswith(("attention.out", "mlp.down")):
            wanted = base / math.sqrt(16)
        elif name == "embedding.weight":
            wanted = 1.0
        assert value == pytest.approx(wanted, rel=0.03), name
    again = Transformer(config, 1000, 8)
    initialise(again, 5)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    initialise(again, 6)
    assert not torch.equal(model.head, again.head)


def test_first_loss_is_that_of_guessing_with_unit_logits() -> None:
    """Logits of variance 1 guess at random: their loss is ln(vocabulary), plus half their variance."""
    model = Transformer(ModelConfig(width=64, layers=2, head_dim=32), 500, 16)
    initialise(model, 0)
    tokens = torch.randint(0, 500, (64, 16))
    with torch.no_grad():
        logits = model(tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.randint(0, 500, (1024,)))
    assert float(loss) == pytest.approx(math.log(500) + 0.5, abs=0.15)


def test_a_norm_is_what_its_forward_says_wherever_a_block_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zero(Norm):
        def forward(self, x: Tensor) -> Tensor:
            return x * 0.0

    monkeypatch.setattr("train.model.transformer.RMSNorm", Zero)
    model = Transformer(ModelConfig(width=32, layers=2, head_dim=8), 10, 6)
    initialise(model, 0)
    streams: list[Tensor] = []
    for block in model.blocks.values():
        block.register_forward_hook(lambda _, inputs, output: streams.extend((inputs[0], output)))
    model(torch.arange(6)[None])
    assert len(streams) == 4 and streams[0].any() and all(torch.equal(one, streams[0]) for one in streams)
