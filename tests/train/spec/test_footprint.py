"""Planned memory: whole and cut weights, what offloading moves, and activations beside those that are kept."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from train.memory.checkpointing import modes, wrap
from train.model.initialise import initialise
from train.model.transformer import Transformer
from train.spec.config import BudgetConfig, MemoryConfig, ModelConfig, ParallelConfig, PrecisionConfig, RunConfig
from train.spec.counts import params
from train.spec.footprint import footprint
from train.spec.mesh import Axes
from train.spec.resolve import resolve

reference: Any = StorageWeakRef
MODEL = ModelConfig(width=64, layers=4, head_dim=16)


def run(model: ModelConfig = MODEL, **changes: Any) -> RunConfig:
    return resolve(RunConfig(model=model, budget=BudgetConfig(tokens=10**6), **changes))


class Made(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers the memory of every tensor that is made, without holding on to it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: dict[int, tuple[Any, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.seen[storage._cdata] = (reference(storage), storage.nbytes())
        return out

    def alive(self, beside: set[int]) -> int:
        """Return the bytes that are still there, without the memory whose ids are in `beside`."""
        gc.collect()
        seen = self.seen.items()
        return sum(size for which, (there, size) in seen if which not in beside and not there.expired())


def kept(config: RunConfig, rows: torch.Tensor) -> int:
    """Return the bytes that a forward pass keeps for the backward pass."""
    model = Transformer(config.model, config.data.vocab_size, config.data.sequence_length)
    initialise(model, 0)
    wrap(list(model.blocks.values()), modes(config.memory, config.model.layers))
    with Made() as made:
        loss = model(rows, rows)
    assert loss.requires_grad, "the graph, and what it keeps, is alive"
    there: int = made.alive({weight.untyped_storage()._cdata for weight in model.parameters()})
    return there


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_activations_are_planned_from_above(mode: str) -> None:
    config = run(memory=MemoryConfig(checkpointing=mode), parallel=ParallelConfig(micro_batch_sequences=4))
    rows = torch.randint(0, config.data.vocab_size, (4, config.data.sequence_length))
    # Blocks alone: without what embedding, head and loss keep, which does not grow with them.
    shallow = replace(config, model=replace(config.model, layers=1))
    blocks = kept(config, rows) - kept(shallow, rows)
    planned = footprint(config, Axes(), "cpu").activations - footprint(shallow, Axes(), "cpu").activations
    # 21, 12.5 and 1 values a token and channel are kept here; 34, 16 and 2 are planned.
    assert blocks <= planned <= 2.1 * blocks


@pytest.mark.parametrize(("precision", "size"), [("fp32", 4), ("bf16", 2)])
def test_whole_weights_beside_the_shards(precision: str, size: int) -> None:
    config = run(precision=PrecisionConfig(name=precision))
    total = params(config.model, config.data.vocab_size).total
    by_zero = {
        zero: footprint(replace(config, parallel=replace(config.parallel, zero=zero)), Axes(dp_shard=4), "cuda")
        for zero in (1, 2, 3)
    }
    assert len({one.states for one in by_zero.values()}) == 1, "the shards are the same"
    assert by_zero[2].gathered == size * total
    assert by_zero[1].gathered == (size + 4) * total, "and whole gradients in fp32"
    assert 0 < by_zero[3].gathered < by_zero[2].gathered
    assert footprint(config, Axes(dp_replicate=4), "cuda").gathered == 0, "copies are the weights themselves"


def test_what_is_offloaded_lies_on_the_host() -> None:
    def of(offload: str, device: str = "cuda") -> Any:
        return footprint(run(memory=MemoryConfig(offload=offload)), Axes(dp_shard=2), device)

    none, optimizer, parameters = (of(offload) for offload in ("none", "optimizer", "parameters"))
    assert optimizer.states + optimizer.host == none.states == parameters.host
    assert optimizer.fetched == optimizer.host == none.states // 2, "two moments beside weights and gradients"
    assert optimizer.total == optimizer.states + optimizer.gathered + max(optimizer.activations, optimizer.fetched)
    assert parameters.states == 0
    assert of("parameters", "cpu") == of("none", "cpu"), "a CPU has nowhere else to put them"


def test_a_pipeline_holds_the_micro_batches_that_wait() -> None:
    layout = ParallelConfig(dp_replicate=1, micro_batch_sequences=1, pp=4)
    config = run(replace(MODEL, layers=8), parallel=layout)
    many = replace(config, batch=replace(config.batch, tokens=64 * config.data.sequence_length))
    one = footprint(replace(many, parallel=ParallelConfig(micro_batch_sequences=1)), Axes(), "cuda").activations

    def held(**changes: Any) -> float:
        layout = replace(many.parallel, **changes)
        return footprint(replace(many, parallel=layout), Axes(pp=4), "cuda").activations / one

    assert held() == 1, "four of them, of a quarter of the layers"
    assert held(pp_schedule="gpipe") == 16
    assert held(pp_schedule="gpipe", pp_micro_batches=8) == 2
    assert held(pp_schedule="interleaved") == 5.5 / 4
