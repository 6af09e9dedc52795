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

from benchmarks.peers.rows import SHAPES
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
    assert blocks <= planned <= 1.06 * blocks


@pytest.mark.parametrize(
    ("model", "sequences", "precision", "gpus", "measured"),
    [
        ("150m", 64, "bf16", 1, 19.11),
        ("1b", 8, "bf16", 1, 42.61),
        ("1b", 8, "bf16", 2, 35.52),
        ("1b", 8, "fp8", 1, 43.60),
    ],
)
def test_the_plan_is_above_what_was_measured(
    model: str, sequences: int, precision: str, gpus: int, measured: float
) -> None:
    """Most memory of tensors on H200s in benchmarks/results/trainer_peers.json [GiB]; on two, weights are sharded."""
    shape = SHAPES[model]
    config = RunConfig(
        shape.model,
        DataConfig(sequence_length=shape.length, vocab_size=shape.vocabulary),
        BatchConfig(tokens=gpus * sequences * shape.length),
        precision=PrecisionConfig(name=precision),
        parallel=ParallelConfig(micro_batch_sequences=sequences),
    )
    found = footprint(config, Axes(dp_shard=gpus), "cuda").total / 2**30
    assert measured <= found <= 1.25 * measured


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

    def blocks(config: RunConfig, axes: Axes) -> int:
        deeper = replace(config, model=replace(config.model, layers=16))
        return footprint(deeper, axes, "cuda").activations - footprint(config, axes, "cuda").activations

    one = blocks(replace(many, parallel=ParallelConfig(micro_batch_sequences=1)), Axes())

    def held(**changes: Any) -> float:
        return blocks(replace(many, parallel=replace(many.parallel, **changes)), Axes(pp=4)) / one

    assert held() == 1, "four of them, of a quarter of the layers"
    assert held(pp_schedule="gpipe") == 16
    assert held(pp_schedule="gpipe", pp_micro_batches=8) == 2
    assert held(pp_schedule="interleaved") == 5.5 / 4


LENGTH = 128
FP32 = 4 * (64 + 64 + 192 + 192 + 64 + 64 + 64 + 3 * 176) + 4 * (1 + 4 + 1)
"""Bytes that one block of MODEL keeps of a token on a GPU: each stream and its norm, queries, keys and values as one
product and apart, attention, gate, up and what they make; two statistics of rows and one of each head."""
BF16 = FP32 // 2 + 2 * (1 + 4 + 1)
INPUT = 4 * 64
PRODUCTS = 4 * (64 + 192 + 64 + 64 + 2 * 176 + 64) + 4 * 4
ENDS, AT_WORK = 8 + 4 + 4 * 16 + 2 * 4 * 64, 4 * (4 * 176 + 2 * 64)


def activations(
    layout: dict[str, Any], axes: Axes, layers: int = 4, sequences: int = 16, device: str = "cuda", **changes: Any
) -> int:
    """Return the planned activations without the head's chunk of logits and its weight's gradient [bytes]."""
    config = RunConfig(
        replace(MODEL, layers=layers),
        DataConfig(sequence_length=LENGTH, vocab_size=2),
        BatchConfig(tokens=sequences * LENGTH),
        parallel=ParallelConfig(**layout),
        **changes,
    )
    planned = footprint(config, axes, device).activations
    assert type(planned) is int
    return planned


def planned(sequences: float, kept: float, again: float = 0.0, waiting: float = 1.0) -> int:
    """Return what micro-batches of so many sequences take, with `kept` bytes of each token in all blocks of a rank."""
    head = round(sequences * LENGTH) * 4 * 2 + 4 * 2 * 64
    return int(sequences * LENGTH * (waiting * (kept + ENDS) + AT_WORK + again)) + head


def memory(checkpointing: str, every: int = 2) -> dict[str, Any]:
    return {"memory": MemoryConfig(checkpointing=checkpointing, every=every)}


ONE: dict[str, Any] = {"micro_batch_sequences": 1}


@pytest.mark.parametrize(
    ("layout", "axes", "changes", "expected"),
    [
        (ONE, Axes(), {}, planned(1, 4 * FP32)),
        ({"micro_batch_sequences": 3}, Axes(), {}, planned(3, 4 * FP32)),
        ({}, Axes(), {}, planned(16, 4 * FP32)),  # all of the batch: it fits
        (ONE | {"pp_schedule": "gpipe"}, Axes(), {}, planned(1, 4 * FP32)),  # no pipeline, none wait
        ({}, Axes(), {"sequences": 64}, planned(64, 4 * FP32)),
        ({}, Axes(dp_shard=3), {}, planned(6, 4 * FP32)),  # the largest of three shares of 16
        ({}, Axes(dp_replicate=32), {}, planned(1, 4 * FP32)),
        (ONE, Axes(), memory("full"), planned(1, 4 * INPUT, FP32)),
        (ONE, Axes(), memory("budget"), planned(1, 4 * INPUT, FP32)),
        (ONE, Axes(), memory("selective"), planned(1, 4 * PRODUCTS, FP32)),
        (ONE, Axes(), memory("every", 1), planned(1, 4 * INPUT, FP32)),
        (ONE, Axes(), memory("every", 2), planned(1, 2 * (INPUT + FP32), FP32)),
        (ONE, Axes(), memory("every", 4), planned(1, INPUT + 3 * FP32, FP32)),
        # Two ranks of nine layers have five at most; two micro-batches wait, each of half the batch.
        ({"pp": 2}, Axes(pp=2), {"layers": 9}, planned(8, 5 * FP32, waiting=2)),
        ({"pp": 2}, Axes(pp=2), {"layers": 9, "sequences": 1}, planned(1, 5 * FP32, waiting=2)),  # one and an empty one
        ({"pp": 2, "pp_schedule": "gpipe"}, Axes(pp=2), {"sequences": 15}, planned(7, 2 * FP32, waiting=3)),
        (ONE | {"pp": 2, "pp_schedule": "gpipe"}, Axes(pp=2), {}, planned(1, 2 * FP32, waiting=16)),
        (ONE | {"pp": 2, "pp_schedule": "gpipe", "pp_micro_batches": 5}, Axes(pp=2), {}, planned(1, 2 * FP32, 0, 5)),
        (ONE | {"pp": 2, "pp_schedule": "gpipe", "pp_micro_batches": 50}, Axes(pp=2), {}, planned(1, 2 * FP32, 0, 16)),
        # Two stages a rank: a quarter of the batch at a time, and 2.5 of them wait.
        ({"pp": 2, "pp_schedule": "interleaved"}, Axes(pp=2), {}, planned(4, 2 * FP32, waiting=2.5)),
        ({"pp": 2, "pp_schedule": "interleaved"}, Axes(pp=2), {"sequences": 15}, planned(3, 2 * FP32, waiting=2.5)),
        (ONE | {"pp": 4}, Axes(pp=4), memory("full"), planned(1, INPUT, FP32, waiting=4)),
    ],
)
def test_activations_by_hand(layout: dict[str, Any], axes: Axes, changes: dict[str, Any], expected: int) -> None:
    assert activations(layout, axes, **changes) == expected


def test_shorter_formats_keep_half_and_a_cpu_keeps_what_its_references_do() -> None:
    bf16: dict[str, Any] = {"precision": PrecisionConfig(name="bf16")}
    more = [
        activations(ONE, Axes(), layers=5, **kind) - activations(ONE, Axes(), **kind)
        for kind in (dict[str, Any](), bf16)
    ]
    assert more == [LENGTH * FP32, LENGTH * BF16]
    on_cpu = activations(ONE, Axes(), layers=5, device="cpu") - activations(ONE, Axes(), device="cpu")
    assert on_cpu == LENGTH * (4 * (7 * 64 + 3 * 64 + 4 * 176) + 4 * (2 + 4 + 2 * 4)), "product of values, silu, hidden"


def test_what_ranks_gather_is_not_cut() -> None:
    def of(**axes: int) -> float:
        shape = Axes(**axes)
        return (activations(ONE, shape, layers=5) - activations(ONE, shape)) / LENGTH

    normed, keys = 4 * 2 * 64, 4 * 2 * 64
    rest = FP32 - normed - keys
    assert of() == FP32
    assert of(tp=2) == normed + (keys + rest) / 2, "each has whole sequences of what its products take"
    assert of(cp=2) == keys + (normed + rest) / 2, "and all keys and values"
    assert of(tp=2, cp=2) == (normed + keys) / 2 + rest / 4


def test_a_share_of_a_byte_is_left_out() -> None:
    every = memory("every", 3)
    assert activations(ONE, Axes(), **every) == planned(1, 4 * (INPUT + 2 * FP32) / 3, FP32)


def test_the_head_has_a_chunk_of_logits_and_its_gradient() -> None:
    def of(vocabulary: int, sequences: int, device: str) -> int:
        config = RunConfig(
            MODEL,
            DataConfig(sequence_length=LENGTH, vocab_size=vocabulary),
            BatchConfig(tokens=sequences * LENGTH),
            parallel=ParallelConfig(micro_batch_sequences=sequences),
        )
        return footprint(config, Axes(), device).activations

    assert of(1002, 1, "cuda") - of(2, 1, "cuda") == 4 * 1000 * LENGTH + 4 * 1000 * 64
    large = of(100_000, 64, "cuda") - of(2, 64, "cuda")
    assert large == (2 << 30) - 4 * 2 * 64 * LENGTH + 4 * 99_998 * 64, "a chunk at a time"
    assert of(100_000, 64, "cpu") - of(2, 64, "cpu") == (8 << 20) - 4 * 2 * 64 * LENGTH + 4 * 99_998 * 64


@pytest.mark.parametrize(
    ("width", "layers", "length", "device", "sequences"),
    [
        (64, 2, 128, "cpu", 32),
        (64, 2, 241, "cpu", 16),  # 4,097 tokens would be 17
        (64, 2, 4096, "cpu", 1),
        (64, 2, 5000, "cpu", 1),
        (1024, 24, 32, "cpu", 10),  # 2^30 bytes over 4 x 34 x 1024 x 24 a token are 321 tokens
        (8192, 80, 2048, "cuda", 1),
    ],
)
def test_micro_batches_by_hand(width: int, layers: int, length: int, device: str, sequences: int) -> None:
    config = RunConfig(ModelConfig(width=width, layers=layers), DataConfig(sequence_length=length))
    found = micro_batch_sequences(config, Axes(), device)
    assert (found, type(found)) == (sequences, int)


def test_a_gpu_is_planned_to_hold_8_gib_of_activations_at_least() -> None:
    config = RunConfig(MODEL, DataConfig(sequence_length=LENGTH), BatchConfig(tokens=LENGTH))
    found = micro_batch_sequences(config, Axes(), "cuda")
    assert found == (8 << 30) // (4 * FP32 + ENDS + AT_WORK) // LENGTH


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
    # A pipeline keeps weights and gradients of all its micro-batches whole, at every stage.
    middle = Axes(dp_shard=2, pp=3)
    assert gathered(middle, zero=2) == 8 * (2 * block + 32 + head), "of the fullest, the last"
    assert gathered(middle, zero=2, pp_layers=(1, 4, 1)) == 8 * 4 * block, "which has neither embedding nor head"
    assert gathered(middle, layers=18, vocabulary=2, pp_layers=(1, 16, 1)) == 8 * 16 * block
    assert gathered(middle, pp_layers=(1, 4, 1), precision="bf16") == 6 * 4 * block
    for axes in (Axes(), Axes(dp_replicate=4), Axes(tp=2), Axes(pp=2)):
        assert gathered(axes) == 0, "nothing is cut over data-parallel ranks"


def test_the_most_at_once_is_with_activations_or_with_moments() -> None:
    assert Footprint(100, 20, 3, 7, 1000).total == 123
    assert Footprint(100, 7, 3, 20, 1000).total == 123
    assert Footprint(100, 7, 3, 20, 1000, 4).total == 127, "and what a pipeline's peak has beyond"
