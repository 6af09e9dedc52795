"""Where DDP's ranks have their gradients: `python -m tests.train.parallel.ddp_buckets FOLDER OUT` on two ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.train.parallel.cells import Cell, parallel
from tests.train.parallel.ranks import built, config_of, meeting_place, met
from train.data.batch import Batch
from train.runtime import distributed
from train.runtime.distributed import World
from train.trainer import Trainer

STEPS = 2
CPU = torch.device("cpu")


def gradients(trainer: Trainer) -> dict[str, Tensor]:
    return {name: weight.grad for name, weight in trainer.model.named_parameters() if weight.grad is not None}


def storages(trainer: Trainer) -> dict[int, int]:
    """Return the memory in which gradients are [bytes], by its address."""
    found = (gradient.untyped_storage() for gradient in gradients(trainer).values())
    return {one.data_ptr(): one.nbytes() for one in found}


def unwrapped(trainer: Trainer, batch: Batch) -> dict[str, Tensor]:
    """Return a batch's gradients by the module itself, one micro-batch after the other, then summed over ranks."""
    (part,) = trainer.model.parts
    valid = trainer.mesh.sum_tokens_(torch.full((), float(batch.valid()), dtype=torch.float64))
    for micro in batch.split(1):
        (part.module(*micro.arrays) / valid).backward()
    for gradient in gradients(trainer).values():
        dist.all_reduce(gradient)
    return gradients(trainer)


def found(folder: Path, world: World, micro_batches: int) -> dict[str, Any]:
    """Return what this rank keeps in steps of so many micro-batches of one sequence.

    between: where gradients are before each forward pass; after: as the step's are complete. same: they are those
    without DDP, bit for bit, also after a trial of a micro-batch.
    """
    layout = parallel(dp_replicate=world.size, micro_batch_sequences=1, ddp_bucket_mib=0.05)
    cell = Cell("", layout, sequences=world.size * micro_batches)
    trainer = built(cell, config_of(cell, folder, layout, "cpu"), folder, world, CPU)
    batches = [trainer.data.loader.batch(step * cell.sequences, cell.sequences) for step in range(STEPS + 1)]
    true = []
    for batch in batches[:STEPS]:
        true.append({name: gradient.clone() for name, gradient in unwrapped(trainer, batch).items()})
        trainer.optimizer.zero_grad()
    between: list[dict[int, int]] = []
    after: list[dict[int, int]] = []
    trial: list[dict[int, int]] = []
    same: list[bool] = []
    trainer.model.whole.register_forward_pre_hook(lambda *_: between.append(storages(trainer)))
    for batch, wanted in zip(batches, true, strict=False):
        trainer.forward_backward(batch)
        after.append(storages(trainer))
        same.append(all(torch.equal(gradient, wanted[name]) for name, gradient in gradients(trainer).items()))
        trainer.optimizer.zero_grad()
        count = len(between)
        trainer.model.trial(batches[-1])
        trial.append(storages(trainer))
        del between[count:]
        trainer.optimizer.zero_grad()
    numbers = sum(weight.numel() for _, weight in trainer.model.named_parameters())
    return {
        "numbers": numbers, "between": [list(one.items()) for one in between],
        "after": [list(one.items()) for one in after], "trial": [list(one.items()) for one in trial], "same": same,
    }  # fmt: skip


def main(folder: Path, out: Path) -> None:
    torch.set_num_threads(1)
    world = distributed.world_of()
    store, rows = meeting_place(world), {}
    for micro_batches in (1, 3):
        with met(store, str(micro_batches), world, CPU):
            rows[micro_batches] = world.gather(found(folder, world, micro_batches))
    if world.writes:
        out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
