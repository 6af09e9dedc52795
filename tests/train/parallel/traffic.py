"""What trainers send, counted message by message: `python -m tests.train.parallel.traffic FOLDER OUT` on four ranks.

Groups are named by their ranks: axes of one size are told apart where their ranks differ.
"""

from __future__ import annotations

import json
import operator
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.cross_entropy import math
from kernels.cross_entropy.math import group_named
from tests.train.parallel.cells import EXPERTS, MODEL, TIED, Cell, parallel
from tests.train.parallel.ranks import built, config_of, meeting_place, met
from train.runtime import distributed
from train.runtime.distributed import World
from train.spec.communication.messages import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, SEND
from train.spec.communication.step import step_messages
from train.spec.config import MemoryConfig, PrecisionConfig
from train.spec.pipeline_layout import rank_of
from train.trainer import Trainer

RECEIVE = "receive"
Sent = Counter[tuple[str, tuple[int, ...], int]]
"""How often a collective was called on a group of ranks with so many bytes (train.spec.communication.messages)."""

BF16, ONE = PrecisionConfig(name="bf16"), {"micro_batch_sequences": 1}
FP8 = PrecisionConfig(name="fp8", fp8_gather=True, fp8_keep_blocks=1)
FOUR, FOUR_TIED = replace(MODEL, layers=4), replace(TIED, layers=4)
FOUR_EXPERTS = replace(EXPERTS, layers=4, router_bias_speed=0.01)
FULL, EVERY = MemoryConfig(checkpointing="full"), MemoryConfig(checkpointing="every")

ALONE = (
    Cell("fsdp 4", parallel(dp_shard=4, **ONE), precision=BF16, sequences=12),
    Cell("fsdp 4 in fp32, tied", parallel(dp_shard=4, **ONE), TIED, sequences=12),
    Cell("fsdp 3, uneven batch", parallel(dp_shard=3, micro_batch_sequences=2), precision=BF16, sequences=13),
    Cell("fsdp 4, ZeRO-2, checkpointed", parallel(dp_shard=4, zero=2, **ONE), precision=BF16, memory=FULL),
    Cell("fsdp 4, ZeRO-1", parallel(dp_shard=4, zero=1, **ONE), precision=replace(BF16, reduce="bf16"), sequences=12),
    Cell("fsdp 4, two blocks ahead", parallel(dp_shard=4, fsdp_prefetch=2, **ONE), FOUR, precision=BF16, sequences=12),
    Cell("fsdp1 4", parallel(dp_shard=4, strategy="fsdp1", **ONE), precision=BF16, sequences=12),
    Cell("fsdp1 3, padded", parallel(dp_shard=3, strategy="fsdp1", **ONE), precision=BF16, sequences=12),
    Cell("fsdp1 2 x 2, ZeRO-2", parallel(dp_shard=2, dp_replicate=2, strategy="fsdp1", zero=2, **ONE), TIED),
    Cell("hsdp 2 x 2", parallel(dp_shard=2, dp_replicate=2, **ONE), precision=BF16, sequences=12),
    Cell("hsdp 2 x 2, ZeRO-2, bf16 sums", parallel(dp_shard=2, dp_replicate=2, zero=2, **ONE),
         precision=replace(BF16, reduce="bf16"), sequences=12),
    Cell("hsdp 2 x 2, ZeRO-1", parallel(dp_shard=2, dp_replicate=2, zero=1, **ONE), precision=BF16, sequences=12),
    Cell("copies by fsdp", parallel(dp_replicate=4, strategy="fsdp", **ONE), precision=BF16, sequences=12),
    Cell("fsdp 2, gathered in fp8", parallel(dp_shard=2, **ONE), FOUR, precision=FP8, sequences=4),
    Cell("tp 4", parallel(tp=4, **ONE), precision=BF16, sequences=3),
    Cell("tp 4, smoothed, every second block", parallel(tp=4, **ONE), FOUR_TIED, memory=EVERY, penalised=True),
    Cell("tp 2 x fsdp 2", parallel(tp=2, dp_shard=2, micro_batch_sequences=2), precision=BF16, sequences=6),
    Cell("cp 4", parallel(cp=4, **ONE), precision=BF16, sequences=3),
    Cell("cp 2 x tp 2, checkpointed", parallel(cp=2, tp=2, **ONE), precision=BF16, memory=FULL, sequences=3),
    Cell("experts: fsdp 4", parallel(dp_shard=4, **ONE), EXPERTS, precision=BF16, sequences=12),
    Cell("experts: cp 2 x fsdp 2, checkpointed", parallel(cp=2, dp_shard=2, **ONE), EXPERTS, memory=FULL, sequences=4),
    Cell("cp 2 x fsdp 2, kept", parallel(cp=2, dp_shard=2, **ONE), memory=MemoryConfig(checkpointing="selective")),
)  # fmt: skip
"""Layouts that one process in a pretended world can run."""

TOGETHER = (
    Cell("ddp 4", parallel(dp_replicate=4, **ONE), precision=BF16, sequences=12),
    Cell("ddp 4, buckets of 16 KiB", parallel(dp_replicate=4, ddp_bucket_mib=2**-6, **ONE), precision=BF16),
    Cell("hsdp 2 x 2", parallel(dp_shard=2, dp_replicate=2, **ONE), precision=BF16, sequences=12),
    Cell("cp 2 x tp 2", parallel(cp=2, tp=2, **ONE), precision=BF16, sequences=3),
    Cell("cp 2 x ddp 2", parallel(cp=2, dp_replicate=2, strategy="ddp", **ONE), TIED),
    Cell("experts: fsdp 4 x ep 2", parallel(dp_shard=4, ep=2, **ONE), EXPERTS, precision=BF16, sequences=12),
    Cell("experts: copies x ep 2, made again", parallel(dp_replicate=2, dp_shard=2, ep=2), EXPERTS, memory=FULL),
    Cell(
        "experts: pp 2 x fsdp 2 x ep 2",
        parallel(pp=2, dp_shard=2, ep=2, **ONE),
        replace(EXPERTS, layers=4),
        memory=FULL,
    ),
    Cell("pp 4, gpipe", parallel(pp=4, pp_schedule="gpipe", **ONE), FOUR, precision=BF16, sequences=5),
    Cell("pp 2 x fsdp 2, 1f1b, tied", parallel(pp=2, dp_shard=2, **ONE), FOUR_TIED, precision=BF16),
    Cell("pp 2 x fsdp 2, accumulated", parallel(pp=2, dp_shard=2, pp_micro_batches=2, **ONE), FOUR, precision=BF16),
    Cell("pp 2 x copies, interleaved", parallel(pp=2, dp_replicate=2, pp_schedule="interleaved", **ONE), FOUR),
    Cell("pp 2 x fsdp 2, interleaved", parallel(pp=2, dp_shard=2, pp_schedule="interleaved", **ONE), FOUR),
    Cell("pp 2 x tp 2, zb1p, tied", parallel(pp=2, tp=2, pp_schedule="zb1p", **ONE), FOUR_TIED, precision=BF16),
    Cell("pp 2 x fsdp 2, zbv, ZeRO-2, tied", parallel(pp=2, dp_shard=2, pp_schedule="zbv", zero=2, **ONE), FOUR_TIED),
)
"""Those that need other ranks to answer, and some others on real ones."""


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts every message of torch.distributed that tensors are given to. AssertionError for an unknown kind."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sent: Sent = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        library, _, name = func.name().partition("::")
        if library in ("c10d", "_c10d_functional") and name != "wait_tensor":
            self._note(name.partition(".")[0], args)
        return func(*args, **(kwargs or {}))

    def _note(self, name: str, args: Any) -> None:
        if name == "all_gather_into_tensor":
            found = (ALL_GATHER, args[0].nbytes * args[1])
        elif name == "reduce_scatter_tensor":
            found = (REDUCE_SCATTER, args[0].nbytes)
        else:
            what, place = {
                "allreduce_": (ALL_REDUCE, 0),
                "all_reduce": (ALL_REDUCE, 0),
                "all_to_all_single": (ALL_TO_ALL, 0),
                "_allgather_base_": (ALL_GATHER, 0),
                "allgather_": (ALL_GATHER, 0),
                "_reduce_scatter_base_": (REDUCE_SCATTER, 1),
                "send": (SEND, 0),
                "recv_": (RECEIVE, 0),
            }[name]
            found = (what, sum(tensor.nbytes for tensor in _tensors(args[place])))
        self.sent[found[0], _ranks(args), found[1]] += 1


def _tensors(found: Any) -> Iterator[Tensor]:
    if isinstance(found, Tensor):
        yield found
    else:
        for one in found:
            yield from _tensors(one)


def _ranks(args: Any) -> tuple[int, ...]:
    """Return the ranks of the group that an operator was given, boxed or by its name."""
    named = [one for one in args if isinstance(one, str) and one not in ("sum", "max")]
    if named:
        group = group_named(named[0])
    else:
        boxed = [one for one in args if isinstance(one, torch.ScriptObject)]
        group = next(found for one in boxed if (found := _unboxed(one)) is not None)
    return tuple(dist.get_process_group_ranks(group))


def _unboxed(one: Any) -> Any:
    try:
        return dist.ProcessGroup.unbox(one)
    except RuntimeError:  # it is an operation such as a sum
        return None


@contextmanager
def counted() -> Iterator[Sent]:
    """Count what is sent; within custom operators no mode sees it, so that the head's is counted where it is called."""
    plain = math.gather_into
    with Traffic() as traffic:

        def gather_into(out: Tensor, part: Tensor, group: dist.ProcessGroup) -> Any:
            traffic.sent[ALL_GATHER, tuple(dist.get_process_group_ranks(group)), out.nbytes] += 1
            return plain(out, part, group=group)

        with mock.patch.object(math, "gather_into", gather_into):
            yield traffic.sent


def predicted(trainer: Trainer) -> Sent:
    """Return what the formulas say of a trainer's step."""
    mesh, config = trainer.mesh, trainer.config
    found: Sent = Counter()
    for message in step_messages(config, mesh.axes, mesh.rank("pp"), "cpu"):
        if message.axis == "world":
            ranks = list(range(mesh.axes.size))
        elif message.axis == "ends":
            of = dist.get_process_group_ranks(mesh.group("pp"))
            ranks = [of[0], of[rank_of(config.parallel, trainer.model.pipeline._count - 1)]]  # type: ignore[union-attr]
        else:
            ranks = dist.get_process_group_ranks(mesh.group(message.axis))
        assert message.ranks == len(ranks), message
        found[message.collective, tuple(ranks), message.size] += message.count
    return found


def compare(cell: Cell, folder: Path, world: World) -> tuple[Sent, Sent]:
    """Return what the second step of a cell's trainer sent, and what was predicted; in the first one schedules meet."""
    trainer = built(cell, config_of(cell, folder, cell.parallel, "cpu"), folder, world, torch.device("cpu"))
    if cell.parallel.pp > 1:
        trainer.train_step()
    with counted() as sent:
        trainer.train_step()
    return sent, predicted(trainer)


def exchanged(sent: Sent, like: Sent, world: World) -> tuple[int, int]:
    """Return how many all-to-alls there were on all ranks together, and their bytes: rows go where they are wanted."""
    assert {key[1] for key in sent if key[0] == ALL_TO_ALL} == {key[1] for key in like if key[0] == ALL_TO_ALL}
    mine = [(count, size * count) for (what, _, size), count in sent.items() if what == ALL_TO_ALL]
    every = [one for of_rank in world.gather(mine) for one in of_rank]
    return sum(count for count, _ in every), sum(size for _, size in every)


def main(folder: Path, out: Path) -> None:
    torch.set_num_threads(1)
    world = distributed.world_of()
    store = meeting_place(world)
    wrong: dict[str, list[str]] = {}
    for number, cell in enumerate(TOGETHER):
        with met(store, f"cell {number}", world, torch.device("cpu")):
            sent, formula = compare(cell, folder, world)
            received = sum(size * count for (what, _, size), count in sent.items() if what == RECEIVE)
            passed = sum(size * count for (what, _, size), count in sent.items() if what == SEND)
            sent = Counter({key: count for key, count in sent.items() if key[0] != RECEIVE})
            same = all(map(operator.eq, exchanged(sent, formula, world), exchanged(formula, formula, world)))
            for one in (sent, formula):
                for key in [key for key in one if key[0] == ALL_TO_ALL]:
                    del one[key]
            same &= sent == formula and received == passed
            said = "" if same else f"{sent - formula} not predicted, {formula - sent} not sent, received {received}"
            wrong[cell.name] = [line for line in world.gather(said) if line]
    if world.writes:
        out.write_text(json.dumps(wrong))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
