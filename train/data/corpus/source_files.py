"""Where raw text lies: a user's folder, or the Python sources of this environment."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from train.data.corpus.clean import left_out_by_path
from train.spec.manifest import Skipped

PLAIN = (".txt", ".md", ".py", ".rst")
CONTAINERS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
CHUNK_BYTES = 8 << 20
CHUNKS = 512

_NOT_ENTERED = ("__pycache__", "site-packages", "dist-packages")


@dataclass(frozen=True)
class SourceFile:
    """A file to read: its name in reports (relative, with /), its path and its size [bytes]."""

    name: str
    path: str
    size: int


@dataclass(frozen=True)
class Listing:
    """The files of a source in the order of their names, and what was left out by name."""

    description: str
    files: tuple[SourceFile, ...]
    skipped: tuple[Skipped, ...]


def list_environment() -> Listing:
    """Return the sources and prose of the standard library and of the site-packages of this environment.

    Vendored copies, package metadata, licences and generated files are left out by name (`left_out_by_path`).
    """
    roots = {"stdlib": sysconfig.get_path("stdlib")}
    roots |= {"site-packages": sysconfig.get_path("purelib"), "platlib": sysconfig.get_path("platlib")}
    ours = str(Path(__file__).resolve().parents[2])
    files, skipped, seen = [], [], set[str]()
    for label, root in roots.items():
        resolved = str(Path(root).resolve())
        if resolved in seen or not Path(resolved).is_dir():
            continue
        seen.add(resolved)
        for file in _walk(resolved):
            if not file.name.endswith(PLAIN):
                continue
            if resolved == ours and _is_this_project(file.name):
                continue
            why = left_out_by_path(file.name)
            name = f"{label}/{file.name}"
            if why:
                skipped.append(Skipped(name, why))
            else:
                files.append(SourceFile(name, file.path, file.size))
    description = f"sources of {platform.python_implementation()} {platform.python_version()} and its site-packages"
    if not files:
        raise ValueError(
            f"data.source=null: no .py, .md, .rst or .txt file under {', '.join(sorted(seen)) or sys.prefix}: "
            "name a folder of text with data.source"
        )
    return Listing(description, tuple(sorted(files, key=_name)), tuple(skipped))


def list_folder(source: str) -> Listing:
    """Return the text files of a folder and its subfolders; hidden ones (a leading dot) are not looked at.

    Raises ValueError that names data.source when the folder is missing, not a folder, or holds no text.
    """
    folder = Path(source).expanduser()
    allowed = ", ".join(PLAIN + CONTAINERS)
    if not folder.exists():
        raise ValueError(f"data.source={source}: there is no such folder; name a folder of {allowed} files")
    if not folder.is_dir():
        raise ValueError(f"data.source={source}: this is a file; name the folder that holds it")
    files, skipped = [], []
    for file in _walk(str(folder.resolve())):
        if file.name.lower().endswith(PLAIN + CONTAINERS):
            files.append(file)
        else:
            skipped.append(Skipped(file.name, "not a text file by its name"))
    if not files:
        other = f" ({len(skipped)} other files are there)" if skipped else ""
        raise ValueError(f"data.source={source}: no file of {allowed} in this folder{other}")
    return Listing(str(folder.resolve()), tuple(sorted(files, key=_name)), tuple(skipped))


def chunked(files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, ...]]:
    """Yield the files in groups of about 8 MB (1/512 of all, if that is more): one group is read by one process."""
    limit = max(CHUNK_BYTES, sum(file.size for file in files) // CHUNKS)
    group: list[SourceFile] = []
    size = 0
    for file in files:
        if group and size + file.size > limit:
            yield tuple(group)
            group, size = [], 0
        group.append(file)
        size += file.size
    if group:
        yield tuple(group)


def _walk(root: str) -> Iterator[SourceFile]:
    for parent, folders, names in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in _NOT_ENTERED]
        for name in names:
            if name.startswith("."):
                continue
            path = os.path.join(parent, name)  # noqa: PTH118 -- 30,000 Path objects cost half a second
            try:
                size = os.stat(path).st_size  # noqa: PTH116
            except OSError:  # a dangling link: reading it would be counted as broken, with its reason
                size = 0
            yield SourceFile(path[len(root) + 1 :].replace(os.sep, "/"), path, size)


def _is_this_project(name: str) -> bool:
    """Say whether a file of site-packages is ours: a corpus that changes with our own code is no fixed corpus."""
    top = name.split("/", 1)[0]
    return top in {"study", "train", "kernels", "sweeps", "analysis", "hydra_plugins", "conf"}


def _name(file: SourceFile) -> str:
    return file.name
