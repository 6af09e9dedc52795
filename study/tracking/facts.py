"""What a run's files (and the scheduler, where it was asked) say about it: attempt, state, times. Read only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from study.failures.kinds import AttemptState
from study.failures.words import Words
from study.records.shapes import JOB
from study.status.observer import Observer, words_of
from study.status.states import PointState
from study.storage.layout import StudyFolder
from study.storage.shapes import read_record


@dataclass(frozen=True)
class Facts:
    """A started run: its state, its latest attempt and job.json, unix milliseconds of its first start and last end.

    error: of a run that failed. failure: how its latest attempt did, also where the run is not judged to have, as those
    of a search are not by their files. rank: which that follows from; 0 also where there is none.
    """

    state: str
    why: str = ""
    attempt: int = 0
    job: Mapping[str, Any] | None = None
    error: str = ""
    outcome: Mapping[str, Any] | None = None
    started: int | None = None
    ended: int | None = None
    failure: str = ""
    rank: int = 0

    @property
    def final(self) -> bool:
        """Whether the run has reached its outcome, after which its files do not change."""
        return self.outcome is not None


def read_facts(observer: Observer, key: str) -> Facts | None:
    """Return what an observer sees of a run, judged as `status` does; None where it has not started.

    The run's outcome is read first: once it is there, its metrics are complete.
    """
    run, seen = observer.folder.run(key), observer.seen(key)
    attempt, outcome, standing = seen.evidence.attempt, seen.outcome, seen.derived
    if outcome is None and attempt is None and not run.config.exists() and not run.metrics.exists():
        return None
    ended = attempt.ended if attempt else None
    bad = standing.state in (PointState.FAILED, PointState.UNKNOWN)
    failed = (ended or {}).get("state") == AttemptState.FAILED
    words = words_of(run, seen.evidence) if attempt and (bad or failed) else Words()
    said = "\n".join(words.told())
    first = read_record(run.attempt(1).job, JOB) or (attempt.job if attempt else {})
    return Facts(
        state=standing.state,
        why=standing.why,
        attempt=attempt.number if attempt else 0,
        job=attempt.job if attempt else None,
        error=said if bad else "",
        outcome=outcome,
        started=_milliseconds(first.get("started")),
        ended=_milliseconds((ended or {}).get("ended")),
        failure=said if failed else "",
        rank=words.rank,
    )


def first_start(folder: StudyFolder, keys: Iterable[str]) -> int | None:
    """Return when the first of these runs started, in unix milliseconds; None where none has."""
    jobs = (read_record(folder.run(key).attempt(1).job, JOB) or {} for key in keys)
    return min((at for job in jobs if (at := _milliseconds(job.get("started"))) is not None), default=None)


def _milliseconds(seconds: Any) -> int | None:
    return round(seconds * 1000) if isinstance(seconds, int | float) else None
