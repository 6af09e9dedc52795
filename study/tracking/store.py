"""The seam to MLflow: the few calls that a syncer makes, and the errors that it can act on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from study.tracking.mapping import Corpus
from study.tracking.metrics_reader import Value

ENTITIES = 1000
"""Metrics, parameters and tags that one call may carry together."""

PARAMS = 100
"""Parameters that one call may carry."""


class StoreAwayError(Exception):
    """The store cannot be reached or cannot write at the moment: try the same again later."""


class RunGoneError(Exception):
    """The store does not hold this run (any more)."""


class RunRefusedError(Exception):
    """The store refuses to write this to this run; others are not affected."""


class TrackedRun(NamedTuple):
    """A run found in the store by its tags; `key` is empty for the study's own run."""

    id: str
    key: str
    started: int
    name: str = ""


class Held(NamedTuple):
    """What a store holds of a run: each metric's last step, the parameters, its description and error."""

    steps: Mapping[str, int]
    params: Mapping[str, str]
    note: str = ""
    error: str = ""


class Store(Protocol):
    """What a syncer needs of a tracking store. Every call may raise StoreAwayError."""

    def experiment(self, name: str) -> str:
        """Return the id of the experiment, made if there is none. Raises ValueError if it was deleted."""

    def describe(self, experiment: str, tags: Mapping[str, str]) -> None:
        """Set tags of an experiment that differ; a description that a person wrote stays."""

    def alive(self, run: str, study_id: str) -> bool:
        """Return whether the run exists and carries this `study_id`."""

    def find(self, experiment: str, study_id: str, role: str) -> list[TrackedRun]:
        """Return all runs with these tags, oldest first."""

    def create(self, experiment: str, name: str, started: int | None, tags: Mapping[str, str]) -> str:
        """Make a run with its tags in one transaction and return its id."""

    def rename(self, run: str, name: str) -> None:
        """Give a run another name."""

    def delete(self, run: str) -> None:
        """Delete a run."""

    def held(self, run: str) -> Held:
        """Return what the store holds of a run. Raises RunGoneError or RunRefusedError."""

    def times(self, run: str, metric: str) -> Mapping[int, Sequence[int]]:
        """Return when the values of a metric were taken, by their step [unix milliseconds]; empty if it has none.

        Raises RunGoneError or RunRefusedError.
        """

    def log(
        self,
        run: str,
        values: Sequence[Value],
        params: Sequence[tuple[str, str]] = (),
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Write parameters, then values, then tags; writing the same again changes nothing.

        Raises RunGoneError or RunRefusedError.
        """

    def status(self, run: str, status: str, ended: int | None) -> None:
        """Set the run's status and its end [unix milliseconds]. Raises RunGoneError or RunRefusedError."""

    def dataset(self, run: str, corpus: Corpus) -> None:
        """Say what a run was trained on. Raises RunGoneError or RunRefusedError."""

    def artifacts(self, run: str, folder: Path) -> None:
        """Copy all of a folder to the run's artifacts. Raises RunGoneError or RunRefusedError."""

    def artifact(self, run: str, file: Path, folder: str | None = None) -> None:
        """Copy a file to the run's artifacts. Raises RunGoneError or RunRefusedError."""
