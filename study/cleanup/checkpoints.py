"""Which checkpoints of a study are still needed, and removing the others so that a kill tears none.

Decided purely from what was found on disk (:func:`keep`); a run is only touched under its own lock, which whoever
advances it holds. A checkpoint is first renamed to a name that every reader passes over, then removed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from study.records.checkpoints import ABANDONED, MANIFEST, PREFIX, Checkpoint, read
from study.records.point import Point
from study.records.points import load_points
from study.storage.files import RunLock, folder_size, locked
from study.storage.layout import RunFolder, StudyFolder
from study.storage.shapes import TEXT, Shape, object_of, record_in
from train.spec.lineage import parse as parse_parent

STAGING = ".staging-"
"""The trainer's name for what is not a checkpoint yet: it removes these itself when it saves next."""
OURS = re.compile(r"__\d+_\d+\.distcp|\.metadata(\.tmp)?|manifest\.json|pinned|torn|abandoned")
"""Files of a checkpoint. A folder that holds anything else is left alone: somebody put that there."""
RULES = ("last", "best", "every")
POINT = Shape(
    "a point",
    {"config": object_of(Shape("a config", {"schedule": object_of(Shape("", {"parent": TEXT}))}, ("schedule",)))},
    ("config",),
)


@dataclass(frozen=True)
class KeepRules:
    """Checkpoints of a run that stay: the `last` newest, the `best` by validation loss, those of every n-th step."""

    last: int = 1
    best: int = 0
    every: int = 0


@dataclass(frozen=True)
class Needs:
    """Checkpoints that other runs start from: the tokens of each, by the run's key; folders named by their path."""

    tokens: Mapping[str, frozenset[int]]
    folders: frozenset[Path]


Fence = Callable[[], AbstractContextManager[Needs]]


@dataclass(frozen=True)
class Pruning:
    """What is (to be) removed of a run, what stays of it and why, or why it was not touched."""

    key: str
    removed: tuple[Checkpoint, ...] = ()
    kept: tuple[tuple[Checkpoint, str], ...] = ()
    leftovers: int = 0
    skipped: str = ""

    @property
    def bytes(self) -> int:
        """What the removal frees [bytes]."""
        return sum(one.bytes for one in self.removed) + self.leftovers


def parse(text: str) -> KeepRules:
    """Return the policy in `last=2,best=1,every=1000`. Raises ValueError that says what is allowed."""
    given: dict[str, int] = {}
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\w+)\s*=\s*(\d+)\s*", part)
        if not found or found[1] not in RULES:
            raise ValueError(
                f"--keep {part.strip()!r} is not a rule: write last=N (the newest), best=N (the lowest validation "
                "loss) or every=N (steps), several with commas between them"
            )
        given[found[1]] = int(found[2])
    return KeepRules(**{"last": 0, **given})


def keep(found: Sequence[Checkpoint], policy: KeepRules, needed: frozenset[int], unfinished: bool) -> dict[Path, str]:
    """Return the folders that stay, with why. Pure.

    `needed`: tokens that others go on from. An unfinished run keeps its newest whole checkpoint whatever the policy.
    What is not whole is never counted, and stays only where it is pinned or needed; what was abandoned only where it is
    pinned.
    """
    whole = sorted((one for one in found if one.whole and not one.abandoned), key=lambda one: one.step)
    stays: dict[Path, str] = {}
    for one in whole[len(whole) - policy.last :] if policy.last else []:
        stays[one.folder] = "last"
    measured = sorted((one for one in whole if one.loss is not None), key=lambda one: (one.loss, -one.step))
    for one in measured[: policy.best]:
        stays.setdefault(one.folder, "best")
    for one in whole:
        if policy.every and one.step and one.step % policy.every == 0:
            stays.setdefault(one.folder, f"every {policy.every}")
    if unfinished and whole:
        stays.setdefault(whole[-1].folder, "its run goes on from it")
    for one in found:
        if one.pinned:
            stays[one.folder] = "pinned"
        if one.foreign:
            stays[one.folder] = f"it is not all ours: {one.foreign}"
        if one.tokens in needed and not one.abandoned:
            stays[one.folder] = "another run continues from it"
    return stays


def needs(folder: StudyFolder, points: Mapping[str, Point], copied: Iterable[tuple[str, int]] = ()) -> Needs:
    """Return what branches and copies still go on from: those of this study, and folders named in its neighbours.

    `copied`: checkpoints (key, tokens) that a search may still copy. A point needs its parent until it has its
    outcome: were its own checkpoints torn, it would begin there again.
    """
    tokens: dict[str, set[int]] = {}
    for key, point in points.items():
        parent = parse_parent(point.parent)
        if parent is not None and not folder.run(key).outcome.exists():
            tokens.setdefault(parent.key, set()).add(parent.tokens)
    for key, at in copied:
        tokens.setdefault(key, set()).add(at)
    folders: set[Path] = set()
    for listed in folder.path.parent.glob("*/points.jsonl"):
        folders |= _named_folders(listed)
    return Needs({key: frozenset(at) for key, at in tokens.items()}, frozenset(folders))


def stored(run: RunFolder) -> list[Checkpoint]:
    """Return a run's checkpoints, oldest first."""
    every = (*run.checkpoints.glob(f"{PREFIX}*"), *run.checkpoints.glob(f"{ABANDONED}-*-{PREFIX}*"))
    return sorted(
        (_stored(folder) for folder in every if folder.name.rpartition("-")[2].isdigit()),
        key=lambda one: (one.step, one.folder),
    )


def prune(run: RunFolder, policy: KeepRules, fence: Fence, really: bool) -> Pruning:
    """Remove the checkpoints that a run does not need (`really` False: list them), under its lock; skip it if held.

    fence: yields the checkpoints that others need, under locks that keep these from changing during the removal.
    """
    key = run.path.name
    if not run.checkpoints.is_dir():
        return Pruning(key)
    if linked := next((place for place in (run.path, run.checkpoints) if place.is_symlink()), None):
        return Pruning(key, skipped=f"{linked.name} is a link, and what it leads to may be another's")
    lock = RunLock(run.lock)
    try:
        if not lock.acquire():
            return Pruning(key, skipped="an attempt is advancing it")
        found = stored(run)
        left = [place for place in run.checkpoints.glob(f"{STAGING}*") if not _foreign(place)]
        size = sum(map(folder_size, left))
        if really:
            for place in left:  # first: an earlier removal that was killed may have left a name that is needed
                shutil.rmtree(place)
        with fence() as now:
            stays = keep(found, policy, now.tokens.get(key, frozenset()), not run.outcome.exists())
            named = {one.folder for one in found if now.folders and one.folder.resolve() in now.folders}
            stays |= dict.fromkeys(named, "another run continues from it")
            gone = tuple(one for one in found if one.folder not in stays)
            away = [_put_away(one.folder) for one in gone] if really else []
        for place in away:
            shutil.rmtree(place)
        return Pruning(key, gone, tuple((one, stays[one.folder]) for one in found if one.folder in stays), size)
    finally:
        lock.close()


def _put_away(checkpoint: Path) -> Path:
    """Give a checkpoint a name that every reader passes over."""
    return checkpoint.rename(checkpoint.with_name(f"{STAGING}removed-{checkpoint.name}"))


def _stored(folder: Path) -> Checkpoint:
    one = read(folder)
    return replace(
        one,
        bytes=folder_size(folder),
        whole=one.files is not None and all(_is(folder, name, said) for name, said in one.files.items()),
        foreign=_foreign(folder) or ("" if (folder / MANIFEST).is_file() else f"no {MANIFEST} of ours"),
    )


def _foreign(folder: Path) -> str:
    """Return what is in a checkpoint's folder, or one of a save that was killed, which no trainer of ours writes."""
    if folder.is_symlink() or not folder.is_dir():
        return "it is a link" if folder.is_symlink() else "it is a file"
    with os.scandir(folder) as entries:
        strange = [e.name for e in entries if not (OURS.fullmatch(e.name) and e.is_file(follow_symlinks=False))]
    return min(strange, default="")


def _is(folder: Path, name: str, about: object) -> bool:
    try:
        return isinstance(about, dict) and Path(name).name == name and (folder / name).stat().st_size == about["bytes"]
    except (OSError, KeyError):
        return False


def _named_folders(listed: Path) -> set[Path]:
    """Return the checkpoint folders that points of a study name as their parent, without reading every line as JSON."""
    found: set[Path] = set()
    with listed.open(encoding="utf-8", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, 1):
            if '"parent":"/' in line and line.endswith("\n"):
                found |= _parent_in(line, f"{listed}:{number}")
    return found


def _parent_in(line: str, place: str) -> set[Path]:
    """Return the checkpoint that a point starts from, if any. ValueError where the line is damaged: it may name one."""
    entry = record_in(line, POINT)
    try:
        if entry is not None:
            parent = entry["config"]["schedule"].get("parent")
            return {Path(parent).resolve()} if parent else set()
    except ValueError:  # no path can be so
        pass
    raise ValueError(
        f"{place} is not a point, and may name a checkpoint that has to stay: the file was edited or damaged; restore "
        "it from a backup, or remove that line"
    )


@dataclass
class StudyFence:
    """The checkpoints that others start from, under the locks that are held to add to these.

    Those are the study's own, under which its points are appended, also where a point of another study names a
    checkpoint of this one; and in a search the log's, under which copies are decided.
    """

    folder: StudyFolder
    _seen: object = None
    _needs: Needs = field(default_factory=lambda: Needs({}, frozenset()))

    @contextmanager
    def __call__(self) -> Iterator[Needs]:
        """Hold the locks, and yield what is needed now. ValueError where a search has gone on meanwhile."""
        with ExitStack() as stack:
            if self.folder.search.exists():
                from study.search.trial_queue import TrialQueue

                stack.enter_context(TrialQueue.of(self.folder).transaction())
                needed_by_search(self.folder)
            stack.enter_context(locked(self.folder.lock))
            seen = self._state()
            if seen != self._seen:
                self._needs = needs(self.folder, load_points(self.folder), _copied(self.folder))
                self._seen = seen
            yield self._needs

    def _state(self) -> object:
        """Return what changes whenever anything is added."""
        logs = [*self.folder.path.parent.glob("*/points.jsonl"), self.folder.events]
        return {path: path.stat().st_size for path in logs if path.exists()}


def _copied(folder: StudyFolder) -> Iterable[tuple[str, int]]:
    """Return the checkpoints (key, tokens) that members of a population may still copy."""
    if not folder.search.exists():
        return ()
    from study.search.pins import needed

    return needed(folder)


def needed_by_search(folder: StudyFolder) -> dict[str, str]:
    """Return the trials of a search that must not be touched: while it goes on, any may be promoted or copied."""
    from study.search.trial_queue import TrialQueue

    search = TrialQueue.of(folder).search
    if not search.over and (search.claims or not search.stopped):
        raise ValueError(
            f"{folder.name} is a search that still runs, and it may need any of its checkpoints: wait until it is "
            "over, or python -m study cancel it first"
        )
    return {trial.key: "the search may continue from it" for trial in search.trials.values() if not search.over}
