"""Workloads that were written down after the guard was: what they look like had no part in how it was made.

Each is a function from a generator to a table of losses (configurations, R). Where nothing else is said there are 400
configurations whose final losses are uniform, and losses fall onto them as in :mod:`benchmarks.guard_families`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Random = np.random.Generator
R, CONFIGURATIONS = 81, 400
EPOCHS = np.arange(1, R + 1)
FALL = 2 * (1 - EPOCHS / R) + 3 * (EPOCHS**-0.5 - R**-0.5)


def _mixed(early: Floats, final: Floats) -> Floats:
    """Return losses that are early ones at first and go over to the final ones by the logarithm of the epochs."""
    way = np.log(EPOCHS) / np.log(R)
    mixed: Floats = early[:, None] * (1 - way) + final[:, None] * way + FALL
    return mixed


def _dropped(early: Floats, final: Floats, at: int = 75) -> Floats:
    """Return losses that are early ones, (configurations) or (configurations, R), and far from the end until `at`."""
    before = early if early.ndim == 2 else early[:, None]
    dropped: Floats = np.where(at > EPOCHS, before + 1, final[:, None]) + FALL
    return dropped


def _noisy(final: Floats, noise: float, random: Random) -> Floats:
    noisy: Floats = final + noise * random.standard_normal(len(final))
    return noisy


def reversed_best(share: float, random: Random) -> Floats:
    """The best are in reverse order, and all of them before the others, until the last epochs."""
    final = random.random(CONFIGURATIONS)
    return _dropped(np.where(final < share, share - final, final), final)


def late(share: float, better: float, random: Random) -> Floats:
    """A share, by `better` better than all others at the end, looks like the worst half until the last epochs."""
    final = random.random(CONFIGURATIONS)
    blooms = final < share
    early = np.where(blooms, 0.5 + 0.5 * random.random(CONFIGURATIONS), _noisy(final, 0.05, random))
    return _dropped(early + better, np.where(blooms, final, final + better))


def plateau(share: float, random: Random) -> Floats:
    """A share leaves a plateau that all others stay on, each at a moment of its own, and none in the first half."""
    level, when = random.random(CONFIGURATIONS), random.uniform(40, R, CONFIGURATIONS)
    drops = random.random(CONFIGURATIONS) < share
    fallen = (when[:, None] <= EPOCHS) & drops[:, None]
    losses: Floats = np.where(fallen, 0.5 * level[:, None] - 3, level[:, None]) + FALL
    return losses


def crossing(at: int, random: Random) -> Floats:
    """Early losses tell the final order in reverse, and in the right way from a resource on."""
    final = random.random(CONFIGURATIONS)
    wrong, right = _noisy(1 - final, 0.2, random), _noisy(final, 0.05, random)
    return _dropped(np.where(at > EPOCHS, wrong[:, None], right[:, None]), final)


def back_and_forth(random: Random) -> Floats:
    """The order turns round between each rung and the next."""
    final = random.random(CONFIGURATIONS)
    turned = np.searchsorted((2, 5, 15, 40), EPOCHS) % 2 == 0
    return _dropped(np.where(turned, 1 - final[:, None], final[:, None]), final)


def noise_at_the_end(random: Random) -> Floats:
    """Early losses tell how good a configuration is, the final one is that and as much noise."""
    good = random.random(CONFIGURATIONS)
    return _dropped(good, _noisy(good, 0.3, random))


def ties(random: Random) -> Floats:
    """Losses in steps of a tenth."""
    final = random.random(CONFIGURATIONS)
    rounded: Floats = np.round(_mixed(_noisy(final, 0.3, random), final), 1)
    return rounded


def diverging(random: Random) -> Floats:
    """A third diverges at some moment, those that would have been the best first."""
    final = random.random(CONFIGURATIONS)
    losses = _mixed(_noisy(final, 0.2, random), final)
    when = random.uniform(0, R, CONFIGURATIONS) * (0.2 + final)
    gone = random.random(CONFIGURATIONS) < 1 / 3
    losses[gone[:, None] & (when[:, None] <= EPOCHS)] = np.nan
    return losses


def steep(power: float, early: float, random: Random) -> Floats:
    """Random search's regret falls like budget^-power; the share `early` of an early loss is the final place."""
    place = random.random(CONFIGURATIONS)
    return _mixed(early * place + (1 - abs(early)) * random.random(CONFIGURATIONS), place**power)


def few_configurations(count: int, early: float, random: Random) -> Floats:
    """A table that a search comes to the end of, or near to it."""
    final = random.random(count)
    return _mixed(early * final + (1 - abs(early)) * random.random(count), final)


def fast_and_slow(random: Random) -> Floats:
    """Half of the configurations learn fast and end in the middle, the others slowly; the best are among these."""
    fast = random.random(CONFIGURATIONS) < 0.5
    final = np.where(fast, 0.4 + 0.3 * random.random(CONFIGURATIONS), random.random(CONFIGURATIONS))
    return _mixed(np.where(fast, final - 0.4, final + 0.6), final)


def power_laws(random: Random) -> Floats:
    """Losses a + b t^-c with a, b and c drawn apart from one another."""
    a, c = random.random(CONFIGURATIONS), random.uniform(0.3, 1, CONFIGURATIONS)
    b = random.lognormal(0, 0.5, CONFIGURATIONS)
    losses: Floats = a[:, None] + b[:, None] * EPOCHS ** -c[:, None]
    return losses


def drifting(slope: float, random: Random) -> Floats:
    """Configurations that come later are better, or worse: the guard starts more of them than random search does."""
    final = random.random(CONFIGURATIONS) + slope * np.arange(CONFIGURATIONS) / CONFIGURATIONS
    return _mixed(random.random(CONFIGURATIONS), final)


HELD_OUT: Mapping[str, Callable[[Random], Floats]] = {
    **{f"best {share:.0%} reversed": partial(reversed_best, share) for share in (0.1, 0.2, 0.5)},
    **{f"best {share:.0%} late": partial(late, share, 0.0) for share in (0.01, 0.03, 0.1, 0.2)},
    **{f"{share:.0%} late, far better": partial(late, share, 3.0) for share in (0.01, 0.03, 0.05)},
    **{f"{share:.0%} leave a plateau": partial(plateau, share) for share in (0.02, 0.05, 0.3)},
    **{f"right from {at} on": partial(crossing, at) for at in (2, 5, 15, 40)},
    "back and forth": back_and_forth,
    "noise at the end": noise_at_the_end,
    "ties": ties,
    "a third diverges": diverging,
    **{
        f"steep {power}, early {early}": partial(steep, power, early)
        for power in (1.5, 2.0)
        for early in (0.0, 0.7, -0.7)
    },
    **{
        f"{count} configurations, early {early}": partial(few_configurations, count, early)
        for count in (40, 100)
        for early in (0.0, 0.7)
    },
    "fast and slow": fast_and_slow,
    "power laws": power_laws,
    "later ones better": partial(drifting, -0.5),
    "later ones worse": partial(drifting, 0.5),
}
