"""One row through this trainer: its own model and step, over a prepared corpus of random tokens.

Run under torchrun; rank 0 writes the row's figures. Weights are drawn on the device: seeded weights that are the same
in every layout are drawn on the CPU, minutes for billions of them, and tell nothing here.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.fake_corpus import write_corpus
from benchmarks.peers.rows import SHAPES, Row, find
from kernels.core.dtensor import local
from train.build import device_of
from train.runtime import distributed
from train.runtime.distributed import World
from train.spec.config import RunConfig
from train.spec.from_mapping import read
from train.spec.resolve import resolve
from train.trainer import Trainer


def config_of(row: Row, data_root: Path, device: str) -> RunConfig:
    """Return the row's config."""
    shape = SHAPES[row.shape]
    mapping: dict[str, Any] = {
        "model": vars(shape.model),
        "data": {"name": "fake", "vocab_size": shape.vocabulary, "sequence_length": shape.length},
        "batch": {"tokens": row.tokens},
        "budget": {"tokens": row.tokens * row.steps * 4},
        "optim": {"lr": 3e-4},
        "eval": {"sequences": 1},
        "parallel": {"micro_batch_sequences": row.sequences},
        "runtime": {"device": device, "data_root": str(data_root)},
    }
    for setting in row.settings:
        where, _, value = setting.partition("=")
        section, _, name = where.partition(".")
        mapping.setdefault(section, {})[name] = _plain(value)
    return resolve(read(RunConfig, mapping))


def _plain(value: str) -> Any:
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def prepare_data(row: Row, root: Path) -> Path:
    """Return the data root of random tokens with the row's vocabulary, written by whoever comes first."""
    place = root / f"v{SHAPES[row.shape].vocabulary}"
    if not place.exists():
        shape = SHAPES[row.shape]
        write_corpus(place, shape.vocabulary, max(64 * shape.length, 1 << 21), 4 * shape.length + 4, uniform=True)
    return place


def fill(module: Any) -> None:
    """Draw a module's weights where they are."""
    with torch.no_grad():
        for name, weight in module.named_parameters():
            std = module.specs[name].init_std
            part = local(weight)
            nn.init.ones_(part) if std is None else part.normal_(0.0, std)


def measure(trainer: Trainer, row: Row) -> dict[str, float]:
    """Return the row's figures from its steps after the warm-up."""
    began = time.perf_counter()
    first = 0.0
    for number in range(row.steps):
        if number == row.warmup:
            wait(trainer.device)
            first, began = time.perf_counter() - began, time.perf_counter()
        loss, norm = trainer.train_step()
    wait(trainer.device)
    seconds = (time.perf_counter() - began) / (row.steps - row.warmup)
    return {
        "step_seconds": seconds,
        **row.figures(seconds),
        **_memory(trainer),
        "warmup_seconds": first,
        "loss": float(loss),
        "grad_norm": float(norm),
    }


def wait(device: torch.device) -> None:
    """Wait for what a device has to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _memory(trainer: Trainer) -> dict[str, float]:
    if trainer.device.type != "cuda":
        return {"gib": 0.0, "gib_allocated": 0.0}
    used = [torch.cuda.max_memory_reserved(trainer.device), torch.cuda.max_memory_allocated(trainer.device)]
    most = [max(each) for each in zip(*trainer.world.gather(used), strict=True)]
    return {"gib": most[0] / 2**30, "gib_allocated": most[1] / 2**30}


def profiled(trainer: Trainer, path: Path) -> None:
    """Write which kernels take the time of two further steps, and where the device waits, for rank 0."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(2):
            trainer.train_step()
        wait(trainer.device)
    if trainer.world.rank == 0:
        by = "self_cuda_time_total" if trainer.device.type == "cuda" else "self_cpu_time_total"
        table = profile.key_averages().table(sort_by=by, row_limit=60, max_name_column_width=90)
        path.write_text(f"{table}\n{_waits(profile)}\n")


def _waits(profile: Any) -> str:
    """Return the longest times in which no kernel ran, and between which kernels."""
    kernels = [e for e in profile.events() if str(e.device_type).endswith("CUDA") and "Torch-Compiled" not in e.name]
    spans = sorted((e.time_range.start, e.time_range.end, e.name) for e in kernels)
    gaps, end, before = [], None, ""
    for start, stop, name in spans:
        if end is not None and start > end:
            gaps.append((start - end, before, name))
        if end is None or stop > end:
            end, before = stop, name
    lines = [f"{gap:9.0f} us  {a[:60]} -> {b[:60]}" for gap, a, b in sorted(gaps, reverse=True)[:15]]
    return "\n".join([f"waited {sum(g for g, *_ in gaps):.0f} us in {len(gaps)} gaps", *lines])


def row_parser(description: str) -> argparse.ArgumentParser:
    """Return what reads the words that every way of running a row takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("row")
    parser.add_argument("--data", type=Path, default=Path("/tmp/trainer_peers"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", nargs="*", default=[], metavar="SECTION.KEY=VALUE", help="further settings")
    parser.add_argument("--steps", type=int, help="instead of the row's")
    return parser


def changed(row: Row, options: argparse.Namespace) -> Row:
    """Return the row with the settings and steps that were asked for."""
    steps = options.steps or row.steps
    return replace(row, settings=(*row.settings, *options.set), steps=steps, warmup=min(row.warmup, steps // 2))


@contextmanager
def joined(
    row: Row, options: argparse.Namespace, place: Path, prepare: Callable[[Row, Path], Path]
) -> Iterator[tuple[RunConfig, World, torch.device]]:
    """Join the ranks, once `prepare` has written the data to `place`; give the row's config, the ranks, the device."""
    if int(os.environ.get("RANK", "0")) == 0:
        prepare(row, options.data)
    world = distributed.world_of()
    config = config_of(row, place, options.device)
    device = device_of(config, world)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.join(world, device)
    world.gather(None)  # nobody reads before it is written
    yield config, world, device
    distributed.leave(world)


def write_figures(figures: Mapping[str, object], world: World) -> None:
    """Write a row's figures where PEERS_RESULT says."""
    if world.rank == 0:
        Path(os.environ["PEERS_RESULT"]).write_text(json.dumps(figures))


def main() -> None:
    parser = row_parser("run one row of benchmarks.trainer_peers through this trainer")
    parser.add_argument("--profile", type=Path, help="folder for a table of the kernels of one more step")
    options = parser.parse_args()
    row = changed(find(options.row), options)
    place = options.data / f"v{SHAPES[row.shape].vocabulary}"
    with joined(row, options, place, prepare_data) as (config, world, device):
        trainer = Trainer(config, options.data, world, device, fill=fill)
        write_figures(measure(trainer, row), world)
        if options.profile is not None:
            options.profile.mkdir(parents=True, exist_ok=True)
            profiled(trainer, options.profile / f"{row.name[:80]}.txt")


if __name__ == "__main__":
    main()
