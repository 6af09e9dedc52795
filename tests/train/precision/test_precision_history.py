"""Delayed scaling: factors of past steps, the same for all of a step, for every rank, and after a restart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.float8.api import cast_fp8
from tests.train.runs import values, write_config
from train import evaluate, run
from train.branch import branch
from train.checkpoint.layout import newest
from train.precision.float8 import BACKWARD, FORWARD, Delayed, tensorwise
from train.precision.history import History
from train.precision.product import Product
from train.runtime.distributed import World
from train.runtime.signals import StopFlag
from train.spec.config import MemoryConfig, ModelConfig, PrecisionConfig, RunConfig
from train.trainer import Trainer

CPU = torch.device("cpu")
TAKEN, SKIPPED = torch.zeros(()), torch.ones(())


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.product = Delayed()
        self.linear: dict[str, Product] = {"a": self.product}


def tensors(size: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, weight, grad = (torch.randn(*shape, generator=generator) * size for shape in ((32, 48), (16, 48), (32, 16)))
    return x.bfloat16().requires_grad_(), weight.bfloat16().requires_grad_(), grad.bfloat16()


def gradients(product: Product, x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    y = product(x, weight)
    return (y.detach(), *torch.autograd.grad(y, (x, weight), grad))


def sizes(*of: Tensor) -> list[float]:
    return [float(t.abs().max()) for t in of]


def test_without_a_past_the_tensor_itself_is_the_measure() -> None:
    layer = Layer()
    History([layer], CPU, steps=2)
    for ours, current in zip(gradients(layer.product, *tensors()), gradients(tensorwise, *tensors()), strict=True):
        assert torch.equal(ours, current)


def test_the_largest_of_the_last_steps_is_the_factor_of_the_next() -> None:
    layer = Layer()
    history = History([layer], CPU, steps=2)
    seen = []
    for size in (1.0, 4.0, 2.0, 0.5, 0.5):
        gradients(layer.product, *tensors(size / 2))  # two micro-batches, and one of them a second time
        for _ in range(2):
            gradients(layer.product, *tensors(size))
        history.update(TAKEN)
        seen.append((history.largest / torch.tensor(sizes(*(t.detach() for t in tensors())))).tolist())
    assert seen == [[1.0] * 3, [4.0] * 3, [4.0] * 3, [2.0] * 3, [0.5] * 3]


def test_all_three_products_are_narrowed_by_the_past_and_what_exceeds_it_saturates() -> None:
    layer = Layer()
    history = History([layer], CPU, steps=4)
    history.load_state_dict([[2.0, 3.0, 1.0], [0.5, 9.0, 0.25], [0.0] * 3, [0.0] * 3])
    x, weight, grad = tensors()
    x8, w8, g8 = (
        cast_fp8(t.detach(), dtype=dtype, by="tensor", largest=torch.tensor(largest))
        for t, dtype, largest in ((x, FORWARD, 2.0), (weight, FORWARD, 9.0), (grad, BACKWARD, 1.0))
    )
    assert float(x.detach().abs().max()) > 2.0 and float((x8.values.float() * x8.scale).abs().max()) == pytest.approx(
        2.0
    )
    xs, ws, gs = (cast.values.double() * cast.scale.double() for cast in (x8, w8, g8))
    wanted = F.linear(xs, ws), gs @ ws, gs.t() @ xs
    for ours, exact in zip(gradients(layer.product, x, weight, grad), wanted, strict=True):
        # The factors are the same numbers, so what is left is the rounding of the result to bf16.
        assert float((ours.double() - exact).norm() / exact.norm()) < 2**-8


def test_an_infinity_stays_one_and_leaves_no_trace() -> None:
    layer = Layer()
    history = History([layer], CPU, steps=2)
    gradients(layer.product, *tensors())
    history.update(TAKEN)
    kept = history.state_dict()
    x, weight, grad = tensors()
    grad[3, 4] = torch.inf
    _, _, broken = gradients(layer.product, x, weight, grad)
    assert not broken.isfinite().all()
    history.update(SKIPPED)
    assert history.state_dict() == kept and not history.seen.any()
    gradients(layer.product, x, weight, grad)
    history.update(TAKEN)  # a run may be told to go on
    assert torch.isfinite(history.largest).all()


def test_a_compiled_product_notes_what_it_sees_both_ways() -> None:
    found = []
    for compiled in (False, True):
        layers = Layer(), Layer()  # one after the other, so that the second's backward pass comes before the first's
        history = History(layers, CPU, steps=2)

        def twice(x: Tensor, weight: Tensor, layers: tuple[Layer, Layer] = layers) -> Tensor:
            return layers[1].product(layers[0].product(x, weight), weight.t().contiguous())

        # The backend that only traces: what it does to the graph's inputs is torch's part, whatever the code made.
        run = torch.compile(twice, backend="aot_eager", fullgraph=True, dynamic=False) if compiled else twice
        for size in (1.0, 3.0, 0.5):
            x, weight, _ = tensors(size)
            for _ in range(2):
                y = run(x, weight)
                y.square().sum().backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                run(x * 100, weight)
            history.update(TAKEN)
            found.append((history.state_dict(), y.tolist(), x.grad, weight.grad))
    for ours, eager in zip(found[3:], found[:3], strict=True):
        assert ours[:2] == eager[:2]
        assert all(torch.equal(a, b) for a, b in zip(ours[2:], eager[2:], strict=True))  # type: ignore[arg-type]


@pytest.fixture
def small(tiny: RunConfig) -> RunConfig:
    model = ModelConfig(width=32, layers=2, head_dim=16, kv_heads=1, mlp_width=48)
    return replace(tiny, model=model, precision=PrecisionConfig(name="fp8", fp8_history=3))


def built(config: RunConfig, folder: Path) -> Trainer:
    return Trainer(config, folder, World(), CPU)


def losses(trainer: Trainer, steps: int) -> list[tuple[float, float]]:
    return [(float(loss), float(norm)) for loss, norm in (trainer.train_step() for _ in range(steps))]


def test_recomputed_blocks_and_evaluations_change_nothing(small: RunConfig, tmp_path: Path) -> None:
    courses = []
    for memory in (MemoryConfig(), MemoryConfig(checkpointing="full"), MemoryConfig(checkpointing="selective")):
        trainer = built(replace(small, memory=memory), tmp_path)
        found = losses(trainer, 2)
        if memory.checkpointing == "full":
            evaluate.evaluate(trainer.model, trainer.data.validation, trainer.config.eval.by_position, lambda: False)
        found += losses(trainer, 3)
        courses.append((found, trainer.history.state_dict()))
    assert courses[0] == courses[1] == courses[2]
    assert len(courses[0][1]) == 3 and all(all(row) for row in courses[0][1])


def test_a_run_that_was_interrupted_goes_on_with_the_same_factors(
    small: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StopFlag, "install", lambda self: None)
    small = replace(small, budget=replace(small.budget, tokens=12 * 8 * 16))
    whole, halves = (write_config(tmp_path / name, small) for name in ("whole", "halves"))
    assert run.main(["--config", str(whole)]) == 0
    run.main(["--config", str(halves), "--until", str(5 * 8 * 16)])
    (manifest,) = (halves.parent / "checkpoints").glob("step-*/manifest.json")
    assert all(map(all, json.loads(manifest.read_text())["notes"]["fp8"]))
    assert run.main(["--config", str(halves)]) == 0
    after = [row for row in values(halves.parent) if row[0] == "train"]
    assert after == [row for row in values(whole.parent) if row[0] == "train"] and len(after) == 12


@pytest.mark.parametrize("steps", [3, 2])
def test_a_branch_goes_on_with_its_parents_factors_where_it_has_its_format(
    small: RunConfig, tmp_path: Path, steps: int
) -> None:
    small = replace(small, budget=replace(small.budget, tokens=8 * 8 * 16))
    whole, parent = (write_config(tmp_path / name, small) for name in ("whole", "parent"))
    assert run.main(["--config", str(whole)]) == 0
    run.main(["--config", str(parent), "--until", str(5 * 8 * 16)])
    found = newest(parent.parent / "checkpoints")
    assert found is not None
    child = branch(small, found, None)
    child = replace(child, precision=replace(child.precision, fp8_history=steps))
    assert run.main(["--config", str(write_config(tmp_path / "child", child))]) == 0
    ours, theirs = ([row for row in values(tmp_path / name) if row[0] == "train"] for name in ("child", "whole"))
    assert len(ours) == 3 and (ours == theirs[5:]) == (steps == 3)
