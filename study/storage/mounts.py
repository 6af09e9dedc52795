"""On what kind of file system something lies."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

OF_THE_KERNEL = ("proc", "sysfs")
"""File systems in which nobody makes a folder, whatever the permissions say."""


def file_system(path: Path) -> str:
    """Return the type of the file system that holds a path, as /proc says; "unknown" where it does not."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    return holding(path.absolute().resolve(), mounts)


def holding(path: Path, mounts: str) -> str:
    """Return the type of the file system that holds an absolute path, by the text of `/proc/self/mountinfo`."""
    deepest, kind = 0, "unknown"
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), before.split(" ")[4]))
        if path.is_relative_to(point) and len(point.parts) >= deepest:  # of two on one place the later lies above
            deepest, kind = len(point.parts), after.split(" ")[0]
    return kind


def obstacle(folder: Path) -> Path | None:
    """Return the place that keeps a folder from being made or written to, as far as that is seen unwritten."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    writable = there.is_dir() and os.access(there, os.W_OK) and file_system(there) not in OF_THE_KERNEL
    return None if writable else there


def at_home(words: Sequence[str]) -> list[str]:
    """Return words of the command line with ~/ after the first = made the home folder, as no shell does there."""
    split = [word.partition("=") for word in words]
    return [
        f"{key}={Path(value).expanduser()}" if value.startswith("~/") else f"{key}{equals}{value}"
        for key, equals, value in split
    ]


def check_out(words: Sequence[str]) -> None:
    """Raise ValueError for an `out=FOLDER` among words of the command line in which nothing can be written."""
    for word in words:
        key, equals, value = word.partition("=")
        if key == "out" and equals and value:
            check_folder(word, Path(value))


def may_write(folder: Path) -> bool:
    """Return whether the files of a study can be changed by this user: who watches another's only reads them."""
    return os.access(folder, os.W_OK)


def check_folder(said: str, folder: Path) -> None:
    """Raise ValueError, beginning with what was said (`out=FOLDER`), for a folder in which nothing can be written."""
    if (there := obstacle(folder)) is not None:
        raise ValueError(f"{said}: {there} is no folder that can be written to: name another")


def check_file(said: str, file: Path, suffix: str) -> None:
    """Raise ValueError, beginning with what was said, for a file of another kind, or that cannot be written there."""
    if file.is_dir():
        raise ValueError(f"{said}: {file} is a folder: name a file in it, such as {file / f'NAME{suffix}'}")
    if file.suffix != suffix:
        raise ValueError(f"{said}: the file ends in {suffix}: name it {file.with_suffix(suffix).name}")
    check_folder(said, file.parent)
