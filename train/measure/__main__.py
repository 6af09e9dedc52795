"""`python -m train.measure --out FILE --sizes 1024,…`: time collectives between the ranks that this is started as.

By torchrun or srun on several nodes, or by `python -m study bench comm` on one machine, which also fits and draws. Rank
0 adds a line of JSON to the file for each thing measured, so that what was measured before an end is kept.
"""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from train.spec.interrupts import run

    run("train.measure.__main__")

import argparse
import json
import platform
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from train.measure.device import ceilings, cpu_ceilings
from train.measure.links import levels_of, measure
from train.runtime.distributed import World, join, leave, world_of
from train.spec.command_line import Parser
from train.spec.communication.messages import COLLECTIVES

SECONDS = 600.0
"""Longest wait for a message [s]."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = Parser(prog="python -m train.measure", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where rank 0 adds lines of JSON")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="nccl" if torch.cuda.is_available() else "gloo")
    parser.add_argument("--sizes", type=_sizes, required=True, metavar="BYTES,…", help="of messages [bytes]")
    parser.add_argument("--collectives", type=_names, default=COLLECTIVES, metavar="NAME,…")
    parser.add_argument("--seconds", type=float, default=0.5, help="about how long each size is timed [s]")
    parser.add_argument("--ceilings", action="store_true", help="without GPUs: also what a rank's CPU computes")
    options = parser.parse_args(arguments)
    world = world_of()
    if options.backend == "nccl" and not torch.cuda.is_available():
        print("--backend nccl, but torch finds no CUDA device: use --backend gloo", file=sys.stderr)
        return 2
    device = device_of(options.backend, world)
    if device.type == "cpu":
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(device)
    join(world, device, seconds=SECONDS)
    _run(options, world, device)
    leave(world)
    return 0


def device_of(backend: str, world: World) -> torch.device:
    """Return the device of this rank, which may be given one GPU alone, whatever its number on its node is."""
    if backend != "nccl":
        return torch.device("cpu")
    return torch.device("cuda", world.local_rank % torch.cuda.device_count())


def _run(options: argparse.Namespace, world: World, device: torch.device) -> None:
    def note(kind: str, what: Any) -> None:
        if world.writes:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({kind: what}) + "\n")

    hosts = world.gather(socket.gethostname())
    levels = levels_of(hosts)
    wanted = len(levels) * len(options.collectives) * len(options.sizes)
    note("about", about(world, device, hosts) | {"backend": options.backend, "wanted": wanted})
    for level in levels:
        how = {"collectives": options.collectives, "sizes": options.sizes, "seconds": options.seconds}
        for found in measure(world, device, level, **how):
            note("point", asdict(found))
    if device.type == "cuda" and world.writes:
        note("device", asdict(ceilings(device)))
    elif device.type == "cpu" and options.ceilings:
        world.gather(True)  # together: ranks of a host share its memory and its power
        note("device", asdict(cpu_ceilings(Counter(hosts)[socket.gethostname()])))
    note("done", True)


def about(world: World, device: torch.device, hosts: Sequence[str]) -> dict[str, Any]:
    """Return the machine and the versions that figures are for."""
    count = len(set(hosts))
    cuda = device.type == "cuda"
    versions = [f"torch {torch.__version__}", f"Python {platform.python_version()}"]
    if cuda:
        versions.insert(1, "NCCL " + ".".join(map(str, torch.cuda.nccl.version())))  # type: ignore[no-untyped-call]
    each = torch.cuda.get_device_name(device) if cuda else processor()
    return {
        "machine": f"{world.size} rank{'s' * (world.size > 1)} on {count} host{'s' * (count > 1)}: {each}",
        "versions": ", ".join(versions),
        "ranks": world.size,
        "hosts": count,
    }


def processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name, as far as the system says it."""
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.machine()


def _sizes(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: give whole numbers from 1 on, such as 1024,1048576")
    return tuple(map(int, words))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in COLLECTIVES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none: choose from {', '.join(COLLECTIVES)}")
    return names
