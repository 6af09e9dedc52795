"""Helpers: drive a scheduler through a random, but valid, history of workers."""

import random
from collections.abc import Callable, Sequence

from sweeps.history import Ended, Event, Reported, Started, Unit
from sweeps.replay.decisions import decisions, undisturbed
from sweeps.rungs import Rung
from sweeps.schedulers.base import Scheduler
from sweeps.schedulers.pbt import PopulationBased


def rung_of(values: Sequence[float]) -> Rung:
    rung = Rung(1)
    for trial, value in enumerate(values):
        rung.record(trial, value)
    return rung


def drive(
    scheduler: Scheduler,
    value: Callable[[int, int], float],
    steps: int,
    seed: int = 0,
    *,
    workers: int = 4,
    lose: float = 0.0,
    fail: float = 0.0,
) -> list[Event]:
    """Run `steps` units on `workers` that end in random order; return the events that were applied."""
    rng = random.Random(seed)
    running: list[Unit] = []
    log: list[Event] = []

    def tell(event: Event) -> None:
        log.append(event)
        scheduler.apply(event)

    for _ in range(steps):
        while len(running) < workers:
            unit = scheduler.decide()
            if unit is None:
                break
            tell(Started(unit))
            running.append(unit)
        if not running:
            break
        unit = running.pop(rng.randrange(len(running)))
        draw = rng.random()
        if draw < lose:
            tell(Ended(unit.trial, "lost"))
        elif draw < lose + fail:
            tell(Ended(unit.trial, "failed"))
        else:
            tell(Reported(unit.trial, unit.until, value(unit.trial, unit.until)))
            tell(Ended(unit.trial, "reached"))
    return log


def noise(seed: int) -> Callable[[int, int], float]:
    """Return values that depend on trial and resource only, falling with resource."""
    return lambda trial, resource: random.Random(hash((seed, trial, resource))).random() + 1.0 / resource


def driven_and_retold(
    make: Callable[[], PopulationBased], value: Callable[[int, int], float], steps: int, seed: int
) -> tuple[PopulationBased, PopulationBased, PopulationBased]:
    """Drive a population whose units get lost and fail; return it, and two more that were told its log.

    The first was told all of it, the second nothing of what was lost.
    """
    scheduler, again, calm = make(), make(), make()
    log = drive(scheduler, value, steps, seed, lose=0.1, fail=0.05)
    decisions(again, log)
    decisions(calm, undisturbed(log))
    return scheduler, again, calm
