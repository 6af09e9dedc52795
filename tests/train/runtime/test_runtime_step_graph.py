"""A step that is replayed: when it is recorded and dropped, and that a run's numbers are those without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from train.build import build_step_graph
from train.runtime.distributed import World
from train.runtime.step_graph import WARM_STEPS, Outputs, StepGraph, Values
from train.spec.config import CompileConfig, MemoryConfig, PrecisionConfig, RunConfig
from train.spec.step_graph import obstacle
from train.trainer import Trainer

CPU = torch.device("cpu")


class Repeated:
    """Stands for a CUDA graph: recording changes nothing, a replay does the work on the same tensors anew."""

    def __init__(self, work: Callable[[], Outputs], held: Callable[[], Iterable[Tensor]]) -> None:
        self.bytes = 1000
        self._work = work
        before = [(tensor, tensor.detach().clone()) for tensor in held()]
        self.outputs = tuple(output.clone() for output in work())  # type: ignore[assignment]
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)

    outputs: Outputs

    def replay(self) -> None:
        for place, value in zip(self.outputs, self._work(), strict=True):
            place.copy_(value)


def recorded_of(work: Callable[[], Outputs], device: torch.device, held: Callable[[], Iterable[Tensor]]) -> Repeated:
    assert device == CPU
    return Repeated(work, held)


class Counting:
    """A computation that adds its input, times a number, to a total; and the graphs that are made of it."""

    def __init__(self, room: int = 1 << 40, failing: str = "") -> None:
        self.total = torch.zeros(2)
        self.said: list[str] = []
        self.recordings = self.calls = 0
        self.failing = failing
        self.graph = StepGraph(
            self.compute, lambda: [self.total], CPU, self.said.append, record=self.record, room=lambda _: room
        )

    def compute(self, values: Values) -> Outputs:
        self.calls += 1
        x, factor = values[0], values[1]
        self.total += x.sum() * (1.0 if factor is None else factor)
        return self.total.sum(), x.sum()

    def record(self, work: Callable[[], Outputs], device: torch.device) -> Repeated:
        if self.failing:
            try:
                raise RuntimeError(self.failing)
            finally:
                raise RuntimeError("operation failed due to a previous error during capture")
        self.recordings += 1
        return Repeated(work, lambda: [self.total])

    def steps(self, count: int, length: int = 3, factor: float = 1.0) -> list[tuple[float, float]]:
        found = [self.graph((torch.full((length,), float(i)), factor)) for i in range(1, count + 1)]
        return [(float(a), float(b)) for a, b in found] if count == 1 else []


def test_a_graph_is_recorded_after_steps_of_one_shape_and_every_call_counts_once() -> None:
    counting = Counting()
    for i in range(1, WARM_STEPS + 4):
        total, own = counting.graph((torch.full((3,), float(i)), 0.5))
        assert (float(total), float(own)) == (3.0 * sum(range(1, i + 1)), 3.0 * i)
        assert counting.graph.recorded == (i > WARM_STEPS)
    assert counting.recordings == 1


def test_numbers_and_tensors_of_a_replay_are_those_of_its_call() -> None:
    counting = Counting()
    counting.steps(WARM_STEPS + 1)
    before = float(counting.total[0])
    counting.graph((torch.tensor([1.0, 2.0, 4.0]), 0.25))
    assert float(counting.total[0]) == before + 7.0 * 0.25


def test_other_shapes_are_warmed_up_and_recorded_anew() -> None:
    counting = Counting()
    counting.steps(WARM_STEPS + 2)
    counting.steps(1, length=5)
    assert not counting.graph.recorded
    counting.steps(WARM_STEPS, length=5)
    assert (counting.graph.recorded, counting.recordings) == (True, 2)
    counting.graph((torch.ones(5), None))
    assert not counting.graph.recorded


def test_a_graph_whose_tensors_have_moved_is_never_replayed() -> None:
    counting = Counting()
    counting.steps(WARM_STEPS + 1)
    counting.total = torch.zeros(2)
    counting.graph((torch.ones(3), 1.0))
    assert not counting.graph.recorded
    assert counting.total.tolist() == [3.0, 3.0]
    counting.steps(WARM_STEPS)
    assert counting.recordings == 2


def test_what_cannot_be_recorded_runs_without_and_says_so_once() -> None:
    counting = Counting(failing="operation not permitted when stream is capturing\nmore")
    counting.steps(WARM_STEPS + 5)
    assert counting.said == ["steps run without a CUDA graph: operation not permitted when stream is capturing"]
    assert counting.total.tolist() == [3.0 * sum(range(1, WARM_STEPS + 6))] * 2
    assert not counting.graph.recorded


@pytest.mark.parametrize(("room", "kept"), [(1999, False), (2000, True)])
def test_a_graph_makes_room_where_a_step_beside_it_would_not_fit(room: int, kept: bool) -> None:
    counting = Counting(room=room)
    counting.graph.make_room()
    counting.steps(WARM_STEPS + 1)
    counting.graph.make_room()
    assert counting.graph.recorded == kept


CHANGES: list[tuple[dict[str, Any], str, int, str]] = [
    ({}, "cpu", 1, "it needs a CUDA device"),
    ({}, "cuda", 2, "2 ranks send messages"),
    ({"compile": CompileConfig(blocks=True, cuda_graphs=True)}, "cuda", 1, "compile.cuda_graphs=true"),
    ({"precision": PrecisionConfig(name="bf16", optimizer_state="bf16")}, "cuda", 1, "precision.optimizer_state=bf16"),
    ({"memory": MemoryConfig(checkpointing="budget")}, "cuda", 1, "memory.checkpointing=budget"),
    ({"memory": MemoryConfig(offload="optimizer")}, "cuda", 1, "memory.offload=optimizer"),
]


@pytest.mark.parametrize(("changes", "device", "ranks", "reason"), CHANGES)
def test_what_cannot_be_one_graph_is_named(
    tiny: RunConfig, changes: dict[str, Any], device: str, ranks: int, reason: str
) -> None:
    assert reason in str(obstacle(replace(tiny, **changes), device, ranks))
    assert obstacle(tiny, "cuda", 1) is None


def test_a_graph_that_is_asked_for_and_cannot_be_is_refused(tiny: RunConfig, tmp_path: Path) -> None:
    asked = replace(tiny, compile=CompileConfig(step_graph=True))
    with pytest.raises(ValueError, match=r"compile.step_graph=true is refused: it needs a CUDA device; use .*null"):
        Trainer(asked, tmp_path, World(), CPU)
    for wanted in (None, False):
        config = replace(tiny, compile=CompileConfig(step_graph=wanted))
        assert Trainer(config, tmp_path, World(), CPU).graph is None


@pytest.mark.parametrize(
    ("precision", "optimizer"),
    [("fp32", "adamw"), ("bf16", "adamw"), ("fp16", "adamw"), ("fp8", "adamw"), ("fp32", "muon"), ("fp32", "sgd")],
)
def test_replayed_steps_are_the_run(tiny: RunConfig, tmp_path: Path, precision: str, optimizer: str) -> None:
    """With accumulation, clipping, a skipped step, statistics between and a loaded state."""
    config = replace(
        tiny,
        precision=PrecisionConfig(name=precision, loss_scale=1024.0, loss_scale_steps=4),
        parallel=replace(tiny.parallel, micro_batch_sequences=2),
        optim=replace(tiny.optim, name=optimizer, grad_clip=0.1),
        health=replace(tiny.health, statistics_steps=6),
    )

    def run(replayed: bool) -> tuple[list[list[float]], dict[str, Tensor]]:
        trainer = Trainer(config, tmp_path, World(), CPU)
        weights = dict(trainer.model.named_parameters())

        def held() -> Iterable[Tensor]:
            yield from weights.values()
            yield from trainer.scaler.tensors
            yield from (v for w in weights.values() for v in trainer.optimizer.state[w].values())

        if replayed:
            record = partial(recorded_of, held=held)
            trainer.graph = StepGraph(trainer._update, held, CPU, pytest.fail, record=record, room=lambda _: 1 << 40)
        losses: list[list[float]] = []
        recorded = 0
        for step in range(14):
            watch = trainer.inspection.watch(step)
            if step == 8:  # a gradient that is not finite
                first = next(iter(weights.values()))
                kept = first.detach().clone()
                with torch.no_grad():
                    first.view(-1)[0] = torch.nan
            losses.append([float(value) for value in trainer.train_step(watch)])
            if step == 8:
                with torch.no_grad():
                    first.copy_(kept)
            if step == 10:
                trainer.optimizer.load_state_dict(deepcopy(trainer.optimizer.state_dict()))
            recorded += trainer.graph is not None and trainer.graph.recorded
        assert recorded == (10 - WARM_STEPS if replayed else 0)
        state = {f"{name}.{key}": v for name, w in weights.items() for key, v in trainer.optimizer.state[w].items()}
        return losses, {name: w.detach() for name, w in weights.items()} | state | trainer.scaler.metrics()

    (plain, weights), (replayed, others) = run(False), run(True)
    assert [repr(pair) for pair in plain] == [repr(pair) for pair in replayed]
    assert all(torch.equal(value, others[name]) for name, value in weights.items())


def test_a_run_on_a_cpu_has_no_graph(tiny: RunConfig, tmp_path: Path) -> None:
    trainer = Trainer(tiny, tmp_path, World(), CPU)
    assert build_step_graph(tiny, trainer.model, trainer.optimizer, trainer.scaler, trainer._update) is None
