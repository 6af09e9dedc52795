"""How runs ended; all outcomes of a study in one file, whose hash tells what depends on them whether they changed."""

from __future__ import annotations

import json

from study.failures.kinds import AttemptState
from study.records.shapes import RUN_OUTCOME
from study.storage.files import write_atomic
from study.storage.layout import StudyFolder
from study.storage.shapes import read_record


def completed(folder: StudyFolder, key: str) -> bool:
    """Whether a run has reached its target."""
    outcome = read_record(folder.run(key).outcome, RUN_OUTCOME)
    return outcome is not None and outcome["state"] == AttemptState.COMPLETED


def export(folder: StudyFolder) -> int:
    """Write `outcomes.jsonl`, one line for each run that has an outcome, sorted by key; return their number.

    The file is replaced by rename, and only if its content differs: an unchanged study keeps an unchanged file.
    """
    lines = []
    for path in sorted(folder.path.glob("*/outcome.json")):
        outcome = read_record(path, RUN_OUTCOME)
        if outcome is not None:  # what is no outcome to `study status` is none here
            lines.append(json.dumps({"key": path.parent.name, **outcome}, sort_keys=True) + "\n")
    text = "".join(lines)
    if not folder.outcomes.is_file() or folder.outcomes.read_text(encoding="utf-8") != text:
        write_atomic(folder.outcomes, text)
    return len(lines)
