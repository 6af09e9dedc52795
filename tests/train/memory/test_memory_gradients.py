"""Gradients are let go of one by one while the optimizer uses them, not all together before the next step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from train.model.params import Kind, ParamSpec
from train.optim import muon
from train.optim.build import make_optimizer
from train.spec.config import ModelConfig, OptimConfig

SIZE = 32
MODEL = ModelConfig(width=SIZE, layers=3)
KINDS: dict[str, Kind] = {
    "embedding.weight": "embedding",
    **{f"blocks.{i}.mlp.down": "matrix" for i in range(3)},
    "norm.weight": "norm",
}
SPECS = {name: ParamSpec(kind, (SIZE, SIZE), 1.0) for name, kind in KINDS.items()}


def weights() -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    named = {name: nn.Parameter(torch.randn(SIZE, SIZE)) for name in SPECS}
    for weight in named.values():
        weight.grad = torch.randn(SIZE, SIZE)
    return named


def storages(named: dict[str, nn.Parameter]) -> dict[str, Any]:
    """Return what tells whether the memory of each gradient is still there, without keeping it."""
    kind: Any = StorageWeakRef
    return {name: kind(w.grad.untyped_storage()) for name, w in named.items() if w.grad is not None}


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd"])
@pytest.mark.parametrize("skipped", [False, True])
def test_nothing_of_the_gradients_outlives_the_step(name: str, skipped: bool) -> None:
    named = weights()
    held = storages(named)
    make_optimizer(named.items(), SPECS, MODEL, OptimConfig(name=name, lr=0.1)).step(
        skip=torch.full((), float(skipped)), grad_scale=torch.tensor(0.5)
    )
    assert len(held) == len(named)
    assert all(storage.expired() for storage in held.values())


def test_memory_falls_by_one_matrix_with_each_that_is_made_orthogonal(monkeypatch: pytest.MonkeyPatch) -> None:
    named = weights()
    matrices = [storage for name, storage in storages(named).items() if name.startswith("blocks")]
    alive: list[int] = []
    true = muon.direction

    def counted(full: Tensor, group: dict[str, object]) -> Tensor:
        alive.append(4 * SIZE * SIZE * [storage.expired() for storage in matrices].count(False))
        return true(full, group)

    monkeypatch.setattr(muon, "direction", counted)
    make_optimizer(named.items(), SPECS, MODEL, OptimConfig(name="muon", lr=0.1)).step(grad_scale=torch.tensor(0.5))
    assert alive == [2 * 4096, 4096, 0], "bytes while the first, second and last matrix is worked on"


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd"])
def test_a_factor_given_to_the_step_is_that_of_gradients_multiplied_before(name: str) -> None:
    results = []
    for before in (True, False):
        named, factor = weights(), torch.tensor(0.3)
        optimizer = make_optimizer(named.items(), SPECS, MODEL, OptimConfig(name=name, lr=0.1))
        if before:
            torch._foreach_mul_([w.grad for w in named.values() if w.grad is not None], factor)
        optimizer.step(grad_scale=None if before else factor)
        results.append([w.detach() for w in named.values()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
