"""When a job that ends looks after the other jobs of its study."""

from __future__ import annotations

import time

from study.storage.layout import StudyFolder

LOOK_SECONDS = 60.0
"""How often the jobs of a study look after each other as they end, all of them together."""


def is_time_to_look(study: StudyFolder, key: str) -> bool:
    """Whether a job whose point has ended looks after the others: once in a while, and always as one of the last."""
    if not looked_lately(study):
        return True
    from study.reconcile.last_job import is_nearly_done

    return is_nearly_done(study, {key})


def looked_lately(study: StudyFolder) -> bool:
    """Whether a job has checked the others within LOOK_SECONDS: of thousands that end at once one is enough."""
    try:
        return 0 <= time.time() - study.peers_checked.stat().st_mtime < LOOK_SECONDS
    except OSError:
        return False
