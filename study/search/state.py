"""A search as the fold of its log: the scheduler, what each trial is, what is claimed, what has been spent. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from study.failures.kinds import Kind
from study.failures.retry_policy import RecordedFailure
from study.search import retry
from study.search.event_log import Record
from study.search.settings import Settings
from study.search.usage import DeviceTime
from sweeps.history import Config, Ended, Measured, Reported, Setting, Started, Unit
from sweeps.samplers.base import Tried


@dataclass(frozen=True)
class Claim:
    """A unit that a worker is advancing; its number is that of its record in the log.

    reserved: device time that is set aside for it, and that it must not exceed [GPU-seconds]; None: no limit.
    """

    number: int
    unit: Unit
    key: str
    worker: str
    time: float
    reserved: float | None = None


@dataclass
class Trial:
    """What is known of a trial: its point, its settings, its values by resource [tokens], how it ended.

    checkpoint_refs: `<key>@<tokens>` of its checkpoint at each resource; that of another trial's run where it copied
    one, which `copied` (trial, resource) and `origin` (reference) then name. ends: failures of its units since it last
    reached a resource. short_of_memory: how many of all its units ran out of the node's memory.
    took: device time of its units, lost ones too; seconds: what it was when a resource was reached [GPU-seconds].
    """

    number: int
    key: str
    config: Config
    bracket: int
    flops_per_token: float
    values: dict[int, float] = field(default_factory=dict)
    failed: bool = False
    checkpoint_refs: dict[int, str] = field(default_factory=dict)
    copied: tuple[int, int] | None = None
    origin: str | None = None
    ends: list[RecordedFailure] = field(default_factory=list)
    short_of_memory: int = 0
    took: float = 0.0
    seconds: dict[int, float] = field(default_factory=dict)

    @property
    def at(self) -> int:
        """The highest resource with a value [tokens]."""
        return max(self.values, default=0)

    @property
    def value(self) -> float:
        """The value at the highest resource [nats per token]."""
        return self.values[self.at] if self.values else math.inf


class Search:
    """The state of a search, a function of the records applied to it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.space = settings.make_space()
        self.scheduler = settings.make_scheduler()
        self.sampler = settings.make_sampler()
        self.price: Callable[[Unit], float] | None = None
        self.usage = DeviceTime(settings.gpu_hours, settings.devices, settings.R)
        self.keys: set[str] = set()
        self.trials: dict[int, Trial] = {}
        self.claims: dict[int, Claim] = {}
        self.claim_of: dict[int, int] = {}
        self.spent = 0.0
        self.lost: Counter[str] = Counter()
        """Units that ended without a result, by how (study.search.retry)."""
        self.stopped, self.why_stopped = False, ""
        self._count = 0
        self.silent: frozenset[int] = frozenset()
        self.queue: list[Config] = []
        self.first: dict[int, Config] = {}
        self._proposal: tuple[int, int, Config | None] | None = None
        self._tried: dict[int, Tried] = {}
        self._flops_per_token = 0.0

    def apply(self, record: Record) -> None:
        """Apply one record. Records of a claim that is no longer current change nothing."""
        number, self._count = self._count, self._count + 1
        self._tried.pop(record.get("trial", -1), None)
        match record["event"]:
            case "started":
                self._start(number, record)
            case "reported":
                self._report(record)
            case "ended":
                self._end(record)
            case "enqueued":
                if record["config"] not in self.queue:
                    self.queue.append(record["config"])
            case "stopped":
                self.stopped, self.why_stopped = True, str(record.get("why", ""))
            case "resumed":
                self.stopped, self.why_stopped = False, ""

    def decide(self) -> Unit | None:
        """Return the next unit, its config filled in for a new trial; None where there is none now or ever.

        It is the scheduler's first candidate that fits into the remaining budgets.
        """
        if self.stopped:
            return None
        return next((unit for wanted in self.scheduler.candidates() if (unit := self._fitting(wanted))), None)

    def _fitting(self, unit: Unit) -> Unit | None:
        """Return a unit with its config; None where it exceeds the budgets, or the space is exhausted."""
        if unit.trial in self.trials:
            return unit if self.affordable(unit, self.trials[unit.trial].flops_per_token) else None
        config = self._proposed(unit.trial)
        if config is None:
            return None
        new = replace(unit, config=config)
        return new if self.price is None or self.affordable(new, self.price(new)) else None

    def affordable(self, unit: Unit, flops_per_token: float) -> bool:
        """Return whether the whole unit fits into the remaining budgets."""
        flops = self._cost(unit, flops_per_token)
        budget = self.settings.budget
        within = budget is None or self.spent + flops <= budget
        return within and self.usage.affordable(unit.trial, flops)

    def reservation(self, unit: Unit, flops_per_token: float) -> float | None:
        """Return the device time to set aside for a unit [GPU-seconds]; None where that is not limited."""
        return self.usage.reservation(unit.trial, self._cost(unit, flops_per_token))

    def is_begun(self, unit: Unit) -> bool:
        """Return whether a unit continues its trial's point: neither a new trial nor a copy of another one."""
        trial = self.trials.get(unit.trial)
        return trial is not None and (unit.parent is None or (trial.copied, trial.config) == (unit.parent, unit.config))

    def origin(self, parent: tuple[int, int]) -> str:
        """Return a trial's checkpoint at a resource, in the form of `schedule.parent`."""
        donor, resource = parent
        return self.trials[donor].checkpoint_refs[resource]

    def needed(self) -> set[str]:
        """Return the references of the checkpoints that trials may still copy."""
        return {trial.checkpoint_refs[trial.at] for trial in self.trials.values() if trial.at in trial.checkpoint_refs}

    def is_current(self, number: int, trial: int) -> bool:
        """Return whether a claim still holds: a worker whose lease expired must not report."""
        return self.claim_of.get(trial) == number

    @property
    def lost_units(self) -> int:
        """How many units ended without a result."""
        return self.lost.total()

    @property
    def running(self) -> list[Claim]:
        """The claims whose leases have not expired, as of the last :meth:`TrialQueue.note_silent`."""
        return [claim for number, claim in self.claims.items() if number not in self.silent]

    @property
    def over(self) -> bool:
        """Whether nothing runs and nothing more will be handed out."""
        return not self.claims and self.decide() is None

    @property
    def waits_for_budget(self) -> bool:
        """Whether there is a unit that only the budgets keep from being handed out, where nothing else is."""
        wanted = self.scheduler.candidates()
        return any(unit.trial in self.trials or self._proposed(unit.trial) is not None for unit in wanted)

    @property
    def incumbent(self) -> Trial | None:
        """The trial with the lowest value at the highest resource that any has reached; None before the first."""
        known = [t for t in self.trials.values() if t.values and math.isfinite(t.value) and not t.failed]
        return min(known, key=lambda t: (-t.at, t.value), default=None)

    def _start(self, number: int, record: Record) -> None:
        unit = unit_of(record)
        cost = float(record["flops_per_token"])
        if unit.trial not in self.trials:
            assert unit.config is not None
            self.first[unit.trial] = unit.config
            self.trials[unit.trial] = Trial(unit.trial, record["key"], unit.config, unit.bracket, cost)
            self._flops_per_token += cost
        elif not self.is_begun(unit):
            self._copy(unit, record["key"])
        self.keys.add(record["key"])
        reserved = record.get("reserved")
        claim = Claim(number, unit, record["key"], record["worker"], float(record["time"]), reserved)
        self.claims[number], self.claim_of[unit.trial] = claim, number
        self.spent += self._cost(unit, cost)
        self.usage.start(number, reserved)
        self.scheduler.apply(Started(unit))

    def _copy(self, unit: Unit, key: str) -> None:
        """Continue a trial as a copy of another: from then on it has the other's earlier values."""
        assert unit.parent is not None and unit.config is not None
        trial, (number, start) = self.trials[unit.trial], unit.parent
        donor = self.trials[number]
        trial.origin, trial.copied = donor.checkpoint_refs[start], unit.parent
        trial.key, trial.config, trial.failed = key, unit.config, False
        trial.values = {at: value for at, value in donor.values.items() if at <= start}
        trial.checkpoint_refs = {start: trial.origin}

    def _report(self, record: Record) -> None:
        trial = self.trials[record["trial"]]
        if not self.is_current(record["claim"], trial.number):
            return
        value = math.inf if record["value"] is None else float(record["value"])
        trial.values[record["resource"]] = value
        trial.checkpoint_refs[record["resource"]] = f"{trial.key}@{record.get('tokens', record['resource'])}"
        self.scheduler.apply(Reported(trial.number, record["resource"], value))

    def _end(self, record: Record) -> None:
        trial = self.trials[record["trial"]]
        if not self.is_current(record["claim"], trial.number):
            return
        claim = self.claims.pop(record["claim"])
        del self.claim_of[trial.number]
        flops = self._cost(claim.unit, trial.flops_per_token, done=True)
        self.usage.end(claim.number, trial.number, flops, record)
        trial.took += float(record.get("seconds", 0.0)) * self.settings.devices
        if record["how"] == "reached":
            trial.seconds[claim.unit.until] = trial.took
        if record.get("unbegun"):
            self.spent -= self._cost(claim.unit, trial.flops_per_token)
        elif record["how"] == "lost":
            self.lost[retry.how_lost(record)] += 1
        end = retry.end_of(record, claim.key)
        trial.short_of_memory += end is not None and end.kind == Kind.HOST_MEMORY
        trial.ends = [] if record["how"] == "reached" else [*trial.ends, *([end] if end is not None else [])]
        trial.failed = trial.failed or record["how"] == "failed"
        self.scheduler.apply(Ended(trial.number, record["how"]))
        if (share := self.start_share()) is not None:
            self.scheduler.apply(Measured(share))

    @property
    def flops_per_token(self) -> float | None:
        """What a token costs a middling trial [FLOPs]; None before the first."""
        return self._flops_per_token / len(self.trials) if self.trials else None

    def start_share(self) -> float | None:
        """Return what starting a unit takes as a share of a full training of a middling trial; None before known."""
        return None if self.flops_per_token is None else self.usage.start_share(self.flops_per_token)

    def _cost(self, unit: Unit, flops_per_token: float, done: bool = False) -> float:
        """Return what a unit may cost [FLOPs]: all of it, also where an earlier claim of it was lost midway.

        What a copy inherits has been paid for. `done`: its value is known already.
        """
        trial = self.trials.get(unit.trial)
        had = [] if trial is None else [at for at in trial.values if not done or at < unit.until]
        at = unit.parent[1] if unit.parent is not None else max(had, default=0)
        return max(0, unit.until - at) * flops_per_token

    def _proposed(self, trial: int) -> Config | None:
        """Return settings that no trial has had yet; None where the space is exhausted. Asked once between records."""
        if self._proposal is None or self._proposal[:2] != (self._count, trial):
            self._proposal = (self._count, trial, self._queued(trial) or self._sampled(trial))
        return self._proposal[2]

    def _sampled(self, trial: int) -> Config | None:
        tried = [self._as_tried(self.trials[number]) for number in sorted(self.trials)]
        rungs = self.scheduler.rungs if self.settings.pauses else ()
        return self.sampler.propose(trial, tried, rungs)

    def _as_tried(self, trial: Trial) -> Tried:
        """Return a trial as samplers see it, the same object until its state changes."""
        found = self._tried.get(trial.number)
        if found is None:
            found = Tried(self.first[trial.number], trial.values, trial.failed, trial.seconds)
            self._tried[trial.number] = found
        return found

    def _queued(self, trial: int) -> Config | None:
        """Return the oldest point of the user's that no trial has tried, what it leaves open being drawn."""
        for wanted in self.queue:
            if not any(all(had.get(name) == value for name, value in wanted.items()) for had in self.first.values()):
                drawn = self.space.draw(np.random.default_rng([self.settings.seed, trial]))
                config: dict[str, Setting] = {}
                for name, domain in self.space.domains.items():
                    if self.space.active(name, config):
                        config[name] = wanted[name] if name in wanted else drawn.get(name, domain.at(0.5))
                return config
        return None


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


def started(
    unit: Unit, key: str, worker: str, flops_per_token: float, now: float, *, reserved: float | None = None
) -> Record:
    """Return the record of a claim."""
    record: Record = {
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
    return record if reserved is None else {**record, "reserved": round(reserved, 3)}


def reported(claim: Claim, resource: int, value: float, now: float, tokens: int | None = None) -> Record:
    """Return the record of a value, where the run stood at `tokens`; JSON has no NaN: what is not finite is null."""
    finite = value if math.isfinite(value) else None
    return {
        "event": "reported",
        "time": round(now, 3),
        "claim": claim.number,
        "trial": claim.unit.trial,
        "resource": resource,
        "value": finite,
        "tokens": resource if tokens is None else tokens,
    }


def ended(
    claim: Claim, how: str, why: str, now: float, *, seconds: float | None = None, training: float | None = None
) -> Record:
    """Return the record of a unit's end: reached, failed or lost, and why.

    seconds: how long it occupied its worker; None: since its claim. training: the part spent on training and
    validation; the rest went into starting, resuming and saving.
    """
    record: Record = {
        "event": "ended",
        "time": round(now, 3),
        "claim": claim.number,
        "trial": claim.unit.trial,
        "how": how,
        "why": why,
        "seconds": round(now - claim.time if seconds is None else seconds, 3),
    }
    return record if training is None else {**record, "training": round(training, 3)}
