"""What a preparation has finished: files that outlive a killed process, found again by what they were made from.

A finished piece is a record (JSON) and files, which are there, whole and on the disk, before the record is. Its key
says what it was made from, the code included. So whoever goes on after a kill does only what was not finished, and
makes the same bytes; where the text or the code has changed meanwhile, no key fits.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

SPOOLS = "spools"
"""The folder, in that of a preparation, of what it has finished."""
LIBRARIES = ("numpy", "pyarrow", "tokenizers", "zstandard")
"""What the code that prepares calls; all but numpy only for some sources and tokenizers, so that they may be absent."""


@cache
def code() -> str:
    """Return what names the code that prepares: a hash of its modules and of the versions of what it calls."""
    hashed = hashlib.sha256(" ".join(f"{name} {_version(name)}" for name in LIBRARIES).encode())
    for module in sorted(Path(__file__).parent.glob("*.py")):
        hashed.update(module.read_bytes())
    return hashed.hexdigest()


def _version(package: str) -> str:
    """Return the version of a package that is installed; of another "none", as its readers cannot be used."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def key_of(*made_from: object) -> str:
    """Return 32 hex digits that name a piece by what it is made from: plain values; the code counts as well."""
    return hashlib.sha256(json.dumps([code(), *made_from]).encode()).hexdigest()[:32]


@contextmanager
def fresh(path: Path, scratch: Path) -> Iterator[IO[bytes]]:
    """Give a new file to write; it gets its name when it is whole and would outlive a power cut.

    scratch: folder of the same file system for what is not whole; files there belong to this process.
    """
    part = scratch / f"{path.name}-{os.getpid()}"
    with part.open("wb", buffering=1 << 20) as stream:
        yield stream
        to_disk(stream)
    part.rename(path)


def to_disk(stream: IO[Any]) -> None:
    """Return once what was written to `stream` would outlive a power cut."""
    stream.flush()
    os.fsync(stream.fileno())


def record(path: Path, key: str, files: Mapping[Path, int], found: Mapping[str, Any], scratch: Path) -> None:
    """Say that a piece is finished: its files, beside the record or above it, with their sizes [bytes]."""
    sizes = {os.path.relpath(file, path.parent): size for file, size in files.items()}
    with fresh(path, scratch) as stream:
        stream.write(json.dumps({"key": key, "files": sizes, "found": found}).encode("utf-8", "surrogatepass"))


def recorded(path: Path, key: str) -> dict[str, Any] | None:
    """Return what was found with a piece of this key; None where it is not finished, or a file of it is not whole."""
    try:
        said = json.loads(path.read_bytes())
        whole = all((path.parent / name).stat().st_size == size for name, size in said["files"].items())
    except (OSError, ValueError, KeyError):
        return None
    return dict(said["found"]) if whole and said["key"] == key else None
