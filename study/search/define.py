"""From a command line to a search: Hydra's sweep syntax becomes domains, everything else is the base config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep

from study.config import StudyConfig
from study.search.settings import SAMPLERS, SCHEDULERS, Settings, described
from sweeps.events import Setting
from sweeps.space import Choice, Domain, Integers, Interval
from train.spec.config import RunConfig

SEARCHED = ("model", "batch", "optim", "schedule", "precision")
"""Sections whose keys may be searched over: not the data nor the budget, by which trials are compared."""


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
    r = search.min_tokens if search.min_tokens is not None else max(1, -(-R // search.eta**3))
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
    )
    made.make_scheduler()
    return made


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
