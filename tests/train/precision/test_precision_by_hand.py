"""Loss scaling, delayed factors and rounding at random, number by number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.precision.float8 import Delayed
from train.precision.history import History
from train.precision.loss_scaler import LossScaler
from train.precision.stochastic_rounding import stochastic_round

CPU = torch.device("cpu")
LARGEST = (2 - 2.0**-23) * 2.0**127
"""The largest number of fp32."""


def way(scale: float, growth: int, *found: float) -> list[float]:
    ours, seen = LossScaler(CPU, scale, growth), []
    for one in found:
        ours.update(torch.tensor(one))
        seen.append(float(ours.scale))
    return seen


def test_the_count_begins_again_after_every_doubling() -> None:
    assert way(8.0, 2, *[0.0] * 6) == [8.0, 16.0, 16.0, 32.0, 32.0, 64.0]
    assert way(8.0, 1, 0.0, 1.0, 0.0) == [16.0, 8.0, 16.0]


def test_a_factor_stays_within_what_fp32_holds() -> None:
    assert way(2.0**126, 1, 0.0, 0.0) == [2.0**127, 2.0**127]
    third = float(torch.tensor(1.2e38))
    assert way(third, 1, 0.0) == [2 * third]
    assert way(LARGEST / 2, 1, 0.0) == [LARGEST / 2]
    assert way(2.0**-23, 3, 1.0, 1.0) == [2.0**-24, 2.0**-24]
    assert way(1.0, 3, 1.0) == [0.5]


def test_the_state_is_four_numbers_where_they_are() -> None:
    ours = LossScaler(CPU, 8.0, 3)
    ours.update(torch.tensor(1.0))
    ours.update(torch.tensor(0.0))
    assert [float(one) for one in ours.tensors] == [4.0, 1.0, 1.0, 4.0]
    assert ours.tensors[0] is ours.scale and ours.tensors[3] is ours.smallest
    assert ours.state_dict() == {"scale": 4.0, "good_steps": 1, "overflows": 1, "smallest": 4.0}
    off = LossScaler(CPU, 8.0, 3, enabled=False)
    off.load_state_dict(ours.state_dict())
    assert [float(one) for one in off.tensors] == [1.0, 0.0, 0.0, 1.0], "nothing is scaled"
    ours.load_state_dict({})
    ours.load_state_dict(None)
    assert float(ours.scale) == 4.0


@pytest.fixture
def reduced(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked of other ranks, of which one holds a 7 in each place."""
    asked: list[Any] = []

    def all_reduce(values: Tensor, op: Any, group: Any = None) -> None:
        assert op == dist.ReduceOp.MAX
        asked.append(group)
        values.clamp_min_(7.0)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    return asked


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = {"a": Delayed()}


def seen(history: History, *values: float) -> None:
    for place, value in zip(history._seen, values, strict=True):
        place.fill_(value)


def test_what_is_not_finite_is_not_kept() -> None:
    history = History([Layer()], CPU, steps=2)
    seen(history, 1.0, 2.0, 3.0)
    history.update(torch.zeros(()))
    seen(history, float("nan"), float("inf"), 0.5)
    assert history.seen.tolist()[1:] == [float("inf"), 0.5]
    history.update(torch.zeros(()))
    assert history.state_dict() == [[0.0, 0.0, 0.5], [1.0, 2.0, 3.0]]
    assert history.largest.tolist() == [1.0, 2.0, 3.0] and not history.seen.any()
    seen(history, 9.0, 9.0, 9.0)
    history.update(torch.ones(()))
    assert history.state_dict() == [[0.0, 0.0, 0.5], [1.0, 2.0, 3.0]], "a skipped step leaves no trace"


def test_ranks_share_the_largest(reduced: list[Any]) -> None:
    alone, shared = (History([Layer()], CPU, steps=1, shared=among) for among in (False, True))
    for history in (alone, shared):
        seen(history, 1.0, 8.0, 3.0)
        history.update(torch.zeros(()))
    assert alone.state_dict() == [[1.0, 8.0, 3.0]] and shared.state_dict() == [[7.0, 8.0, 7.0]]
    assert reduced == [None]
    History([], CPU, steps=1, shared=True).update(torch.zeros(()))
    assert reduced == [None], "nothing to share"


@pytest.mark.parametrize(
    ("noise", "below", "above"),
    [(0, 1.0, 1.0 + 2.0**-7), (0xFFFF, 1.0 + 2.0**-7, 1.0 + 2.0**-6), (0x8000, 1.0, 1.0 + 2.0**-6)],
)
def test_random_bits_decide_which_neighbour(
    noise: int, below: float, above: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges: list[tuple[int, int]] = []

    def randint(low: int, high: int, shape: Any, **given: Any) -> Tensor:
        ranges.append((low, high))
        return torch.full(shape, noise, dtype=given["dtype"])

    monkeypatch.setattr(torch, "randint", randint)
    x = torch.tensor([1.0 + 2.0**-9, 1.0 + 2.0**-7 + 2.0**-8, 1.5])
    assert stochastic_round(x).tolist() == [below, above, 1.5]
    assert stochastic_round(-x).tolist() == [-below, -above, -1.5]
    assert ranges == [(0, 65536), (0, 65536)], "16 bits, each as likely"
    bits = torch.tensor([0x7FFFFFFF, -1, 0x7F800001], dtype=torch.int32).view(torch.float32)
    assert stochastic_round(bits).isnan().all(), "no carry makes a number of them"
    assert stochastic_round(torch.tensor([float("inf")])).tolist() == [float("inf")]
