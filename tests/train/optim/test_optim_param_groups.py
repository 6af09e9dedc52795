"""Which weights of the model decay, and by how much."""

from __future__ import annotations

import pytest
import torch

from train.model.init import initialise
from train.model.transformer import Transformer
from train.optim.build import make_optimizer
from train.optim.optimizer import set_lr
from train.spec.config import ModelConfig, OptimConfig


@pytest.mark.parametrize("tied", [False, True])
def test_with_zero_gradients_only_matrices_shrink_and_by_lr_times_decay(tied: bool) -> None:
    config = ModelConfig(width=32, layers=2, head_dim=16, tied_embeddings=tied)
    model = Transformer(config, 50, 8)
    initialise(model, 0)
    optimizer = make_optimizer(model.named_parameters(), model.specs, config, OptimConfig(lr=1.0, weight_decay=0.1))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    set_lr(optimizer, 0.5)
    optimizer.step()
    kept = set()
    for name, weight in model.named_parameters():
        if torch.equal(weight, before[name]):
            kept.add(name)
        else:
            torch.testing.assert_close(weight.detach(), before[name] * (1 - 0.5 * 0.1))
    norms = {name for name, weight in before.items() if weight.dim() == 1}
    assert len(norms) == 2 * 4 + 1
    assert kept == norms | (set() if tied else {"embedding.weight"})
