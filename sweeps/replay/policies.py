"""The policies that can be replayed by name: our schedulers, alone or with a sampler, and Optuna's pruners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from sweeps.replay.curves import Table
from sweeps.samplers.rung_density import DensityRatio
from sweeps.schedulers import SCHEDULERS
from sweeps.schedulers.asha_promotion import AshaPromotion
from sweeps.schedulers.base import Scheduler, SchedulerOptions, make_scheduler


@dataclass
class Policy:
    """A scheduler, and which of the configurations that are left a new trial tries."""

    scheduler: Scheduler
    pool: list[int]
    table: Table
    density: DensityRatio | None = None
    points: list[Sequence[float]] = field(default_factory=list)

    def choose(self, trial: int) -> int:
        """Take a configuration out of the pool: the next one, or the one that the density ratio picks."""
        if self.density is None:
            return self.pool.pop(0)
        assert isinstance(self.scheduler, AshaPromotion)
        assert self.table.points is not None
        chosen = self.density.pick(trial, self.table.points[self.pool], self.points, self.scheduler.rungs)
        configuration = self.pool.pop(chosen)
        self.points.append(list(self.table.points[configuration]))
        return configuration


def _optuna(pruner: str) -> Callable[[SchedulerOptions], Scheduler]:
    def make(options: SchedulerOptions) -> Scheduler:
        from sweeps.replay.optuna_peer import OptunaPruned

        return OptunaPruned(pruner, options.r, options.R, options.eta, limit=options.trials)

    return make


POLICIES: Mapping[str, Callable[[SchedulerOptions], Scheduler]] = {
    "random": partial(make_scheduler, "random"),  # what the others are compared with comes first
    **{name: partial(make_scheduler, name) for name, entry in SCHEDULERS.items() if not entry.not_replayed},
    "asha_density": partial(make_scheduler, "asha_promotion"),
    "optuna_halving": _optuna("halving"),
    "optuna_hyperband": _optuna("hyperband"),
    "optuna_median": _optuna("median"),
}
"""Every policy by name. asha_density is promotion ASHA whose new trials are chosen by :class:`DensityRatio`."""
NOT_REPLAYED: Mapping[str, str] = {
    **{name: entry.not_replayed for name, entry in SCHEDULERS.items() if entry.not_replayed},
    "pb2": SCHEDULERS["pbt"].not_replayed,
}
"""Schedulers that recorded curves cannot replay, and why."""


def missing(name: str, table: Table) -> str:
    """Return what a table lacks for a policy, or why none would do; "" where it can be replayed."""
    if name in NOT_REPLAYED:
        return NOT_REPLAYED[name]
    if name == "asha_density" and table.points is None:
        return "needs the array `config` in the curves: it chooses by settings"
    return ""


def make_policy(name: str, table: Table, order: Sequence[int], options: SchedulerOptions) -> Policy:
    """Return a policy that will hand out the table's configurations in `order`; ValueError for one that cannot be."""
    if name not in POLICIES and name not in NOT_REPLAYED:
        raise ValueError(f"scheduler={name!r} is unknown: allowed are {', '.join(POLICIES)}")
    lacks = missing(name, table)
    if lacks:
        raise ValueError(f"scheduler={name!r} {'' if name in POLICIES else 'is not replayed: '}{lacks}")
    density = DensityRatio(options.seed) if name == "asha_density" else None
    return Policy(POLICIES[name](options), list(order), table, density)
