"""Searches whose units are jobs of their own: steps after other commands, and as the job of a unit ends."""

from __future__ import annotations

import sys
from functools import partial

from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import LostUnits, UnitEnd, Units
from study.records import ledger
from study.search.trial_queue import TrialQueue
from study.storage.layout import StudyFolder

QUIET = Services(report=partial(print, file=sys.stderr, flush=True))
"""Reports to standard error, where they disturb no table and no JSON."""


def advance_quietly(folder: StudyFolder) -> None:
    """Submit the units that are due, beside a command's own work: errors are printed, not raised.

    What SLURM refused for good is not submitted again until the study's command is run again or a job of it ends. In a
    copy of a search nothing is done before its own command is run.
    """
    known = ledger.read(folder)
    if known.copy_of is not None:
        return
    as_jobs = TrialQueue.of(folder).settings.shape == "jobs" and known.refusal is None
    _take(folder, QUIET, Units() if as_jobs else LostUnits())


def advance_at_end(folder: StudyFolder, services: Services | None = None) -> None:
    """Submit the units that are due, from a job whose unit has ended: errors are printed, not raised."""
    _take(folder, services or Services(), UnitEnd())


def _take(folder: StudyFolder, services: Services, trigger: Units | LostUnits | UnitEnd) -> None:
    try:
        step(folder, services, trigger)
    except (ValueError, TimeoutError, OSError) as error:
        print(f"{folder.name}: jobs were not submitted: {error}", file=sys.stderr, flush=True)
