"""Stochastic rounding: right on average, never further than the next number, exact where nothing is to round."""

from __future__ import annotations

import torch

from train.precision.stochastic_rounding import copy_rounded_, stochastic_round


def test_the_mean_is_the_number_where_rounding_to_nearest_loses_it() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.full((200_000,), 1.0 + 2.0**-10)  # an eighth of the way to the next bf16 number, 1 + 2^-7
    rounded = stochastic_round(x, generator).double()
    assert set(rounded.tolist()) == {1.0, 1.0 + 2.0**-7}
    # The share of the upper one is 1/8 with a standard deviation of 0.00074.
    assert abs(float((rounded > 1).double().mean()) - 0.125) < 0.004
    assert float(x.to(torch.bfloat16).double().mean()) == 1.0


def test_numbers_of_either_sign_land_on_a_neighbour() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(100_000, generator=generator) * 10.0 ** torch.randint(-20, 20, (100_000,), generator=generator)
    rounded = stochastic_round(x, generator).float()
    assert ((rounded - x).abs() <= x.abs() * 2.0**-7).all()
    assert abs(float(((rounded - x) / x).mean())) < 1e-4


def test_what_bf16_holds_stays() -> None:
    x = torch.tensor([0.0, -0.0, 1.5, -(2.0**-100), float("inf"), float("-inf")])
    assert torch.equal(stochastic_round(x).float(), x)
    assert torch.isnan(stochastic_round(torch.tensor([float("nan")]))).all()


def test_small_updates_of_an_average_are_not_lost() -> None:
    generator = torch.Generator().manual_seed(2)
    exact, ours, nearest = torch.ones(4096), *(torch.ones(4096, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(500):
        exact.mul_(0.999)
        copy_rounded_(ours, ours.float() * 0.999, generator)
        nearest.copy_(nearest.float() * 0.999)
    assert abs(float(ours.float().mean() / exact.mean()) - 1) < 0.01
    assert float(nearest.float().mean() / exact.mean()) > 1.5


def test_fp32_is_copied() -> None:
    x = torch.tensor([1.0 + 2.0**-20, 2.0, 3.0])
    assert torch.equal(copy_rounded_(torch.zeros(3), x), x)
