"""Statistics, fingerprints, comparisons of copies and repeated arithmetic, on one process and made-up ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from benchmarks.shard_evenness import pretended
from train.health import layer_statistics, repeat_step
from train.health.inspection import Watch
from train.health.layer_statistics import Measured, Size
from train.health.replica_hashes import Desync, compare, fingerprints, message
from train.health.shard_names import Part, held, part_of, stacked, state_of
from train.health.tensor_hash import fingerprint
from train.model.params import ParamSpec
from train.optim.build import make_optimizer
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
    monkeypatch.setattr("train.health.tensor_hash._CHUNK", 96)
    assert int(fingerprint(tensor)) == whole


def test_a_fingerprint_takes_four_million_elements_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its 64-bit copies take 32 MiB each, however large the weight is."""
    arange, sizes = torch.arange, list[int]()

    def noted(start: int, end: int, **options: Any) -> Tensor:
        sizes.append(end - start)
        return arange(start, end, **options)

    monkeypatch.setattr(torch, "arange", noted)
    fingerprint(torch.zeros(4194304 + 5, dtype=torch.uint8))
    assert sizes == [4194304, 5]


def test_a_fingerprint_is_a_sum_over_places() -> None:
    tensor = torch.tensor([3, 0, 255], dtype=torch.uint8)
    assert int(fingerprint(tensor)) % 2**64 == (3 * 1 + 255 * 5) * 0x9E3779B97F4A7C15 % 2**64


@pytest.mark.parametrize(
    ("ranks", "wanted"),
    [
        ([{A: 1}, {A: 1}, {A: 1}], []),
        ([{A: 7}, {A: 1}, {A: 1}, {A: 3}], [Desync(A, (0, 3))]),
        ([{A: 1}, {A: 9}, {A: 9}, {A: 1}], [Desync(A, (0, 1, 2, 3))]),
        ([{A: 9}, {A: 2}, {A: 3}], [Desync(A, (0, 1, 2))]),
        ([{A: 5}, {A: 5}, {A: 5}, {A: 2}, {A: 2}], [Desync(A, (3, 4))]),
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


@pytest.mark.parametrize(
    ("count", "listed", "more"), [(1, 1, ""), (5, 5, ""), (6, 5, "; and 1 more"), (9, 5, "; and 4 more")]
)
def test_the_message_lists_five_and_says_how_many_more(count: int, listed: int, more: str) -> None:
    found = [Desync(Part(f"w{n}", ()), (n,)) for n in range(count)]
    names = "; ".join(f"w{n} on rank {n}" for n in range(listed))
    assert message(found, 3).startswith(f"after step 3 ranks no longer hold the same copies: {names}{more}. Go back")


@pytest.fixture
def grid() -> Iterator[DeviceMesh]:
    """Rank 0 of a pretended mesh of 2 x 3."""
    with pretended(6):
        yield init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp_shard", "tp"))


def cut(mesh: DeviceMesh, *placements: Placement) -> DTensor:
    return DTensor.from_local(
        torch.ones(2, 2), mesh, placements, run_check=False, shape=torch.Size((6, 6)), stride=(6, 1)
    )


def test_a_part_is_named_by_the_mesh_axes_that_cut_it(grid: DeviceMesh) -> None:
    assert part_of("w", torch.ones(3)) == Part("w", ())
    assert part_of("w", cut(grid, Replicate(), Replicate())) == Part("w", ())
    assert part_of("w", cut(grid, Shard(0), Replicate())) == Part("w", ("dp_shard=0",))
    assert part_of("w", cut(grid, Replicate(), Shard(1))) == Part("w", ("tp=0",))
    both = part_of("w", cut(grid, Shard(0), Shard(1)))
    assert both == Part("w", ("dp_shard=0", "tp=0"))
    assert str(both) == "w (dp_shard=0, tp=0)"
    assert str(Part("w", ())) == "w"
    nameless = DeviceMesh("cpu", torch.arange(6).view(2, 3))
    assert part_of("w", cut(nameless, Shard(0), Shard(0))) == Part("w", ("0=0", "1=0"))


def test_what_is_held_of_a_cut_tensor_is_its_own_part_without_history(grid: DeviceMesh) -> None:
    weight = nn.Parameter(cut(grid, Shard(0), Shard(1)))
    assert held(weight).shape == (2, 2)
    assert not held(weight).requires_grad
    assert not held(nn.Parameter(torch.ones(2))).requires_grad
    assert fingerprints([("w", weight)]) == {Part("w", ("dp_shard=0", "tp=0")): int(fingerprint(torch.ones(2, 2)))}
    assert layer_statistics.measure([("w", weight)]) == {Part("w", ("dp_shard=0", "tp=0")): Size(4.0, 1.0, 4)}


def test_what_lies_on_several_devices_is_read_where_the_first_lies() -> None:
    """Moments that are offloaded lie on the CPU beside weights on the GPU."""
    with FakeTensorMode():
        for first, second in (("cuda", "cpu"), ("cpu", "cuda")):
            scalars = [torch.zeros((), dtype=torch.int64, device=device) for device in (first, second, second)]
            found = stacked(scalars)
            assert (found.device.type, found.shape, found.dtype) == (first, (3,), torch.int64)
    assert stacked([torch.tensor(1.5)]).tolist() == [1.5]
    assert stacked([torch.tensor(7), torch.tensor(8)]).tolist() == [7, 8]


def test_nothing_has_no_fingerprints() -> None:
    assert fingerprints([]) == {}
    two = fingerprints([("a", torch.ones(2)), ("b", torch.zeros(2))])
    assert two == {A: int(fingerprint(torch.ones(2))), B: 0}


def test_optimizer_state_is_compared_too() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = make_optimizer(
        [("w", weight)], {"w": ParamSpec("norm", (3,), None)}, ModelConfig(), OptimConfig(lr=0.1)
    )
    weight.grad = torch.ones(3)
    optimizer.step()
    assert [name for name, _ in state_of([("w", weight)], optimizer)] == ["w", "w.step", "w.exp_avg", "w.exp_avg_sq"]
    before = fingerprints(state_of([("w", weight)], optimizer))
    optimizer.state[weight]["exp_avg"][1] += 1e-7
    after = fingerprints(state_of([("w", weight)], optimizer))
    assert [part.name for part in before if before[part] != after[part]] == ["w.exp_avg"]


def test_measures_are_those_of_the_whole_tensor_with_each_part_once() -> None:
    halves = [{LEFT: Size(9.0, 3.0, 1)}, {RIGHT: Size(16.0, 4.0, 1)}, {LEFT: Size(9.0, 3.0, 1)}]
    assert layer_statistics.together(halves) == {"a": Measured(12.5**0.5, 4.0)}
    tensor = torch.tensor([3.0, -4.0])
    measured = layer_statistics.together([layer_statistics.measure([("a", tensor)])])["a"]
    assert measured.rms == pytest.approx(12.5**0.5)
    assert measured.largest == 4.0
    empty = layer_statistics.measure([("e", torch.empty(0)), ("a", tensor)])
    assert empty[Part("e", ())] == Size(0.0, 0.0, 0)
    assert layer_statistics.measure([]) == {}


def test_each_tensor_has_its_own_measure() -> None:
    tensors = {"a": torch.tensor([3.0, -4.0]), "b": torch.tensor([[-2.0]]), "c": torch.full((4,), 0.5)}
    assert layer_statistics.measure(tensors.items()) == {
        A: Size(25.0, 4.0, 2),
        B: Size(4.0, 2.0, 1),
        Part("c", ()): Size(1.0, 0.5, 4),
    }
    tiny = torch.full((3,), 1e-3, dtype=torch.bfloat16)
    assert layer_statistics.measure([("a", tiny)])[A].squares == pytest.approx(3 * float(tiny[0]) ** 2, rel=1e-6)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1.2e-7), (torch.bfloat16, 2e-6)])
def test_a_large_weight_has_the_measure_of_its_numbers(dtype: torch.dtype, close: float) -> None:
    """A plain fp32 sum of four million squares on a CPU is 8e-5 off in the norm, one of a shard's less."""
    weight = torch.randn(4096, 1024, generator=torch.Generator().manual_seed(1)).to(dtype)
    exact = float(weight.double().square().mean().sqrt())
    whole = layer_statistics.together([layer_statistics.measure([("a", weight)])])["a"]
    assert whole.rms == pytest.approx(exact, rel=close)
    shards = [{Part("a", (f"dp_shard={i}",)): size for size in layer_statistics.measure([("a", own)]).values()}
              for i, own in enumerate(weight.chunk(16))]  # fmt: skip
    assert layer_statistics.together(shards)["a"].rms == pytest.approx(exact, rel=close)


def test_measures_of_nothing_are_zero_and_those_of_several_parts_add_up() -> None:
    assert layer_statistics.together([{A: Size(0.0, 0.0, 0)}]) == {"a": Measured(0.0, 0.0)}
    parts = [{LEFT: Size(9.0, 3.0, 1), B: Size(2.0, 1.0, 2)}, {RIGHT: Size(16.0, 2.0, 3)}]
    assert layer_statistics.together(parts) == {"a": Measured(2.5, 3.0), "b": Measured(1.0, 1.0)}
    assert layer_statistics.together([]) == {}
    assert layer_statistics.pooled([{"a": Size(4.0, 2.0, 1)}, {"a": Size(4.0, 2.0, 1)}]) == {"a": Measured(2.0, 2.0)}
    assert layer_statistics.pooled([{"a": Size(0.25, 0.5, 1)}]) == {"a": Measured(0.5, 0.5)}


def test_measures_as_metrics() -> None:
    measured = {"a": Measured(1.0, 2.0), "b": Measured(3.0, 4.0)}
    wanted = {"a/weight_rms": 1.0, "a/weight_max": 2.0, "b/weight_rms": 3.0, "b/weight_max": 4.0}
    assert layer_statistics.values("weight", measured) == wanted
    weights = {"a": Measured(0.5, 9.0), "b": Measured(0.0, 0.0)}
    assert layer_statistics.ratios(measured, weights) == {"a/update_ratio": 2.0}, (
        "no ratio to a weight that is all zeros"
    )


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
    before = layer_statistics.copies([("w", weight)])
    with torch.no_grad():
        weight.add_(torch.tensor([0.3, -0.4]))
    changes = layer_statistics.together([layer_statistics.updates([("w", weight)], before)])
    assert changes["w"].rms == pytest.approx(0.125**0.5)
    weights = {"w": Measured(2.0, 2.0)}
    assert layer_statistics.ratios(changes, weights) == {"w/update_ratio": pytest.approx(0.125**0.5 / 2)}
    assert layer_statistics.values("update", changes).keys() == {"w/update_rms", "w/update_max"}


def test_activations_are_collected_without_gradients_and_leave_no_hooks() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = torch.randn(5, 4)

    def forward() -> None:
        for part in (x[:2], x[2:]):
            assert not model(part).requires_grad

    found = layer_statistics.activations(model.named_modules(), forward)
    out = model(x).detach()
    assert found["1"].elements == 20
    assert found["1"].largest == pytest.approx(float(out.max()))
    assert layer_statistics.pooled([found, found])["1"].rms == pytest.approx(float(out.square().mean().sqrt()))
    assert not any(module._forward_hooks for module in model.modules())


def test_of_several_outputs_the_first_is_measured_and_what_is_no_tensor_is_not() -> None:
    class Several(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x * 100

    class Words(nn.Module):
        def forward(self, x: Tensor) -> tuple[str, Tensor]:
            return "no tensor", x

    several, words = Several(), Words()

    def forward() -> None:
        for x in (torch.tensor([3.0, -4.0]), torch.tensor([1.0])):
            several(x)
            words(x)

    assert layer_statistics.activations([("several", several), ("words", words)], forward) == {
        "several": Size(26.0, 4.0, 3)
    }


@pytest.mark.parametrize("loaded", [False, True])
def test_the_compiler_is_not_loaded_for_a_look_at_activations(loaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stances: list[str] = []

    def set_stance(stance: str) -> AbstractContextManager[None]:
        stances.append(stance)
        return nullcontext()

    monkeypatch.setattr(torch.compiler, "set_stance", set_stance)
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    if loaded:
        monkeypatch.setitem(sys.modules, "torch._dynamo", sys.modules["torch"])
    layer = nn.Identity()
    found = layer_statistics.activations([("layer", layer)], lambda: layer(torch.ones(2)))
    assert found["layer"].elements == 2
    assert stances == (["force_eager"] if loaded else [])


def test_compiled_modules_are_measured_eagerly_and_not_compiled_again() -> None:
    from torch._dynamo.testing import CompileCounter

    model = nn.Linear(3, 3)
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter)
    x = torch.randn(2, 3)
    compiled(x)
    found = layer_statistics.activations([("linear", model)], lambda: compiled(x))
    compiled(x)
    assert found["linear"].elements == 6
    assert counter.frame_count == 1


def test_a_repetition_that_differs_is_found() -> None:
    calls = iter([[("loss", torch.ones(())), ("w", torch.ones(3))], [("loss", torch.ones(())), ("w", -torch.ones(3))]])

    def compute() -> Iterable[tuple[str, Tensor]]:
        return next(calls)

    assert repeat_step.repeat(compute) == (Part("w", ()),)
    assert repeat_step.repeat(lambda: [("loss", torch.ones(()))]) == ()


def test_parts_that_differ_come_in_their_order_also_those_that_came_only_once() -> None:
    names = [f"w{n}" for n in range(9)]
    runs = iter(
        [[(name, torch.zeros(2)) for name in (*names, "same")], [(name, torch.ones(2)) for name in ("new", *names)]]
    )

    def compute() -> Iterable[tuple[str, Tensor]]:
        return [*next(runs), ("equal", torch.ones(2))]

    assert [part.name for part in repeat_step.repeat(compute)] == [*names, "same", "new"]


def test_the_message_names_three_parts_of_a_rank() -> None:
    parts = [Part(name, ()) for name in "abcd"]
    three, four = repeat_step.differences([parts[:3], [], parts[::-1]])
    assert (three.rank, four.rank) == (0, 2)
    assert "(rank 0: a, b, c; rank 2: a, b, c, …)" in repeat_step.message([three, four], 9)


def test_a_rank_whose_own_loss_differs_is_named_before_those_that_it_reached() -> None:
    loss, weight = Part("loss", ()), Part("w", ())
    assert repeat_step.differences([[], []]) == []
    assert [d.rank for d in repeat_step.differences([[weight], [weight]])] == [0, 1]
    found = repeat_step.differences([[weight], [weight, loss]])
    assert [d.rank for d in found] == [1]
    assert "step 9 computed twice gave different bits (rank 1: loss, w)" in repeat_step.message(found, 9)
