"""A store in memory that keeps what MLflow keeps by the same rules, and can die before or after any call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from study.records.metric_names import DERIVED
from study.tracking.mapping import Corpus
from study.tracking.metrics_reader import Value
from study.tracking.mlflow_view import NOTE
from study.tracking.store import ENTITIES, PARAMS, Held, RunGoneError, RunRefusedError, StoreAwayError, TrackedRun

T = TypeVar("T")


class Killed(BaseException):
    """What a kill looks like from inside: nothing can catch it."""


def _artifact(path: Path) -> str:
    return f"{path.parent.as_posix()}/{path.name}"


@dataclass
class FakeRun:
    name: str
    tags: dict[str, str]
    started: int
    params: dict[str, str] = field(default_factory=dict)
    values: dict[Value, int] = field(default_factory=dict)
    artifacts: dict[str, bytes] = field(default_factory=dict)
    datasets: set[Corpus] = field(default_factory=set)
    status: str = "RUNNING"
    ended: int | None = None
    deleted: bool = False


@dataclass
class FakeStore:
    runs: dict[str, FakeRun] = field(default_factory=dict)
    described: dict[str, str] = field(default_factory=dict)
    calls: int = 0
    die_at: int = -1
    die_after: bool = False
    error: Callable[[], BaseException] = Killed
    fails_at: set[str] = field(default_factory=set)
    """Points at whose runs every write fails, as a server fails at what it cannot digest."""

    def experiment(self, name: str) -> str:
        return self._call(lambda: f"x-{name}")

    def describe(self, experiment: str, tags: Mapping[str, str]) -> None:
        self._call(lambda: self.described.update(tags))

    def alive(self, run: str, study_id: str) -> bool:
        def look() -> bool:
            found = self.runs.get(run)
            return found is not None and not found.deleted and found.tags["study_id"] == study_id

        return self._call(look)

    def find(self, experiment: str, study_id: str, role: str) -> list[TrackedRun]:
        def search() -> list[TrackedRun]:
            found = [
                TrackedRun(name, run.tags.get("point_key", ""), run.started, run.name)
                for name, run in self.runs.items()
                if not run.deleted and run.tags["study_id"] == study_id and run.tags["role"] == role
            ]
            return sorted(found, key=lambda run: (run.started, run.id))

        return self._call(search)

    def create(self, experiment: str, name: str, started: int | None, tags: Mapping[str, str]) -> str:
        def make() -> str:
            run = f"r{len(self.runs)}"
            self.runs[run] = FakeRun(name, dict(tags), started or 0)
            return run

        return self._call(make)

    def rename(self, run: str, name: str) -> None:
        self._call(lambda: setattr(self.runs[run], "name", name))

    def delete(self, run: str) -> None:
        self._call(lambda: setattr(self.runs[run], "deleted", True))

    def held(self, run: str) -> Held:
        def look() -> Held:
            found: dict[str, int] = {}
            for value in self._run(run).values:
                found[value.name] = max(value.step, found.get(value.name, -1))
            tags = self._run(run).tags
            return Held(found, dict(self._run(run).params), tags.get(NOTE, ""), tags.get("error", ""))

        return self._call(look)

    def times(self, run: str, metric: str) -> Mapping[int, Sequence[int]]:
        def look() -> Mapping[int, Sequence[int]]:
            found: dict[int, list[int]] = {}
            for value in self._run(run).values:
                if value.name == metric:
                    found.setdefault(value.step, []).append(value.timestamp)
            return found

        return self._call(look)

    def log(
        self,
        run: str,
        values: Sequence[Value],
        params: Sequence[tuple[str, str]] = (),
        tags: Mapping[str, str] | None = None,
    ) -> None:
        assert len(values) + len(params) + len(tags or {}) <= ENTITIES
        assert len(params) <= PARAMS

        def write() -> None:
            into = self._run(run)
            if into.tags.get("point_key") in self.fails_at:
                raise StoreAwayError("500")
            for name, value in params:
                if into.params.setdefault(name, value) != value:
                    raise RunRefusedError(f"param {name} changed")
            into.values.update(dict.fromkeys(values, 1))
            into.tags.update(tags or {})

        self._call(write)

    def status(self, run: str, status: str, ended: int | None) -> None:
        def write() -> None:
            self._run(run).status = status
            if status not in ("RUNNING", "SCHEDULED"):
                self._run(run).ended = ended

        self._call(write)

    def dataset(self, run: str, corpus: Corpus) -> None:
        self._call(lambda: self._run(run).datasets.add(corpus))

    def artifacts(self, run: str, folder: Path) -> None:
        found = {_artifact(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        self._call(lambda: self._run(run).artifacts.update(found))

    def artifact(self, run: str, file: Path, folder: str | None = None) -> None:
        self._call(lambda: self._run(run).artifacts.update({f"{folder or '.'}/{file.name}": file.read_bytes()}))

    def _run(self, run: str) -> FakeRun:
        if run not in self.runs:
            raise RunGoneError(run)
        if self.runs[run].deleted:
            raise RunRefusedError(f"{run} is deleted")
        return self.runs[run]

    def _call(self, effect: Callable[[], T]) -> T:
        self.calls += 1
        dying = self.calls == self.die_at
        if dying and not self.die_after:
            raise self.error()
        result = effect()
        if dying:
            raise self.error()
        return result

    def rows(self) -> list[tuple[str, str, float, int, int]]:
        return sorted(
            (run.tags["point_key"], *value)
            for run in self.runs.values()
            if not run.deleted and "point_key" in run.tags
            for value in run.values
            if value.name not in DERIVED
        )

    def names(self) -> list[str]:
        """Return a name for every run that is not deleted: the point's key, or `study`."""
        return sorted(run.tags.get("point_key", "study") for run in self.runs.values() if not run.deleted)
