"""What a rank is said to hold against a model that is really built, sharded and stepped in a pretended group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from kernels.core.dtensor import local
from train.optim.build import make_optimizer
from train.parallel.mesh import make_mesh
from train.parallel.parallelize import make_parts
from train.runtime.distributed import World
from train.spec.accounting import held
from train.spec.config import (
    BatchConfig,
    DataConfig,
    ModelConfig,
    OptimConfig,
    ParallelConfig,
    PrecisionConfig,
    RunConfig,
)
from train.spec.counts import block_weights
from train.spec.mesh import axes

MODEL = ModelConfig(width=64, layers=4, head_dim=16, kv_heads=2, mlp_width=96)


@contextmanager
def pretended(rank: int, size: int) -> Iterator[World]:
    """Be one rank of a group whose messages go nowhere."""
    if size == 1:
        yield World()
        return
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield World(rank, size)
    finally:
        dist.destroy_process_group()


def really_held(config: RunConfig, rank: int, size: int) -> tuple[int, int, int]:
    """Return the bytes of weights, of gradients and of moments on a rank after an update."""
    with pretended(rank, size) as world:
        device = torch.device("cpu")
        mesh = make_mesh(config.parallel, world, device)
        parts = make_parts(config, mesh, device, lambda module: None)
        weights = [(name, w) for part in parts for name, w in part.named_parameters()]
        specs = {name: spec for part in parts for name, spec in part.module.specs.items()}
        state = torch.bfloat16 if config.precision.optimizer_state == "bf16" else torch.float32
        optimizer = make_optimizer(weights, specs, config.model, config.optim, state_dtype=state)
        for _, weight in weights:
            weight.grad = torch.zeros_like(weight)
        gradients = sum(_bytes(weight.grad) for _, weight in weights if weight.grad is not None)
        if config.optim.name != "muon":
            optimizer.step()
        moments = [v for s in optimizer.state.values() for n, v in s.items() if isinstance(v, Tensor) and n != "step"]
        return sum(_bytes(w) for _, w in weights), gradients, sum(map(_bytes, moments))


def _bytes(tensor: Tensor) -> int:
    part = local(tensor)
    return part.numel() * part.element_size()


def config_of(model: ModelConfig = MODEL, vocabulary: int = 96, **changes: Any) -> RunConfig:
    changes = {"optim": OptimConfig(lr=1e-3), **changes}
    return RunConfig(model, DataConfig(vocab_size=vocabulary), BatchConfig(tokens=8 * 128), **changes)


SHARDED: dict[str, Any] = {"dp_replicate": 1, "dp_shard": None}
LAYOUTS: dict[str, tuple[dict[str, Any], int, int]] = {
    "one GPU": ({}, 0, 1),
    "ddp": ({"dp_replicate": 4, "dp_shard": 1}, 0, 4),
    "fsdp": (SHARDED, 0, 8),
    "fsdp, unevenly": (SHARDED, 0, 7),
    "hsdp": ({"dp_replicate": 2, "dp_shard": None}, 0, 8),
    "cp": (SHARDED | {"cp": 2}, 0, 4),
    "tp": ({"dp_replicate": 1, "dp_shard": 1, "tp": 2}, 0, 2),
    "fsdp and tp": (SHARDED | {"tp": 2}, 0, 8),
    "first of a pipeline": ({"dp_replicate": 1, "dp_shard": 1, "pp": 2}, 0, 2),
    "last of a pipeline": ({"dp_replicate": 1, "dp_shard": 1, "pp": 2}, 1, 2),
    "middle of interleaved stages": ({"dp_replicate": 1, "dp_shard": 1, "pp": 2, "pp_schedule": "interleaved"}, 0, 2),
    "all": (SHARDED | {"tp": 2, "pp": 2}, 4, 8),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("tied", [False, True])
def test_states_are_those_of_a_model_that_is_built(layout: str, optimizer: str, tied: bool) -> None:
    parallel, rank, size = LAYOUTS[layout]
    model = MODEL if not tied else ModelConfig(**{**vars(MODEL), "tied_embeddings": True})
    config = config_of(model, parallel=ParallelConfig(**parallel), optim=OptimConfig(name=optimizer, lr=1e-3))
    shape = axes(config.parallel, size)
    of_pipeline = rank // (size // shape.pp)
    part = held.part_of(config, shape, of_pipeline)
    found = (4 * part.shard, 4 * part.shard, held.moments(config, part, shape.fsdp, shape.tp))
    assert found == really_held(config, rank, size)


@pytest.mark.parametrize(
    ("parallel", "size"),
    [
        (SHARDED, 3),
        (SHARDED | {"ep": 2}, 8),
        (SHARDED | {"ep": 4, "cp": 2}, 4),
        ({"dp_replicate": 2, "dp_shard": 4, "ep": 2}, 8),
    ],
)
def test_states_of_experts_are_those_of_a_model_that_is_built(parallel: dict[str, Any], size: int) -> None:
    model = ModelConfig(**{**vars(MODEL), "experts": 8, "experts_per_token": 2, "shared_experts": 1})
    config = config_of(model, parallel=ParallelConfig(**parallel))
    shape = axes(config.parallel, size)
    part = held.part_of(config, shape, 0)
    moments = held.moments(config, part, shape.fsdp, shape.tp, shape.ep)
    assert (4 * part.shard, 4 * part.shard, moments) == really_held(config, 0, size)


def test_moments_in_bf16_are_half_as_large() -> None:
    config = config_of(precision=PrecisionConfig(optimizer_state="bf16"), parallel=ParallelConfig(**SHARDED))
    part = held.part_of(config, axes(config.parallel, 4), 0)
    moments = held.moments(config, part, 4, 1)
    assert moments == really_held(config, 0, 4)[2] == 4 * part.shard


def test_muon_keeps_one_number_of_hidden_matrices_and_two_of_the_rest() -> None:
    config = config_of(optim=OptimConfig(name="muon"))
    part = held.part_of(config, axes(config.parallel, 1), 0)
    blocks = 4 * part.block.matrices
    assert held.moments(config, part, 1, 1) == 4 * (blocks + 2 * (part.shard - blocks))


def test_what_is_gathered_counts_padding() -> None:
    config = config_of(vocabulary=97, parallel=ParallelConfig(**SHARDED))
    part = held.part_of(config, axes(config.parallel, 8), 0)
    assert part.sharded and not part.ddp
    assert part.head.whole == 97 * 64
    assert part.head.gathered == 8 * part.head.shard >= part.head.whole
    assert part.largest_end == part.embedding
    assert held.part_of(
        config_of(parallel=ParallelConfig(dp_replicate=4)), axes(ParallelConfig(dp_replicate=4), 4), 0
    ).ddp


def test_axes_that_weights_are_cut_along_by_hand() -> None:
    """Tensor parallelism cuts hidden channels; of experts, which it leaves whole, FSDP cuts channels as well."""
    dense = block_weights(ModelConfig(width=64, layers=1, head_dim=16, mlp_width=96))
    assert dense["mlp.gate_up"].on_tensor_rank(2) == (2, 48, 64)
    assert dense["mlp.down"].on_tensor_rank(2) == (64, 48)
    assert dense["attention.qkv"].on_tensor_rank(2) == (96, 64)
    assert dense["attention.out"].on_tensor_rank(2) == (64, 32)
    experts = block_weights(ModelConfig(width=64, layers=1, head_dim=16, mlp_width=96, experts=4))
    cut = {name: weight.fsdp_dim for name, weight in experts.items() if weight.experts}
    assert cut == {"mlp.experts.gate_up": 2, "mlp.experts.down": 1}
