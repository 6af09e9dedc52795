"""From a command line to a search: Hydra's sweep syntax becomes domains, everything else is the base config."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep

from study.config import StudyConfig
from study.search.settings import SAMPLERS, SCHEDULERS, Settings, described
from sweeps.events import Setting
from sweeps.space import Choice, Domain, Integers, Interval
from train.spec.config import RunConfig

SEARCHED = ("model", "batch", "optim", "schedule", "precision")
"""Sections whose keys may be searched over: not the data nor the budget, by which trials are compared."""


INHERITABLE = ("optim", "schedule")
NOT_INHERITABLE = ("optim.name", "schedule.name", "schedule.parent")


def is_search(name: object) -> bool:
    """Whether `search.name` is one that gives budget as results come in."""
    return name in SCHEDULERS


def domains(overrides: Sequence[Override]) -> tuple[dict[str, Domain], list[str]]:
    """Return the domains by key, and the overrides that are fixed; ValueError for a key that is not searched over."""
    found: dict[str, Domain] = {}
    fixed: list[str] = []
    for override in overrides:
        if not override.is_sweep_override():
            fixed.append(override.input_line or "")
            continue
        key = override.get_key_element()
        if "." not in key or key.split(".")[0] not in SEARCHED:
            raise ValueError(
                f"{override.input_line}: a search is over keys of {', '.join(SEARCHED)}, such as optim.lr, not {key}"
            )
        found[key] = _domain(override)
    return found, fixed


def settings_of(config: StudyConfig, run: RunConfig, base: dict[str, Any], space: dict[str, Domain]) -> Settings:
    """Return the search that a checked config asks for, `run` being its settled run; ValueError says what is wrong."""
    search = config.search
    if search.sampler not in SAMPLERS:
        raise ValueError(f"search.sampler={search.sampler!r} is not allowed: {', '.join(SAMPLERS)}")
    if config.budget.tokens is None or any(key.startswith("budget.") for key in space):
        raise ValueError(
            "a search compares trials at equal tokens: give budget.tokens, the full training of one trial [tokens]"
        )
    R = run.budget.tokens
    assert R is not None, "a settled run has its tokens"
    parts = 20 if search.name == "pbt" else search.eta**3
    r = search.min_tokens if search.min_tokens is not None else max(1, -(-R // parts))
    if search.trials < 1 or search.lease_seconds <= 0:
        raise ValueError(
            f"search.trials={search.trials}, search.lease_seconds={search.lease_seconds}: both must be positive"
        )
    made = Settings(
        scheduler=search.name,
        sampler=search.sampler,
        r=r,
        R=R,
        eta=search.eta,
        trials=search.trials,
        seed=search.seed,
        budget=search.budget_flops,
        lease=search.lease_seconds,
        space={name: described(domain) for name, domain in space.items()},
        base=base,
        quantile=search.quantile,
        resample=search.resample,
        burn_in=search.burn_in_tokens,
        gpu_hours=search.budget_gpu_hours,
        devices=max(1, config.cluster.nodes * config.cluster.gpus_per_node),
        shape=search.shape,
    )
    if search.name == "pbt":
        _check_population(space, search.trials)
    made.make_scheduler()
    return made


def _check_population(space: Mapping[str, Domain], members: int) -> None:
    """Refuse what a member could not take over from another, and a space too small for members to differ."""
    for name in space:
        if name.split(".")[0] not in INHERITABLE or name in NOT_INHERITABLE:
            raise ValueError(
                f"{name}: a member of a population goes on with another's weights and optimizer state, so only keys of "
                f"{', '.join(INHERITABLE)} can vary, without {', '.join(NOT_INHERITABLE)}"
            )
    sizes = [domain_size(domain) for domain in space.values()]
    if math.prod(sizes) < members:
        raise ValueError(f"search.trials={members} members, but the space has {math.prod(sizes):.0f} settings: fewer")


def domain_size(domain: Domain) -> float:
    """Return how many values a domain has; infinity for an interval."""
    match domain:
        case Choice(values):
            return len(values)
        case Integers(low, high):
            return high - low + 1
    return math.inf


def _domain(override: Override) -> Domain:
    value = override.value()
    log = "log" in getattr(value, "tags", set())
    if isinstance(value, IntervalSweep):
        assert value.start is not None and value.end is not None
        return Interval(float(value.start), float(value.end), log)
    if isinstance(value, RangeSweep):
        start, stop, step = value.start, value.stop, value.step
        if start is not None and stop is not None and step == 1 and float(start).is_integer():
            return Integers(int(start), int(stop) - 1, log)
        return Choice(tuple(_plain(item) for item in value.range()), ordered=True)
    assert isinstance(value, ChoiceSweep), "a list after -m"
    return Choice(tuple(_plain(item) for item in value.list))


def _plain(value: Any) -> Setting:
    text = getattr(value, "text", value)
    if not isinstance(text, int | float | str):
        raise ValueError(f"{value} cannot be searched over: numbers and words can")
    return text
