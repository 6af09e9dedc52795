"""What a search will use and finish, simulated before it starts; and which budget was short where nothing finished.

The search's own scheduler is simulated with random losses, and once with the most favourable ones: where no trial is
trained to the end even then, none can be. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from analysis.text import numbers
from study.search.course import Course, Pace, by_chance, course, ever_better
from study.search.settings import Settings
from study.search.state import Search
from study.search.usage import FIRST_SHARE, SAFETY, DeviceTime
from study.text import counted, estimate, percent
from sweeps.rungs import levels
from sweeps.schedulers import SCHEDULERS, Ensures

SIMULATIONS = 20
MOST_UNITS = 20_000
"""Limit on the units of all simulations together: larger searches are simulated fewer times."""
MARGIN = 4.0
"""How much faster or slower than expected workers may turn out to be.

A search with too few GPU-hours for the faster ones is refused; those that are named are enough for the slower ones.
"""
START_SECONDS = 5.0
"""What starting a unit takes at least on usual machines, where none has been timed [s]."""


@dataclass(frozen=True)
class Outlook:
    """What a search will use and finish, averaged over simulations.

    none: share of simulations in which no trial was trained to the end. enough, hours: FLOPs and GPU-hours with which
    one was in each, given enough trials, the hours for slower workers too; None where those of the search are enough.
    possible, untimed: whether one can be at all, and whether it could without a limit on GPU-hours.
    """

    started: float
    finished: float
    units: float
    flops: float
    clock: float
    none: float
    enough: float
    possible: bool
    hours: float | None = None
    untimed: bool = True


def outlook(settings: Settings, flops_per_token: Sequence[float], workers: int, pace: Pace | None = None) -> Outlook:
    """Return the outlook for trials whose FLOPs per token lie between the least and the most of these.

    pace: of a worker, by which GPU-hours are counted; None: they are not.
    """
    low, middling = min(flops_per_token), fmean(flops_per_token)
    courses: list[Course] = []
    units = 0
    while len(courses) < SIMULATIONS and (not courses or units < MOST_UNITS):
        chance = by_chance(settings.seed + len(courses))
        courses.append(course(settings, middling, workers, chance, MOST_UNITS, pace=pace))
        units += courses[-1].units
    fastest = None if pace is None else Pace(pace.rate * MARGIN)
    lucky = course(settings, low, 1, ever_better(), MOST_UNITS, pace=fastest, to_first=True)
    untimed = lucky if lucky.finished else course(settings, low, 1, ever_better(), MOST_UNITS, to_first=True)
    enough, hours = max(one.first for one in courses), None
    if not lucky.finished or enough == math.inf:
        enough, hours = _enough(settings, middling, workers, pace, len(courses))
    return Outlook(
        started=fmean(one.started for one in courses),
        finished=fmean(one.finished for one in courses),
        units=fmean(one.units for one in courses),
        flops=fmean(one.flops for one in courses),
        clock=fmean(one.clock for one in courses),
        none=fmean(one.finished == 0 for one in courses),
        enough=enough,
        possible=lucky.finished > 0,
        hours=hours,
        untimed=untimed.finished > 0,
    )


def _enough(
    settings: Settings, price: float, workers: int, pace: Pace | None, count: int
) -> tuple[float, float | None]:
    """Return FLOPs and GPU-hours with which each of `count` simulations trains a trial to the end, given the trials."""
    trials = max(settings.trials, settings.enough())
    free = replace(settings, trials=trials, budget=None)

    def firsts(gpu_hours: float | None, pace: Pace | None) -> Iterator[float]:
        tried = replace(free, gpu_hours=gpu_hours)
        for seed in range(settings.seed, settings.seed + count):
            yield course(tried, price, workers, by_chance(seed), MOST_UNITS, pace=pace, to_first=True).first

    most = max(firsts(None, None))
    if pace is None or settings.gpu_hours is None or most == math.inf:
        return most, None
    if math.inf not in firsts(settings.gpu_hours, pace):
        return most, None
    slow = Pace(pace.rate / MARGIN, pace.start * MARGIN)
    hours = SAFETY * (slow.start + most / slow.rate) * settings.devices / 3600
    while math.inf in firsts(hours, slow):
        hours *= 1.5
    return most, hours


def refuse_the_hopeless(settings: Settings, found: Outlook, how: str = "") -> None:
    """Raise ValueError where no trial can be trained to the end, whatever the losses; it names what would do.

    how: a worker's speed is known.
    """
    if found.possible:
        return
    if found.untimed and found.hours is not None:
        raise ValueError(
            f"search.budget_gpu_hours={settings.gpu_hours:g} is too small to train any trial to the end, even by "
            f"workers {MARGIN:g} times as fast as expected: about {_up(found.hours):.3g} is "
            f"enough even for ones {MARGIN:g} times as slow, {how}"
        )
    unlimited = course(replace(settings, budget=None), 1.0, 1, ever_better(), MOST_UNITS)
    if unlimited.finished and settings.budget is not None:
        raise ValueError(
            f"search.budget_flops={numbers.scientific(settings.budget, 3)} is too small to train any trial to the end, "
            f"whatever the losses: about {_flops(found.enough)} is enough"
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
        does = what_is_enough(settings) if trials < settings.enough() else _budgets(settings, found)
        said.append(f"  in {percent(found.none)} of simulations with random losses, none was: {does}")
    return said


def _budgets(settings: Settings, found: Outlook) -> str:
    """Return the budgets that would do, in place of those that are too small."""
    does = []
    if settings.budget is not None and settings.budget < found.enough:
        does.append(f"search.budget_flops={_flops(found.enough)}")
    if settings.gpu_hours is not None and found.hours is not None and settings.gpu_hours < found.hours:
        does.append(f"search.budget_gpu_hours={_up(found.hours):.3g}")
    slower = f" even if workers are {MARGIN:g} times as slow" if found.hours is not None else ""
    return f"{' and '.join(does) or 'larger budgets'} would do{slower}"


def _flops(value: float) -> str:
    return numbers.scientific(_up(value), 3)


def _up(value: float) -> float:
    """Return a positive number rounded up to three digits: what was enough still is."""
    if not 0 < value < math.inf:
        return value
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.ceil(value / step * (1 - 1e-12)) * step


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
        return f": search.budget_flops={_flops(search.spent + rest)} would have brought the best one there"
    expected = search.usage.expected(-1, rest)
    if expected is None:
        return _time_for_one(search.usage)
    hours = (search.usage.used + expected) / 3600
    return f": search.budget_gpu_hours={_up(hours):.3g} would have brought the best one there"


def _time_for_one(usage: DeviceTime) -> str:
    """Return a budget with which the first unit gets far longer than any has had, where none came to its end."""
    if not usage.longest:
        return ""
    seconds = max(60.0, 4 * usage.longest)
    hours = seconds * usage.devices / FIRST_SHARE / 3600
    return (
        f", and no unit came to its end in the time that was set aside for it, {usage.longest:.3g} s at most: with "
        f"search.budget_gpu_hours={_up(hours):.3g} the first one gets {seconds:.3g} s"
    )


def _settings(size: float) -> str:
    return counted(int(size), "setting")
