"""A plan written down: the study's points, the settings of the submission, and which points it asked for."""

from __future__ import annotations

import json
from pathlib import Path

from study.config.schema import StudyConfig
from study.planning.plan import StudyPlan, folder_of
from study.records.points import append_points
from study.records.settings import settings
from study.storage import locks
from study.storage.files import write_atomic
from study.storage.mounts import obstacle
from train.spec.yamlfile import dump


def check_writable(config: StudyConfig) -> None:
    """Raise ValueError where the study's folder cannot be made or written to, as far as that is seen unwritten."""
    folder = folder_of(config).path
    if (there := obstacle(folder)) is not None:
        raise ValueError(f"paths.runs={config.paths.runs}: {there} is no folder that can be written to: name another")


def write(plan: StudyPlan) -> None:
    """Write the study's points and the settings of this submission; what is there already stays untouched."""
    try:
        plan.folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"paths.runs={plan.config.paths.runs}: {plan.folder.path} cannot be made ({error.strerror}): name another"
        ) from None
    locks.choose(plan.folder.path, plan.config.paths.locks)
    append_points(plan.folder, plan.points)
    _update(plan.folder.study, dump(settings(plan.config, plan.folder)))
    _update(plan.folder.latest, json.dumps({"keys": sorted(point.key for point in plan.points)}) + "\n")


def _update(path: Path, text: str) -> None:
    """Write a file, unless it says so already."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_atomic(path, text)
