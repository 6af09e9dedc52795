"""What a device of a cluster profile reaches within a training step: products by format and shape, memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from train.spec.communication.cluster import ClusterProfile, Compute, Rate

OF_DATASHEET = {"matmul": 694 / 989.5, "copy": 4.27 / 4.8}
"""What an H200 was measured to reach of its data sheet: conf/cluster/measured/h200_x4.yaml over h200_x8_400g.yaml."""
IN_STEP = 0.989
"""What products and attention reach within a step of what they reach alone, as the chip's power is shared.

Calibrated on one row, ours-1b of benchmarks/results/trainer_peers.json (384.1 ms).
"""
STREAMED = 0.9
"""What passes over memory reach of a copy: 85 to 95 % (benchmarks/trainer_notes.md, "What stands in the way")."""
ALIKE = 2.0
"""A measured product speaks for those whose sides are each within this factor of its own; what is further off, not."""
ALSO = {"fp16": "bf16"}
"""Formats whose products are as fast as another's, for a profile that has that alone (train.spec.device_peaks)."""
SIDES = r"(\d+) x (\d+) x (\d+)"
"""How a measured product names its shape in `compute.matmul.of`: m x k x n (train.measure.device)."""
GROUPS = r"(\d+) x " + SIDES
"""How products of groups in one launch name theirs in `compute.grouped.of`: groups x m x k x n, m rows of each."""
BY_DATASHEET = "dense"
"""How rates of a data sheet begin in `compute.matmul.of`, also where a profile is measured otherwise."""


@dataclass(frozen=True)
class Measured:
    """A product m x k x n as it was measured, and its share of the sustained rate of its format, at most 1.

    groups: how many of them were one launch; 1: a plain product.
    """

    m: int
    k: int
    n: int
    share: float
    groups: int = 1


@dataclass(frozen=True)
class MeasuredAttention:
    """Causal attention as it was measured alone: its shape, seconds of both passes."""

    sequences: int
    heads: int
    length: int
    channels: int
    seconds: float


@dataclass(frozen=True)
class Device:
    """A device within a step. profile: the name of what it is from.

    rates: that products sustain, by format [FLOP/s]. products, attention: shapes that were measured. memory: bandwidth
    of passes over it [B/s]. host: from page-locked memory [B/s]. size: of its memory [bytes]. type: cuda or cpu.
    """

    profile: str
    rates: tuple[tuple[str, float], ...]
    products: tuple[tuple[str, tuple[Measured, ...]], ...]
    memory: float
    host: float | None
    size: float | None
    attention: tuple[MeasuredAttention, ...] = ()
    type: str = "cuda"

    def rate(self, format: str) -> float:
        """Return the rate that products sustain [FLOP/s]; ValueError that names the key and what there is."""
        rates = dict(self.rates)
        found = rates.get(format) or rates.get(ALSO.get(format, ""))
        if found is None:
            there = ", ".join(name for name, _ in self.rates) or "none"
            raise ValueError(
                f"cluster profile {self.profile}: compute.matmul has no rate for {format} (it has {there}), which "
                f"precision.name needs: add {{of: M x K x N, format: {format}, per_second: FLOP/s}}, as `python -m "
                "study bench comm profile=FILE` measures it, or choose another precision"
            )
        return found

    def correction(self, format: str, sides: tuple[int, int, int, int], expected: tuple[float, ...]) -> float:
        """Return by how much the nearest measured product was faster than expected of it; 1: none is near.

        sides: groups, m, k, n. expected: for each measured product of the format, the share of the best rate that it
        was expected to have.
        """
        near = [
            (apart, one.share / share)
            for one, share in zip(dict(self.products).get(format, ()), expected, strict=True)
            if (one.groups > 1) == (sides[0] > 1)
            and (apart := distance(sides, (one.groups, one.m, one.k, one.n))) <= ALIKE
        ]
        return min(near)[1] if near else 1.0


def device_of(cluster: ClusterProfile) -> Device:
    """Return what the profile's device reaches within a step; ValueError where it lacks a figure that is needed."""
    return _device(cluster.name, cluster.kind, cluster.compute, cluster.device)


@lru_cache(maxsize=64)
def _device(name: str, kind: str, compute: Compute, type: str) -> Device:
    if compute.copy is None:
        raise ValueError(
            f"cluster profile {name}: compute.copy is missing, the bandwidth of the device's memory [B/s]: add it, as "
            "`python -m study bench comm profile=FILE` measures it, or choose another profile"
        )
    formats = dict.fromkeys(rate.format for rate in compute.matmul)
    best = {form: _sustained(kind, [rate for rate in compute.matmul if rate.format == form]) for form in formats}
    return Device(
        profile=name,
        rates=tuple((form, (IN_STEP if type == "cuda" else 1.0) * rate) for form, rate in best.items()),
        products=tuple((form, _measured(kind, compute, form, best[form])) for form in formats),
        memory=STREAMED * compute.copy * (OF_DATASHEET["copy"] if kind == "datasheet" else 1.0),
        host=compute.host_to_device,
        size=compute.memory,
        attention=tuple(_attention(compute)),
        type=type,
    )


def _sustained(kind: str, rates: Sequence[Rate]) -> float:
    """Return the rate of the largest product that was measured; of rates without a shape the best.

    It takes longest, so it shows best what a chip sustains: under its power limit an H200 runs products at 1,470 to
    1,485 of 1,980 MHz (benchmarks/results/kernels_profile.txt), which short ones are over before.
    """
    return max((_flops(rate), _reached(kind, rate)) for rate in rates)[1]


def _flops(rate: Rate) -> float:
    sides = re.match(SIDES, rate.of)
    return 2.0 * math.prod(int(side) for side in sides.groups()) if sides else 0.0


def _reached(kind: str, rate: Rate) -> float:
    stated = kind == "datasheet" or rate.of.startswith(BY_DATASHEET)
    return rate.per_second * (OF_DATASHEET["matmul"] if stated else 1.0)


def _measured(kind: str, compute: Compute, form: str, best: float) -> tuple[Measured, ...]:
    found = []
    for rate in compute.matmul:
        sides = re.match(SIDES, rate.of)
        if rate.format == form and sides:
            m, k, n = (int(side) for side in sides.groups())
            found.append(Measured(m, k, n, min(1.0, _reached(kind, rate) / best)))
    for rate in compute.grouped:
        sides = re.match(GROUPS, rate.of)
        if rate.format == form and sides:
            groups, m, k, n = (int(side) for side in sides.groups())
            found.append(Measured(m, k, n, min(1.0, _reached(kind, rate) / best), groups))
    return tuple(found)


def _attention(compute: Compute) -> Iterator[MeasuredAttention]:
    """Yield attention that was measured in bf16: 7 products of half a square (train.measure.device)."""
    for rate in compute.attention:
        shape = re.match(r"(\d+) x (\d+) x (\d+) x (\d+), causal, forward and backward", rate.of)
        if rate.format == "bf16" and shape:
            sequences, heads, length, channels = (int(side) for side in shape.groups())
            counted = 7.0 * sequences * heads * length**2 * channels
            yield MeasuredAttention(sequences, heads, length, channels, counted / rate.per_second)


def distance(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """Return the largest factor between two shapes' sides."""
    return max(max(a / b, b / a) for a, b in zip(one, other, strict=True))
