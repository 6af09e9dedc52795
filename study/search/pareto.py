"""Which trials of a search with several objectives are better than any other in some way. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from study.search.state import Search, Trial


def front(points: Sequence[Sequence[float]]) -> list[int]:
    """Return the numbers of the points that no other one is at least as low as in all and lower in one; equal ones all.

    In the order of their first coordinate. What is not finite somewhere is never on the front.
    """
    finite = [k for k, point in enumerate(points) if all(math.isfinite(x) for x in point)]

    def beaten(k: int) -> bool:
        own = tuple(points[k])
        return any(tuple(points[o]) != own and all(a <= b for a, b in zip(points[o], own, strict=True)) for o in finite)

    return sorted((k for k in finite if not beaten(k)), key=lambda k: (*points[k], k))


def values_at(search: Search, trial: Trial, resource: int) -> list[float] | None:
    """Return a trial's objectives when it had reached a resource [tokens]; None where it has not.

    loss in nats per token; gpu_seconds in GPU-seconds, those of lost units too.
    """
    if resource not in trial.values:
        return None
    known = {"loss": trial.values[resource], "gpu_seconds": trial.seconds.get(resource, trial.took)}
    return [known[one] for one in search.settings.objectives]


def front_of(search: Search) -> list[Trial]:
    """Return the trials on the front at the highest resource that any has reached; none where there is one objective.

    Trials are compared at equal tokens only: one that was paused early took less device time than any that went on.
    """
    best = search.incumbent
    if len(search.settings.objectives) < 2 or best is None:
        return []
    known = [
        (t, v) for t in search.trials.values() if not t.failed and (v := values_at(search, t, best.at)) is not None
    ]
    return [known[k][0] for k in front([values for _, values in known])]
