"""The device time that a study may take, checked before anything is submitted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from study.config.limits import check_value
from study.config.schema import StudySection
from study.executors import query
from study.executors.base import Runner
from study.executors.job_spec import JobSpec
from study.records import ledger
from study.records.point import Point
from study.records.settings import load_section
from study.status import cost
from study.status.observer import Observer
from study.status.states import PointStatus
from study.storage.layout import StudyFolder
from study.text import counted
from train.spec.from_mapping import read

KEYS = {cost.GPU: "gpu_hours", cost.CORE: "core_hours"}


@dataclass(frozen=True)
class Balance:
    """A budget [`unit`] and what stands against it: used by what ended, reserved by what waits or runs, and asked now.

    jobs: how many are asked now; each: the most that one of them can take.
    """

    unit: str
    limit: float
    used: float
    reserved: float
    asked: float
    jobs: int
    each: float

    @property
    def left(self) -> float:
        """What is neither used nor reserved."""
        return max(0.0, self.limit - self.used - self.reserved)

    @property
    def fits(self) -> bool:
        """Whether what is asked now is within it, even if every job runs to its time limit."""
        return self.asked <= self.left * (1 + 1e-9)

    def __str__(self) -> str:
        """Say it in words."""
        return (
            f"study.{KEYS[self.unit]}={self.limit:g}: {self.used:.4g} {self.unit} used, {self.reserved:.4g} reserved "
            f"by jobs that wait or run, {self.left:.4g} left"
        )

    def refusal(self) -> str:
        """Return why it is refused and what would fit."""
        some = int(self.left / self.each) if self.each else 0
        return (
            f"{self}: {counted(self.jobs, 'job')}, up to the time limit, would ask for {self.asked:.4g}: "
            f"{f'{some:,} of them would fit' if some else 'not one of them fits'}; ask for fewer points, a shorter "
            f"cluster.time_minutes (cluster.auto=[time] sizes it), or a larger study.{KEYS[self.unit]}"
        )


def section(folder: StudyFolder) -> StudySection:
    """Return the study's section of its latest submission. Raises ValueError where study.yaml is damaged."""
    return read(StudySection, load_section(folder, "study"), "study")


def balances(
    folder: StudyFolder,
    limits: StudySection,
    asked: Sequence[tuple[JobSpec, int]],
    seen: tuple[Mapping[str, Point], Sequence[PointStatus]],
    runner: Runner | None = None,
    *,
    known: ledger.Ledger | None = None,
) -> list[Balance]:
    """Return each budget that the study has, with what `asked` (shape, jobs) adds; asks for costs only if there is one.

    seen: the study's points and what is known of them. known: the ledger, for a caller who has read it.
    """
    wanted = {unit: limit for unit, name in KEYS.items() if (limit := getattr(limits, name)) is not None}
    for unit, limit in wanted.items():
        check_value(f"study.{KEYS[unit]}", limit)
    if not wanted:
        return []
    costs = {one.unit: one for one in cost.measure(folder, *seen, runner, known=known)}
    found = []
    for unit, limit in wanted.items():
        so_far = costs.get(unit, cost.Cost(unit))
        each = [(shape.hours * cost.devices(shape).count(unit), jobs) for shape, jobs in asked]
        adding, most = sum(hours * jobs for hours, jobs in each), max((hours for hours, _ in each), default=0.0)
        jobs = sum(jobs for hours, jobs in each if hours)
        found.append(Balance(unit, limit, so_far.spent, so_far.reserved, adding, jobs, most))
    return found


def check(
    folder: StudyFolder,
    wanted: Sequence[tuple[JobSpec, int]],
    waiting: Iterable[ledger.Waiting],
    seen: tuple[Mapping[str, Point], Sequence[PointStatus]],
    runner: Runner | None = None,
    *,
    known: ledger.Ledger | None = None,
) -> None:
    """Raise ValueError where points (shape, how many) are over the study's budget with all that is out already.

    waiting: what else waits in the ledger and is to go out as well. seen, known: as in :func:`balances`.
    """
    limits = section(folder)
    if limits.gpu_hours is None and limits.core_hours is None:
        return
    asked = [(shape, shape.jobs(points)) for shape, points in [*wanted, *_counted(waiting)]]
    for balance in balances(folder, limits, asked, seen, runner, known=known):
        if not balance.fits:
            raise ValueError(balance.refusal())


class RemainingBudget:
    """What is left of a study's budgets while jobs are submitted one array after the other."""

    def __init__(self, found: Sequence[Balance]) -> None:
        self._balances = {balance.unit: balance for balance in found}
        self._left = {balance.unit: balance.left for balance in found}

    def take(self, shape: JobSpec, jobs: int) -> str:
        """Take what so many jobs may come to; return why that is not there, "" where it is."""
        need = {unit: jobs * shape.hours * cost.devices(shape).count(unit) for unit in self._left}
        short = next((unit for unit, hours in need.items() if hours > self._left[unit] * (1 + 1e-9)), None)
        if short is not None:
            return f"the budget is spent: {self._balances[short]}, and {need[short]:.4g} are asked"
        for unit, hours in need.items():
            self._left[unit] -= hours
        return ""


def remaining_budget(folder: StudyFolder, runner: Runner | None = None) -> RemainingBudget | None:
    """Return what is left of the study's budgets; None where it has none."""
    limits = section(folder)
    if limits.gpu_hours is None and limits.core_hours is None:
        return None
    observer = Observer(folder, lambda batches: query(batches, runner))
    observer.refresh()
    seen = observer.points, observer.statuses()
    return RemainingBudget(balances(folder, limits, (), seen, runner, known=observer.known))


def _counted(waiting: Iterable[ledger.Waiting]) -> list[tuple[JobSpec, int]]:
    """Return what waiting points ask, with how many ask the same."""
    counts = Counter(json.dumps(asked.resources, sort_keys=True) for asked in waiting)
    return [(JobSpec.read(json.loads(text)), count) for text, count in counts.items()]
