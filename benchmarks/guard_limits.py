"""What any guard can keep of selection's gain that stays near random search on every workload.

`python -m benchmarks.guard_limits`. Take two workloads. In one, early losses tell the final order. The other is the
same but for a share q of the configurations: at the end they are far better than all others, and until then they look
like the worst. Until a trial of these is trained to the end all that a search sees has the same distribution in both,
and once one is, the second workload is solved. So a search that selects with a share s of its budget of n trainings in
the first selects with as much in the second as long as that matters, and ends at (1 - q)^((1 - s) n) of the better
ones' lead, where random search ends at (1 - q)^n. No test tells the two apart: what bounds the ratio bounds s.

The second table says what s buys: the regret of the best of (1 - s) n random trials and of successive halving with s n
trainings, over that of n random trials. The numbers of trials at each rung are the best for the correlations at hand
of all those tried, and each rung waits for all its trials, neither of which a search could do. `kept` is the share of
the gain that the same has with all of the budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from benchmarks._guard_held_out import CONFIGURATIONS, R
from benchmarks.guard_families import FAMILIES
from train.spec.command_line import Parser

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
BUDGET = 32
STAKES = (1 / 16, 1 / 8, 1 / 6, 1 / 4, 1 / 2)
TOLD = ("0.6 rising", "0.8 rising")
LEVELS = (1, 3, 9, 27)


def latent(correlations: Sequence[float], draws: int) -> tuple[Places, list[Floats]]:
    """Return final places (draws, configurations), 0 the best, and the scores at 1, 3, 9 and 27 epochs."""
    random = np.random.default_rng(0)
    final, noise = random.standard_normal((2, draws, CONFIGURATIONS))
    scores = []
    for correlation in correlations[: len(LEVELS)]:
        scores.append(correlation * final + math.sqrt(1 - correlation**2) * noise)
        noise = 0.8 * noise + 0.6 * random.standard_normal(noise.shape)
    return np.argsort(np.argsort(final, axis=1), axis=1), scores


def designs(epochs: float, most: int) -> Iterator[tuple[int, ...]]:
    """Yield how many trials reach 1, 3, 9, 27 and 81 epochs, so that the last ones use up what the first leave."""
    starts = [count for count in (5, 10, 20, 30, 40, 60, 80, 100, 130, 160, 200, 250, 300, 400) if count <= most]
    for first, *shares in product(
        starts, (1 / 2, 1 / 3, 1 / 5, 1 / 8, 1 / 15), (1, 1 / 2, 1 / 3, 1 / 5), (1, 1 / 2, 1 / 3, 1 / 5)
    ):
        reached = [first]
        for share in shares:
            reached.append(max(1, round(reached[-1] * share)))
        left = epochs - sum(n * (to - of) for n, of, to in zip(reached, (0, *LEVELS), LEVELS, strict=False))
        last = min(reached[-1], int(left // (R - LEVELS[-1])))
        if last >= 1:
            yield (*reached, last)


def halved(places: Places, scores: Sequence[Floats], first: int, design: Sequence[int]) -> Places:
    """Return the best place (draws) of those configurations from `first` on that come to the end."""
    left = np.tile(np.arange(first, first + design[0]), (len(places), 1))
    for score, count in zip(scores, design[1:], strict=True):
        if count < left.shape[1]:
            best = np.argpartition(np.take_along_axis(score, left, axis=1), count - 1, axis=1)[:, :count]
            left = np.take_along_axis(left, best, axis=1)
    found: Places = np.take_along_axis(places, left, axis=1).min(axis=1)
    return found


def least(places: Places, scores: Sequence[Floats], stake: float) -> tuple[float, tuple[int, ...]]:
    """Return the lowest regret over random search's that a stake comes to, and by which design."""
    random = int((1 - stake) * BUDGET)
    alone = places[:, :random].min(axis=1) if random else np.full(len(places), CONFIGURATIONS)
    whole = float(places[:, :BUDGET].min(axis=1).mean())
    found = []
    for design in designs(stake * BUDGET * R, CONFIGURATIONS - random):
        selected = halved(places, scores, random, design)
        found.append((float(np.minimum(alone, selected).mean()) / whole, design))
    return min(found)


def main() -> None:
    parser = Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--draws", type=int, default=1000)
    draws = parser.parse_args().draws
    print(f"Regret over random search's with {BUDGET} trainings, where all that selection finds is worthless\n")
    print("          random search's regret falls like      a share of far better configurations shows at the end only")
    print(
        "stake     b^-0.7    b^-1  b^-1.5    b^-2" + "".join(f"{f'{q:.0%}':>8}" for q in (0.01, 0.02, 0.03, 0.05, 0.1))
    )
    for stake in STAKES:
        powers = [(1 - stake) ** -power for power in (0.7, 1.0, 1.5, 2.0)]
        shares = [(1 - q) ** (-stake * BUDGET) for q in (0.01, 0.02, 0.03, 0.05, 0.1)]
        print(f"{stake:5.3f}  " + "".join(f"{ratio:8.2f}" for ratio in (*powers, *shares)))
    print(f"\nWhere early losses tell: least regret over random search's, of designs tried, {draws} draws\n")
    for name in TOLD:
        places, scores = latent(FAMILIES[name].correlations, draws)
        best, _ = least(places, scores, 1.0)
        print(f"correlation {name}: with all of the budget {best:.2f}")
        for stake in STAKES:
            ratio, design = least(places, scores, stake)
            kept = (1 - ratio) / (1 - best)
            print(f"  stake {stake:5.3f}: {ratio:.2f}, kept {kept:.2f}, by {'/'.join(map(str, design))}")


if __name__ == "__main__":
    main()
