"""The grid: every combination of values, whatever the trials show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sweeps.history import Setting
from sweeps.rungs import Rung
from sweeps.samplers.base import SamplerOptions, Tried, identity, taken
from sweeps.space import Choice, Domain, Integers, Space

LARGEST_RANGE = 1000
"""Whole numbers of a range that a grid lists; more are a mistake."""


@dataclass(frozen=True)
class Grid:
    """Every combination of values, the last key varying fastest; keys whose condition does not hold are left out."""

    space: Space

    def __post_init__(self) -> None:
        for name, domain in self.space.domains.items():
            listed(name, domain)

    def propose(self, trial: int, tried: Sequence[Tried], rungs: Sequence[Rung] = ()) -> dict[str, Setting] | None:
        """Return the first combination that has not been tried."""
        del trial, rungs
        had = taken(tried)
        return next((config for config in self._configs() if identity(config) not in had), None)

    def _configs(self) -> Iterator[dict[str, Setting]]:
        names = list(self.space.domains)

        def extended(config: dict[str, Setting], place: int) -> Iterator[dict[str, Setting]]:
            if place == len(names):
                yield config
            elif not self.space.active(names[place], config):
                yield from extended(config, place + 1)
            else:
                for value in listed(names[place], self.space.domains[names[place]]):
                    yield from extended({**config, names[place]: value}, place + 1)

        return extended({}, 0)


def listed(name: str, domain: Domain) -> Sequence[Setting]:
    """Return all values of a domain; ValueError where it has too many, as an interval has."""
    if isinstance(domain, Choice):
        return domain.values
    if isinstance(domain, Integers) and domain.high - domain.low < LARGEST_RANGE:
        return range(domain.low, domain.high + 1)
    raise ValueError(
        f"search.sampler=grid cannot list the values of {name}: give {name}=choice(a,b,c) or another search.sampler"
    )


def make(options: SamplerOptions) -> Grid:
    """Return the sampler of a search."""
    return Grid(options.space)
