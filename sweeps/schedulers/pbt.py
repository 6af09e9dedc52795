"""Population based training (Jaderberg et al. 2017): bad members copy a good one (exploit) and vary it (explore)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from sweeps.history import Config, Ended, Event, Reported, Setting, Started, Unit, rank_value
from sweeps.schedulers import pb2
from sweeps.schedulers.base import Copy, Population, Scheduler, SchedulerOptions, Trials
from sweeps.space import Space

DRAWS = 16
EXPLORES = ("perturb", "pb2")


@dataclass(frozen=True)
class PbtRules:
    """How a population is run.

    interval: resource between two looks at a member; burn_in: resource before the first; quantile: share at the bottom
    that copies and share at the top that is copied; resample: probability that a hyper-parameter is drawn anew instead
    of being multiplied by one of `factors`. explore: "pb2" chooses real numbers by :mod:`sweeps.schedulers.pb2` once
    it has seen enough, "perturb" varies them like all others.
    """

    interval: int
    burn_in: int = 0
    quantile: float = 0.2
    resample: float = 0.25
    factors: tuple[float, float] = (0.8, 1.2)
    explore: str = "perturb"

    def __post_init__(self) -> None:
        if self.interval < 1 or self.burn_in < 0:
            raise ValueError(f"interval={self.interval}, burn_in={self.burn_in}: at least 1 and at least 0 are needed")
        if not 0 < self.quantile <= 0.5 or not 0 <= self.resample <= 1:
            raise ValueError(
                f"quantile={self.quantile}, resample={self.resample}: the share copied is above 0 and at most 0.5, "
                "the probability between 0 and 1"
            )
        if self.explore not in EXPLORES:
            raise ValueError(f"explore={self.explore!r} is not allowed: {', '.join(EXPLORES)}")


class PopulationBased(Scheduler):
    """A population of constant size in which every member is advanced by the interval in turn, least advanced first.

    A member is looked at when it has reported, and compared with the others at equal resource: the highest that it and
    all but a few have come to. If it is in the bottom share it copies a member drawn from the top share: weights,
    optimizer, data position and step come with the donor's newest checkpoint, so its resource becomes the donor's, and
    what the donor had used to get there is not used again. A member that failed or diverged is at the bottom and never
    copied. Draws depend on the seed, the member and its look, not on when the decision is asked.
    """

    def __init__(self, space: Space, members: int, R: int, rules: PbtRules, seed: int = 0) -> None:
        if members < 2:
            raise ValueError(f"members={members} is not allowed: a population has at least 2")
        if rules.interval > R:
            raise ValueError(
                f"interval={rules.interval} is above the full resource R={R}: no member would ever be compared"
            )
        if rules.explore == "pb2" and not pb2.real(space):
            raise ValueError("explore=pb2 models real-valued settings, and the space has none: use explore=perturb")
        self.space, self.members, self.R, self.rules, self.seed = space, members, R, rules, seed
        self.trials = Trials(members)
        self.config: dict[int, dict[str, Setting]] = {}
        self.value: dict[int, float] = {}
        self.past: dict[int, dict[int, float]] = {}
        self.at: dict[int, int] = {}
        self.looks: dict[int, int] = {}
        self.first: dict[int, Config] = {}
        self.lineage: list[Copy] = []
        self.used = 0
        self.seen: list[pb2.Stretch] = []
        self._events = 0
        self._chosen: tuple[int, int, int, dict[str, Setting] | None] | None = None

    def apply(self, event: Event) -> None:
        """Take notice of an event."""
        self._events += 1
        match event:
            case Started(unit):
                self._start(unit)
            case Reported(trial, resource, value):
                self._see(trial, resource, value)
                self.used += resource - self.at[trial]
                self.at[trial] = resource
                self.value[trial] = rank_value(value)
                self.past[trial][resource] = rank_value(value)
                self.looks[trial] += 1
            case Ended(trial, "failed"):
                self._see(trial, self.at[trial], math.nan)
                self.value[trial] = math.inf
                self.looks[trial] += 1
            case _:
                pass
        self.trials.apply(event)

    def candidates(self) -> Iterator[Unit]:
        """Yield what was lost, a member not yet started, then the least advanced ones, after exploit and explore."""
        yield from self.trials.resumed()
        for fresh in self.trials.fresh(self.rules.interval):
            random = np.random.default_rng([self.seed, fresh.trial])
            yield Unit(fresh.trial, min(self.rules.interval, self.R), config=self.space.draw(random))
            return  # nobody is compared before all have begun
        waiting = [m for m in range(self.members) if m not in self.trials.running and self.at[m] < self.R]
        for member in sorted(waiting, key=lambda m: (self.at[m], m)):
            donor = self._donor(member)
            config = None if donor is None else self._varied(member, donor)
            if donor is not None and config is not None:
                start = self.at[donor]
                yield Unit(member, self._next(start), parent=(donor, start), config=config)
            elif self.value.get(member, 0.0) < math.inf:
                yield Unit(member, self._next(self.at[member]))

    @property
    def population(self) -> Population:
        """Its members."""
        return self

    def for_forecast(self) -> Self:
        """Return a copy that varies settings by chance: a model of their gains takes long."""
        found = super().for_forecast()
        found.rules = replace(found.rules, explore="perturb")
        return found

    def pinned(self) -> set[tuple[int, int]]:
        """Return the checkpoints (member, resource) that a copy under way, or lost on its way, still has to read."""
        under_way = (*self.trials.running.values(), *self.trials.lost.values())
        return {unit.parent for unit in under_way if unit.parent is not None}

    def schedule(self, member: int) -> list[tuple[int, Config]]:
        """Return the hyper-parameters that led to a member's weights: from which resource on which config."""
        steps: list[tuple[int, Config]] = []
        end = len(self.lineage)
        while True:
            last = next((k for k in reversed(range(end)) if self.lineage[k].member == member), None)
            if last is None:
                return [(0, self.first[member]), *steps]
            copied = self.lineage[last]
            if not steps or steps[0][0] > copied.resource:  # else it was replaced before a step was taken with it
                steps.insert(0, (copied.resource, copied.config))
            member, end = copied.donor, last

    def _start(self, unit: Unit) -> None:
        self.at.setdefault(unit.trial, 0)
        self.past.setdefault(unit.trial, {})
        self.looks.setdefault(unit.trial, 0)
        if unit.trial in self.trials.lost:
            return
        if unit.parent is not None:
            assert unit.config is not None
            own, (donor, start) = self.at[unit.trial], unit.parent
            self.lineage.append(Copy(unit.trial, donor, own, start, unit.config))
            self.at[unit.trial] = start
            self.value[unit.trial] = self.past[donor][start]
            self.past[unit.trial] = {at: value for at, value in self.past[donor].items() if at <= start}
        if unit.config is not None:
            self.first.setdefault(unit.trial, unit.config)
            self.config[unit.trial] = dict(unit.config)

    def _see(self, member: int, resource: int, value: float) -> None:
        """Keep what a stretch has gained; of a first one, before which there is no value, only that it went wrong."""
        if not math.isfinite(value):
            self.seen.append(self._stretch(member))
        elif member in self.value and resource > self.at[member]:
            # What is cut short by the end of training gains less by that alone.
            share = (resource - self.at[member]) / self.rules.interval
            self.seen.append(self._stretch(member, (self.value[member] - value) / share))

    def _stretch(self, member: int, gain: float = math.nan) -> pb2.Stretch:
        return pb2.Stretch(self.config.get(member, {}), self.at[member] / self.rules.interval, gain)

    def _next(self, start: int) -> int:
        return min(start + self.rules.interval, self.R)

    def _donor(self, member: int) -> int | None:
        """Return whom a member copies now: None unless it is in the bottom share and there is someone better.

        Members are compared by their values at one resource, with what they copied as their own past.
        """
        if self.at[member] < self.rules.burn_in and self.value.get(member, 0.0) < math.inf:
            return None
        values = self._compared(member)
        ranked = sorted(values, key=lambda m: (values[m], m))
        share = max(1, int(len(ranked) * self.rules.quantile))
        if len(ranked) < 2 or member not in ranked[-share:]:
            return None
        top = [m for m in ranked[:share] if values[m] < values[member] and self.at[m] < self.R]
        if not top:
            return None
        random = np.random.default_rng([self.seed, member, self.looks[member], 0])
        return top[int(random.integers(len(top)))]

    def _compared(self, member: int) -> dict[int, float]:
        """Return the values to rank a member by: those at the highest resource that it and enough others have come to.

        Enough are all but the bottom share of those that train well, so that a few slow ones do not hold up the rest.
        Whoever diverged or failed has the worst value there is at any resource.
        """
        sound = [m for m in self.value if self.value[m] < math.inf]
        lost = {m: math.inf for m in self.value if self.value[m] == math.inf}
        enough = len(sound) - int(len(sound) * self.rules.quantile)
        if member in lost:
            come_to = {at for m in sound for at in self.past[m]}
        else:
            come_to = {at for at in self.past[member] if at >= self.rules.burn_in}
        for resource in sorted(come_to, reverse=True):
            there = {m: self.past[m][resource] for m in sound if resource in self.past[m]}
            if len(there) >= enough:
                return there | lost
        return {}

    def _varied(self, member: int, donor: int) -> dict[str, Setting] | None:
        """Return the donor's config varied as no other copy of the same weights has it, where draws find one.

        None where they find nothing but the donor's own: that would be no copy. Asked once between events.
        """
        if self._chosen is None or self._chosen[:3] != (self._events, member, donor):
            self._chosen = self._events, member, donor, self._newly_varied(member, donor)
        return self._chosen[3]

    def _newly_varied(self, member: int, donor: int) -> dict[str, Setting] | None:
        random = np.random.default_rng([self.seed, member, self.looks[member], 1])
        copies = [c.config for c in self.lineage if (c.donor, c.resource) == (donor, self.at[donor])]
        taken = [self.config[donor], *copies]
        found = self._explored(random, self.config[donor])
        for _ in range(DRAWS):
            if found not in taken:
                break
            found = self._explored(random, self.config[donor])
        chosen = found if self.rules.explore == "perturb" else self._chosen_by_gain(member, donor, found, taken)
        return chosen if chosen != self.config[donor] else None

    def _chosen_by_gain(
        self, member: int, donor: int, found: dict[str, Setting], taken: list[Config]
    ) -> dict[str, Setting]:
        """Return a varied config with its real numbers as PB2 chooses them, if it can."""
        out = sorted({*self.trials.running, *self.trials.lost} - {member})
        under_way = [self._stretch(other) for other in out]
        random = np.random.default_rng([self.seed, member, self.looks[member], 2])
        now = self.at[donor] / self.rules.interval
        chosen = pb2.chosen(self.space, found, now, self.seen, under_way, taken=taken, random=random)
        return found if chosen is None else chosen

    def _explored(self, random: np.random.Generator, config: Mapping[str, Setting]) -> dict[str, Setting]:
        """Return a donor's config with every hyper-parameter multiplied by a factor or drawn anew, in its domain."""
        explored: dict[str, Setting] = {}
        for name, domain in self.space.domains.items():
            drawn, anew = domain.draw(random), random.random() < self.rules.resample
            factor = self.rules.factors[int(random.integers(2))]
            perturbed = domain.perturb(config[name], factor, random) if name in config and not anew else drawn
            if self.space.active(name, explored):
                explored[name] = perturbed
        return explored


def make(options: SchedulerOptions) -> PopulationBased:
    """Return the scheduler of a search, which says its members and its space."""
    assert options.space is not None and options.trials is not None
    rules = PbtRules(options.r, options.burn_in, options.quantile, options.resample, explore=options.explore)
    return PopulationBased(options.space, options.trials, options.R, rules, options.seed)
