"""Pinning the checkpoints that members of a population may still copy, and unpinning the others."""

from __future__ import annotations

from collections.abc import Iterable

from study.records import checkpoints
from study.search.state import Claim, Search
from study.storage.layout import StudyFolder
from train.spec.lineage import parse


def keep(folder: StudyFolder, search: Search, key: str, tokens: int) -> None:
    """Pin the checkpoint of a value that is about to be reported: from then on other members may copy it."""
    if search.scheduler.population is not None and not checkpoints.pin(folder.run(key), tokens):
        print(f"{key}: no checkpoint at {tokens:,} tokens to keep for others", flush=True)


def release(folder: StudyFolder, search: Search, claim: Claim) -> None:
    """Unpin what nobody can copy after a unit's end: in its own run, and in the one that it was copied from."""
    if search.scheduler.population is not None:
        trial = search.trials[claim.unit.trial]
        donor = parse(trial.origin)
        _release(folder, search, {claim.key, trial.key, *([donor.key] if donor else [])})


def release_all(folder: StudyFolder, search: Search) -> None:
    """Unpin all checkpoints that nobody can copy any more, also those that killed workers left."""
    if search.scheduler.population is not None:
        _release(folder, search, search.keys)


def needed(folder: StudyFolder) -> set[tuple[str, int]]:
    """Return the checkpoints (key, tokens) of a study's search that trials may still copy or go on from."""
    from study.search.trial_queue import TrialQueue

    search = TrialQueue.of(folder).search
    if search.scheduler.population is None:
        return set()
    return {(place.key, place.tokens) for text in search.needed() if (place := parse(text)) is not None}


def _release(folder: StudyFolder, search: Search, keys: Iterable[str]) -> None:
    # A checkpoint that is not needed never will be: a copy starts where its donor stands when it is decided.
    still = search.needed()
    for key in keys:
        for one in checkpoints.saved(folder.run(key)):
            if one.pinned and f"{key}@{one.tokens}" not in still:
                checkpoints.unpin(folder.run(key), one.tokens)
