"""The policies that can be replayed by name: our schedulers, alone or with a sampler, and Optuna's pruners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sweeps.replay.curves import Table
from sweeps.samplers.rung_density import DensityRatio
from sweeps.schedulers.asha_auto import AshaAuto
from sweeps.schedulers.asha_guarded import AshaGuarded
from sweeps.schedulers.asha_promotion import AshaPromotion
from sweeps.schedulers.asha_stopping import AshaStopping
from sweeps.schedulers.base import Scheduler
from sweeps.schedulers.hyperband import Hyperband
from sweeps.schedulers.random import FullRuns


@dataclass(frozen=True)
class Setting:
    """What a policy is made from: first rung, reduction, full resource, number of configurations, seed."""

    r: int
    eta: int
    R: int
    configurations: int
    seed: int


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


def _optuna(name: str) -> Callable[[Setting], Scheduler]:
    def make(s: Setting) -> Scheduler:
        from sweeps.replay.optuna_peer import OptunaPruned

        return OptunaPruned(name, s.r, s.R, s.eta, limit=s.configurations)

    return make


SCHEDULERS: Mapping[str, Callable[[Setting], Scheduler]] = {
    "random": lambda s: FullRuns(s.R, limit=s.configurations),
    "asha": lambda s: AshaAuto(s.r, s.R, s.eta, limit=s.configurations),
    "asha_promotion": lambda s: AshaPromotion(s.r, s.R, s.eta, limit=s.configurations),
    "asha_stopping": lambda s: AshaStopping(s.r, s.R, s.eta, limit=s.configurations),
    "asha_guarded": lambda s: AshaGuarded(s.r, s.R, s.eta, limit=s.configurations),
    "asha_density": lambda s: AshaPromotion(s.r, s.R, s.eta, limit=s.configurations),
    "hyperband": lambda s: Hyperband(s.r, s.R, s.eta, limit=s.configurations),
    "optuna_halving": _optuna("halving"),
    "optuna_hyperband": _optuna("hyperband"),
    "optuna_median": _optuna("median"),
}
"""Every policy by name. asha_density is promotion ASHA whose new trials are chosen by :class:`DensityRatio`."""
NOT_REPLAYED: Mapping[str, str] = dict.fromkeys(
    ("pbt", "pb2"),
    "a copy goes on from another one's weights with settings of its own, and no recorded curve shows where to: "
    "`python -m benchmarks pbt_toys` compares populations on problems that can be computed",
)
"""Searches that recorded curves cannot tell of, and why."""


def missing(name: str, table: Table) -> str:
    """Return what a table lacks for a policy, or why none would do; "" where it can be replayed."""
    if name in NOT_REPLAYED:
        return NOT_REPLAYED[name]
    if name == "asha_density" and table.points is None:
        return "needs the array `config` in the curves: it chooses by settings"
    return ""


def make_policy(name: str, table: Table, order: Sequence[int], setting: Setting) -> Policy:
    """Return a policy that will hand out the table's configurations in `order`; ValueError for one that cannot be."""
    if name not in SCHEDULERS and name not in NOT_REPLAYED:
        raise ValueError(f"scheduler={name!r} is unknown: allowed are {', '.join(SCHEDULERS)}")
    lacks = missing(name, table)
    if lacks:
        raise ValueError(f"scheduler={name!r} {'' if name in SCHEDULERS else 'is not replayed: '}{lacks}")
    density = None
    if name == "asha_density":
        density = DensityRatio(setting.seed)
    return Policy(SCHEDULERS[name](setting), list(order), table, density)
