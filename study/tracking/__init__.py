"""Sends a study's folder to MLflow, every value exactly once. Importing this does not import mlflow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from study.storage.layout import StudyFolder
    from study.tracking.syncer import Synced

__all__ = ["Tracking", "command", "sync"]


class Tracking(Protocol):
    """What is needed of the config's section `tracking`."""

    @property
    def uri(self) -> str:
        """Address of the store."""

    @property
    def enabled(self) -> bool:
        """Whether anything is tracked at all."""


def sync(folder: StudyFolder, tracking: Tracking, report: Path | None = None) -> Synced:
    """Bring the store up to date with the study's files, once, in this process (mlflow is imported here).

    Raises ValueError for a study or an address that cannot be synced, StoreAwayError where the store cannot be
    reached: nothing is lost then, the next call carries on.
    """
    from study.config.tracking_uri import resolve
    from study.tracking.syncer import Synced, open_syncer

    if not tracking.enabled:
        return Synced()
    return open_syncer(folder, resolve(tracking.uri, Path.cwd()), report).sync()


def command(folder: StudyFolder, uri: str | None = None, report: Path | None = None, follow: bool = True) -> list[str]:
    """Return the command line of a syncer process; a following one ends after this process has gone."""
    import os

    line = [sys.executable, "-m", "study.tracking", "sync", str(folder.path)]
    line += ["--follow", "--parent", str(os.getpid())] if follow else []
    line += ["--uri", uri] if uri else []
    return line + (["--report", str(report)] if report else [])
