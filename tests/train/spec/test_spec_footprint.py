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

from train.memory.activation_checkpointing import modes, wrap
from train.model.init import initialise
from train.model.transformer import Transformer
from train.spec.config import (
    BatchConfig,
    BudgetConfig,
    DataConfig,
    MemoryConfig,
    ModelConfig,
    OptimConfig,
    ParallelConfig,
    PrecisionConfig,
    RunConfig,
)
from train.spec.counts import params
from train.spec.footprint import Footprint, footprint, micro_batch_sequences
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


UNIT = 4 * 64 * 128
"""One fp32 value for each channel of each token of one sequence [bytes]."""


def activations(
    layout: dict[str, Any], axes: Axes, layers: int = 4, sequences: int = 16, device: str = "cuda", **changes: Any
) -> float:
    """Return the planned activations in values that one sequence keeps for each of its tokens and channels."""
    config = RunConfig(
        replace(MODEL, layers=layers),
        DataConfig(sequence_length=128),
        BatchConfig(tokens=sequences * 128),
        parallel=ParallelConfig(**layout),
        **changes,
    )
    planned = footprint(config, axes, device).activations
    assert type(planned) is int
    return planned / UNIT


@pytest.mark.parametrize(
    ("layout", "axes", "changes", "values"),
    [
        ({"micro_batch_sequences": 1}, Axes(), {}, 4 * 34),
        ({"micro_batch_sequences": 3}, Axes(), {}, 3 * 4 * 34),
        ({}, Axes(), {}, 16 * 4 * 34),  # all of the batch: it fits
        ({"pp_schedule": "gpipe", "micro_batch_sequences": 1}, Axes(), {}, 4 * 34),  # no pipeline, none wait
        ({}, Axes(), {"sequences": 64}, 64 * 4 * 34),
        ({}, Axes(), {"sequences": 64, "device": "cpu"}, 32 * 4 * 34),  # 4,096 tokens
        ({}, Axes(dp_shard=3), {}, 6 * 4 * 34),  # the largest of three shares of 16
        ({}, Axes(dp_replicate=32), {}, 4 * 34),
        ({"micro_batch_sequences": 1}, Axes(tp=2, cp=2), {}, 34),
        ({"micro_batch_sequences": 1}, Axes(), {"precision": PrecisionConfig(name="bf16")}, 2 * 34),
        ({"micro_batch_sequences": 1}, Axes(), {"memory": MemoryConfig(checkpointing="full")}, 4 * 2 + 34),
        ({"micro_batch_sequences": 1}, Axes(), {"memory": MemoryConfig(checkpointing="budget")}, 4 * 2 + 34),
        ({"micro_batch_sequences": 1}, Axes(), {"memory": MemoryConfig(checkpointing="selective")}, 4 * 16 + 34),
        ({"micro_batch_sequences": 1}, Axes(), {"memory": MemoryConfig(checkpointing="every", every=1)}, 4 * 2 + 34),
        ({"micro_batch_sequences": 1}, Axes(), {"memory": MemoryConfig(checkpointing="every", every=2)}, 2 * 36 + 34),
        (
            {"micro_batch_sequences": 1},
            Axes(),
            {"memory": MemoryConfig(checkpointing="every", every=4)},
            2 + 3 * 34 + 34,
        ),
        # Two ranks of nine layers have five at most; two micro-batches wait, each of half the batch.
        ({"pp": 2}, Axes(pp=2), {"layers": 9}, 8 * 2 * 5 * 34),
        ({"pp": 2}, Axes(pp=2), {"layers": 9, "sequences": 1}, 2 * 5 * 34),  # one and an empty one
        ({"pp": 2, "pp_schedule": "gpipe"}, Axes(pp=2), {"sequences": 15}, 7 * 3 * 2 * 34),
        ({"pp": 2, "pp_schedule": "gpipe", "micro_batch_sequences": 1}, Axes(pp=2), {}, 16 * 2 * 34),
        (
            {"pp": 2, "pp_schedule": "gpipe", "micro_batch_sequences": 1, "pp_micro_batches": 5},
            Axes(pp=2),
            {},
            5 * 2 * 34,
        ),
        (
            {"pp": 2, "pp_schedule": "gpipe", "micro_batch_sequences": 1, "pp_micro_batches": 50},
            Axes(pp=2),
            {},
            16 * 2 * 34,
        ),
        # Two stages a rank: a quarter of the batch at a time, and 2.5 of them wait.
        ({"pp": 2, "pp_schedule": "interleaved"}, Axes(pp=2), {}, 4 * 2.5 * 2 * 34),
        ({"pp": 2, "pp_schedule": "interleaved"}, Axes(pp=2), {"sequences": 15}, 3 * 2.5 * 2 * 34),
        ({"pp": 2, "pp_schedule": "interleaved"}, Axes(pp=2, dp_shard=2), {"sequences": 30}, 3 * 2.5 * 2 * 34),
        ({"pp": 4, "micro_batch_sequences": 1}, Axes(pp=4), {"memory": MemoryConfig(checkpointing="full")}, 4 * 2 + 34),
    ],
)
def test_activations_by_hand(layout: dict[str, Any], axes: Axes, changes: dict[str, Any], values: float) -> None:
    assert activations(layout, axes, **changes) == values


def test_a_share_of_a_byte_is_left_out() -> None:
    every = MemoryConfig(checkpointing="every", every=3)  # (2 + 2 * 34) / 3 values of each block
    found = activations({"micro_batch_sequences": 1}, Axes(), memory=every)
    assert found * UNIT == int(4 * 64 * (4 * 70 / 3 + 34)) * 128


@pytest.mark.parametrize(
    ("width", "layers", "length", "device", "sequences"),
    [
        (64, 2, 128, "cpu", 32),
        (64, 2, 241, "cpu", 16),  # 4,097 tokens would be 17
        (64, 2, 4096, "cpu", 1),
        (64, 2, 5000, "cpu", 1),
        (1024, 24, 32, "cpu", 10),  # 2^30 bytes over 4 x 34 x 1024 x 24 a token are 321 tokens
        (1024, 24, 128, "cuda", 20),  # 2,570 tokens
        (1024, 24, 2570, "cuda", 1),
        (1024, 24, 2571, "cuda", 1),
        (1024, 24, 1285, "cuda", 2),
        (8192, 80, 2048, "cuda", 1),
    ],
)
def test_micro_batches_by_hand(width: int, layers: int, length: int, device: str, sequences: int) -> None:
    found = micro_batch_sequences(ModelConfig(width=width, layers=layers), length, device)
    assert (found, type(found)) == (sequences, int)


def test_states_by_hand() -> None:
    model = replace(MODEL, width=32, layers=3, head_dim=16, mlp_width=48)
    blocks, ends = 3 * (4 * 32 * 32 + 3 * 32 * 48), 2 * 100 * 32
    norms = 3 * (2 * 32 + 2 * 16) + 32
    total = blocks + ends + norms

    def states(name: str = "adamw", precision: str = "fp32", state: str = "fp32") -> int:
        config = RunConfig(
            model,
            DataConfig(vocab_size=100),
            BatchConfig(tokens=128),
            OptimConfig(name=name),
            precision=PrecisionConfig(name=precision, optimizer_state=state),
        )
        found = footprint(config, Axes(), "cpu")
        assert (found.gathered, found.fetched, found.host) == (0, 0, 0)
        return found.states

    assert states() == total * (4 + 4 + 8)
    assert states("sgd") == total * (4 + 4 + 4)
    assert states("muon") == total * (4 + 4) + 4 * (blocks + 2 * (ends + norms))
    assert states(precision="bf16") == total * (4 + 4 + 2 + 8), "a copy in bf16 beside"
    assert states(state="bf16") == total * (4 + 4 + 4)


def test_what_is_gathered_by_hand() -> None:
    model = replace(MODEL, width=32, layers=6, head_dim=16, mlp_width=48)
    block = 4 * 32 * 32 + 3 * 32 * 48 + 2 * 32 + 2 * 16
    head = 100 * 32

    def gathered(axes: Axes, layers: int = 6, vocabulary: int = 100, precision: str = "fp32", **layout: Any) -> int:
        found = footprint(
            RunConfig(
                replace(model, layers=layers),
                DataConfig(vocab_size=vocabulary),
                BatchConfig(tokens=1024),
                precision=PrecisionConfig(name=precision),
                parallel=ParallelConfig(pp=axes.pp, **layout),
            ),
            axes,
            "cuda",
        ).gathered
        assert type(found) is int
        return found

    two = Axes(dp_shard=2)
    assert gathered(two) == 4 * (2 * block + head), "two blocks, and the embedding or the head"
    assert gathered(two, layers=1, vocabulary=2) == 4 * (block + 2 * 2 * 32 + 32), "never more than there is"
    assert gathered(two, precision="bf16") == 2 * (2 * block + head)
    assert gathered(two, zero=2) == 4 * (6 * block + 2 * head + 32)
    assert gathered(two, zero=1) == 8 * (6 * block + 2 * head + 32)
    assert gathered(two, zero=1, precision="bf16") == 6 * (6 * block + 2 * head + 32)
    assert gathered(Axes(cp=2)) == gathered(two), "ranks that share a sequence share weights"
    assert gathered(Axes(dp_shard=2, pp=3), zero=2) == 4 * (2 * block + 32 + head), "of the fullest, the last"
    middle = Axes(dp_shard=2, pp=3)
    assert gathered(middle, zero=2, pp_layers=(1, 4, 1)) == 4 * 4 * block, "which has neither embedding nor head"
    assert gathered(middle, layers=18, vocabulary=2, pp_layers=(1, 16, 1)) == 4 * 2 * block
    for axes in (Axes(), Axes(dp_replicate=4), Axes(tp=2), Axes(pp=2)):
        assert gathered(axes) == 0, "nothing is cut over data-parallel ranks"


def test_the_most_at_once_is_with_activations_or_with_moments() -> None:
    assert Footprint(100, 20, 3, 7, 1000).total == 123
    assert Footprint(100, 7, 3, 20, 1000).total == 123
