"""Model-based draws: settings like those of good trials, and unlike those of bad ones.

As in BOHB (Falkner et al. 2018): on the highest rung with enough trials, l(x) is the kernel density of the good ones
and g(x) that of the others. New settings are drawn from a widened l(x), and of a few draws the one with the highest
l(x)/g(x) is taken, which TPE shows to be the one with the highest expected improvement (Bergstra et al. 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sweeps.history import Setting
from sweeps.rungs import Rung
from sweeps.samplers.base import SamplerOptions, Tried, fresh, identity, taken
from sweeps.space import Choice, Space, domain_size

Floats = NDArray[np.float64]

SAMPLES = 64
"""Draws from l(x) of which the best is taken: the paper's number."""
WIDER = 3.0
"""How much wider than for ranking the kernels are that are drawn from: the paper's factor."""
WIDTH = 0.15
"""Of a Gaussian kernel [sides of the unit cube]. The paper takes the normal reference rule; on recorded digits curves
that leaves a mean regret of 0.023 after ten trainings where this leaves 0.016: three good trials tell of no spread."""

LEAST = 3
"""Good trials at least. The paper has one more than there are dimensions: half of them, where a rung has few."""


@dataclass(frozen=True)
class Kernels:
    """A density over the unit cube: one kernel for each point, Gaussian, or Aitchison and Aitken's for categories.

    points: (count, dimensions). categories: of each dimension, 0 where it is a number; the k-th of c lies at k/(c - 1).
    """

    points: Floats
    categories: tuple[int, ...]

    def leaves(self, categories: int, wider: float) -> float:
        """Return the probability of another category than a point's: falls with their number (Li and Racine 2003)."""
        count, dimensions = self.points.shape
        share = (categories - 1) / categories
        found: float = share * min(1.0, wider * count ** (-2 / (4 + dimensions)))
        return found

    def at(self, places: Floats, wider: float = 1.0) -> Floats:
        """Return the density at places (count, dimensions), up to a factor that all densities of the space share."""
        density = np.ones((len(places), len(self.points)))
        for k, categories in enumerate(self.categories):
            apart = np.abs(places[:, k, None] - self.points[None, :, k])
            if categories:
                other = self.leaves(categories, wider)
                density *= np.where(apart * (categories - 1) < 0.5, 1 - other, other / max(1, categories - 1))
            else:
                density *= np.exp(-0.5 * (apart / (WIDTH * wider)) ** 2)
        found: Floats = density.mean(axis=1) + 1e-12
        return found

    def draw(self, random: np.random.Generator, count: int, wider: float) -> Floats:
        """Return places drawn from the density (count, dimensions): near a point each, within the cube."""
        centres = self.points[random.integers(len(self.points), size=count)]
        drawn = np.empty_like(centres)
        for k, categories in enumerate(self.categories):
            if categories:
                leaves = random.random(count) < self.leaves(categories, wider)
                steps = random.integers(1, max(2, categories), size=count) * leaves
                drawn[:, k] = (np.rint(centres[:, k] * (categories - 1)) + steps) % categories / max(1, categories - 1)
            else:
                drawn[:, k] = _within(random, centres[:, k], WIDTH * wider)
        return drawn


def _within(random: np.random.Generator, centres: Floats, width: float) -> Floats:
    """Return normal draws around centres, those outside of 0 to 1 drawn again: the truncated normal distribution."""
    drawn: Floats = random.normal(centres, width)
    while (outside := (drawn < 0) | (drawn > 1)).any():
        drawn[outside] = random.normal(centres[outside], width)
    return drawn


@dataclass(frozen=True)
class DensityRatio:
    """Which settings to try next, by the densities of good and bad trials on a rung.

    enough: trials that a rung needs before it is believed; good: share of a rung's trials that count as good; explore:
    probability of a random draw instead.
    """

    seed: int
    enough: int = 12
    good: float = 0.15
    explore: float = 0.2

    def __post_init__(self) -> None:
        if self.enough < 4 or not 0 < self.good < 1 or not 0 <= self.explore <= 1:
            raise ValueError(
                f"enough={self.enough}, good={self.good}, explore={self.explore}: at least 4 trials, a share between "
                "0 and 1 and a probability are needed"
            )

    def split(
        self, points: Sequence[Sequence[float]], rungs: Sequence[Rung], categories: Sequence[int]
    ) -> tuple[Kernels, Kernels] | None:
        """Return l and g; None while no rung has enough trials, or too few of them have a finite value.

        points: every earlier trial's place, by its number; rungs: lowest first.
        """
        for rung in reversed(rungs):
            if len(rung.entries) < self.enough:
                continue
            ranked = np.asarray([points[number] for _, _, number in rung.entries], dtype=float)
            cut = max(LEAST, int(np.ceil(len(ranked) * self.good)))
            if not np.isfinite(rung.entries[cut - 1][0]):
                return None
            return Kernels(ranked[:cut], tuple(categories)), Kernels(ranked[cut:], tuple(categories))
        return None

    def pick(self, trial: int, candidates: ArrayLike, points: Sequence[Sequence[float]], rungs: Sequence[Rung]) -> int:
        """Return the number of the candidate for a new trial, where there are only these: drawn from l, ranked by l/g.

        candidates: (count, dimensions), all of them numbers. The first one where chance says so, or nothing is known.
        Depends on the seed and the trial's number, not on how often it was asked.
        """
        places, random = np.asarray(candidates, dtype=float), self.random(trial)
        known = self.split(points, rungs, (0,) * places.shape[1])
        if known is None or random.random() < self.explore:
            return 0
        good, bad = known
        weights = good.at(places, WIDER)
        drawn = random.choice(len(places), size=SAMPLES, p=weights / weights.sum())
        return int(drawn[np.argmax(good.at(places[drawn]) / bad.at(places[drawn]))])

    def random(self, trial: int) -> np.random.Generator:
        """Return the random numbers of a trial."""
        return np.random.default_rng([self.seed, trial])


class DensityDraws:
    """Draws from where good trials are, by :class:`DensityRatio` over the scheduler's rungs."""

    def __init__(self, space: Space, seed: int) -> None:
        self.space = space
        self.ratio = DensityRatio(seed)
        self.categories = tuple(
            int(domain_size(domain)) if isinstance(domain, Choice) and not domain.ordered else 0
            for domain in space.domains.values()
        )

    def propose(self, trial: int, tried: Sequence[Tried], rungs: Sequence[Rung] = ()) -> dict[str, Setting] | None:
        """Return settings drawn where good trials are dense; random ones while no rung has enough."""
        random = self.ratio.random(trial)
        points = [self.space.unit(one.config) for one in tried]
        known = self.ratio.split(points, rungs, self.categories)
        if known is not None and random.random() >= self.ratio.explore:
            good, bad = known
            places = good.draw(random, SAMPLES, WIDER)
            had = taken(tried)
            for place in places[np.argsort(-good.at(places) / bad.at(places), kind="stable")]:
                config = self.space.at([self._inside(k, float(x)) for k, x in enumerate(place)])
                if identity(config) not in had:
                    return config
        drawn = fresh(self.space, random, tried, 1)
        return drawn[0] if drawn else None

    def _inside(self, dimension: int, place: float) -> float:
        """Return a place as :meth:`sweeps.space.Domain.at` takes it: a category's own share of the side."""
        count = self.categories[dimension]
        return place if not count else (round(place * (count - 1)) + 0.5) / count


def make(options: SamplerOptions) -> DensityDraws:
    """Return the sampler of a search."""
    return DensityDraws(options.space, options.seed)
