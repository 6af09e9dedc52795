"""Domains of hyper-parameters: how to draw, clip, perturb and lay out on the unit interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sweeps.history import Config, Setting


class Domain(Protocol):
    """The values that one hyper-parameter may take."""

    def draw(self, random: np.random.Generator) -> Setting:
        """Return a value drawn from the domain."""

    def perturb(self, value: Setting, factor: float, random: np.random.Generator) -> Setting:
        """Return a value near `value`: numbers times `factor`, clipped, never stuck where they were.

        What has no order stays as it is.
        """

    def unit(self, value: Setting) -> float:
        """Return where a value lies between 0 and 1."""

    def at(self, place: float) -> Setting:
        """Return the value at a place between 0 and 1: evenly spread places give evenly spread values."""

    def holds(self, value: Setting) -> bool:
        """Say whether a value is in the domain."""

    def allowed(self) -> str:
        """Return its values in words: numbers from 0.0001 to 0.01."""


@dataclass(frozen=True)
class Interval:
    """Real numbers from low to high, both included; log: by their logarithm."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        _check(self.low, self.high, self.log)

    def draw(self, random: np.random.Generator) -> float:
        """Return a value drawn uniformly, or log-uniformly."""
        if not self.log:
            return float(random.uniform(self.low, self.high))
        return self.clip(math.exp(random.uniform(math.log(self.low), math.log(self.high))))

    def perturb(self, value: Setting, factor: float, random: np.random.Generator) -> float:
        """Return value · factor within the interval; zero, which no factor moves, is drawn anew."""
        if value == 0:
            return self.draw(random)
        return self.clip(float(value) * factor)

    def clip(self, value: float) -> float:
        """Return the value in the interval that is nearest."""
        return min(max(value, self.low), self.high)

    def unit(self, value: Setting) -> float:
        """Return the position between low (0) and high (1), by the logarithm if `log`."""
        if self.high == self.low:
            return 0.0
        if self.log:
            return math.log(float(value) / self.low) / math.log(self.high / self.low)
        return (float(value) - self.low) / (self.high - self.low)

    def at(self, place: float) -> float:
        """Return the value at a place between low (0) and high (1), by the logarithm if `log`."""
        if not self.log:
            return self.clip(self.low + place * (self.high - self.low))
        return self.clip(self.low * math.exp(place * math.log(self.high / self.low)))

    def holds(self, value: Setting) -> bool:
        """Say whether a value is a number of the interval."""
        return isinstance(value, int | float) and self.low <= value <= self.high

    def allowed(self) -> str:
        """Return its values in words."""
        return f"numbers from {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Integers:
    """Whole numbers from low to high, both included; log: by their logarithm."""

    low: int
    high: int
    log: bool = False

    def __post_init__(self) -> None:
        _check(self.low, self.high, self.log)

    def draw(self, random: np.random.Generator) -> int:
        """Return a value, all equally likely; with `log` by the logarithm of the value."""
        if not self.log:
            return int(random.integers(self.low, self.high + 1))
        edges = math.log(self.low - 0.5), math.log(self.high + 0.5)
        return self.clip(round(math.exp(random.uniform(*edges))))

    def perturb(self, value: Setting, factor: float, random: np.random.Generator) -> int:
        """Return value · factor, rounded, within the range and at least one away from `value` where that is allowed."""
        moved = self.clip(round(float(value) * factor))
        if moved != value:
            return moved
        return self.clip(int(value) + (1 if factor > 1 else -1))

    def clip(self, value: int) -> int:
        """Return the value in the range that is nearest."""
        return min(max(value, self.low), self.high)

    def unit(self, value: Setting) -> float:
        """Return the position between low (0) and high (1), by the logarithm if `log`."""
        return Interval(self.low, self.high, self.log).unit(value)

    def at(self, place: float) -> int:
        """Return the value at a place between 0 and 1; without `log` each has an equal share of them."""
        if not self.log:
            return self.clip(self.low + int(place * (self.high - self.low + 1)))
        low, high = self.low - 0.5, self.high + 0.5
        return self.clip(round(low * math.exp(place * math.log(high / low))))

    def holds(self, value: Setting) -> bool:
        """Say whether a value is a whole number of the range."""
        return isinstance(value, int) and self.low <= value <= self.high

    def allowed(self) -> str:
        """Return its values in words."""
        return f"whole numbers from {self.low} to {self.high}"


@dataclass(frozen=True)
class Choice:
    """One of a few values without distances between them, or with (`ordered`: neighbours are near)."""

    values: tuple[Setting, ...]
    ordered: bool = False

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) != len(self.values):
            raise ValueError(f"choice{self.values} needs at least one value and none twice")

    def draw(self, random: np.random.Generator) -> Setting:
        """Return one of the values, all equally likely."""
        return self.values[int(random.integers(len(self.values)))]

    def perturb(self, value: Setting, factor: float, random: np.random.Generator) -> Setting:
        """Return a neighbour of an ordered value, up for a factor above one; of unordered ones the value itself.

        What has no neighbours cannot be moved a little: another value is a draw, which whoever explores decides on.
        """
        if value not in self.values:
            return self.draw(random)
        if not self.ordered:
            return value
        place = self.values.index(value) + (1 if factor > 1 else -1)
        return self.values[min(max(place, 0), len(self.values) - 1)]

    def unit(self, value: Setting) -> float:
        """Return the place among the values, between 0 and 1."""
        return self.values.index(value) / max(1, len(self.values) - 1)

    def at(self, place: float) -> Setting:
        """Return the value at a place between 0 and 1, each having an equal share of them."""
        return self.values[min(int(place * len(self.values)), len(self.values) - 1)]

    def holds(self, value: Setting) -> bool:
        """Say whether a value is one of them."""
        return value in self.values

    def allowed(self) -> str:
        """Return its values in words."""
        return f"one of {', '.join(map(str, self.values))}"


def domain_size(domain: Domain) -> float:
    """Return how many values a domain has; infinity for an interval."""
    match domain:
        case Choice(values):
            return len(values)
        case Integers(low, high):
            return high - low + 1
    return math.inf


@dataclass(frozen=True)
class Condition:
    """Says that a hyper-parameter exists only where another one has one of some values."""

    on: str
    values: tuple[Setting, ...]

    def holds(self, config: Config) -> bool:
        """Say whether a config meets the condition."""
        return config.get(self.on) in self.values


@dataclass(frozen=True)
class Space:
    """Named domains; those with a condition are part of a config only where it holds.

    ValueError where a condition is on a name that does not come before the one that it governs.
    """

    domains: Mapping[str, Domain]
    conditions: Mapping[str, Condition] | None = None

    def __post_init__(self) -> None:
        names = list(self.domains)
        for name, condition in (self.conditions or {}).items():
            if name not in names:
                raise ValueError(f"the condition of {name!r} has no domain to go with: known are {', '.join(names)}")
            if condition.on not in names[: names.index(name)]:
                raise ValueError(
                    f"{name!r} depends on {condition.on!r}, which must be given before it: order is {', '.join(names)}"
                )

    @property
    def size(self) -> float:
        """How many different configs there are; infinity where a real number is one of their values."""
        governing = {condition.on for condition in (self.conditions or {}).values()}
        counts: dict[tuple[tuple[str, Setting], ...], float] = {(): 1.0}
        # What later names depend on is told apart, everything else is only counted.
        for name, domain in self.domains.items():
            found: dict[tuple[tuple[str, Setting], ...], float] = {}
            for config, count in counts.items():
                if not self.active(name, dict(config)):
                    found[config] = count
                elif name in governing and isinstance(domain, Choice):
                    found |= {(*config, (name, value)): count for value in domain.values}
                else:
                    found[config] = count * domain_size(domain)
            counts = found
        return sum(counts.values())

    def active(self, name: str, config: Config) -> bool:
        """Say whether a hyper-parameter exists in a config that holds all names before it."""
        condition = (self.conditions or {}).get(name)
        return condition is None or condition.holds(config)

    def draw(self, random: np.random.Generator) -> dict[str, Setting]:
        """Return a config, each of its values drawn from its domain."""
        config: dict[str, Setting] = {}
        for name, domain in self.domains.items():
            value = domain.draw(random)  # drawn in any case, so that a condition does not shift the later draws
            if self.active(name, config):
                config[name] = value
        return config

    def at(self, places: Sequence[float]) -> dict[str, Setting]:
        """Return the config at a place of the unit cube, one number for each domain."""
        config: dict[str, Setting] = {}
        for (name, domain), place in zip(self.domains.items(), places, strict=True):
            if self.active(name, config):
                config[name] = domain.at(place)
        return config

    def unit(self, config: Config) -> list[float]:
        """Return a config's place in the unit cube; what is not part of it lies in the middle."""
        return [domain.unit(config[n]) if n in config else 0.5 for n, domain in self.domains.items()]


def grid(choices: Mapping[str, Sequence[Setting]]) -> list[dict[str, Setting]]:
    """Return every combination of the values, the last name varying fastest."""
    configs: list[dict[str, Setting]] = [{}]
    for name, values in choices.items():
        configs = [{**config, name: value} for config in configs for value in values]
    return configs


def _check(low: float, high: float, log: bool) -> None:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"interval({low}, {high}) must be between two finite numbers")
    if low > high:
        raise ValueError(f"interval({low}, {high}) is empty: the first number must be the smaller one")
    if log and low <= 0:
        raise ValueError(f"interval({low}, {high}) on a logarithmic scale must start above zero")
