"""What each stage of ZeRO sends and keeps, message by message and byte by byte: numbers alone do not tell them apart.

One process in a pretended world: messages bring nothing, but they are sent, and what is kept is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.fake_corpus import write_corpus
from benchmarks.shard_evenness import pretended
from kernels.core.dtensor import local
from tests.train.parallel import cells
from tests.train.parallel.cells import Cell, parallel
from tests.train.parallel.ranks import built, config_of
from train.spec.config import PrecisionConfig
from train.spec.footprint import footprint
from train.trainer import Trainer

RANKS, MICRO_BATCHES = 4, 3
BLOCKS = cells.MODEL.layers
UNITS = BLOCKS + 3
"""What is gathered at once: each block, the embedding, the head, and the last norm."""
FP32 = PrecisionConfig(name="fp32")
GATHER, SUM_SHARDS, SUM_COPIES = "allgather", "reduce_scatter", "allreduce"


class Messages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts messages of tensors of more than one number, by kind."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sent: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        if name.startswith("c10d::"):
            first = args[0]
            while isinstance(first, list | tuple):
                first = first[0]
            if first.numel() > 1:
                kinds = [kind for kind in (GATHER, SUM_SHARDS, SUM_COPIES) if kind in name]
                self.sent[kinds[0] if kinds else name] += 1
        return func(*args, **(kwargs or {}))


@dataclass
class Kept:
    """Bytes on this rank at one moment: gathered weights, whole gradients, shards of gradients."""

    weights: int
    whole_gradients: int
    gradient_shards: int


@dataclass
class Watched:
    """What one step sent and kept: `within` when forward passes end, `after` when backward passes do."""

    messages: Counter[str]
    moments: int
    shards: int
    within: list[Kept] = field(default_factory=list)
    after: list[Kept] = field(default_factory=list)


@contextmanager
def gathered(trainer: Trainer) -> Iterator[dict[int, Tensor]]:
    """Collect the whole weights that layers compute with, as they do."""
    seen: dict[int, Tensor] = {}

    def note(layer: nn.Module, _: Any) -> None:
        seen.update({id(weight): weight for weight in layer.parameters() if not isinstance(weight, DTensor)})

    hooks = [layer.register_forward_pre_hook(note) for layer in trainer.model.whole.modules()]
    yield seen
    for hook in hooks:
        hook.remove()


def watched(zero: int, folder: Path, precision: PrecisionConfig = FP32, **axes: int) -> Watched:
    """Return what a step of three micro-batches and its update sent and kept."""
    layout = parallel(zero=zero, micro_batch_sequences=1, strategy="fsdp", **axes)
    cell = Cell("", layout, sequences=RANKS * 3, precision=precision)
    with pretended(RANKS) as world:
        trainer = built(cell, config_of(cell, folder, cell.parallel, "cpu"), folder, world, torch.device("cpu"))
        named = dict(trainer.model.named_parameters())
        found = Watched(Counter(), 0, sum(local(weight).nbytes for weight in named.values()))
        with gathered(trainer) as whole, Messages() as messages:
            loss_layer = trainer.model.whole.output
            assert loss_layer is not None

            def kept() -> Kept:
                return Kept(
                    sum(weight.untyped_storage().nbytes() for weight in whole.values()),
                    sum(weight.grad.nbytes for weight in whole.values() if weight.grad is not None),
                    sum(local(weight.grad).nbytes for weight in named.values() if weight.grad is not None),
                )

            loss_layer.register_forward_hook(lambda *_: found.within.append(kept()))
            (part,) = trainer.model.parts
            true = part.last_micro

            def between(last: bool) -> None:
                if found.within:
                    found.after.append(kept())
                true(last)

            object.__setattr__(part, "last_micro", between)
            trainer.forward_backward(trainer.data.loader.batch(0, cell.sequences))
            found.after.append(kept())
        found.messages = messages.sent
        trainer.optimizer.step()
        state = trainer.optimizer.state
        found.moments = sum(
            local(value).nbytes for weight in named.values() for key, value in state[weight].items() if key != "step"
        )
        if precision == FP32:
            planned = footprint(trainer.config, trainer.mesh.axes, "cuda")
            assert planned.states == 2 * found.shards + found.moments, "weights, gradients and moments"
    return found


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("zero")
    write_corpus(made, cells.VOCABULARY, train_tokens=5_000, validation_tokens=2_000)
    return made


def test_zero_3_gathers_for_each_pass_and_keeps_a_block_at_a_time(folder: Path) -> None:
    found = watched(3, folder, dp_shard=4)
    again = BLOCKS + 1  # for their backward passes, as for that of the embedding
    assert found.messages == {GATHER: MICRO_BATCHES * (UNITS + again), SUM_SHARDS: MICRO_BATCHES * UNITS}
    whole = RANKS * found.shards
    ends = 4 * (cells.VOCABULARY * cells.MODEL.width + cells.MODEL.width)
    for kept in found.within:  # head and last norm, which the backward pass begins with
        assert kept.weights == ends < whole // 4
    for kept in found.after:
        assert (kept.weights, kept.whole_gradients, kept.gradient_shards) == (0, 0, found.shards)
    assert found.moments == 2 * found.shards


def test_zero_2_gathers_once_a_step_and_sums_after_each_micro_batch(folder: Path) -> None:
    found = watched(2, folder, dp_shard=4)
    assert found.messages == {GATHER: UNITS, SUM_SHARDS: MICRO_BATCHES * UNITS}
    whole = RANKS * found.shards
    assert [kept.weights for kept in found.within] == [whole] * MICRO_BATCHES
    assert [kept.weights for kept in found.after] == [*[whole] * (MICRO_BATCHES - 1), 0]
    for kept in found.after:
        assert (kept.whole_gradients, kept.gradient_shards) == (0, found.shards)
    assert found.moments == 2 * found.shards


def test_zero_1_sums_once_a_step_and_keeps_whole_gradients_until_then(folder: Path) -> None:
    found = watched(1, folder, dp_shard=4)
    assert found.messages == {GATHER: UNITS, SUM_SHARDS: UNITS}
    whole = RANKS * found.shards
    assert [kept.weights for kept in found.after] == [*[whole] * (MICRO_BATCHES - 1), 0]
    assert [kept.whole_gradients for kept in found.after] == [*[whole] * (MICRO_BATCHES - 1), 0]
    assert [kept.gradient_shards for kept in found.after] == [*[0] * (MICRO_BATCHES - 1), found.shards]
    assert found.moments == 2 * found.shards


@pytest.mark.parametrize(("zero", "sums"), [(3, MICRO_BATCHES), (2, MICRO_BATCHES), (1, 1)])
def test_copies_add_up_their_gradients_once_a_step(zero: int, sums: int, folder: Path) -> None:
    found = watched(zero, folder, dp_replicate=2, dp_shard=2)
    assert found.messages[SUM_COPIES] == UNITS
    assert found.messages[SUM_SHARDS] == sums * UNITS
    assert found.after[-1] == Kept(0, 0, found.shards)


@pytest.mark.parametrize(("reduce", "sums"), [("fp32", 1), ("bf16", MICRO_BATCHES)])
def test_micro_batches_do_not_add_up_in_bf16_between_copies(reduce: str, sums: int, folder: Path) -> None:
    found = watched(2, folder, PrecisionConfig(name="bf16", reduce=reduce), dp_replicate=2, dp_shard=2)
    assert found.messages[SUM_COPIES] == sums * UNITS
    assert found.after[-1].gradient_shards == found.shards, "fp32, as the weights"


@pytest.mark.parametrize("zero", [2, 3])
def test_copies_of_the_first_fsdp_add_up_after_each_micro_batch(zero: int, folder: Path) -> None:
    """It has no way of putting that message off alone; whoever compares the two has to know (train.parallel.fsdp1)."""
    layout = parallel(zero=zero, micro_batch_sequences=1, strategy="fsdp1", dp_replicate=2, dp_shard=2)
    cell = Cell("", layout, sequences=RANKS * MICRO_BATCHES)
    with pretended(RANKS) as world:
        trainer = built(cell, config_of(cell, folder, cell.parallel, "cpu"), folder, world, torch.device("cpu"))
        with Messages() as messages:
            trainer.forward_backward(trainer.data.loader.batch(0, cell.sequences))
    flat = BLOCKS + 1  # a flat weight for each block, and one for the rest
    assert messages.sent[SUM_SHARDS] == messages.sent[SUM_COPIES] == MICRO_BATCHES * flat
