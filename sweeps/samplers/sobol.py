"""Sobol's sequence: configs that cover the space, whatever the trials show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sweeps.history import Setting
from sweeps.rungs import Rung
from sweeps.samplers.base import SamplerOptions, Tried, identity, taken
from sweeps.samplers.random import RandomDraws
from sweeps.space import Space


@dataclass(frozen=True)
class Sobol:
    """Scrambled Sobol points (Owen 1998), by the trial's number: gaps are smaller than those of random draws."""

    space: Space
    seed: int

    def propose(self, trial: int, tried: Sequence[Tried], rungs: Sequence[Rung] = ()) -> dict[str, Setting] | None:
        """Return the trial's point of the sequence, or a random draw where its config has been tried."""
        from scipy.stats import qmc

        sequence = qmc.Sobol(len(self.space.domains), scramble=True, rng=self.seed)
        if trial:  # scipy cannot skip nothing
            sequence.fast_forward(trial)
        config = self.space.at([float(place) for place in sequence.random()[0]])
        return (
            config if identity(config) not in taken(tried) else RandomDraws(self.space, self.seed).propose(trial, tried)
        )


def make(options: SamplerOptions) -> Sobol:
    """Return the sampler of a search."""
    return Sobol(options.space, options.seed)
