"""Model-based choice among candidates: where good trials are dense and bad ones are not.

The ratio of two kernel densities, as in TPE (Bergstra et al. 2011) and, over the rungs of successive halving, in BOHB
(Falkner et al. 2018): the highest rung with enough trials says which are good.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sweeps.events import Setting
from sweeps.rungs import Rung
from sweeps.samplers.sampler import Tried, fresh
from sweeps.space import Space

Floats = NDArray[np.float64]

CANDIDATES = 256
"""Random draws among which the density ratio chooses."""


class DensityRatio:
    """Ranks candidates, given as points of the unit cube, by density of good trials over density of bad ones.

    enough: trials that a rung needs before it is believed; good: share of a rung's trials that count as good;
    explore: probability of taking a candidate as it comes; width: of the Gaussian kernel, in the unit cube.
    """

    def __init__(
        self, seed: int, enough: int = 12, good: float = 0.15, explore: float = 0.2, width: float = 0.15
    ) -> None:
        if enough < 4 or not 0 < good < 1 or not 0 <= explore <= 1 or width <= 0:
            raise ValueError(
                f"enough={enough}, good={good}, explore={explore}, width={width}: at least 4 trials, a share between "
                "0 and 1, a probability and a positive width are needed"
            )
        self.seed = seed
        self.enough = enough
        self.good = good
        self.explore = explore
        self.width = width

    def pick(self, trial: int, candidates: ArrayLike, points: Sequence[Sequence[float]], rungs: Sequence[Rung]) -> int:
        """Return the number of the candidate for a new trial.

        candidates: (count, dimensions); points: every earlier trial's place, by its number; rungs: lowest first.
        Depends on the seed and the trial's number, not on how often it was asked.
        """
        if np.random.default_rng([self.seed, trial]).random() < self.explore:
            return 0
        for rung in reversed(rungs):
            if len(rung.entries) >= self.enough:
                ranked = np.asarray([points[number] for _, _, number in rung.entries])
                return int(np.argmax(self._ratio(np.asarray(candidates, dtype=float), ranked)))
        return 0

    def _ratio(self, candidates: Floats, ranked: Floats) -> Floats:
        cut = max(3, int(np.ceil(len(ranked) * self.good)))
        return self._density(candidates, ranked[:cut]) / self._density(candidates, ranked[cut:])

    def _density(self, at: Floats, points: Floats) -> Floats:
        squares = ((at[:, None, :] - points[None]) / self.width) ** 2
        density: Floats = np.exp(-0.5 * squares.sum(axis=-1)).mean(axis=1) + 1e-12
        return density


class DensityDraws:
    """The best of many random draws, by :class:`DensityRatio` over the scheduler's rungs."""

    def __init__(self, space: Space, seed: int) -> None:
        self.space = space
        self.ratio = DensityRatio(seed)

    def propose(self, trial: int, tried: Sequence[Tried], rungs: Sequence[Rung] = ()) -> dict[str, Setting] | None:
        """Return the draw where good trials are dense; the first one while no rung has enough."""
        random = np.random.default_rng([self.ratio.seed, trial])
        draws = fresh(self.space, random, tried, CANDIDATES if rungs else 1)
        if not draws or not rungs:
            return draws[0] if draws else None
        points = [self.space.unit(one.config) for one in tried]
        return draws[self.ratio.pick(trial, [self.space.unit(config) for config in draws], points, rungs)]
