"""Copies of the code that jobs run instead of the checkout: one for each code version, beside the studies that need it.

With `cluster.code=frozen` a submission copies the packages' sources into `<paths.runs>/.code/<version>/`, and its jobs
import them from there, however often they are started again. A copy is made under another name and renamed once it is
whole. Processes that run in a copy know so by its marker, which also names the checkout that it was taken from.
"""

from __future__ import annotations

import os
import shutil
import site
import time
import uuid
from contextlib import suppress
from pathlib import Path

import study
from study.process import code_version
from study.process.code_version import COPY, MARKER, CodeVersion
from study.storage import locks
from study.storage.files import locked, naming, write_json
from study.storage.layout import StudyFolder
from study.storage.secrets import secret_finder
from study.storage.shapes import read_record

SHELF = ".code"
STAGING = ".staging-"
STAGED = ".staged"
"""In a copy that is being made, or removed: with the marker of a whole one the sign that we made what is there."""
TRIES = 3
LOCK_SECONDS = 300.0


def snapshot_path(folder: StudyFolder, version: str) -> Path:
    """Return where the copy of a version lies, which all studies in one folder share."""
    return folder.path.absolute().parent / SHELF / version


def is_whole(copy: Path) -> bool:
    """Whether a copy is there: its marker is written last, and its name is given last."""
    return (copy / MARKER).is_file()


def take(folder: StudyFolder, mode: str) -> CodeVersion:
    """Return the version of the code as it is now, written down for a study and, where mode is `frozen`, copied.

    Raises ValueError where the sources go on changing meanwhile, or hold a secret.
    """
    version = code_version.current()
    if mode == "frozen":
        version = _copied(folder, version)
    code_version.save(version, folder)
    return version


def would_be(folder: StudyFolder, mode: str) -> Path | None:
    """Return the copy that a submission would make of the code as it is now; None where it would make none."""
    return snapshot_path(folder, code_version.current().id) if mode == "frozen" else None


def source(folder: StudyFolder, mode: object, version: str | None) -> Path | None:
    """Return the copy that jobs of this version are to import from; None where they run the checkout.

    Raises ValueError where the copy is gone.
    """
    if mode != "frozen" or version is None:
        return None
    copy = snapshot_path(folder, version)
    if not is_whole(copy):
        raise ValueError(
            f"{copy}, the code that was frozen for these points, is gone: cancel them (python -m study cancel), "
            "then run the study's command again, which takes the code as it is now"
        )
    return copy


def import_path(copy: Path | None) -> list[str]:
    """Return the folders that a job is to import from first: a copy, then the checkout unless that is installed."""
    home = code_version.home()
    live = [] if str(home) in site.getsitepackages() else [str(home)]
    return live if copy is None else [str(copy), *live]


def ran(folder: StudyFolder, version: str | None, mode: object) -> str | None:
    """Return which code this process runs, beside what its submission recorded.

    frozen: the copy of that version. live: the checkout, which still is that version. other: neither. None: nothing
    was recorded, or by an older version, so that nobody can tell. Costs no git call.
    """
    root = Path(study.__file__).resolve().parents[1]
    marker = read_record(root / MARKER, COPY)
    if marker is not None:
        return "frozen" if marker["id"] == version else "other"
    if version is None:
        return None
    if mode == "frozen":
        return "other"
    recorded = code_version.load(folder, version).get("sources")
    if recorded is None:
        return None
    try:
        return "live" if code_version.is_same(root, recorded) else "other"
    except OSError:  # they are being replaced
        return "other"


def _copied(folder: StudyFolder, version: CodeVersion) -> CodeVersion:
    """Copy the code, and return the version that was copied: it may have changed since it was looked at."""
    shelf = folder.path.absolute().parent / SHELF
    shelf.mkdir(parents=True, exist_ok=True)
    if locks.kind_of(folder.lock) == "link":
        locks.choose(shelf, "link")
    try:
        with locked(shelf / "lock", LOCK_SECONDS):
            return _made(folder, shelf, version)
    except TimeoutError:
        raise ValueError(
            f"{shelf}: another process has been copying code for {LOCK_SECONDS:.0f} s: look at it, then give the "
            "command again"
        ) from None


def _made(folder: StudyFolder, shelf: Path, version: CodeVersion) -> CodeVersion:
    """Find the copy or make it; return the version that it is of. For the lock's holder."""
    for _ in range(TRIES):
        copy = snapshot_path(folder, version.id)
        if is_whole(copy):
            with suppress(PermissionError):  # somebody else's, and theirs to remove
                os.utime(copy / MARKER)
            return version
        staged = _stage(shelf, version)
        again = code_version.current()
        if again == version:
            _clear(copy)
            staged.rename(copy)
            return version
        remove_copy(staged)
        version = again
    raise ValueError(
        f"cluster.code=frozen: the sources in {code_version.home()} change while they are copied: give the command "
        "again when they do not"
    )


def _stage(shelf: Path, version: CodeVersion) -> Path:
    """Copy the sources under a name that nobody takes for a copy; return that folder. For the lock's holder."""
    for left in shelf.glob(f"{STAGING}*"):
        if is_ours(left):
            remove_copy(left)
    home, staged = code_version.home(), shelf / f"{STAGING}{uuid.uuid4().hex[:10]}"
    holds_secret = secret_finder(os.environ)
    staged.mkdir()
    (staged / STAGED).touch()
    try:
        for name in code_version.files(home):
            data = (home / name).read_bytes()
            if holds_secret(data.decode(errors="replace")):
                raise ValueError(
                    f"cluster.code=frozen copies the sources as they are, and {home / name} holds a secret (a value "
                    "of your environment's, or a token): read it from the environment where it is used, or take "
                    "cluster.code=live"
                )
            _write(home / name, staged / name, data)
        marker = {"format": 1, "id": version.id, "home": str(home), "time": round(time.time(), 3)}
        write_json(staged / MARKER, marker)
        (staged / STAGED).unlink()
    except BaseException:
        remove_copy(staged)
        raise
    return staged


def _write(original: Path, path: Path, data: bytes) -> None:
    """Write one file durably, with the time of its last change, for those to read who may read the original."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about = original.stat()
    with naming(path), path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), about.st_mode & 0o555)
    # As read just now: some file systems delete what nobody has read for long.
    os.utime(path, ns=(time.time_ns(), about.st_mtime_ns))


def is_ours(folder: Path) -> bool:
    """Whether a folder of the shelf is a copy, or what is left of one: nothing else is counted or removed there."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    marker = read_record(folder / MARKER, COPY)
    if folder.name.startswith(STAGING):
        return marker is not None or (folder / STAGED).is_file()
    return marker is not None and marker["id"] == folder.name


def _clear(copy: Path) -> None:
    """Remove what is left of a copy where files that are old are deleted, its marker perhaps the first of them.

    ValueError where something else is there.
    """
    if not copy.exists() and not copy.is_symlink():
        return
    if copy.is_symlink() or any(place.name not in (MARKER, *code_version.PACKAGES) for place in copy.iterdir()):
        raise ValueError(f"{copy} is not a copy of the code, which has to be made there: move it away")
    (copy / STAGED).touch()
    remove_copy(copy.rename(copy.with_name(f"{STAGING}{copy.name}")))


def remove_copy(folder: Path) -> None:
    """Remove a copy of ours, or what is left of one: its sign last, so that a removal that is killed goes on later."""
    if not is_ours(folder):
        return
    with suppress(OSError):
        (folder / STAGED).touch()
        for place in folder.iterdir():
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place, ignore_errors=True)
            elif place.name != STAGED:
                place.unlink()
    shutil.rmtree(folder, ignore_errors=True)
