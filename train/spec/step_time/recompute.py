"""How many of a rank's blocks keep what for the backward pass, as memory.checkpointing says or its budget allows."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from train.spec.accounting import kept
from train.spec.accounting.step import of_rank
from train.spec.config import RunConfig
from train.spec.mesh import Axes
from train.spec.pipeline_layout import blocks_of
from train.spec.step_time.device import Device

SHARE = 0.92
"""Part of a device's memory that checkpointing=budget fills (train.memory.activation_budget)."""


def modes(config: RunConfig, axes: Axes, rank: int, *, blocks: int, sequences: int, device: Device) -> dict[str, float]:
    """Return how many of a rank's blocks have which mode: none, selective (products are kept), full (its input is).

    With a budget, what the predicted peak leaves of the device's memory: first blocks go from full to selective, then
    to none (train.memory.activation_budget.fill). ValueError where the profile does not say how much memory there is.
    """
    if config.memory.checkpointing != "budget":
        found: dict[str, float] = {}
        for mode in kept.modes(config, blocks_of(config, axes.pp, rank)):
            found[mode] = found.get(mode, 0.0) + 1
        return found
    limit = config.memory.budget_gib
    if limit is not None:
        most = limit * 2**30
    elif device.size is not None:
        most = SHARE * device.size
    else:
        raise ValueError(
            f"cluster profile {device.profile}: compute.memory is missing, which memory.checkpointing=budget fills: "
            "add the device's memory [bytes], give memory.budget_gib, or choose another checkpointing"
        )
    return dict(_filled(config, axes, rank, blocks=blocks, sequences=sequences, most=most, device=device.type))


@lru_cache(maxsize=1024)
def _filled(
    config: RunConfig, axes: Axes, rank: int, *, blocks: int, sequences: int, most: float, device: str
) -> tuple[tuple[str, float], ...]:
    kinds = (replace(config, memory=replace(config.memory, checkpointing=mode)) for mode in kept.MODES)
    none, selective, full = (_peak(one, axes, rank, sequences, device) for one in kinds)
    if none <= most:
        return (("none", float(blocks)),)
    if selective >= none:
        part = max(0.0, (most - full) / (none - full))
        return (("none", part * blocks), ("full", (1.0 - part) * blocks))
    if selective <= most:
        part = (most - selective) / (none - selective)
        return (("none", part * blocks), ("selective", (1.0 - part) * blocks))
    part = max(0.0, (most - full) / (selective - full)) if selective > full else 0.0
    return (("selective", part * blocks), ("full", (1.0 - part) * blocks))


def _peak(config: RunConfig, axes: Axes, rank: int, sequences: int, device: str) -> int:
    found = of_rank(config, axes, device, sequences, rank)
    return found.peak.total + found.margin
