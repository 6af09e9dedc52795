"""Moments on the CPU between steps: the same updates, and the state where it is said to be."""

from __future__ import annotations

import torch
from torch import nn

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
