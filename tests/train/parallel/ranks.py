"""Cells run on the ranks that this is started on: `python -m tests.train.parallel.ranks FOLDER MODULE:CELLS,… OUT`.

Started once for many cells, as importing torch takes longer than most of them. The ranks share out the references,
each of them computed in a world of one; every rank compares what it holds, and rank 0 writes the worst of all as JSON.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import math
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.tensor import _redistribute, debug

from tests.train.parallel.cells import LENGTH, VOCABULARY, Cell
from train.data.batch import Rows
from train.data.dataset import TokenSequences
from train.data.rows import masked
from train.runtime import distributed
from train.runtime.distributed import World
from train.runtime.gloo import use_one_worker
from train.spec.config import (
    BatchConfig,
    BudgetConfig,
    DataConfig,
    EvalConfig,
    OptimConfig,
    ParallelConfig,
    RunConfig,
    RuntimeConfig,
)
from train.spec.labels import IGNORED
from train.spec.resolve import resolve
from train.trainer import Trainer


class Documents:
    """The corpus cut into documents at its most frequent token, as data.packing=mask cuts at separators."""

    def __init__(self, data: TokenSequences) -> None:
        self.data = data
        self.manifest = data.manifest

    def rows(self, start: int, count: int) -> Rows:
        return masked(self.data.rows(start, count), separator=1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.data, name)


class Uneven:
    """The corpus with targets left out: some everywhere, all of every fifth sequence."""

    def __init__(self, data: TokenSequences | Documents) -> None:
        self.data = data
        self.manifest = data.manifest

    def rows(self, start: int, count: int) -> Rows:
        rows = self.data.rows(start, count)
        number = np.arange(start, start + count)[:, None]
        out = (rows.inputs * 7 + np.arange(rows.inputs.shape[1]) + number) % 4 < number % 3
        return replace(rows, targets=np.where(out | (number % 5 == 4), IGNORED, rows.targets))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.data, name)


@dataclass(frozen=True)
class Course:
    """What a cell's steps gave: losses, gradient norms, and the gradients of the first of them."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, Tensor]


def config_of(cell: Cell, data_root: Path, layout: ParallelConfig, device: str) -> RunConfig:
    batch = cell.sequences
    return resolve(
        RunConfig(
            model=cell.model,
            data=DataConfig(
                name="fake",
                vocab_size=VOCABULARY,
                sequence_length=LENGTH,
                packing="mask" if cell.documents else "concatenate",
            ),
            # Small enough that rounding does not grow into another trajectory within the run: its losses stay at a
            # fifth of their bound or less, as other processors take sums in another order.
            optim=OptimConfig(
                lr=2e-4, grad_clip=cell.clip, z_loss=1e-2 * cell.penalised, label_smoothing=0.1 * cell.penalised
            ),
            batch=BatchConfig(tokens=batch * LENGTH),
            budget=BudgetConfig(tokens=((cell.steps - 1) * batch + 3) * LENGTH),
            precision=cell.precision,
            eval=EvalConfig(sequences=10, count=1),
            parallel=layout,
            compile=cell.compile,
            memory=cell.memory,
            runtime=RuntimeConfig(device=device, data_root=str(data_root)),
        )
    )


def course(trainer: Trainer, cell: Cell) -> Course:
    """Return a trainer's steps, and the gradients of the first of them, before it changes a weight."""
    gradients: dict[str, Tensor] = {}

    def look() -> None:
        gradients.update(whole_gradients(trainer))
        trainer.before_update = lambda: None

    if trainer.graph is None:
        trainer.before_update = look
    else:  # it replays forward and backward passes and the update as one
        trainer.forward_backward(trainer.data.loader.batch(0, cell.sequences))
        look()
    losses, norms = [], []
    for _ in range(cell.steps):
        loss, norm = trainer.train_step()
        losses.append(float(loss))
        norms.append(float(norm))
    assert trainer.state.tokens == trainer.config.budget.tokens
    return Course(losses, norms, gradients)


def whole_gradients(trainer: Trainer) -> Iterator[tuple[str, Tensor]]:
    """Yield the gradient of every weight that this rank has a part of, put together, on the CPU."""
    with summoned(trainer):
        for name, weight in trainer.model.named_parameters():
            grad = weight.grad
            assert grad is not None, name
            whole = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
            shape = next(part.module.specs[name].shape for part in trainer.model.parts if name in part.module.specs)
            yield name, whole.detach().cpu().clone().view(shape)


@contextmanager
def summoned(trainer: Trainer) -> Iterator[None]:
    """Put together what FSDP1 keeps flat, which has no other way of showing it."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    wrapped = trainer.model.parts[0].call
    if not isinstance(wrapped, FullyShardedDataParallel):
        yield
        return
    with FullyShardedDataParallel.summon_full_params(wrapped, with_grads=True):
        yield


def plain(cell: Cell) -> Cell:
    """Return the cell without what its reference does not depend on."""
    bare = replace(cell, name="", parallel=ParallelConfig(), compile=type(cell.compile)(), memory=type(cell.memory)())
    return replace(bare, gradient=0, loss=0, bitwise=False)


def references(cells: Sequence[Cell], data_root: Path, world: World, device: torch.device) -> dict[Cell, Course]:
    """Return the reference of every plain cell; the ranks compute them side by side."""
    wanted = list(dict.fromkeys(map(plain, cells)))
    mine = {cell: reference(cell, data_root, device) for cell in wanted[world.rank :: world.size]}
    return {cell: course for part in world.gather(mine) for cell, course in part.items()}


def reference(cell: Cell, data_root: Path, device: torch.device) -> Course:
    """Return what one process makes of the cell's batches, whole and eager."""
    config = config_of(cell, data_root, ParallelConfig(micro_batch_sequences=cell.reference_micro), device.type)
    return course(built(cell, config, data_root, World(), device), cell)


def built(cell: Cell, config: RunConfig, data_root: Path, world: World, device: torch.device) -> Trainer:
    rows = TokenSequences(data_root / f"fake-bpe{VOCABULARY}", "train", LENGTH, config.seed)
    data = Documents(rows) if cell.documents else rows
    return Trainer(config, data_root, world, device, rows=Uneven(data) if cell.masked else data)


def compare(cell: Cell, wanted: Course, data_root: Path, world: World, device: torch.device) -> dict[str, Any]:
    """Return the cell's worst errors on this rank, against the course of its reference."""
    began = time.perf_counter()
    alone = cell.parallel.dp_replicate == 1 and not sharing(cell.parallel)
    trainer = built(
        cell, config_of(cell, data_root, cell.parallel, device.type), data_root, World() if alone else world, device
    )
    found = course(trainer, cell)
    errors = {
        name: float((grad.double() - wanted.gradients[name].double()).norm() / wanted.gradients[name].double().norm())
        for name, grad in found.gradients.items()
    }
    worst = max(errors, key=lambda name: largest([errors[name]]))
    return {
        "names": sorted(errors),
        "gradient": largest(errors.values()),
        "weight": worst,
        "wrong": sorted(name for name, error in errors.items() if not error <= cell.gradient),
        "loss": largest(abs(a - b) for a, b in zip(found.losses, wanted.losses, strict=True)),
        "norm": largest(apart(a, b) for a, b in zip(found.norms, wanted.norms, strict=True)),
        "skipped": sum(not math.isfinite(norm) for norm in found.norms),
        "bitwise": found.losses == wanted.losses
        and all(torch.equal(grad, wanted.gradients[name]) for name, grad in found.gradients.items()),
        "all": sorted(wanted.gradients),
        "seconds": time.perf_counter() - began,
    }


def largest(errors: Iterable[float]) -> float:
    """Return the largest error; one that is not a number is beyond any bound."""
    return max(math.inf if math.isnan(error) else error for error in errors)


def apart(norm: float, wanted: float) -> float:
    """Return the relative error of a gradient norm; none where both overflowed."""
    return 0.0 if not (math.isfinite(norm) or math.isfinite(wanted)) else abs(norm - wanted) / wanted


def sharing(layout: ParallelConfig) -> bool:
    """Say whether a layout has more than its copies."""
    return any((layout.dp_shard or 2) > 1 or size > 1 for size in (layout.cp, layout.tp, layout.pp))


def merged(cell: Cell, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one row of the table from what every rank found."""
    broken = [rank["error"] for rank in ranks if "error" in rank]
    if broken:
        return {"name": cell.name, "error": broken[0]}
    worst = max(ranks, key=lambda rank: rank["gradient"])
    return {
        "name": cell.name,
        "gradient": worst["gradient"],
        "weight": worst["weight"],
        "wrong": sorted({name for rank in ranks for name in rank["wrong"]}),
        "loss": max(rank["loss"] for rank in ranks),
        "norm": max(rank["norm"] for rank in ranks),
        "skipped": min(rank["skipped"] for rank in ranks),
        "bitwise": all(rank["bitwise"] for rank in ranks),
        "complete": sorted({name for rank in ranks for name in rank["names"]}) == ranks[0]["all"],
        "seconds": max(rank["seconds"] for rank in ranks),
    }


def line(row: dict[str, Any]) -> str:
    """Return a row as a line of the table."""
    if "error" in row:
        return f"| {row['name']} | {reason(row['error'])} |"
    same = " same bits" if row["bitwise"] else ""
    return (
        f"| {row['name']} | gradient {row['gradient']:.1e} ({row['weight']}) | loss {row['loss']:.1e}{same} "
        f"| norm {row['norm']:.1e} | {row['seconds']:.1f} s |"
    )


def reason(trace: str) -> str:
    """Return the line of a traceback that names the error; what follows it may be advice of many lines."""
    lines = trace.rpartition("Traceback (most recent call last):\n")[2].splitlines()
    return next((line for line in lines if line and not line.startswith(" ")), lines[-1] if lines else "no traceback")


def main(data_root: Path, cells: str, out: Path, device_type: str) -> None:
    torch.set_num_threads(1)
    world = distributed.world_of()
    device = torch.device(device_type, world.local_rank) if device_type == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store = meeting_place(world)
    names = [name.partition(":") for name in cells.split(",")]
    chosen = [cell for module, _, attribute in names for cell in getattr(importlib.import_module(module), attribute)]
    with met(store, "references", world, device):
        wanted = references(chosen, data_root, world, device)
    if any(cell.compile.blocks for cell in chosen):
        compile_in_turn(data_root)
    rows = []
    for number, cell in enumerate(chosen):
        with met(store, f"cell {number}", world, device):
            try:
                mine = compare(cell, wanted[plain(cell)], data_root, world, device)
            except Exception:  # one broken cell is a row of the table, not the end of the others
                mine = {"error": traceback.format_exc()}
            rows.append(merged(cell, world.gather(mine)))
        if world.writes:
            print(line(rows[-1]), flush=True)
    if world.writes:
        out.write_text(json.dumps(rows))


def compile_in_turn(folder: Path) -> None:
    """Let one rank at a time compile a graph: those after it find in torch's cache what it has made."""
    from torch._inductor import compile_fx

    compile_graph: Any = getattr(compile_fx, "_compile_fx_inner", None)
    if compile_graph is None:  # another version: each rank compiles by itself
        return

    @functools.wraps(compile_graph)
    def in_turn(*arguments: Any, **named: Any) -> Any:
        with filelock.FileLock(folder / "compiling.lock"):
            return compile_graph(*arguments, **named)

    compile_fx._compile_fx_inner = in_turn


def meeting_place(world: World) -> Store:
    """Return what the ranks meet at, as often as they like."""
    return TCPStore(world.host, world.port, world.size, is_master=world.writes and not world.elastic)


@contextmanager
def met(store: Store, name: str, world: World, device: torch.device) -> Iterator[None]:
    """Meet the other ranks, then let go of all groups that were made, and of what torch keeps that names them.

    Gloo's threads, several a group, look for messages a hundred times a second.
    """
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    use_one_worker()
    dist.init_process_group(backend, store=PrefixStore(name, store), rank=world.rank, world_size=world.size)
    yield
    torch.compiler.reset()
    # How operations on DTensors are cut is kept with their mesh, and found again for an equal one.
    getattr(debug, "_clear_sharding_prop_cache", lambda: None)()
    for cache in ("_planner_cache", "_gen_transform_infos"):
        kept: Any = getattr(_redistribute, cache, None)
        getattr(kept, "cache_clear", getattr(kept, "clear", lambda: None))()
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else "cpu")
