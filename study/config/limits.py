"""What numbers the study's own keys may have. Those of a run are checked where it is resolved (train.spec.resolve)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from study.config.schema import StudyConfig
from train.spec.largest import shown


class Limit(NamedTuple):
    """What holds of a key's number, and how it is said; of null nothing needs to hold."""

    holds: Callable[[float], bool]
    words: str


POSITIVE = Limit(lambda value: value > 0, "above 0")
NOT_NEGATIVE = Limit(lambda value: value >= 0, "0 or more")
AT_LEAST_ONE = Limit(lambda value: value >= 1, "1 or more")
HOURS = Limit(lambda value: value > 0, "above 0, or null for no limit")
LIMITS: Mapping[str, Limit] = {
    "study.gpu_hours": HOURS,
    "study.core_hours": HOURS,
    "search.seed": NOT_NEGATIVE,
    "search.burn_in_tokens": NOT_NEGATIVE,
    "search.quantile": Limit(lambda value: 0 < value <= 0.5, "a share above 0 and at most 0.5"),
    "search.resample": Limit(lambda value: 0 <= value <= 1, "a probability, 0 to 1"),
    "cluster.mem_gb": POSITIVE,
    "cluster.gpu_memory_gb": POSITIVE,
    "cluster.time_minutes": Limit(lambda value: 1 <= value <= 5_256_000, "1 minute to ten years"),
    "cluster.array_parallelism": AT_LEAST_ONE,
    "cluster.poll_seconds": POSITIVE,
    "cluster.signal_seconds": NOT_NEGATIVE,
    "cluster.hang_floor_seconds": NOT_NEGATIVE,
    "retry.failures": NOT_NEGATIVE,
    "retry.memory_factor": AT_LEAST_ONE,
    "retry.exclude_after": AT_LEAST_ONE,
    "retry.exclude_most": NOT_NEGATIVE,
    "retry.exclude_hours": NOT_NEGATIVE,
}


def check(config: StudyConfig) -> None:
    """Raise ValueError for a number that its key cannot have; it names the key, the value and what is allowed."""
    for name in LIMITS:
        section, _, field = name.partition(".")
        value = getattr(getattr(config, section), field)
        if value is not None:
            check_value(name, value)


def check_value(name: str, value: float) -> None:
    """Raise the same for the number of one key in LIMITS."""
    if not LIMITS[name].holds(value):
        raise ValueError(f"{name}={shown(value)} is not allowed: {LIMITS[name].words}")
