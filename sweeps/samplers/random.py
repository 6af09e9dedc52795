"""Independent draws from the domains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweeps.history import Setting
from sweeps.rungs import Rung
from sweeps.samplers.base import SamplerOptions, Tried, fresh
from sweeps.space import Space


@dataclass(frozen=True)
class RandomDraws:
    """Each value drawn from its domain."""

    space: Space
    seed: int

    def propose(self, trial: int, tried: Sequence[Tried], rungs: Sequence[Rung] = ()) -> dict[str, Setting] | None:
        """Return the first draw that no trial has had."""
        del rungs
        found = fresh(self.space, np.random.default_rng([self.seed, trial]), tried, 1)
        return found[0] if found else None


def make(options: SamplerOptions) -> RandomDraws:
    """Return the sampler of a search."""
    return RandomDraws(options.space, options.seed)
