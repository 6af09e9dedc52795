"""What `study bench comm` is asked for, as KEY=VALUE words, checked before anything starts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.text.commandline import refuse_repeated
from train.spec.communication.messages import COLLECTIVES
from train.spec.config import key
from train.spec.from_mapping import read

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
SIZE = re.compile(r"(\d+)([KMG]?)(?:iB|B)?", re.IGNORECASE)
DEFAULT_SIZES = {"gloo": "1K:16M", "nccl": "4K:1G"}
BACKENDS = ("gloo", "nccl")
GROWTH = 4
"""Each size of a range is so many times the one before."""
MOST_RANKS = 64
MOST_BYTES = 64 << 30


@dataclass(frozen=True)
class CommSettings:
    """The keys of `study bench comm`."""

    ranks: int | None = key(None, "processes of this machine, a GPU each with nccl; null: all GPUs, or 2 without")
    backend: str | None = key(None, "gloo: on the CPU, nccl: on GPUs; null: nccl where there are GPUs", BACKENDS)
    sizes: str | None = key(None, "message sizes [bytes], 1K:16M (each 4 times the last) or 1K,1M; null: by backend")
    collectives: str = key(",".join(COLLECTIVES), "which of them, with commas between")
    seconds: float = key(0.5, "about how long each size is timed [s]")
    out: str = key("reports/bench/comm", "folder of the table and the picture")
    profile: str | None = key(None, "file of a cluster profile to write, NAME.yaml; null: none")
    force: bool = key(False, "replace an existing profile")
    results: str | None = key(None, "file that `python -m train.measure` wrote, instead of measuring; null: measure")


@dataclass(frozen=True)
class Wanted:
    """The settings with their defaults filled in. ranks: 1 measures a GPU alone, as messages need two."""

    ranks: int
    backend: str
    sizes: tuple[int, ...]
    collectives: tuple[str, ...]
    seconds: float
    out: Path
    profile: Path | None
    force: bool
    results: Path | None


def wanted(words: Sequence[str], gpus: int) -> Wanted:
    """Return what is asked for on a machine with so many GPUs; ValueError names key, value and what is allowed."""
    settings = read(CommSettings, _mapping(words))
    backend = backend_of(settings.backend, gpus, least=1)
    results = None if settings.results is None else Path(settings.results)
    ranks = settings.ranks if settings.ranks is not None else max(gpus, 1) if backend == "nccl" else 2
    if results is None:
        check_ranks(ranks, backend, gpus)
    if not 0 < settings.seconds <= 60:
        raise ValueError(f"seconds={settings.seconds:g} is not allowed: more than 0, and 60 at most")
    names = tuple(filter(None, settings.collectives.strip("[]").replace(" ", "").split(",")))
    for name in names or ("",):
        if name not in COLLECTIVES:
            raise ValueError(f"collectives={name} is not allowed: choose from {', '.join(COLLECTIVES)}")
    profile = None if settings.profile is None else Path(settings.profile)
    if profile is not None and profile.suffix != ".yaml":
        raise ValueError(
            f"profile={profile} is not allowed: a file that ends in .yaml, as conf/cluster/measured/me.yaml"
        )
    sizes = sizes_of(settings.sizes or DEFAULT_SIZES[backend])
    return Wanted(ranks, backend, sizes, names, settings.seconds, Path(settings.out), profile, settings.force, results)


def sizes_of(text: str) -> tuple[int, ...]:
    """Return the sizes [bytes] that a text says: 1K:16M, each four times the one before, or 1024,64K,1M."""
    first, colon, last = text.strip("[]").replace(" ", "").partition(":")
    if not colon:
        found = tuple(sorted({_size(word, text) for word in first.split(",")}))
    else:
        low, high = _size(first, text), _size(last, text)
        if high < low:
            raise ValueError(f"sizes={text} is not allowed: the range ends below its start")
        found, size = (), low
        while size <= high:
            found, size = (*found, size), size * GROWTH
    return found


def gpu_count(environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> int:
    """Return how many NVIDIA GPUs are to be seen here, without asking their driver, which takes seconds."""
    there = sum(path.name.removeprefix("nvidia").isdigit() for path in devices.glob("nvidia[0-9]*"))
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return there
    named = [word for word in visible.split(",") if word.strip() not in ("", "-1")]
    return min(there, len(named))


def backend_of(given: str | None, gpus: int, least: int) -> str:
    """Return the backend that is given; where none is, nccl on a machine with at least so many GPUs, else gloo."""
    return given or ("nccl" if gpus >= least else "gloo")


def check_ranks(ranks: int, backend: str, gpus: int, least: int | None = None) -> None:
    """Raise ValueError for ranks that cannot be had on so many GPUs; least: how many there have to be."""
    if backend == "nccl" and not gpus:
        raise ValueError("backend=nccl is not allowed here: this machine shows no GPU; use backend=gloo")
    least = least or (1 if backend == "nccl" else 2)
    if not least <= ranks <= MOST_RANKS:
        why = "as messages need two" if least == 2 else "1: the GPU alone, without messages"
        raise ValueError(f"ranks={ranks} is not allowed: {least} to {MOST_RANKS}, {why}")
    if backend == "nccl" and ranks > gpus:
        more = f"use ranks={gpus}" if gpus > 1 else "nccl wants a GPU for each rank; use backend=gloo"
        raise ValueError(f"ranks={ranks} is not allowed with backend=nccl: this machine shows {gpus} GPUs; {more}")


def _mapping(words: Sequence[str]) -> dict[str, str | None]:
    refuse_repeated(words)
    found: dict[str, str | None] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"{word!r} is no setting: write KEY=VALUE, as ranks=2 backend=gloo sizes=1K:16M")
        if not value:
            raise ValueError(f"{name}= has no value: leave it out, or write {name}=VALUE")
        found[name] = None if value == "null" else value
    return found


def _size(word: str, text: str) -> int:
    match = SIZE.fullmatch(word)
    found = int(match[1]) * UNITS[match[2].upper()] if match is not None else 0
    if not 4 <= found <= MOST_BYTES:
        raise ValueError(
            f"sizes={text} is not allowed: {word!r} is no size of 4 bytes or more, {MOST_BYTES >> 30}G at most; write "
            "1K:16M, or 1024,64K,1M (K, M and G are powers of 1024)"
        )
    return found
