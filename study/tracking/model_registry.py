"""A point's exported weights as a version of a model in MLflow's registry."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from study.config.tracking_uri import identity, resolve
from study.status.observer import Observer
from study.storage.layout import StudyFolder
from study.storage.secrets import redactor
from study.tracking import Tracking, model_folder, state
from study.tracking.facts import read_facts
from study.tracking.mapping import corpus
from study.tracking.mlflow_store import MlflowStore, connect
from study.tracking.run_totals import totals
from study.tracking.syncer import Syncer


class ModelRegistry:
    """The registry of the store that a study is sent to."""

    def __init__(self, folder: StudyFolder, tracking: Tracking, observer: Observer) -> None:
        """Send what the store does not have of the study. Raises StoreAwayError where it cannot be reached."""
        uri = resolve(tracking.uri, Path.cwd())
        self._folder, self._redact = folder, redactor(os.environ)
        self._store: MlflowStore = connect(uri, folder.name, Path.cwd(), self._redact)
        self._observer = observer
        Syncer(folder, self._store, identity(uri), self._redact, observer=observer).sync()
        self._runs = state.load(folder.tracking).stores[identity(uri)].runs

    def version(self, name: str, tags: Mapping[str, str]) -> str | None:
        """Return the version of a model that carries these tags; None where there is none."""
        return self._store.version(name, tags)

    def add(self, key: str, hub: Path, name: str, tags: Mapping[str, str]) -> str:
        """Register the Hugging Face folder `hub` of a point as a version of `name`, and return that; it moves.

        The version carries `tags` and what the run is and reached.
        """
        if key not in self._runs:
            raise ValueError(f"the store refused the run of {key}: python -m study sync {self._folder.name} says why")
        about = {**self.about(key), **tags}
        place = hub.parent / f"{key}-step-{tags['step']}-{tags['dtype']}"
        model_folder.write(hub, place, about)
        return self._store.register(self._runs[key].id, place, name, about)

    def about(self, key: str) -> dict[str, str]:
        """Return what tells where a model comes from: study, sizes, tokens, FLOPs, losses, code, corpus."""
        point, facts = self._observer.points[key], read_facts(self._observer, key)
        assert facts is not None, "it has a checkpoint"
        data = corpus(point.raw, self._redact)
        found = {
            "study": self._folder.name,
            **{
                name: f"{value:.10g}"
                for name, value in totals(self._folder, self._observer.known, point, facts).items()
            },
            "code": str((facts.job or {}).get("code") or ""),
            "corpus": "" if data is None else f"{data.name} {data.digest}",
        }
        return {name: self._redact(value) for name, value in found.items() if value}
