"""A search as the fold of its log: the scheduler, what each trial is, what is claimed, what has been spent. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from study.search.log import Record
from study.search.settings import Settings
from sweeps.events import Config, Ended, Reported, Setting, Started, Unit
from sweeps.schedulers.asha_promotion import AshaPromotion

DRAWS = 64
CANDIDATES = 256


@dataclass(frozen=True)
class Claim:
    """A unit that a worker is advancing; its number is that of its record in the log."""

    number: int
    unit: Unit
    key: str
    worker: str
    time: float


@dataclass
class Trial:
    """What is known of a trial: its point, its settings, its values by resource [tokens], how it ended."""

    number: int
    key: str
    config: Config
    bracket: int
    flops_per_token: float
    values: dict[int, float] = field(default_factory=dict)
    failed: bool = False

    @property
    def at(self) -> int:
        """The highest resource with a value [tokens]."""
        return max(self.values, default=0)

    @property
    def value(self) -> float:
        """The value at the highest resource [nats per token]."""
        return self.values[self.at] if self.values else math.inf


class Search:
    """The state of a search after the records it was given; two that were given the same ones are the same."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.space = settings.make_space()
        self.scheduler = settings.make_scheduler()
        self.density = settings.make_density()
        self.trials: dict[int, Trial] = {}
        self.claims: dict[int, Claim] = {}
        self.claim_of: dict[int, int] = {}
        self.spent = 0.0
        self.lost_units = 0
        self.stopped = False
        self._count = 0
        self._taken: set[tuple[tuple[str, Setting], ...]] = set()

    def apply(self, record: Record) -> None:
        """Take in one record. What comes from a claim that is no longer current changes nothing."""
        number, self._count = self._count, self._count + 1
        match record["event"]:
            case "started":
                self._start(number, record)
            case "reported":
                self._report(record)
            case "ended":
                self._end(record)
            case "stopped":
                self.stopped = True
            case "resumed":
                self.stopped = False

    def decide(self) -> Unit | None:
        """Return the next unit, its config filled in for a new trial; None where there is none now or ever."""
        if self.stopped:
            return None
        unit = self.scheduler.decide()
        if unit is None or unit.trial in self.trials:
            return unit if unit is None or self._affordable(unit, self.trials[unit.trial].flops_per_token) else None
        config = self._proposed(unit.trial)
        return None if config is None else Unit(unit.trial, unit.until, unit.bracket, unit.probe, config=config)

    def affordable(self, unit: Unit, flops_per_token: float) -> bool:
        """Say whether a new trial's first unit fits into what is left of the budget."""
        return self._affordable(unit, flops_per_token)

    def is_current(self, number: int, trial: int) -> bool:
        """Say whether a claim still holds: a worker that was given up must not report."""
        return self.claim_of.get(trial) == number

    @property
    def over(self) -> bool:
        """Whether nothing runs and nothing more will be handed out."""
        return not self.claims and self.decide() is None

    @property
    def incumbent(self) -> Trial | None:
        """The trial with the lowest value at the highest resource that any has reached; None before the first."""
        known = [t for t in self.trials.values() if t.values and math.isfinite(t.value) and not t.failed]
        return min(known, key=lambda t: (-t.at, t.value), default=None)

    def _start(self, number: int, record: Record) -> None:
        unit = unit_of(record)
        if unit.trial not in self.trials:
            assert unit.config is not None
            self._taken.add(_values(unit.config))
            self.trials[unit.trial] = Trial(
                unit.trial, record["key"], unit.config, unit.bracket, float(record["flops_per_token"])
            )
        claim = Claim(number, unit, record["key"], record["worker"], float(record["time"]))
        self.claims[number], self.claim_of[unit.trial] = claim, number
        self.spent += self._cost(unit, self.trials[unit.trial].flops_per_token)
        self.scheduler.apply(Started(unit))

    def _report(self, record: Record) -> None:
        trial = self.trials[record["trial"]]
        if not self.is_current(record["claim"], trial.number):
            return
        value = math.inf if record["value"] is None else float(record["value"])
        trial.values[record["resource"]] = value
        self.scheduler.apply(Reported(trial.number, record["resource"], value))

    def _end(self, record: Record) -> None:
        trial = self.trials[record["trial"]]
        if not self.is_current(record["claim"], trial.number):
            return
        del self.claims[record["claim"]], self.claim_of[trial.number]
        if record["how"] == "lost":
            self.lost_units += 1
        trial.failed = trial.failed or record["how"] == "failed"
        self.scheduler.apply(Ended(trial.number, record["how"]))

    def _cost(self, unit: Unit, flops_per_token: float) -> float:
        """Return what a unit may cost [FLOPs]: all of it, also where an earlier claim of it was lost midway."""
        at = self.trials[unit.trial].at if unit.trial in self.trials else 0
        return (unit.until - at) * flops_per_token

    def _affordable(self, unit: Unit, flops_per_token: float) -> bool:
        budget = self.settings.budget
        return budget is None or self.spent + self._cost(unit, flops_per_token) <= budget

    def _proposed(self, trial: int) -> dict[str, Setting] | None:
        """Return settings that no trial has had yet; None where draws find none: the space is exhausted."""
        random = np.random.default_rng([self.settings.seed, trial])
        wanted = 1 if self.density is None else CANDIDATES
        fresh: list[dict[str, Setting]] = []
        for _ in range(DRAWS * wanted):
            drawn = self.space.draw(random)
            if _values(drawn) not in self._taken and drawn not in fresh:
                fresh.append(drawn)
            if len(fresh) == wanted:
                break
        if not fresh or self.density is None or not isinstance(self.scheduler, AshaPromotion):
            return fresh[0] if fresh else None
        points = [self.space.unit(self.trials[n].config) for n in sorted(self.trials)]
        candidates = [self.space.unit(config) for config in fresh]
        return fresh[self.density.pick(trial, candidates, points, self.scheduler.rungs)]


def _values(config: Config) -> tuple[tuple[str, Setting], ...]:
    return tuple(sorted(config.items()))


def unit_of(record: Mapping[str, Any]) -> Unit:
    """Return the unit that a "started" record hands out."""
    parent = record.get("parent")
    return Unit(
        trial=record["trial"],
        until=record["until"],
        bracket=record.get("bracket", 0),
        probe=record.get("probe", False),
        parent=None if parent is None else (parent[0], parent[1]),
        config=record.get("config"),
    )


def started(unit: Unit, key: str, worker: str, flops_per_token: float, now: float) -> Record:
    """Return the record of a claim."""
    return {
        "event": "started",
        "time": round(now, 3),
        "trial": unit.trial,
        "until": unit.until,
        "bracket": unit.bracket,
        "probe": unit.probe,
        "parent": None if unit.parent is None else list(unit.parent),
        "config": None if unit.config is None else dict(unit.config),
        "key": key,
        "worker": worker,
        "flops_per_token": flops_per_token,
    }


def reported(claim: Claim, resource: int, value: float, now: float) -> Record:
    """Return the record of a value; JSON has no NaN, so what is not finite is null."""
    finite = value if math.isfinite(value) else None
    return {
        "event": "reported",
        "time": round(now, 3),
        "claim": claim.number,
        "trial": claim.unit.trial,
        "resource": resource,
        "value": finite,
    }


def ended(claim: Claim, how: str, why: str, now: float) -> Record:
    """Return the record of a unit's end: reached, failed or lost, and why."""
    return {
        "event": "ended",
        "time": round(now, 3),
        "claim": claim.number,
        "trial": claim.unit.trial,
        "how": how,
        "why": why,
        "seconds": round(now - claim.time, 3),
    }
