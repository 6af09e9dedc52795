"""What a row of benchmarks.deepspeed_zero3 does and measures, whichever library shards the model.

Both libraries get the same module, weights and batches: only who cuts, gathers, sums and updates differs.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from benchmarks.fake_corpus import write_corpus
from benchmarks.peers.ours import changed, joined, row_parser, wait, write_figures
from benchmarks.peers.rows import SHAPES, Row
from benchmarks.peers.zero_rows import EXACT, find
from kernels.core.dtensor import local
from train.metrics.profiler import Profiler
from train.model.init import initialise
from train.model.transformer import Transformer
from train.parallel.parallelize import Fill
from train.runtime.distributed import World
from train.spec.config import ProfileConfig, RunConfig

TRACED = 3
"""Steps that are recorded, after those that are timed."""


class Stepper(Protocol):
    """A sharded model with its optimizer and its data."""

    def step(self) -> tuple[Tensor, Tensor]:
        """Take one step; return the loss over all ranks [nats/token] and the gradient norm before clipping."""

    def about(self) -> dict[str, float]:
        """Return further figures of the row."""


BEGAN = time.perf_counter()
"""When this process began, after what it imports."""
SAID = 8
"""Into how many parts steps are cut whose beginning is said."""

Make = Callable[[RunConfig, Path, World, torch.device, bool], Stepper]


def first_weights(config: RunConfig, *, exact: bool) -> Fill:
    """Return what draws the weights that a row begins with, the same in every layout.

    They are drawn where they are: on a CPU by a CPU's generator, on a GPU by that of a GPU, on both sides alike.
    DeepSpeed makes its fp32 master copy of weights that are bf16 already, so that rows in bf16 begin with weights
    rounded to it on both sides, unless they are to be `exact`.
    """

    def fill(module: Transformer) -> None:
        initialise(module, config.seed, on_device=True)
        progress("weights drawn")
        if config.precision.name == "bf16" and not exact:
            with torch.no_grad():
                for weight in module.parameters():
                    part = local(weight)
                    part.copy_(part.bfloat16())

    return fill


def progress(said: str) -> None:
    """Say how far the row is, and after how long [s], where the log of the first rank has it."""
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"[{time.perf_counter() - BEGAN:6.1f} s] {said}", flush=True)


def prepare_data(row: Row, root: Path) -> Path:
    """Return the data root of the row's vocabulary: made-up tokens that have something to learn."""
    shape = SHAPES[row.shape]
    place = root / f"zipf{shape.vocabulary}"
    if not place.exists():
        tokens = max(1 << 21, (row.steps + 8) * row.tokens)  # no text is read twice
        write_corpus(place, shape.vocabulary, tokens, 4 * shape.length + 4)
    return place


def held() -> int:
    """Return the bytes of all tensors that are alive in this process, each storage once."""
    gc.collect()
    sizes: dict[int, int] = {}
    for thing in gc.get_objects():
        if isinstance(thing, Tensor):
            for tensor in (thing, thing.grad if thing.is_leaf else None):
                if tensor is not None and tensor.device.type != "meta":
                    storage = local(tensor).untyped_storage()
                    sizes[storage.data_ptr()] = storage.nbytes()
    sizes.pop(0, None)
    return sum(sizes.values())


def resident(kind: str) -> int:
    """Return VmRSS or VmHWM of this process [bytes]; 0 where the system does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{kind}:")), 0)


def measure(stepper: Stepper, row: Row, world: World, device: torch.device, before: int) -> dict[str, object]:
    """Return the row's figures: losses of all steps, seconds of those after the warm-up, memory of the fullest rank."""
    found: list[tuple[Tensor, Tensor]] = []
    began = time.perf_counter()
    for number in range(row.steps):
        if number % max(1, row.steps // SAID) == 0:
            progress(f"step {number + 1} of {row.steps}")  # as it is launched: to wait for it would change its time
        if number == row.warmup:
            wait(device)
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            began = time.perf_counter()
        found.append(stepper.step())
    wait(device)
    seconds = (time.perf_counter() - began) / (row.steps - row.warmup)
    if device.type == "cuda":
        memory = {
            "gib_allocated": torch.cuda.max_memory_allocated(device) / 2**30,
            "gib": torch.cuda.max_memory_reserved(device) / 2**30,
            "held_bytes": float(torch.cuda.memory_allocated(device)),
        }
    else:
        memory = {"held_bytes": float(held()), "resident_bytes": float(resident("VmHWM") - before)}
    everyone = world.gather(memory)
    return {
        "step_seconds": seconds,
        **row.figures(seconds),
        **{name: max(one[name] for one in everyone) for name in memory},
        "losses": [float(loss) for loss, _ in found],
        "grad_norms": [float(norm) for _, norm in found],
        **stepper.about(),
    }


def traced(stepper: Stepper, folder: Path, world: World) -> None:
    """Record some steps of every rank into `folder`/profile."""
    config = ProfileConfig(start=2, steps=TRACED, ranks="all", shapes=True)
    profiler = Profiler(config, folder, world.rank, lambda step, metrics: None)
    profiler.begin(0)
    for number in range(1, TRACED + 2):
        stepper.step()
        profiler.boundary(number)
    profiler.close()
    progress(f"{TRACED} further steps are recorded")


def main(make: Make, description: str) -> None:
    """Run one row, by the words of the command line, and write its figures where PEERS_RESULT says."""
    parser = row_parser(description)
    parser.add_argument("--trace", type=Path, help="folder for the traces of some further steps")
    options = parser.parse_args()
    row = changed(find(options.row), options)
    place = options.data / f"zipf{SHAPES[row.shape].vocabulary}"
    with joined(row, options, place, prepare_data) as (config, world, device):
        before = resident("VmRSS")
        progress(f"{row.name}: {world.size} ranks have joined on {device.type}")
        stepper = make(config, options.data, world, device, row.name.endswith(EXACT))
        progress("the model is sharded")
        figures = measure(stepper, row, world, device, before)
        progress(f"{row.steps} steps are done")
        if options.trace is not None:
            traced(stepper, options.trace, world)
        write_figures(figures, world)
