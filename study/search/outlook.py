"""What a search will use and finish, simulated before it starts; and which budget was short where nothing finished.

The search's own scheduler is simulated with random losses, and once with the most favourable ones: where no trial is
trained to the end even then, none can be. Pure.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from analysis.text import numbers
from study.search.settings import Settings
from study.search.state import Search
from study.text import counted, estimate, percent
from sweeps.history import Ended, Reported, Started, Unit
from sweeps.rungs import levels
from sweeps.schedulers import SCHEDULERS, Ensures

SIMULATIONS = 20
MOST_UNITS = 20_000
"""Limit on the units of all simulations together: larger searches are simulated fewer times."""
Value = Callable[[int, int], float]


@dataclass(frozen=True)
class Course:
    """The result of one simulation.

    started, finished: trials; units: handed out; flops: of these; clock: when the last one ended, by the FLOPs of one
    worker; first: FLOPs handed out when the first trial was trained to the end, infinity where none was.
    """

    started: int
    finished: int
    units: int
    flops: float
    clock: float
    first: float


@dataclass(frozen=True)
class Outlook:
    """What a search will use and finish, averaged over simulations. enough: FLOPs that suffice where trials do.

    none: share of simulations in which no trial was trained to the end. possible: whether one can be at all.
    """

    started: float
    finished: float
    units: float
    flops: float
    clock: float
    none: float
    enough: float
    possible: bool


def outlook(settings: Settings, flops_per_token: Sequence[float], workers: int) -> Outlook:
    """Return the outlook for trials whose FLOPs per token lie between the least and the most of these."""
    low, middling = min(flops_per_token), fmean(flops_per_token)
    courses: list[Course] = []
    units = 0
    while len(courses) < SIMULATIONS and (not courses or units < MOST_UNITS):
        courses.append(course(settings, middling, workers, by_chance(settings.seed + len(courses)), MOST_UNITS))
        units += courses[-1].units
    lucky = course(settings, low, 1, ever_better(), MOST_UNITS)
    enough = replace(settings, trials=max(settings.trials, settings.enough()))
    free = course(replace(enough, budget=None), middling, workers, by_chance(settings.seed), MOST_UNITS)
    return Outlook(
        started=fmean(one.started for one in courses),
        finished=fmean(one.finished for one in courses),
        units=fmean(one.units for one in courses),
        flops=fmean(one.flops for one in courses),
        clock=fmean(one.clock for one in courses),
        none=fmean(one.finished == 0 for one in courses),
        enough=free.first,
        possible=lucky.finished > 0,
    )


def course(settings: Settings, flops_per_token: float, workers: int, value: Value, most: int) -> Course:
    """Run a search's scheduler to its end, or until it has handed out `most` units."""
    scheduler = settings.make_scheduler().for_forecast()
    most_trials = settings.make_space().size
    at: dict[int, int] = {}
    busy: list[tuple[float, int, Unit]] = []
    units, spent, clock, first = 0, 0.0, 0.0, math.inf

    def cost(unit: Unit) -> float:
        begun = unit.parent[1] if unit.parent is not None else at.get(unit.trial, 0)
        return max(0, unit.until - begun) * flops_per_token

    def wanted() -> Unit | None:
        fits = (u for u in scheduler.candidates() if settings.budget is None or spent + cost(u) <= settings.budget)
        return next((unit for unit in fits if unit.trial in at or len(at) < most_trials), None)

    while True:
        while len(busy) < workers and units < most and (unit := wanted()) is not None:
            units, spent = units + 1, spent + cost(unit)
            heapq.heappush(busy, (clock + cost(unit), units, unit))
            scheduler.apply(Started(unit))
            at.setdefault(unit.trial, 0)
        if not busy:
            finished = sum(resource >= settings.R for resource in at.values())
            return Course(len(at), finished, units, spent, clock, first)
        clock, _, unit = heapq.heappop(busy)
        at[unit.trial] = unit.until
        if unit.until >= settings.R:
            first = min(first, spent)
        scheduler.apply(Reported(unit.trial, unit.until, value(unit.trial, unit.until)))
        scheduler.apply(Ended(unit.trial, "reached"))


def by_chance(seed: int) -> Value:
    """Return random losses, half the trial's own, half drawn at each rung: early losses predict later ones in part."""
    chance = random.Random(seed)
    own: dict[int, float] = {}
    return lambda trial, resource: own.setdefault(trial, chance.gauss()) + chance.gauss()


def ever_better() -> Value:
    """Return losses each lower than all before it: every report is the best so far."""
    reports = iter(range(10**9))
    return lambda trial, resource: -float(next(reports))


def refuse_the_hopeless(settings: Settings, found: Outlook) -> None:
    """Raise ValueError where no trial can be trained to the end, whatever the losses; it names what would do."""
    if found.possible:
        return
    unlimited = course(replace(settings, budget=None), 1.0, 1, ever_better(), MOST_UNITS)
    if unlimited.finished and settings.budget is not None:
        raise ValueError(
            f"search.budget_flops={numbers.scientific(settings.budget, 3)} is too small to train any trial to the end, "
            f"whatever the losses: about {numbers.scientific(found.enough)} is enough"
        )
    size = settings.make_space().size
    enough = settings.enough() <= size
    short = f"search.trials={settings.trials} is" if enough else f"the space has only {_settings(size)},"
    raise ValueError(f"{short} too few to train any trial to the end, whatever the losses: {what_is_enough(settings)}")


def what_is_enough(settings: Settings) -> str:
    """Return how many trials bring one to the end in any case, and how the space can hold as many, in words."""
    enough, size = settings.enough(), settings.make_space().size
    rungs, eta = len(levels(settings.r, settings.R, settings.eta)), settings.eta
    if SCHEDULERS[settings.scheduler].ensures is Ensures.LAST_BRACKET:
        since, steps = f"only the last of {counted(rungs, 'bracket')} trains its first trial to the end", "brackets"
    else:
        since, steps = f"one in {eta} is promoted from each of {counted(rungs - 1, 'rung')}", "rungs"
    if enough <= size:
        return (
            f"search.trials={enough} always trains one to the end, since {since}; a higher search.min_tokens makes "
            f"fewer {steps}"
        )
    fewer = next(count for count in reversed(range(1, rungs)) if settings.enough(count) <= size)
    does = f"give search.min_tokens={-(-settings.R // eta ** (fewer - 1))}, which makes fewer {steps}"
    return (
        f"it takes {counted(enough, 'trial')}, since {since}: search over at least {enough} settings, or "
        f"{does if fewer > 1 else 'take search=random, which trains every trial to the end'}"
    )


def lines(settings: Settings, found: Outlook, rate: float, how: str) -> list[str]:
    """Return the outlook in words. rate: of one worker [FLOP/s], `how` it is known."""
    said = [
        f"  about {counted(round(found.units), 'unit')}, {numbers.flops(found.flops, 3)}, "
        f"{estimate(found.clock / rate)} with these workers, {how}",
        f"  about {found.finished:.2g} of {counted(round(found.started), 'trial')} trained to the end",
    ]
    if found.none > 0:
        trials = min(settings.trials, settings.make_space().size)
        does = what_is_enough(settings) if trials < settings.enough() else _budget_for(found)
        said.append(f"  in {percent(found.none)} of simulations with random losses, none was: {does}")
    return said


def _budget_for(found: Outlook) -> str:
    return f"{numbers.flops(found.enough, 3)} would do"


def nothing_finished(search: Search) -> str:
    """Return why a search that is over has no trial that was trained to the end; "" where one was, or it goes on."""
    settings, trials = search.settings, list(search.trials.values())
    if not search.over or search.stopped or any(t.at >= settings.R and math.isfinite(t.value) for t in trials):
        return ""
    said = "no trial was trained to the end"
    good = [t for t in trials if not t.failed and (not t.values or math.isfinite(t.value))]
    if trials and not good:
        return f"{said}: {len(trials)} of {len(trials)} failed or diverged"
    if gone := sum(t.at >= settings.R for t in trials):
        return (
            f"{said} with a finite loss: {gone} came there and diverged: narrow the ranges, or give more search.trials"
        )
    best = search.incumbent
    if search.waits_for_budget:
        return f"{said}: the budget is used up{_missing(search)}"
    went = "none was among the best of enough at each rung" if best is not None else "none came to a loss"
    return f"{said}: {went}: {_more(search)}"


def _more(search: Search) -> str:
    """Return what brings a search to an end that had neither too little budget nor a trial trained to the end."""
    settings, size = search.settings, search.space.size
    if settings.enough() > size:
        return f"the space has only {_settings(size)}, and {what_is_enough(settings)}, in a new study (study.name=…)"
    if len(search.trials) < settings.trials:
        return "its sampler finds no settings that were not tried: search over more values in a new study"
    if len(search.trials) < settings.enough():
        return what_is_enough(settings)
    return "more search.trials continue it"


def _missing(search: Search) -> str:
    """Return the least budget with which the best trial would have been trained to the end."""
    best, settings = search.incumbent, search.settings
    price = search.flops_per_token if best is None else best.flops_per_token
    if not price:
        return ""
    rest = (settings.R - (best.at if best is not None else 0)) * price
    if settings.budget is not None and search.spent + rest > settings.budget:
        enough = numbers.scientific(search.spent + rest, 3)
        return f": search.budget_flops={enough} would have brought the best one there"
    expected = search.usage.expected(-1, rest)
    if expected is None:
        return ""
    return (
        f": search.budget_gpu_hours={(search.usage.used + expected) / 3600:.3g} would have brought the best one there"
    )


def _settings(size: float) -> str:
    return counted(int(size), "setting")
