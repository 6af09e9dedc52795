"""Checkpoints as folders: their names, their manifest, which of them is whole, which of them stay.

A checkpoint is a folder `step-<n>` with the shards that the ranks wrote (`__<rank>_0.distcp`), their index
(`.metadata`) and `manifest.json`: progress, what it belongs to, and size and sha256 of every file. It is written as a
staging folder and moved in by one rename, so a killed save leaves a folder that nobody reads; one that it replaces is
put aside before and, if the rename never came, put back by `recover`. What a crash of the machine or a full disk tears
is caught by size and hash. No torch here.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from train.runtime.console import warn
from train.runtime.files import describe, sync_folder, write_synced

FORMAT = 2
MANIFEST = "manifest.json"
PIN = "pinned"
"""A file of this name in a checkpoint keeps it for good; it is no part of the checkpoint."""
ABANDONED = "abandoned"
"""A file of this name in a checkpoint says that its run went back to before it and took another path.

Only one that stays for good is left then: for whoever names its folder, and for nobody else.
"""
TORN = "torn"
"""A file of this name in a checkpoint says that it was read and found damaged; its next save replaces it."""
_STAGING = ".staging-"
_ASIDE = ".replaced"
_PREFIX = "step-"

T = TypeVar("T")
Gather = Callable[[Any], list[Any]]
"""Returns every rank's thing in the order of ranks, on every rank."""


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay: the newest `newest`, those of every `permanent_steps` steps (0: none), pinned ones."""

    newest: int = 2
    permanent_steps: int = 0

    def kept(self, steps: Iterable[int], pinned: Iterable[int] = ()) -> set[int]:
        """Return which of these steps' checkpoints stay."""
        have = sorted(steps)
        return set(have[-self.newest :]) | self.permanent(have) | (set(pinned) & set(have))

    def permanent(self, steps: Iterable[int]) -> set[int]:
        """Return which of these steps' checkpoints stay for good."""
        return {s for s in steps if self.permanent_steps and s and s % self.permanent_steps == 0}


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on disk; `manifest` is what was handed to the save, and `files`."""

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def progress(self) -> Mapping[str, Any]:
        """The run's progress at this step."""
        return dict(self.manifest["progress"])

    @property
    def identity(self) -> Mapping[str, Any]:
        """What the checkpoint belongs to: scientific config and data."""
        return dict(self.manifest["identity"])


def folder_of(root: Path, step: int) -> Path:
    """Return where the checkpoint of a step lies."""
    return root / f"{_PREFIX}{step:09d}"


def staging_of(root: Path, step: int) -> Path:
    """Return where the checkpoint of a step is written before it is whole."""
    return root / f"{_STAGING}{_PREFIX}{step:09d}"


def stage(root: Path, step: int) -> Path:
    """Make and return an empty staging folder for a step, after removing what killed saves left.

    FileNotFoundError where the run's folder is not there: one that was moved is not begun anew at its old place.
    """
    if not root.is_dir():
        root.mkdir()
        sync_folder(root.parent)
    discard(root)
    staging = staging_of(root, step)
    staging.mkdir()
    return staging


def recover(root: Path) -> None:
    """Put back what was put aside for a checkpoint that then never came: it may be the only whole one."""
    for aside in root.glob(f"{_STAGING}{_PREFIX}*{_ASIDE}"):
        place = root / aside.name.removeprefix(_STAGING).removesuffix(_ASIDE)
        if not place.exists():
            with contextlib.suppress(OSError):
                aside.rename(place)


def discard(root: Path) -> None:
    """Remove every staging folder, ignoring errors."""
    with contextlib.suppress(OSError):  # a folder of another user is not even listed
        recover(root)
        for left in root.glob(f"{_STAGING}*"):
            shutil.rmtree(left, ignore_errors=True)


def commit(root: Path, step: int, manifest: Mapping[str, Any], files: Mapping[str, Any], retention: Retention) -> Path:
    """Make the staged step a checkpoint in one rename, remove what retention does not keep, return its folder."""
    staging, place = staging_of(root, step), folder_of(root, step)
    replaced = staging.with_name(staging.name + _ASIDE)
    write_synced(staging / MANIFEST, json.dumps({"format": FORMAT, **manifest, "files": dict(files)}, indent=1) + "\n")
    sync_folder(staging)
    if place.exists():  # a torn one, one that is being replaced by its equal, or one of a path that was abandoned
        if (place / PIN).exists():
            (staging / PIN).touch()
        # It may be the only whole one: it goes once the new one lies there.
        place.rename(_aside(place) if (place / ABANDONED).exists() else replaced)
    staging.rename(place)
    sync_folder(root)
    shutil.rmtree(replaced, ignore_errors=True)
    prune(root, retention, step)
    return place


def prune(root: Path, retention: Retention, newest: int) -> None:
    """Remove the checkpoints that retention does not keep, as of the one of step `newest`, which was just saved.

    Those that are seen to be torn do not count, as they would cost whole ones their place; they go once enough whole
    ones are newer. Later ones are torn as well, the run went on from before them: they stay until the next save of
    their step replaces them. One that cannot be removed is named on standard error and stays.
    """
    folders = {step: folder for folder in _folders(root) if (step := _step(folder)) <= newest}
    sound = sorted(step for step, folder in folders.items() if step == newest or _sound(folder))
    pinned = {step for step, folder in folders.items() if (folder / PIN).exists()}
    oldest = sound[-retention.newest] if len(sound) >= retention.newest else 0
    torn = {step for step in folders.keys() - set(sound) if step > oldest}
    for step in folders.keys() - retention.kept(sound) - retention.permanent(folders) - pinned - torn:
        try:
            _remove(folders[step])
        except OSError as error:
            warn(f"checkpoint {folders[step]} is not needed any more and cannot be removed: {error}")


def abandon_from(root: Path, step: int, retention: Retention) -> None:
    """Remove the checkpoints of `step` and later, as a run went back to before them; mark those that stay for good."""
    later = {_step(folder): folder for folder in _folders(root) if _step(folder) >= step}
    permanent = retention.permanent(later)
    for number, folder in later.items():
        if number in permanent or (folder / PIN).exists():
            write_synced(folder / ABANDONED, "")
        else:
            _remove(folder)
    if later:
        sync_folder(root)


def _aside(abandoned: Path) -> Path:
    """Return a free name for an abandoned checkpoint whose step its run has reached again."""
    names = (abandoned.with_name(f"{ABANDONED}-{number}-{abandoned.name}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def mark_torn(root: Path, found: Checkpoint | None) -> None:
    """Mark the checkpoints that `newest` has passed over to get to this one, as far as they can be written to.

    One that could not be read before, and can be now, loses its mark.
    """
    for folder in _folders(root):
        with contextlib.suppress(OSError):
            if found is None or folder.name > found.folder.name:
                (folder / TORN).touch()
            elif folder.name == found.folder.name:
                (folder / TORN).unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    """Remove a checkpoint: by one rename, so that no half of it is ever taken for one, and then its files."""
    gone = folder.with_name(f"{_STAGING}removed-{folder.name}")
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _sound(folder: Path) -> bool:
    """Say whether nothing is seen to be wrong with a checkpoint without reading its shards: its files' sizes."""
    if (folder / TORN).exists():
        return False
    try:
        files = read_manifest(folder)["files"]
        return all((folder / name).stat().st_size == described["bytes"] for name, described in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def pin(folder: Path, pinned: bool = True) -> None:
    """Keep a checkpoint whatever the retention says, or end that."""
    if pinned:
        write_synced(folder / PIN, "")
    else:
        (folder / PIN).unlink(missing_ok=True)


def newest(
    root: Path,
    rank: int = 0,
    size: int = 1,
    gather: Gather | None = None,
    *,
    before: int | None = None,
    at_tokens: int | None = None,
) -> Checkpoint | None:
    """Return the newest whole checkpoint under `root`; torn ones are named on standard error and passed over.

    `before`: only of steps before this one. `at_tokens`: only one whose manifest says that it was taken there.
    With several ranks each of them calls this with a `gather`: the files are hashed once, shared out over the ranks,
    and all return the same.
    """
    together = gather or (lambda thing: [thing])
    found = [folder for folder in sorted(_folders(root), reverse=True) if before is None or _step(folder) < before]
    if at_tokens is not None and rank == 0:
        found = [folder for folder in found if _tokens(folder) == at_tokens]
    names = together([folder.name for folder in found] if rank == 0 else None)[0]
    for name in names:
        whole, why = _whole(root / name, rank, size, together)
        if whole is not None:
            return whole
        if rank == 0:
            warn(f"checkpoint {root / name} is incomplete ({why}): an older one is used")
    return None


def single(folder: Path, rank: int = 0, size: int = 1, gather: Gather | None = None) -> Checkpoint | None:
    """Return the checkpoint in this very folder, also one that its run abandoned; None where there is no whole one.

    One that is not whole is named on standard error. Ranks call it as they call `newest`.
    """
    together = gather or (lambda thing: [thing])
    if not together((folder / MANIFEST).exists() if rank == 0 else None)[0]:
        return None
    whole, why = _whole(folder, rank, size, together)
    if whole is None and rank == 0:
        warn(f"checkpoint {folder} is incomplete ({why})")
    return whole


def _whole(folder: Path, rank: int, size: int, together: Gather) -> tuple[Checkpoint | None, str]:
    """Return a checkpoint if all ranks find their share of its files to be whole, and else why it is not."""
    manifest, why = _attempt(lambda: read_manifest(folder))
    if manifest is not None:
        why = verify(folder, manifest, share(manifest["files"], rank, size))
    whys = [w for w in together(why) if w is not None]
    if whys or manifest is None:
        return None, whys[0]
    return Checkpoint(folder, manifest), ""


def _tokens(folder: Path) -> int | None:
    """Return the tokens of a checkpoint by its manifest; None where that cannot be read."""
    manifest, _ = _attempt(lambda: read_manifest(folder))
    return None if manifest is None else manifest["progress"].get("tokens")


def share(files: Mapping[str, Any], rank: int, size: int) -> list[str]:
    """Return which files a rank hashes: the largest first, dealt round."""
    return sorted(files, key=lambda name: (-files[name]["bytes"], name))[rank::size]


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's manifest; ValueError, KeyError, TypeError or OSError where it is not one."""
    text = (folder / MANIFEST).read_bytes()
    try:
        manifest = json.loads(text)
    except ValueError:
        raise ValueError(f"{MANIFEST} is {'cut off or damaged' if text.strip() else 'empty'}") from None
    if manifest["format"] != FORMAT:
        raise ValueError(f"format {manifest['format']!r}, this version reads {FORMAT}")
    for name in ("progress", "identity"):
        dict(manifest[name])
    for name, described in manifest["files"].items():
        if Path(name).name != name or name in ("", ".", "..") or (folder / name).is_symlink():
            raise ValueError(f"{name!r} is no file of its folder")
        int(described["bytes"])
    return dict(manifest)


def verify(folder: Path, manifest: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Return what is wrong with these files of a checkpoint, None where they are what was written."""
    for name in names:
        described, why = _attempt(lambda name=name: describe(folder / name))  # type: ignore[misc]
        if why is not None:
            return why
        if described != manifest["files"][name]:
            return f"{name} is not what was written"
    return None


def _attempt(call: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return call(), None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return None, str(error) or type(error).__name__


def _folders(root: Path) -> list[Path]:
    """Return the checkpoints of the path that the run is on, whole or not."""
    named = (folder for folder in root.glob(f"{_PREFIX}*") if folder.name.removeprefix(_PREFIX).isdigit())
    return [folder for folder in named if not (folder / ABANDONED).exists()]


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix(_PREFIX))
