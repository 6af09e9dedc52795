"""The interface of samplers: a new trial's config is proposed from the results of earlier trials. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol, cast

import numpy as np

from sweeps.history import Config, Setting
from sweeps.rungs import Rung
from sweeps.samplers import MODELS, SAMPLERS
from sweeps.space import Space

DRAWS = 64
"""Tries at drawing a config that no trial has had; a space where all fail counts as exhausted."""


@dataclass(frozen=True)
class Tried:
    """An earlier trial: its config, its values by resource, and whether it failed for good.

    seconds: device time that it took to get to a resource [GPU-seconds].
    """

    config: Config
    values: Mapping[int, float] = field(default_factory=dict)
    failed: bool = False
    seconds: Mapping[int, float] = field(default_factory=dict)

    @property
    def bad(self) -> bool:
        """Whether it failed or diverged: as bad as can be, whatever it showed before."""
        return self.failed or any(not math.isfinite(value) for value in self.values.values())


class Sampler(Protocol):
    """Proposes configs; two that are asked the same answer the same, however often they are asked."""

    def propose(self, trial: int, tried: Sequence[Tried], rungs: Sequence[Rung] = ()) -> dict[str, Setting] | None:
        """Return the config of trial number `trial`, one that no trial has had; None: the space is exhausted.

        tried: the trials before it, by number. rungs: the scheduler's, lowest first, where it has some.
        """


@dataclass(frozen=True)
class SamplerOptions:
    """What samplers are made from; R: full resource; objectives: `("loss",)` or `("loss", "gpu_seconds")`."""

    name: str
    space: Space
    seed: int
    R: int
    objectives: tuple[str, ...] = ("loss",)


def make_sampler(name: str, options: SamplerOptions) -> Sampler:
    """Return a sampler by its name in `SAMPLERS`; ValueError where the space or the objectives do not suit it."""
    if options.objectives != ("loss",) and name not in MODELS:
        raise ValueError(
            f"search.objectives=[{', '.join(options.objectives)}] needs one of search.sampler={', '.join(MODELS)}"
        )
    module = import_module(f"sweeps.samplers.{SAMPLERS[name].module}")
    return cast(Sampler, module.make(options))


def fresh(space: Space, random: np.random.Generator, tried: Sequence[Tried], count: int) -> list[dict[str, Setting]]:
    """Return up to `count` configs drawn at random, all different and none of them tried."""
    had = taken(tried)
    found: list[dict[str, Setting]] = []
    for _ in range(DRAWS * count):
        drawn = space.draw(random)
        if identity(drawn) not in had:
            had.add(identity(drawn))
            found.append(drawn)
        if len(found) == count:
            break
    return found


def taken(tried: Sequence[Tried]) -> set[tuple[tuple[str, Setting], ...]]:
    """Return the identities of the configs that were tried."""
    return {identity(one.config) for one in tried}


def identity(config: Config) -> tuple[tuple[str, Setting], ...]:
    """Return a config as a value that can be compared and hashed."""
    return tuple(sorted(config.items()))
