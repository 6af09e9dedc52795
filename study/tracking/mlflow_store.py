"""MLflow as a tracking store. mlflow is imported once :func:`connect` is called, and by no other module but
:mod:`study.tracking.model_folder`."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from analysis.inputs.tracking_store import in_words, past_proxies, refusal
from study.config import tracking_uri as address
from study.storage.secrets import Redact
from study.tracking import mlflow_view
from study.tracking.mapping import Corpus
from study.tracking.metrics_reader import Value
from study.tracking.sqlite import create_database, move_artifacts, tune
from study.tracking.store import Held, RunGoneError, RunRefusedError, StoreAwayError, TrackedRun

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

T = TypeVar("T")

ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    # MLflow repeats even the request that creates a run, which can create it twice: the syncer looks first.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}
_REFUSED = {"INVALID_PARAMETER_VALUE", "INVALID_STATE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS"}
_NOISE = ("mlflow", "alembic", "sqlalchemy", "urllib3")


def connect(uri: str, study: str, base: Path, redact: Redact) -> MlflowStore:
    """Return the store at an absolute address; a missing SQLite database is created, whole or not at all.

    Changes this process: environment variables that MLflow reads, log levels, the garbage collector's thresholds.
    Raises StoreAwayError where the store cannot be opened, ValueError where its database's driver is not installed.
    """
    if why := refusal(uri):  # asked in time: MLflow would try the same for a minute and a half
        raise StoreAwayError(redact(why))
    past_proxies(uri)
    os.environ.update(ENVIRONMENT)
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    # A batch makes thousands of objects that all live until it is written, and importing MLflow makes 300,000 that
    # stay: collections meanwhile find next to nothing.
    gc.set_threshold(100_000, 20, 100)
    try:
        database = address.sqlite_file(uri)
        artifacts = address.artifact_root(uri, study, base)
        if database is not None:
            create_database(database, (artifacts or "").rpartition("/")[0])
        from mlflow import MlflowClient

        for name in _NOISE:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if not address.is_server(uri):
            tune()
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    except ModuleNotFoundError as error:
        raise ValueError(f"tracking.uri={address.shown(uri)}: {in_words(str(error), uri)}") from None
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise StoreAwayError(place + redact(in_words(error.strerror or str(error), uri))) from None
    except _errors() as error:
        raise StoreAwayError(redact(in_words(str(error), uri))) from None
    gc.collect()
    gc.freeze()
    return MlflowStore(client, artifacts, redact)


class MlflowStore:
    """A tracking store behind MLflow's client."""

    def __init__(self, client: MlflowClient, artifacts: str | None, redact: Redact) -> None:
        self._client = client
        self._artifacts = artifacts
        self._redact = redact
        self._artifact_uris: dict[
            str, str
        ] = {}  # of the artifacts of runs made here: MLflow reads the whole run to know it

    def experiment(self, name: str) -> str:
        """Return the id of the experiment, made if there is none. Raises ValueError if it was deleted."""
        found = self._call(lambda: self._client.get_experiment_by_name(name))
        if found is None:
            with contextlib.suppress(RunRefusedError):  # another process made it in between
                self._call(lambda: self._client.create_experiment(name, self._artifacts))
            found = self._call(lambda: self._client.get_experiment_by_name(name))
        if found is None:
            raise StoreAwayError(f"the experiment {name!r} could not be made")
        if found.lifecycle_stage != "active":
            raise ValueError(
                f"the experiment {name!r} was deleted in the store: bring it back with "
                f"`mlflow experiments restore --experiment-id {found.experiment_id}`, or name the study otherwise"
            )
        self._move_artifacts(str(found.experiment_id), str(found.artifact_location))
        return str(found.experiment_id)

    def _move_artifacts(self, experiment: str, there: str) -> None:
        """Correct where artifacts lie if database and artifacts were moved together: MLflow has absolute paths."""
        database = address.sqlite_file(str(self._client.tracking_uri))
        if database is None or self._artifacts is None or there == self._artifacts:
            return
        old, new = address.folder_of(there), address.folder_of(self._artifacts)
        if old is not None and new is not None and new.is_dir() and not old.exists():
            move_artifacts(database, experiment, there, self._artifacts)

    def describe(self, experiment: str, tags: Mapping[str, str]) -> None:
        """Set tags of an experiment that differ; a description that a person wrote stays."""
        held = self._call(lambda: self._client.get_experiment(experiment)).tags
        for name, value in tags.items():
            if held.get(name) != value and (name != mlflow_view.NOTE or mlflow_view.may_replace(held.get(name, ""))):
                self._call(partial(self._client.set_experiment_tag, experiment, name, value))

    def alive(self, run: str, study_id: str) -> bool:
        """Return whether the run exists and carries this `study_id`."""
        try:
            found = self._call(lambda: self._client.get_run(run))
        except (RunGoneError, RunRefusedError):
            return False
        return bool(found.data.tags.get("study_id") == study_id and found.info.lifecycle_stage == "active")

    def find(self, experiment: str, study_id: str, role: str) -> list[TrackedRun]:
        """Return all runs with these tags, oldest first."""
        query = f"tags.study_id = '{study_id}' and tags.role = '{role}'"
        found: list[TrackedRun] = []
        token: str | None = None
        while True:
            search = partial(self._client.search_runs, [experiment], query, max_results=1000, page_token=token)
            page = self._call(search)
            found += [_tracked(run) for run in page]
            token = page.token
            if not token:
                return sorted(found, key=lambda run: (run.started, run.id))

    def create(self, experiment: str, name: str, started: int | None, tags: Mapping[str, str]) -> str:
        """Make a run with its tags in one transaction and return its id."""
        start = started or round(time.time() * 1000)
        try:
            run = self._call(lambda: self._client.create_run(experiment, start, dict(tags), name))
        except (RunGoneError, RunRefusedError) as error:
            raise StoreAwayError(f"no run could be made in experiment {experiment}: {error}") from None
        self._artifact_uris[run.info.run_id] = str(run.info.artifact_uri)
        return str(run.info.run_id)

    def rename(self, run: str, name: str) -> None:
        """Give a run another name."""
        self._call(lambda: self._client.update_run(run, name=name))

    def delete(self, run: str) -> None:
        """Delete a run."""
        self._call(lambda: self._client.delete_run(run))

    def held(self, run: str) -> Held:
        """Return what the store holds of a run: the last step of each metric, its parameters and its description."""
        found = self._call(lambda: self._client.get_run(run))
        steps = {metric.key: int(metric.step) for metric in found.data.to_proto().metrics}
        tags = found.data.tags
        return Held(steps, dict(found.data.params), tags.get(mlflow_view.NOTE, ""), tags.get("error", ""))

    def times(self, run: str, metric: str) -> Mapping[int, Sequence[int]]:
        """Return when the values of a metric were taken, by their step [unix milliseconds]; empty if it has none."""
        found: dict[int, list[int]] = {}
        for value in self._call(lambda: self._client.get_metric_history(run, metric)):
            found.setdefault(int(value.step), []).append(int(value.timestamp))
        return found

    def log(
        self,
        run: str,
        values: Sequence[Value],
        params: Sequence[tuple[str, str]] = (),
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Write parameters, then values, then tags; writing the same again changes nothing."""
        from mlflow.entities import Metric, Param, RunTag

        self._call(
            lambda: self._client.log_batch(
                run,
                [Metric(*value) for value in values],
                [Param(*param) for param in params],
                [RunTag(*tag) for tag in (tags or {}).items()],
            )
        )

    def status(self, run: str, status: str, ended: int | None) -> None:
        """Set the run's status and its end [unix milliseconds]."""
        if status in ("RUNNING", "SCHEDULED"):
            self._call(lambda: self._client.update_run(run, status))
        else:
            self._call(lambda: self._client.set_terminated(run, status, ended))

    def dataset(self, run: str, corpus: Corpus) -> None:
        """Say what a run was trained on."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        about = Dataset(corpus.name, corpus.digest, "local", corpus.source, profile=corpus.profile)
        inputs = [DatasetInput(about, [InputTag("mlflow.data.context", "training")])]
        self._call(lambda: self._client.log_inputs(run, inputs))

    def artifacts(self, run: str, folder: Path) -> None:
        """Copy all of a folder to the run's artifacts."""
        place = self._artifact_uris.pop(run, None)
        if place is None:
            self._call(lambda: self._client.log_artifacts(run, str(folder)))
            return
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        uri = self._client.tracking_uri

        def copy() -> None:
            files: Any = get_artifact_repository(place, tracking_uri=uri)
            files.log_artifacts(str(folder))

        self._call(copy)

    def artifact(self, run: str, file: Path, folder: str | None = None) -> None:
        """Copy a file to the run's artifacts."""
        self._call(lambda: self._client.log_artifact(run, str(file), folder))

    def version(self, name: str, tags: Mapping[str, str]) -> str | None:
        """Return the newest version of a registered model that carries all of these tags; None where there is none."""
        found = self._call(lambda: self._client.search_model_versions(f"name='{name}'"))
        same = [int(one.version) for one in found if tags.items() <= dict(one.tags).items()]
        return str(max(same)) if same else None

    def register(self, run: str, folder: Path, name: str, tags: Mapping[str, str]) -> str:
        """Copy an MLflow model to a run's artifacts and register it; return the version of `name` that it became."""
        place = f"models/{folder.name}"
        self._call(lambda: self._client.log_artifacts(run, str(folder), place))
        with contextlib.suppress(RunRefusedError):  # it is there already
            self._call(lambda: self._client.create_registered_model(name))
        source = f"{self._call(lambda: self._client.get_run(run)).info.artifact_uri}/{place}"
        return str(self._call(lambda: self._client.create_model_version(name, source, run, dict(tags))).version)

    def _call(self, call: Callable[[], T]) -> T:
        """Call MLflow and turn its errors into the three that a syncer can act on."""
        from mlflow.exceptions import MlflowException

        uri = str(self._client.tracking_uri)
        try:
            return call()
        except MlflowException as error:
            text = self._redact(str(error)).strip()
            code = str(error.error_code)
            if code == "RESOURCE_DOES_NOT_EXIST":
                raise RunGoneError(text) from None
            if code in _REFUSED:
                raise RunRefusedError(text) from None
            raise StoreAwayError(in_words(text, uri)) from None
        except OSError as error:  # requests' errors are OSErrors too
            raise StoreAwayError(in_words(self._redact(str(error)), uri)) from None


def _tracked(run: Run) -> TrackedRun:
    info = run.info
    return TrackedRun(info.run_id, run.data.tags.get("point_key", ""), info.start_time or 0, info.run_name or "")


def _errors() -> tuple[type[Exception], ...]:
    """Return what MLflow raises, its database's errors among them; named late, because importing it imports mlflow."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return (MlflowException, SQLAlchemyError)
