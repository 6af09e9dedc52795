"""Points of one process that share a GPU: whether that pays, how many, and how (`cluster.pack_gpus`). Pure.

A small model's step leaves most of a GPU idle, and several processes may fill it. Gains are taken from measurements
only: by time slices, four of the smallest runs together are slower than one alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from train.spec.config import RunConfig
from train.spec.counts import flops_per_token
from train.spec.gpu_share import part
from train.spec.mesh import Axes
from train.spec.micro_batch import SHARE, need

Gains = Mapping[str, Mapping[float, Mapping[int, float]]]
"""Tokens/s of runs side by side over those of one alone: by pack_gpus, FLOPs of a step, number of runs."""

GAINS: Gains = {
    "slices": {1.03e11: {4: 0.92}, 1.45e12: {4: 0.92}},
    "mps": {1.03e11: {4: 1.56}, 1.45e12: {4: 1.03}, 2.3e12: {4: 1.07}},
}
"""On H200s in bf16 (benchmarks/results/packing.txt): the first two sizes by benchmarks/packing.py.

The third is an upper bound from the records of a study: FLOP/s of four runs over those of the largest of them alone.
"""
REACH = 2.0
"""The gain of the nearest measured step holds up to this factor in FLOPs beyond it; farther away none is assumed."""
MEASURED = ("bf16", "fp16")
"""Precisions that the figures hold for."""
WORTH = 1.2
"""The least gain for which runs share a GPU, since each of them takes longer."""
NEARLY = 0.97
"""Fewer runs are preferred if they reach this share of the best gain."""
SIDE_BY_SIDE = (4, 2)
"""How many short points of a job may share its GPU through the multi-process service, most first.

While one of them starts, compiles or is evaluated, the others train. Fifteen points on two H200s, all training their
share of 7e16 FLOPs, took 163 s with four at a time, 175 s with two and 192 s with one
(benchmarks/results/study_peers_gpu.txt).
"""
TURNS = 2
"""Least points for each place on the GPU, so that the last points of a job seldom train alone."""


@dataclass(frozen=True)
class Packing:
    """How many points share a GPU, how (`cluster.pack_gpus`), and their tokens/s together over one alone."""

    pack: int
    pack_gpus: str
    gain: float


def choose(
    config: RunConfig,
    gpu_memory_gb: float,
    allowed: Callable[[int], bool] = lambda count: True,
    gains: Gains | None = None,
) -> Packing | None:
    """Return how points like this one share a GPU; None: each has its own.

    allowed: whether a job with this many points could start. gains: None: GAINS.
    """
    gains = GAINS if gains is None else gains
    if config.precision.name not in MEASURED:
        return None
    flops = step_flops(config)
    counts = sorted({count for table in gains.values() for each in table.values() for count in each})
    fitting = [count for count in counts if fits(config, gpu_memory_gb, count) and allowed(count)]
    found = [Packing(count, how, gain(flops, count, table)) for count in fitting for how, table in gains.items()]
    best = max((one.gain for one in found), default=0.0)
    if best < WORTH:
        return None
    return next(one for one in found if one.gain >= NEARLY * best)


def most_side_by_side(config: RunConfig, gpu_memory_gb: float, gains: Gains | None = None) -> int:
    """Return how many short points like this one may share a GPU while others wait; 1: each has it alone.

    It is enough that they are no slower together: while one starts, compiles or is evaluated, the others use the GPU.
    gains: None: GAINS.
    """
    table = (GAINS if gains is None else gains).get("mps", {})
    if config.precision.name not in MEASURED or gain(step_flops(config), max(SIDE_BY_SIDE), table) < 1.0:
        return 1
    return next((count for count in SIDE_BY_SIDE if fits(config, gpu_memory_gb, count)), 1)


def side_by_side(points: int, most: int, allowed: Callable[[int], bool] = lambda count: True) -> int:
    """Return how many of a job's short points run on its GPU at a time; points: how many the job has."""
    counts = (count for count in SIDE_BY_SIDE if count <= most and points >= TURNS * count)
    return next((count for count in counts if allowed(count)), 1)


def step_flops(config: RunConfig) -> float:
    """Return the training FLOPs of one pass through the model: of a step, or of the micro-batch if that is set."""
    length, micro = config.data.sequence_length, config.parallel.micro_batch_sequences
    tokens = config.batch.tokens
    assert tokens is not None, "the config is resolved"
    return float(tokens if micro is None else min(tokens, micro * length)) * flops_per_token(
        config.model, config.data.vocab_size, length
    )


def fits(config: RunConfig, gpu_memory_gb: float, count: int) -> bool:
    """Return whether a GPU holds `count` points whose steps are not cut into micro-batches, as in the measurements."""
    needed, tokens = need(config, Axes()), config.batch.tokens
    assert tokens is not None, "the config is resolved"
    sequences = config.parallel.micro_batch_sequences or -(-tokens // config.data.sequence_length)
    return needed.fixed + sequences * needed.sequence <= SHARE * part(round(gpu_memory_gb * 1e9), 1 / count)


def gain(flops: float, count: int, table: Mapping[float, Mapping[int, float]]) -> float:
    """Return the gain of `count` runs with steps of so many FLOPs, interpolated linearly in log FLOPs; 0.0: unknown."""
    measured = sorted((at, each[count]) for at, each in table.items() if count in each)
    if not measured or not measured[0][0] / REACH <= flops <= measured[-1][0] * REACH:
        return 0.0
    above = next((place for place, (at, _) in enumerate(measured) if at >= flops), None)
    if above is None or above == 0:
        return measured[-1 if above is None else 0][1]
    (low, before), (high, after) = measured[above - 1], measured[above]
    return before + (after - before) * math.log(flops / low) / math.log(high / low)
