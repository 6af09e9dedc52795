"""What follows from a unit's bad end: the study's own `retry.*` policy, as for points. Pure.

A unit that is tried again is handed out again, to whoever asks next: `elsewhere` means `again` here, and so does `more`
but where each unit is a job of its own, which then asks for more memory (study.workers.unit_jobs). Being told to
stop is the worker's end, not the trial's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from study.failures.kinds import FAILURES, Counts, Kind, by_slurm
from study.failures.retry_policy import Action, End, Rules, verdict

TOLD = "told to stop"
TAKEN = "another attempt still has the run"
GONE = Kind.NODE_FAILURE
"""What a worker counts as of which nothing was heard any more: it died with its node, or was killed there."""


@dataclass(frozen=True)
class Follows:
    """How a unit counts as ended, "lost" (handed out again) or "failed", and why; stops: the search does."""

    how: str
    why: str
    stops: bool = False


def follows(kind: Kind, ends: Sequence[End], rules: Rules, saved: int = 0) -> Follows:
    """Return what follows from an end of this kind (study.failures.kinds) of a unit whose run had these ends before.

    saved: tokens of the run's newest checkpoint: failures count while it gets no further.
    """
    if _is_nothing(kind):
        return Follows("lost", TAKEN if kind == Kind.HELD else TOLD)
    said = verdict(kind, ends, rules.here(), saved)
    if said.action != Action.STOP:
        return Follows("lost", said.why)
    if FAILURES[kind].every_run:  # so that `stop` stands for the search and not for the trial
        return Follows("lost", f"{kind}: {said.why}", stops=True)
    return Follows("failed", said.why)


def by_job(word: str) -> Kind:
    """Return the kind of end of a worker's job by SLURM's word for it."""
    kind = by_slurm(word)
    return GONE if kind is None or kind == Kind.NO_OUTCOME else kind


def end_of(record: Mapping[str, Any], key: str) -> End | None:
    """Return a unit's bad end as the log has it; None where that is nobody's failure.

    Records of an earlier version name no kind: there a worker that was lost with its unit is `silent`.
    """
    kind = Kind(record.get("kind", ""))
    if not kind and record.get("silent"):
        why = str(record.get("why", ""))
        kind = Kind(why) if why and why == Kind(why) else GONE
    if _is_nothing(kind):
        return None
    return End(key, "", int(record["claim"]), kind, time=float(record["time"]), saved=int(record.get("saved", 0)))


def _is_nothing(kind: Kind) -> bool:
    """Whether an end is nobody's failure: a worker was told to stop, ran out of device time, or found the run taken."""
    return not kind or FAILURES[kind].counts == Counts.NOTHING
