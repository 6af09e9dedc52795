"""Cluster profiles by name or path, and how many ranks they join."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from study.config.compose import conf_folder
from study.planning import own_words
from train.spec.communication.cluster import ClusterProfile, read_profile, stride_of
from train.spec.communication.messages import ALL_REDUCE
from train.spec.config import RunConfig
from train.spec.mesh import Axes

MEANING = "profile of the machine: a name in conf/cluster/measured, or the path of one"
MEMORY = own_words.MEMORY


def names() -> list[str]:
    """Return the names of the profiles in conf/cluster/measured."""
    return list(_there())


def _there() -> dict[str, Path]:
    return {path.stem: path for path in sorted((conf_folder() / "cluster" / "measured").glob("*.yaml"))}


def profile(said: str, key: str = "cluster") -> ClusterProfile:
    """Return the profile of that name in conf/cluster/measured, or in that file; ValueError says which there are.

    key: what says it.
    """
    there = _there()
    if said in there:
        return read_profile(there[said])
    path = Path(said)
    if path.is_dir() and ("/" in said or path.suffix):
        raise ValueError(f"{key}={said} is a folder: name the file of the profile in it")
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return read_profile(path)
    begins = [name for name in there if name.startswith(path.stem)]
    near = begins or difflib.get_close_matches(path.stem, there, n=1, cutoff=0.3)
    meant = f"did you mean {key}={near[0]}? " if near else ""
    raise ValueError(
        f"{key}={said} is no profile: {meant}there are {', '.join(there)}, or give the path of one "
        "(python -m study bench comm writes one)"
    )


def asked(own: Mapping[str, str]) -> ClusterProfile:
    """Return the profile that the word cluster= of a plan names; ValueError also where it is missing."""
    if "cluster" not in own:
        raise ValueError(
            f"cluster= is missing: give the {MEANING}; there are {', '.join(names())} "
            "(python -m study bench comm profile=FILE.yaml writes one of this machine)"
        )
    return profile(own["cluster"])


def rank(found: ClusterProfile) -> str:
    """Return what a rank of a profile has, in words."""
    return "GPU" if found.device == "cuda" else "CPU rank"


def on_device(run: RunConfig, found: ClusterProfile) -> RunConfig:
    """Return the run on what the profile is of; ValueError where it is to train on something else."""
    said, device = run.runtime.device, found.device
    if said not in ("auto", device):
        raise ValueError(
            f"runtime.device={said}, but cluster profile {found.name} is of device: {device}: leave runtime.device "
            "out, or choose another profile"
        )
    return replace(run, runtime=replace(run.runtime, device=device))


def memory(found: ClusterProfile, words: Sequence[str], said: float) -> int:
    """Return the memory of a GPU [bytes]: `said` [GB] where words give cluster.gpu_memory_gb, else the profile's."""
    if any(word.lstrip("+").partition("=")[0] == MEMORY for word in words):
        return own_words.gpu_bytes(said)
    if found.compute.memory is None:
        raise ValueError(
            f"cluster profile {found.name} does not say how much memory a GPU has: give {MEMORY}=141, say, or add "
            "compute.memory [bytes] to the profile"
        )
    return round(found.compute.memory)


def peak(found: ClusterProfile, precision: str) -> tuple[float, str]:
    """Return the peak of MFU [FLOP/s] and its format: bf16's for all but fp32, as everybody does."""
    name = precision if precision == "fp32" else "bf16"
    return found.compute.matmul_rate(name), name


def joins(found: ClusterProfile, ranks: int) -> bool:
    """Say whether a profile's levels join so many ranks, each domain as full as the others."""
    return _reaches(found, ranks, 1)


def groups_joined(found: ClusterProfile, axes: Axes) -> bool:
    """Say whether a profile's levels join every group of ranks that a mesh's messages go through."""
    groups = {name: getattr(axes, name) for name in ("tp", "cp", "fsdp", "dp_replicate", "pp")}
    if axes.ep > 1 and axes.fsdp % axes.ep == 0:
        groups |= {"ep": axes.ep, "expert_fsdp": axes.expert_fsdp}
    groups |= {"tokens": axes.data * axes.cp, "world": axes.size, "ends": 2 if axes.pp > 1 else 1}
    return all(ranks == 1 or _reaches(found, ranks, stride_of(name, axes)) for name, ranks in groups.items())


def check_groups(found: ClusterProfile, axes: Axes) -> None:
    """Raise ValueError, with key and nearest size that works, for an axis whose ranks a profile does not join."""
    for name in ("tp", "cp", "fsdp", "dp_replicate", "pp"):
        ranks, stride = getattr(axes, name), stride_of(name, axes)
        try:
            found.reaches(ranks, stride, ALL_REDUCE)
        except ValueError as error:
            key = f"parallel.{name}" if name != "fsdp" else "parallel.dp_shard x cp"
            near = min((size for size in range(1, 2 * ranks) if _reaches(found, size, stride)),
                       key=lambda size: (abs(size - ranks), -size))  # fmt: skip
            raise ValueError(f"{key}={ranks}: {error}; the nearest size is {near}") from None


def _reaches(found: ClusterProfile, ranks: int, stride: int) -> bool:
    try:
        found.reaches(ranks, stride, ALL_REDUCE)
    except ValueError:
        return False
    return True


def innermost(found: ClusterProfile) -> int:
    """Return the ranks of the largest domain that a profile bounds: those of a host; 1 where it bounds none."""
    return max((level.ranks for level in found.levels if level.ranks is not None), default=1)


def check_ranks(found: ClusterProfile, gpus: int, step: int = 1) -> None:
    """Raise ValueError, with the nearest number that works, for GPUs that a profile does not join.

    step: what the number has to be a multiple of.
    """
    if joins(found, gpus) and gpus % step == 0:
        return
    near = nearest(found, gpus, step)
    instead = f"; the nearest is gpus={near}" if near else ""
    if gpus % step:
        raise ValueError(f"gpus={gpus} is not a multiple of the {step} ranks that the given parallel.* make{instead}")
    try:
        found.reaches(gpus, 1, ALL_REDUCE)
    except ValueError as error:
        raise ValueError(f"gpus={gpus}: {error}{instead}") from None


def nearest(found: ClusterProfile, gpus: int, step: int = 1) -> int | None:
    """Return the number of GPUs nearest to this one that a profile joins and `step` divides, the larger of two."""
    for distance in range(1, max(gpus, step, innermost(found)) + 1):
        for near in (gpus + distance, gpus - distance):
            if near >= 1 and near % step == 0 and joins(found, near):
                return near
    return None
