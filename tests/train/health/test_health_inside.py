"""Statistics, fingerprints, comparisons of copies and repeated arithmetic, on one process and made-up ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from train.health import probe, statistics
from train.health.desync import Desync, compare, fingerprints, message
from train.health.fingerprint import fingerprint
from train.health.inspection import Watch
from train.health.parts import Part, state_of
from train.health.statistics import Measured, Size
from train.optim import make_optimizer
from train.spec.config import ModelConfig, OptimConfig

A, B = Part("a", ()), Part("b", ())
LEFT, RIGHT = Part("a", ("dp_shard=0",)), Part("a", ("dp_shard=1",))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8])
def test_any_flipped_bit_and_any_swap_changes_the_fingerprint(dtype: torch.dtype) -> None:
    tensor = torch.arange(1, 41).to(dtype)
    raw = tensor.view(torch.uint8)
    before = int(fingerprint(tensor))
    assert int(fingerprint(tensor.view(4, 10))) == before
    for place in range(0, len(raw), 7):
        for bit in range(8):
            raw[place] ^= 1 << bit
            assert int(fingerprint(tensor)) != before
            raw[place] ^= 1 << bit
    swapped = tensor.clone()
    swapped[3], swapped[4] = tensor[4], tensor[3]
    assert int(fingerprint(swapped)) != before
    assert int(fingerprint(tensor)) == before


def test_a_fingerprint_does_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(1000)
    whole = int(fingerprint(tensor))
    monkeypatch.setattr("train.health.fingerprint._CHUNK", 96)
    assert int(fingerprint(tensor)) == whole


@pytest.mark.parametrize(
    ("ranks", "wanted"),
    [
        ([{A: 1}, {A: 1}, {A: 1}], []),
        ([{A: 1}, {A: 2}, {A: 1}], [Desync(A, (1,))]),
        ([{A: 1}, {A: 2}], [Desync(A, (0, 1))]),  # two hold it: nobody can say which is right
        ([{LEFT: 1}, {RIGHT: 2}, {LEFT: 1}, {RIGHT: 2}], []),  # shards differ, their copies do not
        (
            [{LEFT: 1, B: 5}, {RIGHT: 2, B: 5}, {LEFT: 3, B: 6}, {RIGHT: 2, B: 5}],
            [Desync(LEFT, (0, 2)), Desync(B, (2,))],
        ),
        ([{A: 1}, {}], []),  # pipeline stages hold different weights
    ],
)
def test_copies_that_differ_are_named_with_their_ranks(ranks: list[dict[Part, int]], wanted: list[Desync]) -> None:
    assert compare(ranks) == wanted


def test_the_message_names_rank_and_parameter() -> None:
    text = message([Desync(LEFT, (3,)), Desync(B, (0, 1))], 70)
    assert "after step 70" in text
    assert "a (dp_shard=0) on rank 3; b on ranks 0, 1" in text


def test_optimizer_state_is_compared_too() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = make_optimizer([("w", weight)], ModelConfig(), OptimConfig(lr=0.1))
    weight.grad = torch.ones(3)
    optimizer.step()
    assert [name for name, _ in state_of([("w", weight)], optimizer)] == ["w", "w.step", "w.exp_avg", "w.exp_avg_sq"]
    before = fingerprints(state_of([("w", weight)], optimizer))
    optimizer.state[weight]["exp_avg"][1] += 1e-7
    after = fingerprints(state_of([("w", weight)], optimizer))
    assert [part.name for part in before if before[part] != after[part]] == ["w.exp_avg"]


def test_measures_are_those_of_the_whole_tensor_with_each_part_once() -> None:
    halves = [{LEFT: Size(9.0, 3.0, 1)}, {RIGHT: Size(16.0, 4.0, 1)}, {LEFT: Size(9.0, 3.0, 1)}]
    assert statistics.together(halves) == {"a": Measured(12.5**0.5, 4.0)}
    tensor = torch.tensor([3.0, -4.0])
    measured = statistics.together([statistics.measure([("a", tensor)])])["a"]
    assert measured.rms == pytest.approx(12.5**0.5)
    assert measured.largest == 4.0
    empty = statistics.measure([("e", torch.empty(0)), ("a", tensor)])
    assert empty[Part("e", ())] == Size(0.0, 0.0, 0)
    assert statistics.measure([]) == {}


def test_shares_of_lost_gradients_count_each_part_once() -> None:
    whole, cut = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(2))
    whole.grad, cut.grad = torch.tensor([0.0, 1.0, 1.0, 1.0]), torch.zeros(2)

    class Two:
        """A second rank with the same copy of `whole` and another part of `cut`."""

        writes = True

        def gather(self, thing: dict[Part, Any]) -> list[dict[Part, Any]]:
            other = {Part("cut", ("tp=1",)) if part.name == "cut" else part: value for part, value in thing.items()}
            return [thing, other]

    watch = Watch(lambda: [("whole", whole), ("cut", cut)])
    watch.gradients()
    watch.updated()
    assert watch.metrics(Two())["gradient_zero"] == (1 + 2 + 2) / (4 + 2 + 2)


def test_updates_are_what_changed() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 1.0]))
    before = statistics.copies([("w", weight)])
    with torch.no_grad():
        weight.add_(torch.tensor([0.3, -0.4]))
    changes = statistics.together([statistics.updates([("w", weight)], before)])
    assert changes["w"].rms == pytest.approx(0.125**0.5)
    weights = {"w": Measured(2.0, 2.0)}
    assert statistics.ratios(changes, weights) == {"w/update_ratio": pytest.approx(0.125**0.5 / 2)}
    assert statistics.values("update", changes).keys() == {"w/update_rms", "w/update_max"}


def test_activations_are_collected_without_gradients_and_leave_no_hooks() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = torch.randn(5, 4)

    def forward() -> None:
        for part in (x[:2], x[2:]):
            assert not model(part).requires_grad

    found = statistics.activations(model.named_modules(), forward)
    out = model(x).detach()
    assert found["1"].elements == 20
    assert found["1"].largest == pytest.approx(float(out.max()))
    assert statistics.pooled([found, found])["1"].rms == pytest.approx(float(out.square().mean().sqrt()))
    assert not any(module._forward_hooks for module in model.modules())


def test_compiled_modules_are_measured_eagerly_and_not_compiled_again() -> None:
    from torch._dynamo.testing import CompileCounter

    model = nn.Linear(3, 3)
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter)
    x = torch.randn(2, 3)
    compiled(x)
    found = statistics.activations([("linear", model)], lambda: compiled(x))
    compiled(x)
    assert found["linear"].elements == 6
    assert counter.frame_count == 1


def test_a_repetition_that_differs_is_found() -> None:
    calls = iter([[("loss", torch.ones(())), ("w", torch.ones(3))], [("loss", torch.ones(())), ("w", -torch.ones(3))]])

    def compute() -> Iterable[tuple[str, Tensor]]:
        return next(calls)

    assert probe.repeat(compute) == (Part("w", ()),)
    assert probe.repeat(lambda: [("loss", torch.ones(()))]) == ()


def test_a_rank_whose_own_loss_differs_is_named_before_those_that_it_reached() -> None:
    loss, weight = Part("loss", ()), Part("w", ())
    assert probe.differences([[], []]) == []
    assert [d.rank for d in probe.differences([[weight], [weight]])] == [0, 1]
    found = probe.differences([[weight], [weight, loss]])
    assert [d.rank for d in found] == [1]
    assert "step 9 computed twice gave different bits (rank 1: loss, w)" in probe.message(found, 9)
