"""What triggers a step: who asks for it, and what for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from study.config.schema import ClusterConfig
    from study.reconcile.failures import FailedAttempt
    from study.records.ledger import Ledger
    from study.status.observer import Observer
    from study.status.states import PointStatus


@dataclass(frozen=True)
class Submit:
    """A person asks for these points: sweep, retry, resume. Those due are submitted, whatever `retry.*` would do.

    Points that were interrupted or stopped by a time limit are submitted again and resume; failed, diverged and
    cancelled ones stay as they are until they are retried.
    """

    keys: Sequence[str]
    cluster: ClusterConfig
    retried: Sequence[str] = ()
    """Keys that are tried again whatever their ends were: this is written down together with what follows from it."""


@dataclass(frozen=True)
class Resolve:
    """A person asks that unclear submissions are resolved and what waits goes out: reconcile.

    force: give up submissions of which the scheduler says nothing.
    """

    force: bool = False


@dataclass(frozen=True)
class Look:
    """A command has just looked at the study, as `observer` saw it: status, watch.

    quiet: what goes out only because there is room for it, or does not, is not said.
    """

    observer: Observer
    statuses: Sequence[PointStatus]
    quiet: bool = False


@dataclass(frozen=True)
class Neighbours:
    """A job that ends looks after those that could not write their own end: a dead node, everything killed."""


@dataclass(frozen=True)
class AttemptEnd:
    """An attempt has ended badly, in the job that takes the step."""

    failed: FailedAttempt


@dataclass(frozen=True)
class JobEnd:
    """A job that has run these points is about to end, and may be the last one of the study."""

    keys: Sequence[str]


@dataclass(frozen=True)
class LocalEnds:
    """Runs of this machine have ended; for the one process that starts them.

    statuses: what nobody runs any more. left_behind: of these, runs that an earlier process started and that saved.
    """

    known: Ledger
    statuses: Sequence[PointStatus]
    left_behind: Sequence[str] = ()


@dataclass(frozen=True)
class Units:
    """A search whose units are jobs of their own: those that it hands out now are submitted.

    begin: what writes the search down first, under the same lock; None where that has been done.
    """

    begin: Callable[[], None] | None = None


@dataclass(frozen=True)
class UnitEnd:
    """A job whose unit is over is about to end, and may be the last one of its search."""


@dataclass(frozen=True)
class LostUnits:
    """Workers advance a search that may have had jobs of one unit: they would wait for those that are gone."""


@dataclass(frozen=True)
class Workers:
    """A person wants so many workers for a search: missing ones are submitted. `begin`: as in :class:`Units`."""

    count: int
    cluster: ClusterConfig
    begin: Callable[[], None] | None = None


Trigger = Submit | Resolve | Look | Neighbours | AttemptEnd | JobEnd | LocalEnds | Units | UnitEnd | LostUnits | Workers
