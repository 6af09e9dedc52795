"""Where MLflow shows a study and its runs, by what the syncer wrote down: no store is asked."""

from __future__ import annotations

from study.config.tracking_uri import identity, is_server, shown
from study.storage.layout import StudyFolder
from study.tracking import mlflow_view, state

LOCAL = "http://127.0.0.1:5000"
"""Where `mlflow ui` answers unless it is given another port."""


def study_page(folder: StudyFolder, uri: str) -> str:
    """Return the address of a study's page in the store `uri` (absolute); "" where it has not been sent there.

    Where the store is no server, it is the address under `mlflow ui` (study.config.tracking_uri.ui_command).
    """
    entry = state.load(folder.tracking).stores.get(identity(uri))
    if entry is None or not entry.experiment:
        return ""
    return mlflow_view.page(shown(uri) if is_server(uri) else LOCAL, entry.experiment)
