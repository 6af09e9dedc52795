"""A cluster as planning knows it: what joins its ranks, what a device computes; measured, or as its makers say.

A profile is a YAML file, as those in conf/cluster/measured. Its keys are the fields of `ClusterProfile`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from train.spec import yamlfile
from train.spec.communication.costs import Link, Reach, hierarchical
from train.spec.communication.fit import Timed
from train.spec.communication.messages import ALL_REDUCE, BROADCAST, COLLECTIVES, Message, bus_factor
from train.spec.from_mapping import read
from train.spec.mesh import Axes

KINDS = ("measured", "datasheet")
DEVICES = ("cuda", "cpu")


def _one_of(choices: Collection[str]) -> Any:
    """Return a field that has to be given, one of these."""
    return field(metadata={"choices": choices})


@dataclass(frozen=True)
class Fitted:
    """The link as rings of one collective see it, where that was measured; alpha [s], bandwidth [B/s]."""

    alpha: float
    bandwidth: float
    collective: str = _one_of(COLLECTIVES)


@dataclass(frozen=True)
class Level:
    """Links of one kind: alpha of a hop [s], bandwidth of one direction [B/s].

    ranks: of one domain that they join, with all that lies within; null: any number.
    """

    name: str
    alpha: float
    bandwidth: float
    ranks: int | None = None
    fitted: tuple[Fitted, ...] = ()

    def link(self, collective: str) -> tuple[Link, str]:
        """Return the link that a collective has, and the algorithm that its figures are for."""
        for one in self.fitted:
            if one.collective == collective:
                return Link(one.alpha, one.bandwidth), "ring"
        # What NCCL has trees for; elsewhere it goes round.
        return Link(self.alpha, self.bandwidth), "best" if collective in (ALL_REDUCE, BROADCAST) else "ring"


@dataclass(frozen=True)
class Point:
    """A collective as it was timed: by its seconds, or by the bus bandwidth that was written down instead."""

    level: str
    ranks: int
    size: int
    collective: str = _one_of(COLLECTIVES)
    seconds: float | None = None
    bus_bandwidth: float | None = None

    @property
    def timed(self) -> Timed:
        """The point with its seconds."""
        seconds = self.seconds
        if seconds is None:
            assert self.bus_bandwidth is not None, "one of both is given"
            seconds = bus_factor(self.collective, self.ranks) * self.size / self.bus_bandwidth
        return Timed(self.collective, self.ranks, self.size, seconds)


@dataclass(frozen=True)
class Rate:
    """A rate of a device. of: the operation and its size; format: of its numbers; per_second: FLOP or bytes."""

    of: str
    format: str
    per_second: float


@dataclass(frozen=True)
class Compute:
    """Ceilings of one device; null where they are not known.

    matmul, attention, grouped: [FLOP/s]; grouped: products of several groups in one launch. copy: within its memory,
    read and written [B/s]. host_to_device: from page-locked memory [B/s]. launch: from one kernel to the next, if each
    does nothing [s]. memory: its size [bytes].
    """

    matmul: tuple[Rate, ...] = ()
    attention: tuple[Rate, ...] = ()
    grouped: tuple[Rate, ...] = ()
    copy: float | None = None
    host_to_device: float | None = None
    launch: float | None = None
    memory: float | None = None

    def matmul_rate(self, format: str) -> float:
        """Return the best rate of matrix products in a format [FLOP/s]; ValueError that lists those there are."""
        found = [rate.per_second for rate in self.matmul if rate.format == format]
        if not found:
            there = ", ".join(sorted({rate.format for rate in self.matmul})) or "none"
            raise ValueError(
                f"compute.matmul of the cluster profile has no rate for {format} (it has {there}): add "
                f"{{of: M x K x N, format: {format}, per_second: FLOP/s}}, or choose another profile or precision"
            )
        return max(found)


@dataclass(frozen=True)
class ClusterProfile:
    """What is known of a cluster, and from where. levels: the innermost first, none for one device alone.

    points: what links were fitted to. device: what each rank has, a GPU, or a part of a host's CPUs.
    """

    name: str
    source: str
    machine: str
    versions: str
    date: str
    kind: str = _one_of(KINDS)
    levels: tuple[Level, ...] = ()
    note: str = ""
    device: str = field(default="cuda", metadata={"choices": DEVICES})
    compute: Compute = field(default_factory=Compute)
    points: tuple[Point, ...] = ()

    def reaches(self, ranks: int, stride: int, collective: str) -> list[tuple[Reach, str]]:
        """Return by which links a group of ranks, each `stride` from the next, is joined.

        ValueError where no level of the profile reaches that far, or domains would hold unequal parts of the group.
        """
        found: list[tuple[Reach, str]] = []
        inside = 1
        group = f"{ranks} ranks" if stride == 1 else f"{ranks} ranks that are {stride} apart"
        for level in self.levels:
            held = ranks if level.ranks is None else min(ranks, max(1, level.ranks // stride))
            if ranks % held or held % inside:
                raise ValueError(
                    f"levels.{level.name}.ranks={level.ranks} of cluster profile {self.name}: {group} do not fill such "
                    f"domains equally: take a divisor or a multiple of {max(1, (level.ranks or 1) // stride)}"
                )
            link, algorithm = level.link(collective)
            found.append((Reach(held // inside, link), algorithm))
            inside = held
        if inside < ranks and not self.levels:
            raise ValueError(
                f"cluster profile {self.name} is of one device and has no levels: it joins no {ranks} ranks; choose a "
                "profile with levels, or measure one on several GPUs with `python -m study bench comm`"
            )
        if inside < ranks:
            there = ", ".join(f"{level.name} ({level.ranks} ranks)" for level in self.levels)
            raise ValueError(
                f"cluster profile {self.name} has the levels {there}: they do not join {group}; add a level, with "
                "ranks: null for the network, or choose another profile"
            )
        return found

    def seconds(self, message: Message, stride: int) -> float:
        """Return how long one such message takes [s]; the group's ranks are `stride` apart."""
        joined = [one for one in self.reaches(message.ranks, stride, message.collective) if one[0].ranks > 1]
        algorithm = "ring" if any(name == "ring" for _, name in joined) else "best"
        return hierarchical(message.collective, message.size, [reach for reach, _ in joined], algorithm)

    def step_seconds(self, messages: Sequence[Message], axes: Axes) -> dict[Message, float]:
        """Return the seconds of a step for each of its messages, one after the other and nothing hidden."""
        return {one: one.count * self.seconds(one, stride_of(one.axis, axes)) for one in messages}


def stride_of(axis: str, axes: Axes) -> int:
    """Return how far apart the ranks of a group are: (pp, dp_replicate, dp_shard, cp, tp), the last one innermost."""
    within = axes.tp * axes.fsdp
    strides = {
        "tp": 1,
        "world": 1,
        "cp": axes.tp,
        "fsdp": axes.tp,
        "tokens": axes.tp,
        "ep": axes.tp,
        "expert_fsdp": axes.tp * axes.ep,
    }
    strides |= {"dp_replicate": within, "pp": within * axes.dp_replicate}
    strides["ends"] = strides["pp"] * (axes.pp - 1)
    return strides[axis]


def read_profile(path: Path) -> ClusterProfile:
    """Return the profile in a YAML file; ValueError that names the file, the key, the value and what is allowed."""
    mapping = yamlfile.read_mapping(path, of="a cluster profile's keys (name, levels, compute, ...)")
    try:
        profile = read(ClusterProfile, mapping)
        _check(profile)
    except ValueError as error:
        cut = ": the file may be cut off; `python -m study bench comm profile=FILE` writes a whole one"
        raise ValueError(f"{path}: {error}{cut if str(error).endswith('is missing') else ''}") from None
    return profile


def write_profile(profile: ClusterProfile) -> str:
    """Return a profile as YAML that `read_profile` reads as the same."""

    def plain(value: object) -> object:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items() if item not in (None, "", (), {})}
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    return yamlfile.dump(plain(asdict(profile)), allow_unicode=True, width=120)


def _check(profile: ClusterProfile) -> None:
    if not profile.levels and not profile.compute.matmul:
        raise ValueError("levels=[] is not allowed: give the links that join ranks, the innermost first")
    before = 1
    for place, level in enumerate(profile.levels):
        where = f"levels[{place}]"
        links = [(where, level.alpha, level.bandwidth)]
        links += [(f"{where}.fitted[{i}]", one.alpha, one.bandwidth) for i, one in enumerate(level.fitted)]
        for name, alpha, bandwidth in links:
            _positive(f"{name}.bandwidth", bandwidth, "bytes a second")
            if alpha < 0 or not math.isfinite(alpha):
                raise ValueError(f"{name}.alpha={alpha} is not allowed: seconds, 0 or more")
        if level.ranks is None and place < len(profile.levels) - 1:
            raise ValueError(f"{where}.ranks=null is allowed for the last level alone: say how many ranks it joins")
        if level.ranks is not None and (level.ranks <= before or level.ranks % before):
            more = f"a multiple of {before}, the ranks of the level before, and more than that"
            raise ValueError(f"{where}.ranks={level.ranks} is not allowed: {'2 or more' if before == 1 else more}")
        before = level.ranks or before
    names = [level.name for level in profile.levels]
    for place, point in enumerate(profile.points):
        where = f"points[{place}]"
        if point.level not in names:
            raise ValueError(f"{where}.level={point.level!r} is not allowed: choose one of {', '.join(names)}")
        if (point.seconds is None) == (point.bus_bandwidth is None):
            raise ValueError(f"{where}: give one of seconds and bus_bandwidth")
        _positive(f"{where}.seconds", point.seconds or point.bus_bandwidth or 0.0, "")
        _positive(f"{where}.size", point.size, "bytes")
    _check_compute(profile.compute)


def _check_compute(compute: Compute) -> None:
    for name in ("copy", "host_to_device", "launch", "memory"):
        value = getattr(compute, name)
        if value is not None:
            _positive(f"compute.{name}", value, "")
    for name in ("matmul", "attention", "grouped"):
        for place, rate in enumerate(getattr(compute, name)):
            _positive(f"compute.{name}[{place}].per_second", rate.per_second, "")


def _positive(name: str, value: float, unit: str) -> None:
    if not value > 0 or not math.isfinite(value):
        raise ValueError(f"{name}={value:g} is not allowed: {unit + ', ' if unit else ''}more than 0")
