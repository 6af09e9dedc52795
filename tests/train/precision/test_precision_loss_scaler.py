"""Dynamic loss scaling: the factor's way up and down, gradients divided by it, the state of a checkpoint."""

from __future__ import annotations

import math

import pytest
import torch

from train.precision.loss_scaler import LossScaler

CPU = torch.device("cpu")


def scaler(growth_steps: int = 3, scale: float = 8.0) -> LossScaler:
    return LossScaler(CPU, scale, growth_steps)


def test_gradients_are_divided_by_the_factor() -> None:
    weight = torch.tensor([1.0, 2.0], requires_grad=True)
    ours = scaler()
    ours.scaled((weight * weight).sum()).backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert weight.grad.tolist() == [16.0, 32.0]
    ours.unscale_([weight.grad, torch.empty(0)])
    assert weight.grad.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_stays_so(bad: float) -> None:
    grads = [torch.full((3,), 8.0), torch.full((4,), 8.0)]
    grads[1][2] = bad
    scaler().unscale_(grads)
    assert grads[0].tolist() == [1.0, 1.0, 1.0]
    assert torch.isfinite(grads[1]).tolist() == [True, True, False, True]


def test_the_factor_halves_on_overflow_and_doubles_after_good_steps() -> None:
    ours, way = scaler(growth_steps=3), []
    for found in (0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0):
        ours.update(torch.tensor(found))
        way.append(float(ours.scale))
    assert way == [8.0, 8.0, 4.0, 4.0, 4.0, 8.0, 8.0]  # the count begins again at an overflow
    assert {name: float(value) for name, value in ours.metrics().items()} == {
        "loss_scale": 8.0,
        "loss_scale_smallest": 4.0,
        "overflows": 1.0,
    }


def test_a_checkpoint_goes_on_at_the_same_count() -> None:
    ours = scaler(growth_steps=3)
    for found in (1.0, 0.0, 0.0):
        ours.update(torch.tensor(found))
    other = scaler(growth_steps=3, scale=1024.0)
    other.load_state_dict(ours.state_dict())
    for one in (ours, other):
        one.update(torch.tensor(0.0))
    assert float(other.scale) == float(ours.scale) == 8.0
    assert int(other.overflows) == 1


def test_disabled_it_changes_nothing() -> None:
    ours = LossScaler(CPU, 8.0, 3, enabled=False)
    grad = torch.tensor([3.0])
    ours.unscale_([grad])
    ours.update(torch.tensor(1.0))
    assert (grad.tolist(), float(ours.scale), ours.metrics(), ours.state_dict()) == ([3.0], 1.0, {}, {})
