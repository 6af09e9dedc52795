"""Runs saved on one mesh and resumed on others: `python -m tests.train.parallel.resumed FOLDER OUT` on four ranks.

Started once, as importing torch takes longer than all of it. Every run takes `BEFORE` steps, saves, and takes `AFTER`
more; then a new set-up of the same or another mesh, with other initial weights, is restored and takes the same steps.
The same ranks then compare the two ways of gathering weights (tests.train.parallel.gathered).
"""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.train.parallel import gathered
from tests.train.parallel.cells import BIASED, Cell, parallel
from tests.train.parallel.pipelines import DEEP, splits
from tests.train.parallel.ranks import apart, config_of, largest, meeting_place, met
from train import checkpoint
from train.checkpoint.identity import identity_of
from train.runtime import distributed
from train.runtime.distributed import World
from train.spec.config import ModelConfig, PrecisionConfig
from train.spec.pipeline_layout import can_split
from train.trainer import Trainer

BEFORE, AFTER = 3, 2
"""Steps: the first one after a restart shows the weights, the second what the optimizer's state made of them."""
# A tied embedding, which pipelines have twice; and a hidden width that four ranks cannot share evenly: FSDP2 stores
# gate and up in half rows, and what a rank has of them begins and ends within a row of the checkpoint's.
EVEN = replace(DEEP, layers=4, tied_embeddings=True)
UNEVEN = replace(EVEN, mlp_width=51)
WIDE = replace(EVEN, mlp_width=64)
"""Hidden channels of two ranks that products in fp8 take."""
KINDS = {
    "adamw": ("adamw", PrecisionConfig()),
    "muon": ("muon", PrecisionConfig()),
    "fp16": ("adamw", PrecisionConfig(name="fp16", loss_scale=2.0**12, loss_scale_steps=2)),
    "fp8": ("adamw", PrecisionConfig(name="fp8", fp8_history=4)),
    "experts": ("adamw", PrecisionConfig()),
    "experts, muon": ("muon", PrecisionConfig()),
}
"""Optimizer and precision."""

MESHES = {
    "one": parallel(),
    "ddp 4": parallel(dp_replicate=4),
    "fsdp 4": parallel(dp_shard=4),
    "fsdp 2 x tp 2": parallel(dp_shard=2, tp=2),
    "fsdp 2 x pp 2": parallel(dp_shard=2, pp=2, micro_batch_sequences=1),
    "pp 2 x tp 2, zbv": parallel(pp=2, tp=2, pp_schedule="zbv", micro_batch_sequences=1),
    "fsdp 4 x ep 2": parallel(dp_shard=4, ep=2),
}

ALL_PAIRS = (
    # First: what follows is compared with these.
    *((mesh, mesh, "experts" if "ep" in mesh else "adamw") for mesh in MESHES),
    ("one", "fsdp 4", "adamw"),
    ("fsdp 4", "one", "adamw"),
    ("ddp 4", "pp 2 x tp 2, zbv", "adamw"),
    ("pp 2 x tp 2, zbv", "fsdp 2 x tp 2", "adamw"),
    ("fsdp 2 x tp 2", "fsdp 2 x pp 2", "adamw"),
    ("fsdp 2 x pp 2", "ddp 4", "adamw"),
    ("fsdp 2 x tp 2", "fsdp 4", "muon"),
    ("fsdp 2 x pp 2", "fsdp 4", "fp16"),
    ("one", "fsdp 2 x tp 2", "fp8"),
    ("fsdp 4 x ep 2", "fsdp 4", "experts"),
    ("fsdp 4", "fsdp 4 x ep 2", "experts, muon"),
)
"""Saved on, resumed on, of this kind."""

PAIRS = tuple(pair for pair in ALL_PAIRS if can_split() or not any(splits(MESHES[name]) for name in pair[:2]))


def built(name: str, about: tuple[str, ModelConfig], folder: Path, world: World) -> Trainer:
    (optimizer, precision), model = KINDS[about[0]], about[1]
    cell = Cell(name, MESHES[name], model, precision=precision, steps=BEFORE + AFTER + 1)
    config = config_of(cell, folder, MESHES[name], "cpu")
    config = replace(config, optim=replace(config.optim, name=optimizer))
    return Trainer(config, folder, World() if name == "one" else world, torch.device("cpu"))


def steps(trainer: Trainer, count: int) -> list[tuple[float, float]]:
    """Take steps; return their losses and gradient norms."""
    return [(float(loss), float(norm)) for loss, norm in (trainer.train_step() for _ in range(count))]


def saved(name: str, about: tuple[str, ModelConfig], folder: Path, world: World) -> dict[str, Any]:
    """Train, save, train on; return what the steps after the save gave, and which sequences they took."""
    trainer = built(name, about, folder, world)
    # As after an overflow before the first step: then no number of the scaler's state is what it was made with.
    trainer.scaler.update(torch.ones(()))
    steps(trainer, BEFORE)
    identity = identity_of(trainer.config, trainer.data.fingerprint)
    root, noted = place(name, about, folder), carried(trainer)
    if name != "one" or world.rank == 0:
        saver = checkpoint.Saver(root, trainer.world.rank, trainer.world.size)
        saver.save(
            trainer.state.step,
            checkpoint.collect(trainer.model.modules, [trainer.optimizer]),
            {"progress": trainer.state.state_dict(), "identity": identity, "notes": noted},
        )
        first = [steps(trainer, 1)[0]]  # weights change while the thread still writes
        saver.wait()
    else:
        first = [steps(trainer, 1)[0]]
    dist.barrier()
    rest = first + steps(trainer, AFTER - 1)
    after = carried(trainer)
    following = trainer.data.loader.batch(trainer.state.sequences, 8).inputs
    return {"steps": rest, "next": following, "noted": noted, "after": after}


def carried(trainer: Trainer) -> dict[str, Any]:
    return {"scaler": trainer.scaler.state_dict(), "fp8": trainer.history.state_dict()}


def place(name: str, about: tuple[str, ModelConfig], folder: Path) -> Path:
    return folder / f"{name}-{about[0]}-{about[1].mlp_width}"


def resumed(source: str, name: str, about: tuple[str, ModelConfig], folder: Path, world: World) -> dict[str, Any]:
    trainer = built(name, about, folder, world)
    with torch.no_grad():
        for _, weight in trainer.model.named_parameters():
            weight.zero_()
    ours = trainer.world
    found = checkpoint.newest(place(source, about, folder), ours.rank, ours.size, ours.gather)
    assert found is not None
    checkpoint.check_identity(found, identity_of(trainer.config, trainer.data.fingerprint))
    checkpoint.restore(found, trainer.model.modules, [trainer.optimizer])
    trainer.state.load_state_dict(found.progress)
    trainer.scaler.load_state_dict(found.manifest["notes"]["scaler"])
    trainer.history.load_state_dict(found.manifest["notes"]["fp8"])
    noted = carried(trainer)
    rest = steps(trainer, AFTER)
    after = carried(trainer)
    following = trainer.data.loader.batch(trainer.state.sequences, 8).inputs
    return {"steps": rest, "next": following, "noted": noted, "after": after}


def compared(pair: tuple[str, str, str], done: dict[Any, Any], folder: Path, world: World) -> dict[str, Any]:
    source, name, kind = pair
    model = EVEN if "tp" in source + name else UNEVEN
    about = (kind, WIDE if kind == "fp8" else BIASED if kind.startswith("experts") else model)
    if (source, about) not in done:
        done[source, about] = saved(source, about, folder, world)
    found, wanted = resumed(source, name, about, folder, world), done[source, about]
    errors = [(abs(a - b), apart(m, n)) for (a, m), (b, n) in zip(found["steps"], wanted["steps"], strict=True)]
    return {
        "loss": largest(loss for loss, _ in errors),
        "norm": largest(norm for _, norm in errors),
        "bitwise": found["steps"] == wanted["steps"],
        "carried": found["noted"] == wanted["noted"],
        "alike": found["after"]["scaler"] == wanted["after"]["scaler"],
        # Which sequences a rank of this mesh takes next, as in a run that was on this mesh all the time.
        "data": torch.equal(found["next"], next(ours["next"] for (mesh, _), ours in done.items() if mesh == name)),
    }


def main(folder: Path, out: Path) -> None:
    torch.set_num_threads(1)
    world = distributed.world_of()
    store, device = meeting_place(world), torch.device("cpu")
    done: dict[Any, Any] = {}
    rows = []
    for pair in PAIRS:
        with met(store, str(pair), world, device):
            try:
                mine = compared(pair, done, folder, world)
            except Exception:
                mine = {"error": traceback.format_exc()}
                print(mine["error"], flush=True)
            every = world.gather(mine)
        broken = [rank["error"] for rank in every if "error" in rank]
        row: dict[str, Any] = {"pair": pair, "error": broken[0] if broken else None}
        if not broken:
            row |= {key: max(rank[key] for rank in every) for key in ("loss", "norm")}
            row |= {key: all(rank[key] for rank in every) for key in ("bitwise", "data", "carried", "alike")}
        rows.append(row)
    others = gathered.rows(folder, store, world, device)
    with met(store, "histories", world, device):
        histories = world.gather(gathered.history(folder, world, device))
    if world.writes:
        out.write_text(json.dumps({"pairs": rows, "gathered": others, "histories": histories}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
