"""Sending one run to a store: parameters, metrics in calls as full as they may be, its state and totals, its files."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from analysis.inputs.recorded import ROLLBACK
from study.records.metric_names import AT_THE_END, DERIVED, LOG_FLOPS, TOKENS, metric_name
from study.records.point import Point
from study.status.states import PointState
from study.storage.files import tail
from study.storage.layout import RunFolder
from study.storage.secrets import Redact
from study.tracking.facts import Facts
from study.tracking.mapping import RunSummary, corpus, params
from study.tracking.metrics_reader import Position, Record, Value, beginnings, records
from study.tracking.mlflow_view import NOTE, artifact_page, may_replace
from study.tracking.state import RunState
from study.tracking.store import ENTITIES, PARAMS, Held, Store
from study.tracking.study_note import run_note

PARAM_BYTES = 400_000
"""Parameters of one call, counted as JSON: a server takes a million bytes a request, metrics included."""

LOG_BYTES = 1 << 20
"""Of a log, at most this many bytes of its end are sent."""

OF_ROLLBACKS = metric_name(ROLLBACK, "")
GONE_BACK = metric_name(ROLLBACK, "to_step")
"""The metric that every rollback has a value of, at the step after which the run went back."""

TEXT_KINDS = frozenset({".yaml", ".yml", ".json", ".txt", ".csv"})

Params = list[tuple[str, str]]


class Shipper:
    """Sends runs to a store; counts the values sent, the lines that could not be read, and the calls."""

    def __init__(self, store: Store, redact: Redact) -> None:
        self._store = store
        self._redact = redact
        self.values = 0
        self.unreadable = 0
        self.calls = 0

    def ship(
        self,
        run: RunFolder,
        before: RunState,
        point: Point,
        facts: Facts,
        summary: RunSummary,
        *,
        totals: Callable[[], Mapping[str, float]],
        experiment: str,
        sure: bool = True,
    ) -> Iterator[RunState]:
        """Send what is new; yield the run's state in the store after each call.

        Sending the same again changes nothing in the store, so losing a state costs only time. But a record that was
        cut from its file and written again has another time, and would be another value. So unless it is certain
        (`sure`) that `before` is all that was sent, the store is asked which steps it has. State and outcome go last:
        a run that is shown as completed has all its metrics. Parameters share calls with values, as every call is
        several transactions. `totals` is called, and sent, whenever state or outcome are.
        """
        state, batch, position = before, list[Value](), before.position
        held, fresh = _Held(self._store, before.id, run.metrics), sure and not before.sent
        settings = [] if before.params else params(point.raw, self._redact)
        chunks = _chunks(settings if sure or not settings else held.without(settings)) or [[]]
        for record in records(run.metrics, before.position, flops_per_token=_flops_per_token(point)):
            *early, _ = chunks
            if batch and len(batch) + len(record.values) + len(early[0] if early else ()) > ENTITIES:
                yield (state := self._send(state, batch, position, chunks.pop(0) if early else []))
                batch = []
            batch += record.values if sure else held.new(record)
            position = record.position
            self.unreadable += not record.readable
        tags = dict(summary.tags) if summary.digest() != before.sent else {}
        if tags.get("error") == "" and not before.error and (sure or not held.error()):
            del tags["error"]
        found = totals() if tags else before.totals
        if tags and (facts.final or facts.ended is not None) and (fresh or may_replace(held.note())):
            pages = _pages(experiment, state.id, run, facts)
            tags[NOTE] = self._redact(run_note(facts, found, summary.tags, pages))
        last = _values(found, before.totals, facts, position) if tags else []
        if len(chunks) > 1 or len(batch) + len(last) + len(chunks[-1]) + len(tags) > ENTITIES:
            *early, settings = chunks
            yield (state := self._send(state, batch, position, list(chain.from_iterable(early))))
            batch, chunks = [], [settings]
        state = replace(self._send(state, batch + last, position, chunks[-1], tags), params=True, totals=found)
        if tags:
            state = replace(state, error=bool(summary.tags.get("error")))
            self._store.status(state.id, summary.status, facts.ended)
        new = not state.config and run.config.exists()
        if new and (data := corpus(point.raw, self._redact)) is not None:
            self._store.dataset(state.id, data)
        ended = f"{facts.attempt} {facts.final}" if facts.final or facts.ended is not None else ""
        if ended and ended != state.logs:
            self._files(state.id, _printed(run, facts) | ({run.config.name: run.config} if new else {}))
        elif new:
            self.artifact(state.id, run.config)
        state = replace(state, config=state.config or new, logs=ended or state.logs)
        done = facts.final and state.config and position.offset >= _size(run.metrics)
        yield replace(state, sent=summary.digest(), state=facts.state, done=done, ended=facts.ended or 0)

    def artifact(self, run: str, path: Path, folder: str | None = None) -> None:
        """Send a file; a text file with secrets in it is sent without them, under the same name."""
        self.calls += 1
        text = path.read_text(encoding="utf-8", errors="replace") if path.suffix in TEXT_KINDS else ""
        clean = self._redact(text)
        if clean == text:
            self._store.artifact(run, path, folder)
            return
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / path.name
            copy.write_text(clean, encoding="utf-8")
            self._store.artifact(run, copy, folder)

    def _files(self, run: str, sources: Mapping[str, Path]) -> None:
        """Send text files in one call, without secrets, and only the end of long ones."""
        with tempfile.TemporaryDirectory() as scratch:
            for name, source in sources.items():
                text = tail(source, LOG_BYTES)
                if text:
                    copy = Path(scratch) / name
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.write_text(self._redact(text), encoding="utf-8")
            if any(Path(scratch).iterdir()):
                self.calls += 1
                self._store.artifacts(run, Path(scratch))

    def _send(
        self,
        state: RunState,
        values: Sequence[Value],
        position: Position,
        settings: Params | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> RunState:
        """Write these in as few calls as the limits allow, usually one; return the state afterwards."""
        chunks = _chunks(settings or []) or [[]]
        for chunk in chunks[:-1]:
            self._log(state.id, [], chunk, {})
        last, rest = chunks[-1], list(values)
        while len(rest) + len(last) > ENTITIES:  # one record with more values than a call takes
            self._log(state.id, rest[: ENTITIES - len(last)], last, {})
            rest, last = rest[ENTITIES - len(last) :], []
        if rest or last or tags:
            self._log(state.id, rest, last, tags or {})
        self.values += sum(value.name not in DERIVED for value in values)
        return replace(state, position=position)

    def _log(self, run: str, values: Sequence[Value], settings: Params, tags: Mapping[str, str]) -> None:
        self.calls += 1
        self._store.log(run, values, settings, tags)


class _Held:
    """What a store has of a run; it is asked when there is something to send, and only once."""

    def __init__(self, store: Store, run: str, metrics: Path) -> None:
        self._store, self._run, self._metrics = store, run, metrics
        self._held: Held | None = None
        self._begun: Mapping[int, int] | None = None
        self._times: dict[str, Mapping[int, Sequence[int]]] = {}

    def new(self, record: Record) -> list[Value]:
        """Return the values of a record that the store has not.

        Records are sent in their order: it has every step up to the last one of a metric. On a path that a rollback
        began, steps come again that the store may have of the paths before: of this one are those that were taken
        after the rollback, as the store has it.
        """
        if not record.values:
            return []
        if path := record.position.path:
            begun = self._beginnings().get(path)
            return record.values if begun is None else [v for v in record.values if not self._has(v, begun)]
        steps = self._look().steps
        return [value for value in record.values if value.step > steps.get(value.name, -1)]

    def _has(self, value: Value, begun: int) -> bool:
        """Return whether the store has this value, or one that was taken in its place, of the path that began then."""
        times = self._taken(value.name).get(value.step, ())
        return any(time > begun or (time == begun and value.name.startswith(OF_ROLLBACKS)) for time in times)

    def _beginnings(self) -> Mapping[int, int]:
        """Return when the paths began that the store has the rollback of: a file that was cut may say it otherwise."""
        if self._begun is None:
            there = {step: sorted(times) for step, times in self._taken(GONE_BACK).items()}
            found, seen = dict[int, int](), Counter[int]()
            for path, step in beginnings(self._metrics).items():
                times, place = there.get(step, []), seen[step]
                seen[step] += 1
                if place < len(times):
                    found[path] = times[place]
            self._begun = found
        return self._begun

    def _taken(self, metric: str) -> Mapping[int, Sequence[int]]:
        if metric not in self._times:
            self._times[metric] = self._store.times(self._run, metric)
        return self._times[metric]

    def without(self, settings: Params) -> Params:
        """Return the parameters that the store has not: those it has cannot change, and may be written otherwise."""
        held = self._look().params
        return [(name, value) for name, value in settings if name not in held]

    def note(self) -> str:
        """Return the description that the store has, empty if none."""
        return self._look().note

    def error(self) -> str:
        """Return the error that the store has, empty if none."""
        return self._look().error

    def _look(self) -> Held:
        if self._held is None:
            self._held = self._store.held(self._run)
        return self._held


def _printed(run: RunFolder, facts: Facts) -> dict[str, Path]:
    """Return the outcome, and what the latest attempt's first rank printed, by their names as artifacts.

    Also what the rank printed from which its failure follows.
    """
    attempt, place, rank = run.attempt(facts.attempt), f"logs/attempt-{facts.attempt}", facts.rank
    cause = {
        f"{place}/stdout-rank-{rank}.txt": attempt.stdout(rank),
        f"{place}/stderr-rank-{rank}.txt": attempt.stderr(rank),
    }
    return {
        "outcome.json": run.outcome,
        f"{place}/stdout.txt": attempt.stdout(0),
        f"{place}/stderr.txt": attempt.stderr(0),
        f"{place}/outcome.json": attempt.outcome,
        **(cause if rank else {}),
    }


def _pages(experiment: str, name: str, run: RunFolder, facts: Facts) -> dict[str, str]:
    """Return the pages of a run's config and logs, by name; empty and missing files are left out."""
    files = {"config.yaml": run.config, **_printed(run, facts)}
    shown = {place: Path(place).name for place in files if not place.endswith("outcome.json")}
    return {title: artifact_page(experiment, name, place) for place, title in shown.items() if _size(files[place])}


def _values(totals: Mapping[str, float], before: Mapping[str, float], facts: Facts, position: Position) -> list[Value]:
    """Return a run's totals as values of its last step, without those that have been sent.

    Where it ended is said at step 0: whenever it ends again, even at an earlier step, the latest is that end's.
    Every record has its tokens, and every validation log10 of its FLOPs: these are not sent twice for a step. A run
    that diverged ended after its last record, so its tokens are sent here.
    """
    last = max(position.steps.values(), default=0)
    step = int((facts.outcome or {}).get("step") or last)
    stamp = facts.ended or facts.started or 0
    later = facts.state == PointState.DIVERGED and step > last
    double = {TOKENS} if position.steps and not later else set()
    double |= {LOG_FLOPS} if step == position.steps.get("validation") else set()
    all_of_it = facts.outcome is not None  # charts join the values of a step
    return [
        Value(name, value, stamp, 0 if name in AT_THE_END else step)
        for name, value in totals.items()
        if name not in double and (all_of_it or before.get(name) != value)
    ]


def _flops_per_token(point: Point) -> float:
    try:
        return point.flops_per_token
    except ValueError:  # a config that cannot be read any more
        return 0.0


def _chunks(settings: Params) -> list[Params]:
    """Return the parameters in groups that one call each can carry."""
    chunks: list[Params] = []
    size = 0
    for name, value in settings:
        weight = len(json.dumps([name, value]))
        if not chunks or len(chunks[-1]) == PARAMS or size + weight > PARAM_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append((name, value))
        size += weight
    return chunks


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
