"""Walking a folder: its files with size and time, links to other folders followed once.

Names are compared and reported as they are seen from the folder; a file's path is its real one. What is reached in two
ways is read once: under its own name where it lies in the folder, else under the first link's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_NOT_ENTERED = ("__pycache__", "site-packages", "dist-packages")

LeaveOut = Callable[[str, str], None]
"""Gets the name of what is left out, and why."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read: its name in reports (relative, with /), its path, its size [bytes], its time of change [ns].

    kind: the extension by which it is read; linked: a link was followed to it.
    """

    name: str
    path: str
    size: int
    time: int = 0
    kind: str = ""
    linked: bool = False


def walk(root: str, kind: Callable[[str], str | None], leave_out: LeaveOut, *, follow: bool) -> Iterator[SourceFile]:
    """Yield the files below a folder, given by its real path; hidden ones (a leading dot) are not looked at.

    kind: gives the extension of a file's name, None for one that is no text. follow: links to folders are entered after
    everything else, in the order of their names, unless the folder they lead to has been, or holds the root. Folders
    that cannot be listed, and what is neither a file nor a link to one, are left out. A dangling link has no size: to
    read it says why.
    """
    walked = _Walk(kind, leave_out)
    yield from walked.below(root, "", linked=False)
    while follow and walked.links:
        links, walked.links = sorted(walked.links), []
        for name, target in links:
            if f"{root}{os.sep}".startswith(target.rstrip(os.sep) + os.sep):
                if target != root:
                    leave_out(name, "a link to a folder around this one")
            else:
                yield from walked.below(target, f"{name}/", linked=True)


@dataclass
class _Walk:
    """What has been entered (device and inode), and the links to folders that were met, with their real paths."""

    kind: Callable[[str], str | None]
    leave_out: LeaveOut
    entered: set[tuple[int, int]] = field(default_factory=set)
    links: list[tuple[str, str]] = field(default_factory=list)

    def below(self, root: str, prefix: str, *, linked: bool) -> Iterator[SourceFile]:
        """Yield the files of one tree, without links to folders."""
        folders = [(root, prefix)]
        while folders:
            path, named = folders.pop()
            try:
                status = os.stat(path)  # noqa: PTH116 -- 30,000 Path objects cost half a second
                if (status.st_dev, status.st_ino) in self.entered:
                    continue
                self.entered.add((status.st_dev, status.st_ino))
                entries = list(os.scandir(path))
            except OSError as error:
                self.leave_out(named or path, f"cannot be listed: {error.strerror}")
                continue
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                name = named + entry.name
                if not entry.is_dir(follow_symlinks=False):
                    yield from self._file(entry, name, linked)
                elif entry.name not in _NOT_ENTERED:
                    folders.append((entry.path, f"{name}/"))

    def _file(self, entry: os.DirEntry[str], name: str, linked: bool) -> Iterator[SourceFile]:
        link = entry.is_symlink()
        kind = self.kind(name)
        if link and entry.is_dir():
            if entry.name not in _NOT_ENTERED:
                self.links.append((name, os.path.realpath(entry.path)))
        elif kind is None:
            self.leave_out(name, "not a text file by its name")
        else:
            try:
                status = entry.stat()
            except OSError:
                yield SourceFile(name, entry.path, 0, 0, kind, linked or link)
                return
            if stat.S_ISREG(status.st_mode):
                path = os.path.realpath(entry.path) if link else entry.path
                yield SourceFile(name, path, status.st_size, status.st_mtime_ns, kind, linked or link)
            else:
                self.leave_out(name, "not a regular file")
