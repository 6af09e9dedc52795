"""Every number of the study's own keys from both sides: the last that is taken and the first that is refused."""

from __future__ import annotations

from typing import Any

import pytest

from study.config.limits import LIMITS, check
from study.config.schema import StudyConfig
from train.spec.from_mapping import read

TINY = 1e-9
SIDES: dict[str, tuple[float, float]] = {
    "study.gpu_hours": (TINY, 0),
    "study.core_hours": (TINY, -1),
    "search.seed": (0, -1),
    "search.burn_in_tokens": (0, -1),
    "search.quantile": (0.5, 0.5 + TINY),
    "search.resample": (1, 1 + TINY),
    "cluster.mem_gb": (TINY, 0),
    "cluster.gpu_memory_gb": (TINY, 0),
    "cluster.time_minutes": (5_256_000, 5_256_001),
    "cluster.array_parallelism": (1, 0),
    "cluster.poll_seconds": (TINY, 0),
    "cluster.signal_seconds": (0, -1),
    "cluster.hang_floor_seconds": (0, -TINY),
    "retry.failures": (0, -1),
    "retry.memory_factor": (1, 1 - TINY),
    "retry.exclude_after": (1, 0),
    "retry.exclude_most": (0, -1),
    "retry.exclude_hours": (0, -TINY),
}
BELOW: dict[str, tuple[float, float]] = {
    "search.quantile": (TINY, 0),
    "search.resample": (0, -TINY),
    "cluster.time_minutes": (1, 0),
}


def with_value(name: str, value: float | None) -> StudyConfig:
    section, _, field = name.partition(".")
    given: dict[str, Any] = {section: {field: value}}
    return read(StudyConfig, given)


def test_every_limit_has_its_sides() -> None:
    assert set(SIDES) == set(LIMITS)


@pytest.mark.parametrize(("name", "sides"), [*SIDES.items(), *BELOW.items()])
def test_the_last_value_is_taken_and_the_next_refused_by_its_key(name: str, sides: tuple[float, float]) -> None:
    taken, refused = sides
    check(with_value(name, taken))
    with pytest.raises(ValueError, match=f"^{name}=.* is not allowed: {LIMITS[name].words}$"):
        check(with_value(name, refused))


def test_defaults_and_null_are_taken() -> None:
    check(StudyConfig())
    check(with_value("study.gpu_hours", None))
