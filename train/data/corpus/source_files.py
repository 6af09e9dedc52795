"""Where raw text lies: a user's folder, or the Python sources of this environment."""

from __future__ import annotations

import platform
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from train.data.corpus.clean import left_out_by_path
from train.data.corpus.saved_datasets import files_of, is_saved, of_the_split
from train.data.corpus.tally import Tally
from train.data.corpus.walk import SourceFile, walk
from train.spec.extensions import DEFAULT, PLAIN, extension_of

CHUNK_BYTES = 8 << 20
CHUNKS = 512


@dataclass(frozen=True)
class Listing:
    """The files of a source in the order of their names, and what was left out by name."""

    description: str
    files: tuple[SourceFile, ...]
    skipped: Tally


def list_environment() -> Listing:
    """Return the sources and prose of the standard library and of the site-packages of this environment.

    Vendored copies, package metadata, licences and generated files are left out by name (`left_out_by_path`).
    """
    roots = {"stdlib": sysconfig.get_path("stdlib")}
    roots |= {"site-packages": sysconfig.get_path("purelib"), "platlib": sysconfig.get_path("platlib")}
    ours = str(Path(__file__).resolve().parents[2])
    files, skipped, seen = [], Tally(), set[str]()
    for label, root in roots.items():
        resolved = str(Path(root).resolve())
        if resolved in seen or not Path(resolved).is_dir():
            continue
        seen.add(resolved)
        for file in walk(resolved, _environment_kind, lambda name, why: None, follow=False):
            if resolved == ours and _is_this_project(file.name):
                continue
            why = left_out_by_path(file.name)
            name = f"{label}/{file.name}"
            if why:
                skipped.add(name, why)
            else:
                files.append(replace(file, name=name))
    description = f"sources of {platform.python_implementation()} {platform.python_version()} and its site-packages"
    if not files:
        raise ValueError(
            f"data.source=null: no .py, .md, .rst or .txt file under {', '.join(sorted(seen)) or sys.prefix}: "
            "name a folder of text with data.source"
        )
    return Listing(description, tuple(sorted(files, key=_name)), skipped)


def list_folder(source: str, extensions: Sequence[str] = ()) -> Listing:
    """Return the text files of a folder and its subfolders; hidden ones (a leading dot) are not looked at.

    Links are followed, also out of the folder; what they reach twice is read once. A folder that is a saved Hugging
    Face dataset is read as one. extensions: of text files, as `train.spec.extensions.canonical` gives them. Raises
    ValueError that names data.source when the folder is missing, not a folder, or holds no text.
    """
    folder = Path(source).expanduser()
    extensions = extensions or DEFAULT
    allowed = ", ".join(extensions)
    if not folder.exists():
        raise ValueError(f"data.source={source}: there is no such folder; name a folder of {allowed} files")
    if not folder.is_dir():
        raise ValueError(f"data.source={source}: this is a file; name the folder that holds it")
    skipped = Tally()
    if is_saved(folder):
        return Listing(str(folder.resolve()), tuple(files_of(folder.resolve(), source)), skipped)
    found = list(walk(str(folder.resolve()), partial(extension_of, extensions=extensions), skipped.add, follow=True))
    if not found:
        other = f" ({skipped.total} others are there; data.extensions says which are text)" if skipped.total else ""
        raise ValueError(f"data.source={source}: no file of {allowed} in this folder{other}")
    files = list(_once(sorted(found, key=_name), skipped))
    return Listing(str(folder.resolve()), tuple(of_the_split(files, skipped.add)), skipped)


def _once(files: Iterable[SourceFile], skipped: Tally) -> Iterator[SourceFile]:
    """Yield files without the links to those that are read anyway."""
    files = list(files)
    taken = {file.path for file in files if not file.linked} if any(file.linked for file in files) else set[str]()
    for file in files:
        if file.linked and file.path in taken:
            skipped.add(file.name, "a link to a file that is read already")
            continue
        if file.linked:
            taken.add(file.path)
        yield file


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


def _environment_kind(name: str) -> str | None:
    return next((one for one in PLAIN if name.endswith(one)), None)


def _is_this_project(name: str) -> bool:
    """Say whether a file of site-packages is ours: a corpus that changes with our own code is no fixed corpus."""
    top = name.split("/", 1)[0]
    return top in {"study", "train", "kernels", "sweeps", "analysis", "hydra_plugins", "conf"}


def _name(file: SourceFile) -> str:
    return file.name
