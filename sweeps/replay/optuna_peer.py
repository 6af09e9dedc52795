"""Optuna's own pruners behind our interface, so that they are measured in the same replay."""

from __future__ import annotations

import math
from collections.abc import Iterator

import optuna

from sweeps.history import Ended, Event, Reported, Started, Unit
from sweeps.rungs import levels
from sweeps.schedulers.base import Scheduler, Trials


class OptunaPruned(Scheduler):
    """An Optuna study whose pruner is asked at every level r, r·eta, …, R: `halving`, `hyperband` or `median`.

    Median is asked at every unit of resource, as its users do.
    """

    def __init__(self, pruner: str, r: int, R: int, eta: int, limit: int | None = None) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.levels = tuple(range(1, R + 1)) if pruner == "median" else levels(r, R, eta)
        self.study = optuna.create_study(
            pruner=_pruner(pruner, r, R, eta), sampler=optuna.samplers.RandomSampler(seed=0), study_name="replay"
        )
        self.asked: dict[int, optuna.trial.Trial] = {}
        self.going: dict[int, Unit] = {}
        self.trials = Trials(limit)

    def apply(self, event: Event) -> None:
        """Take notice of an event: tell Optuna what was reported, ask it whether the trial goes on."""
        match event:
            case Started(unit):
                if unit.trial not in self.asked:
                    self.asked[unit.trial] = self.study.ask()
                self.going.pop(unit.trial, None)
            case Reported(trial, resource, value):
                self._report(trial, resource, value)
            case Ended(trial, "failed"):
                self.study.tell(self.asked[trial], state=optuna.trial.TrialState.FAIL)
            case _:
                pass
        self.trials.apply(event)

    def candidates(self) -> Iterator[Unit]:
        """Yield what was lost, then trials that go on, then a new one."""
        yield from self.trials.resumed()
        yield from self.going.values()
        yield from self.trials.fresh(self.levels[0])

    def _report(self, trial: int, resource: int, value: float) -> None:
        asked = self.asked[trial]
        asked.report(value, resource)
        after = next((level for level in self.levels if level > resource), None)
        if after is None:
            finite = math.isfinite(value)
            state = None if finite else optuna.trial.TrialState.FAIL
            self.study.tell(asked, value if finite else None, state=state)
        elif asked.should_prune():
            self.study.tell(asked, state=optuna.trial.TrialState.PRUNED)
        else:
            self.going[trial] = Unit(trial, after)


def _pruner(name: str, r: int, R: int, eta: int) -> optuna.pruners.BasePruner:
    if name == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=r, reduction_factor=eta, min_early_stopping_rate=0)
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=r, max_resource=R, reduction_factor=eta)
    assert name == "median"
    return optuna.pruners.MedianPruner()
