"""Schedulers decide which trial gets resources next: one per file, each a pure function of past events.

`SCHEDULERS` is the only list of them: the config's choices, a search's settings, the replay and the docs read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sweeps.rungs import always_enough

STAKE = 0.125
"""`asha_guarded`: share of the resource that ASHA gets; the rest trains unselected trials to the end."""


class Compares(StrEnum):
    """When a scheduler compares trials."""

    AT_RUNGS = "at rungs"
    WITH_MEMBERS = "with the other members of a population, whose size is fixed"
    NEVER = "never"


class Ensures(StrEnum):
    """Through which trial one comes to the end, whatever the losses."""

    FIRST = "the first one"
    LAST_BRACKET = "the first one of the last bracket"
    PROMOTION = "one that is promoted from every rung"

    def trials(self, rungs: int, eta: int) -> int:
        """Return how many trials bring one to the end in any case, where none fails; brackets are as many as rungs."""
        match self:
            case Ensures.FIRST:
                return 1
            case Ensures.LAST_BRACKET:
                return rungs
            case Ensures.PROMOTION:
                return always_enough(rungs, eta)


@dataclass(frozen=True)
class Entry:
    """A scheduler that can be named: its module in this package, whose `make(options)` returns it.

    pauses: trials pause at rungs, where a rung with fewer trials than `eta` sends none on. ensures: which trial comes
    to the end in any case. rungs: how many select, where no first rung is asked for. not_replayed: why recorded curves
    cannot tell how it would have done; "" where they can. What it does is said in conf/search/NAME.yaml.
    """

    module: str
    compares: Compares = Compares.AT_RUNGS
    pauses: bool = False
    ensures: Ensures = Ensures.FIRST
    rungs: int = 3
    not_replayed: str = ""


SCHEDULERS: Mapping[str, Entry] = {
    "asha": Entry("asha_auto", pauses=True, ensures=Ensures.PROMOTION),
    "asha_promotion": Entry("asha_promotion", pauses=True, ensures=Ensures.PROMOTION),
    "asha_stopping": Entry("asha_stopping"),
    "asha_guarded": Entry("asha_guarded", pauses=True, rungs=4),
    "hyperband": Entry("hyperband", ensures=Ensures.LAST_BRACKET),
    "pbt": Entry(
        "pbt",
        Compares.WITH_MEMBERS,
        not_replayed="a copy goes on from another one's weights with settings of its own, and no recorded curve shows "
        "where to: `python -m benchmarks pbt_toys` compares populations on problems that can be computed",
    ),
    "random": Entry("random", Compares.NEVER),
}
