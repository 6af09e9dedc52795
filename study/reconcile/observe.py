"""How a study stands, for whoever looks at it: its files read, one step made, warnings on stderr."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import Look
from study.records.point import Point
from study.status.observer import Observer
from study.status.states import PointStatus
from study.storage.layout import StudyFolder


@dataclass(frozen=True)
class Observed:
    """A study's points by key, and the status of each after the step."""

    statuses: Sequence[PointStatus]
    points: Mapping[str, Point]


def observe(folder: StudyFolder) -> Observed:
    """Read a study, make the step that every look makes, and return how its points stand."""
    observer = Observer(folder)
    observer.refresh()
    services = Services(report=lambda text: print(text, file=sys.stderr))
    return Observed(step(folder, services, Look(observer, observer.statuses())).statuses, observer.points)
