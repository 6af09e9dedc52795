"""Moments on the CPU between steps: the same updates, and the state where it is said to be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from kernels.core.dtensor import local
from train.checkpoint.state import collect
from train.health.shard_names import held, state_of
from train.memory.optimizer_offload import OffloadedState


def trained(offload: bool) -> tuple[nn.Linear, torch.optim.Optimizer, OffloadedState | None]:
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    moved = OffloadedState(optimizer, torch.device("cpu")) if offload else None
    for _ in range(4):
        optimizer.zero_grad()
        layer(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
    return layer, optimizer, moved


def test_updates_are_bitwise_those_without() -> None:
    (plain, *_), (ours, _, _) = trained(False), trained(True)
    assert torch.equal(plain.weight, ours.weight)


def test_the_state_lies_in_buffers_of_the_host_that_are_made_once() -> None:
    layer, optimizer, moved = trained(True)
    assert moved is not None
    buffers = {buffer.data_ptr() for buffer in moved._pinned.values()}
    assert {state["exp_avg"].data_ptr() for state in optimizer.state.values()} <= buffers
    layer(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert {buffer.data_ptr() for buffer in moved._pinned.values()} == buffers


def test_a_checkpoint_of_the_state_loads() -> None:
    layer, optimizer, _ = trained(True)
    other = torch.optim.AdamW(nn.Linear(4, 3).parameters(), lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    mine = optimizer.state[layer.weight]["exp_avg_sq"]
    assert torch.equal(next(iter(other.state.values()))["exp_avg_sq"], mine)


@pytest.fixture
def two_ranks() -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,), mesh_dim_names=("dp_shard",))
    dist.destroy_process_group()


def test_a_shard_that_lies_elsewhere_than_its_mesh_is_saved_and_compared(two_ranks: DeviceMesh) -> None:
    layer = nn.Linear(4, 3, bias=False)
    layer.weight = nn.Parameter(DTensor.from_local(torch.ones(2, 4), two_ranks, [Shard(0)]))
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    moment = DTensor.from_local(torch.ones(2, 4), two_ranks, [Shard(0)])
    moment._local_tensor = torch.ones(2, 4, device="meta")  # stands for the CPU beside a mesh of GPUs
    optimizer.state[layer.weight] = {"exp_avg": moment}
    assert local(collect([layer], [optimizer])["optimizer.weight.exp_avg"]).device.type == "meta"
    names = [name for name, _ in state_of(layer.named_parameters(), optimizer)]
    parts = [held(tensor).device.type for _, tensor in state_of(layer.named_parameters(), optimizer)]
    assert dict(zip(names, parts, strict=True)) == {"weight": "cpu", "weight.exp_avg": "meta"}
