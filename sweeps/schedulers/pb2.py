"""Population-based bandits, PB2 (Parker-Holder et al. 2020): what a copy varies is chosen by what settings have gained.

A member's stretch of training between two looks is an observation: its settings, when it was, and by how much the loss
fell. A Gaussian process that forgets says what any settings would gain now; a copy gets those with the highest upper
confidence bound. The settings that others are under way with count as observed, so that copies made at once differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeps.history import Config, Setting
from sweeps.samplers.optuna_models import clipped
from sweeps.schedulers.drifting_gp import Floats, Posterior, likeliest
from sweeps.space import Interval, Space

ENOUGH = 5
"""Stretches with a gain that are needed to choose by."""
WINDOW = 96
"""Latest stretches that count: the time of a choice grows with the third power of their number."""
CANDIDATES = 512
"""Places of the unit cube that are compared first."""
CLOSER = ((128, 0.1), (128, 0.03), (128, 0.01))
"""How many more then, and how far from the best so far in each direction [standard deviation, sides of the cube]."""
FAR = 2.0
"""Gains further from the mean than so many standard deviations count as that far."""


@dataclass(frozen=True)
class Stretch:
    """A member's way between two looks at it.

    begun: where it began [intervals]; gain: by how much the loss fell [per interval], NaN where it diverged or failed.
    """

    config: Config
    begun: float
    gain: float


def real(space: Space) -> tuple[str, ...]:
    """Return the names of the hyper-parameters that are chosen: those that are real numbers."""
    return tuple(n for n, domain in space.domains.items() if isinstance(domain, Interval) and domain.low < domain.high)


def chosen(
    space: Space,
    config: Config,
    now: float,
    seen: Sequence[Stretch],
    under_way: Sequence[Stretch],
    *,
    taken: Collection[Config],
    random: np.random.Generator,
) -> dict[str, Setting] | None:
    """Return a config with its real numbers chosen for a stretch that begins `now` [intervals], and is none of `taken`.

    under_way: stretches that have not ended, whatever their gain says. None where fewer than :data:`ENOUGH` were seen
    to gain or lose anything, and where the config has no real numbers.
    """
    names, free = real(space), np.array([name in config for name in real(space)])
    window = seen[-WINDOW:]
    if not free.any() or sum(math.isfinite(one.gain) for one in window) < ENOUGH:
        return None
    x, t = _laid_out(space, window)
    y = normalised([one.gain for one in window])
    known = Posterior(likeliest(x, t, y), x, t, y)
    expected = known.expecting(*_laid_out(space, under_way[-WINDOW:]))
    deviations = math.sqrt(beta(len(y)))

    def bound(places: Floats) -> Floats:
        times = np.full(len(places), now)
        return known.mean(places, times) + deviations * np.sqrt(expected.variance(places, times))

    for place in _best_first(bound, free, random):
        values = {name: space.domains[name].at(float(at)) for name, at in zip(names, place, strict=True)}
        found = {name: values.get(name, value) for name, value in config.items()}
        if found not in taken:
            return found
    return None


def beta(count: int) -> float:
    """Return the square of how many standard deviations the bound is above the mean, after `count` observations."""
    return 0.2 + max(0.0, math.log(0.4 * count))


def normalised(gains: Sequence[float]) -> Floats:
    """Return gains with mean 0 and variance 1, before those far off are brought near; NaN becomes the worst there is.

    A single loss that is far above the others must not make all others look alike (:func:`clipped`).
    """
    losses = np.array(clipped([-gain for gain in gains]))
    known = losses[np.isfinite(losses)]
    spread = float(known.std())
    found: Floats = np.clip((known.mean() - losses) / (spread if spread > 0 else 1.0), -FAR, FAR)
    return np.where(np.isfinite(found), found, np.nanmin(found))


def _best_first(bound: Callable[[Floats], Floats], free: NDArray[np.bool_], random: np.random.Generator) -> Floats:
    """Return places drawn from the unit cube, highest bound first; what is not free is in the middle.

    A choice among draws does not depend on a processor's rounding, as one by gradients would.
    """
    places = np.where(free, random.random((CANDIDATES, len(free))), 0.5)
    bounds = bound(places)
    for count, away in CLOSER:
        moves = free * away * random.standard_normal((count, len(free)))
        nearer = np.clip(places[int(np.argmax(bounds))] + moves, 0.0, 1.0)
        places, bounds = np.concatenate([places, nearer]), np.concatenate([bounds, bound(nearer)])
    best: Floats = places[np.argsort(-bounds, kind="stable")]
    return best


def _laid_out(space: Space, stretches: Sequence[Stretch]) -> tuple[Floats, Floats]:
    """Return the places (n, real numbers) and times (n) of stretches; what a config is without lies in the middle."""
    names = real(space)
    places = [[space.domains[n].unit(one.config[n]) if n in one.config else 0.5 for n in names] for one in stretches]
    return np.array(places, dtype=float).reshape(len(stretches), len(names)), np.array([s.begun for s in stretches])
