"""What was wanted and what was submitted: an append-only file of events, and the state that they add up to."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from study.failures.retry_policy import RecordedFailure
from study.records import origin
from study.records.bad_ends import end_of
from study.records.shapes import EVENT, EVENTS
from study.storage import shapes
from study.storage.files import locked
from study.storage.jsonl import Log, compact
from study.storage.layout import StudyFolder

Event = Mapping[str, Any]


UNIT = "unit"
"""Key in a job's resources: it advances one unit of a search. An earlier version wrote the point's key there."""
ASKING = ("waiting", "intent")
"""Events that ask for jobs."""
WITHOUT_A_NAME = "slurm"
"""Executor of waiting points where an older ledger names none: then only this one had a queue."""


@dataclass(frozen=True)
class Batch:
    """One submission: a job array of SLURM, or a list of local runs. Its jobs take its keys in order, `points` each.

    array: False where it is one job and no array, as all are on sites that take no arrays. refused: whether it was
    abandoned because SLURM took no job for it, for good. elsewhere: the study that it is of, where this one is a copy.
    """

    name: str
    executor: str
    keys: tuple[str, ...]
    time: float
    resources: Mapping[str, Any] = field(default_factory=dict)
    code: str | None = None
    job_id: str | None = None
    abandoned: str | None = None
    throttle: int | None = None
    array: bool = True
    refused: bool = False
    elsewhere: str | None = None

    @property
    def ambiguous(self) -> bool:
        """Whether its intent is recorded, but neither its submission nor its failure: here, where it was made."""
        return self.job_id is None and self.abandoned is None and self.elsewhere is None

    @property
    def of_search(self) -> bool:
        """Whether its jobs are a search's: workers, which have no keys, or units, whose keys name no points."""
        return not self.keys or UNIT in self.resources

    @cached_property
    def lanes(self) -> int:
        """How many points of a job of it run side by side."""
        return max(1, int(self.resources.get("pack") or 1))

    @cached_property
    def points(self) -> int:
        """How many points a job of it has."""
        return max(self.lanes, int(self.resources.get("points_per_job") or 1))

    @property
    def takes_turns(self) -> bool:
        """Whether points of a job of it follow each other."""
        return self.points > self.lanes

    def task(self, key: str) -> int:
        """Return the array index of the job that a key belongs to."""
        return self.keys.index(key) // self.points

    def waits_its_turn(self, key: str) -> bool:
        """Whether others of its job begin before this point, which then takes the place of one that has ended."""
        return self.takes_turns and self._position[key] % self.points >= self.lanes

    @cached_property
    def _position(self) -> dict[str, int]:
        return {key: place for place, key in enumerate(self.keys)}

    def job(self, index: int) -> str:
        """Return SLURM's name of the job with this array index: `7_3`, or `7` where it is no array."""
        return f"{self.job_id}_{index}" if self.array else str(self.job_id)

    def jobs_by_key(self) -> dict[str, str]:
        """Return SLURM's name of the job of each key."""
        return {key: self.job(index // self.points) for index, key in enumerate(self.keys)}

    def of_task(self, index: int) -> tuple[str, ...]:
        """Return the keys of the job with this array index; none where there is no such job."""
        return self.keys[index * self.points : (index + 1) * self.points] if index >= 0 else ()


@dataclass(frozen=True)
class Waiting:
    """What a key that is still to be submitted is to be submitted with.

    resources: the shape of its job. executor: who gets it. parallel: how many jobs of its kind may run at once (None:
    any number). why: what came in between where it was tried already. needs [bytes]: of disk, where it found too few.
    """

    resources: Mapping[str, Any] = field(default_factory=dict)
    code: str | None = None
    parallel: int | None = None
    why: str = ""
    executor: str = WITHOUT_A_NAME
    needs: int | None = None


@dataclass(frozen=True)
class Ledger:
    """The state that a ledger's events add up to.

    waiting: keys that are wanted and not in a batch yet, in the order in which they are to be submitted. ends: bad ends
    of each point since somebody last asked to try it again; history: all there ever were. excluded: nodes that the
    latest submission left out, with why. code: the version that later units of a search run, where it is frozen.
    refused: keys that SLURM took no job for, for good, with its words, until they are wanted again. elsewhere: keys
    that were submitted, or waited, in another study, of which this one is a copy, and its path. copy_of: that path, as
    long as nothing was asked for here since.
    """

    batches: Mapping[str, Batch] = field(default_factory=dict)
    current: Mapping[str, str] = field(default_factory=dict)
    cancelled: frozenset[str] = frozenset()
    ends: Mapping[str, tuple[RecordedFailure, ...]] = field(default_factory=dict)
    history: tuple[RecordedFailure, ...] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    ever_excluded: frozenset[str] = frozenset()
    code: str | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    copy_of: str | None = None

    @property
    def own_batches(self) -> list[Batch]:
        """The batches without those of the study that this one is a copy of."""
        return [batch for batch in self.batches.values() if batch.elsewhere is None]

    @property
    def refusal(self) -> str | None:
        """SLURM's message where it refused the latest submission for good; else None."""
        latest = next(reversed(list(self.batches.values())), None)
        return latest.abandoned if latest is not None and latest.refused else None

    @property
    def unclear(self) -> bool:
        """Whether some batch is ambiguous."""
        return any(batch.ambiguous for batch in self.batches.values())

    @property
    def has_dependencies(self) -> bool:
        """Whether a point's latest job has to wait for another one, or had to."""
        return any(self.batches[name].resources.get("dependency") for name in set(self.current.values()))

    @property
    def takes_turns(self) -> bool:
        """Whether points of some latest job follow each other."""
        return any(self.batches[name].takes_turns for name in set(self.current.values()))

    def is_of_another(self, name: str) -> bool:
        """Whether the batch of this name is of the study that this one is a copy of."""
        return name in self.batches and self.batches[name].elsewhere is not None

    def batch(self, key: str) -> Batch | None:
        """Return the batch that a key belongs to now; None where it was never submitted or is to be tried anew."""
        name = self.current.get(key)
        return None if name is None else self.batches[name]

    def unwanted_jobs(self, keys: Iterable[str]) -> dict[str, list[int]]:
        """Return, by submission, the array indices of these points' jobs in which no other point is wanted.

        A job that is no array's has no index.
        """
        found: dict[str, list[int]] = {}
        for name, places in self._tasks(keys).items():
            batch = self.batches[name]
            for index in sorted(places):
                others = (key for key in batch.of_task(index) if key not in self.cancelled)
                if batch.job_id is not None and not any(self.current.get(key) == name for key in others):
                    found.setdefault(name, []).extend([index] if batch.array else [])
        return found

    def _tasks(self, keys: Iterable[str]) -> dict[str, set[int]]:
        wanted, found = set(keys), dict[str, set[int]]()
        for name in {self.current[key] for key in wanted if key in self.current}:
            batch = self.batches[name]
            places = (i for i, key in enumerate(batch.keys) if key in wanted and self.current.get(key) == name)
            found[name] = {place // batch.points for place in places}
        return found


def fold(events: Iterable[Event], others: Collection[str] = ()) -> Ledger:
    """Return the state after these events. Pure; events of a later version are passed over.

    others: folders of other studies, of which this one may be a copy: what was asked for there is theirs.
    """
    state = _Folding(others)
    for event in events:
        match event["event"]:
            case "waiting":
                state.want(event)
            case "intent":
                state.intend(event)
            case "submitted" | "abandoned" if event.get("name") in state.batches:
                state.confirm(event)
            case "cancelled" | "refused":
                state.drop(event)
            case "retry":
                state.retry(event)
            case "ended":
                state.end(event)
            case "code":
                state.code = event.get("code")
            case "excluded":
                state.excluded = dict(event["nodes"])
                state.ever_excluded.update(event["nodes"])
    return state.result()


class _Folding:
    """The state of a ledger while its events are added up."""

    def __init__(self, others: Collection[str]) -> None:
        self.others = others
        self.elsewhere: dict[str, str] = {}
        self.copy_of: str | None = None
        self.batches: dict[str, Batch] = {}
        self.current: dict[str, str] = {}
        self.cancelled: set[str] = set()
        self.waiting: dict[str, Waiting] = {}
        self.wanted: dict[str, Waiting] = {}
        self.ends: dict[str, list[RecordedFailure]] = {}
        self.history: dict[tuple[str, str, int], RecordedFailure] = {}
        self.excluded: Mapping[str, str] = {}
        self.ever_excluded: set[str] = set()
        self.code: str | None = None
        self.refused: dict[str, str] = {}

    def want(self, event: Event) -> None:
        asked = Waiting(
            event.get("resources") or {},
            event.get("code"),
            event.get("parallel"),
            event.get("why") or "",
            event.get("executor") or WITHOUT_A_NAME,
            event.get("needs"),
        )
        # What was cancelled stays so until it is tried again, and what followed from the end of a batch's point follows
        # once: whoever wrote this may not have known of it yet.
        of, self.copy_of = event.get("name"), self._other(event)
        for key in event["keys"]:
            if key in self.cancelled or (of is not None and self.current.get(key) != of):
                continue
            if self._take(key):
                self.waiting[key] = self.wanted[key] = asked

    def intend(self, event: Event) -> None:
        self.copy_of = self._other(event)
        batch = replace(_batch(event), elsewhere=self.copy_of)
        self.batches[batch.name] = batch
        for key in batch.keys:
            if self._take(key):
                self.current[key] = batch.name

    def _other(self, event: Event) -> str | None:
        place = event.get("folder")
        return place if place in self.others else None

    def _take(self, key: str) -> bool:
        """Take a key from where it was, as it waits or is submitted anew; return whether that is here."""
        self.current.pop(key, None)
        self.waiting.pop(key, None)  # one that waits goes to the end of the queue
        self.refused.pop(key, None)
        self.elsewhere.pop(key, None)
        if self.copy_of is not None:
            self.elsewhere[key] = self.copy_of
        return self.copy_of is None

    def confirm(self, event: Event) -> None:
        """A batch was submitted, or never will be: then its keys wait again, unless the scheduler refused for good."""
        batch = self.batches[event["name"]]
        if event["event"] == "submitted":
            self.batches[batch.name] = replace(batch, job_id=str(event["job_id"]))
            return
        self.batches[batch.name] = replace(batch, abandoned=str(event["why"]), refused=bool(event.get("final")))
        for key in batch.keys:
            if self.current.get(key) == batch.name:
                del self.current[key]
                if event.get("final"):
                    self.refused[key] = str(event["why"])
                if key in self.wanted and not event.get("final") and key not in self.cancelled:
                    self.waiting[key] = replace(self.wanted[key], why=str(event["why"]))

    def drop(self, event: Event) -> None:
        for key in event["keys"]:
            self.waiting.pop(key, None)
            self.wanted.pop(key, None)
            self.refused.pop(key, None)
        if event["event"] == "cancelled":
            self.cancelled.update(event["keys"])
        else:
            self.refused.update(dict.fromkeys(event["keys"], str(event.get("why", ""))))

    def retry(self, event: Event) -> None:
        self.cancelled.difference_update(event["keys"])
        for key in event["keys"]:
            self.current.pop(key, None)
            self.ends.pop(key, None)
            self.refused.pop(key, None)
            self.elsewhere.pop(key, None)

    def end(self, event: Event) -> None:
        end = end_of(event)
        others = [e for e in self.ends.get(end.key, ()) if e.of != end.of]
        self.ends[end.key] = [*others, end]
        self.history[end.key, *end.of] = end

    def result(self) -> Ledger:
        return Ledger(
            self.batches,
            self.current,
            frozenset(self.cancelled),
            {key: tuple(each) for key, each in self.ends.items()},
            tuple(self.history.values()),
            self.excluded,
            self.waiting,
            frozenset(self.ever_excluded),
            self.code,
            self.refused,
            self.elsewhere,
            self.copy_of,
        )


def read(folder: StudyFolder) -> Ledger:
    """Return the state of a study's ledger; the empty state where there is none yet."""
    events = read_events(folder.ledger)
    return fold(events, origin.others({event.get("folder") for event in events}, folder))


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a ledger file. Raises ValueError, naming the line, where one is damaged."""
    return _log(path).read()


def append(folder: StudyFolder, event: str, now: float | None = None, **fields: Any) -> None:
    """Append one event durably, under the study's lock."""
    extend(folder, [{"event": event, **fields}], now)


def extend(folder: StudyFolder, events: Iterable[Event], now: float | None = None) -> None:
    """Append events as :func:`append` does, in one write, of which a kill loses the end.

    Those that ask for jobs say in which folder, by which a copy of the study knows that they are not its own.
    """
    at = round(time.time() if now is None else now, 3)
    here = {"folder": str(folder.path.absolute())}
    timed = [{"time": at, **event, **(here if event["event"] in ASKING else {})} for event in events]
    if timed:
        folder.path.mkdir(parents=True, exist_ok=True)
        with locked(folder.lock):
            _log(folder.ledger).append(timed)


def _log(path: Path) -> Log[dict[str, Any]]:
    return Log(path, _event, compact, "an event", "restore it from a backup, or remove that line")


def _event(line: bytes) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(line)
    shapes.check(event, EVENT)
    if (shape := EVENTS.get(event["event"])) is not None:
        shapes.check(event, shape)
    return event


def _batch(event: Event) -> Batch:
    return Batch(
        name=str(event["name"]),
        executor=str(event["executor"]),
        keys=tuple(event["keys"]),
        time=float(event["time"]),
        resources=event.get("resources") or {},
        code=event.get("code"),
        throttle=event.get("throttle"),
        array=event.get("array") is not False,
    )
