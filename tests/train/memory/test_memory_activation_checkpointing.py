"""What blocks keep for their backward pass: the same gradients in every mode, and as much memory as each promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from train.memory import activation_checkpointing
from train.memory.activation_budget import Filler, fill
from train.memory.activation_checkpointing import FULL, NONE, SELECTIVE, modes, wrap
from train.spec.config import MemoryConfig


class Block(nn.Module):
    """Two products with elementwise work between them, which counts how often it runs."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        y: Tensor = x + self.down(F.silu(self.up(x)).square())
        return y


def stack(count: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(count)))


def gradients(model: nn.Module, rows: int = 64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    model.zero_grad()
    model(torch.randn(rows, 32, generator=generator)).square().sum().backward()
    return [w.grad for w in model.parameters() if w.grad is not None]


@pytest.mark.parametrize("mode", ["full", "every", "selective"])
def test_gradients_are_bitwise_those_without(mode: str) -> None:
    plain = gradients(stack())
    model = stack()
    wrap(list(model), modes(MemoryConfig(checkpointing=mode), 4))
    again = gradients(model)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in stack().named_parameters()]
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    assert [block.runs for block in model] == {"full": [2] * 4, "every": [2, 1] * 2, "selective": [2] * 4}[mode]


class Masked(Block):
    """A block that is also given masks by the sizes of pieces, as those of the Transformer are."""

    def forward(self, x: Tensor, masks: Mapping[tuple[int, int], Tensor] | None = None) -> Tensor:
        assert masks is not None
        return super().forward(x) * masks[x.shape[0], 32]


@pytest.mark.parametrize("mode", [FULL, SELECTIVE])
def test_masks_do_not_go_through_what_a_profiler_with_shapes_records(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = torch.utils.checkpoint.checkpoint

    def strict(forward: Callable[..., object], *arguments: object, **options: Any) -> object:
        """Refuse what torch 2.11 refuses while a profiler records shapes."""
        for one in arguments:
            for key in one if isinstance(one, dict) else ():
                if isinstance(key, tuple):
                    raise RuntimeError(f"Cannot create dict for key type '{key}'")
        return given(forward, *arguments, **options)

    monkeypatch.setattr(activation_checkpointing, "checkpoint", strict)
    block, x = Masked(), torch.randn(8, 32, requires_grad=True)
    wrap([block], [mode])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True):
        block(x, {(8, 32): torch.full((8, 32), 2.0)}).sum().backward()
    again = x.grad
    assert again is not None and block.runs == 2
    x.grad = None
    block.__dict__.pop("forward")
    block(x, {(8, 32): torch.full((8, 32), 2.0)}).sum().backward()
    assert x.grad is not None and torch.equal(again, x.grad)


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the matrix products that are computed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten.mm.default
        return func(*args, **(kwargs or {}))


def test_selective_computes_no_product_again() -> None:
    model = stack(1)
    wrap(list(model), [SELECTIVE])
    y = model(torch.randn(8, 32, requires_grad=True)).sum()
    with Products() as products:
        y.backward()
    assert products.count == 4  # two gradients for each of two layers, and no forward product


def test_every_refuses_less_than_one() -> None:
    with pytest.raises(ValueError, match=r"memory\.every=0"):
        modes(MemoryConfig(checkpointing="every", every=0), 4)


KEPT = {NONE: 100, SELECTIVE: 40, FULL: 10}


@pytest.mark.parametrize(
    ("free", "wanted"),
    [
        (-50, [FULL] * 4),
        (29, [FULL] * 4),
        (65, [FULL, FULL, SELECTIVE, SELECTIVE]),
        (120, [SELECTIVE] * 4),
        (185, [SELECTIVE, SELECTIVE, SELECTIVE, NONE]),
        (10_000, [NONE] * 4),
    ],
)
def test_a_budget_goes_to_products_first(free: int, wanted: list[str]) -> None:
    assert fill(free, 4, KEPT) == wanted


def test_a_budget_skips_selective_where_it_saves_nothing() -> None:
    assert fill(100, 4, {NONE: 40, SELECTIVE: 40, FULL: 10}) == [FULL, NONE, NONE, NONE]


def filled(limit: int) -> Filler:
    model = stack()
    filler = Filler(list(model), torch.device("cpu"), limit, lambda numbers: numbers)
    plain = gradients(stack())
    for _ in range(4):
        assert all(torch.equal(a, b) for a, b in zip(plain, gradients(model), strict=True))
        filler.after_step()
    return filler


def test_the_second_step_measures_what_each_mode_keeps() -> None:
    kept = filled(0).kept
    row = 64 * 32 * 4
    assert kept[FULL] == row  # its output, which is the next block's input
    assert kept[SELECTIVE] == 3 * row  # and what two products put out
    assert kept[NONE] > kept[SELECTIVE]


@pytest.mark.parametrize(("limit", "mode"), [(0, FULL), (1 << 50, NONE)])
def test_the_limit_decides(limit: int, mode: str) -> None:
    filler = filled(limit)
    assert filler.chosen
    assert filler.modes == [mode] * 4


def test_a_cpu_needs_its_limit_said() -> None:
    with pytest.raises(ValueError, match=r"memory\.budget_gib"):
        Filler(list(stack()), torch.device("cpu"), None, lambda numbers: numbers)


def test_modes_by_config() -> None:
    config = MemoryConfig(checkpointing="every", every=3)
    assert modes(config, 5) == [FULL, NONE, NONE, FULL, NONE]
    assert modes(replace(config, checkpointing="selective"), 2) == [SELECTIVE, SELECTIVE]
