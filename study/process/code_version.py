"""Which code a submission runs: the git commit, and what was changed since as a patch. Works without git too.

Beside it stands a fingerprint of the sources that jobs import, by which a job tells without git whether they have
changed since.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import study
from study.storage.files import write_atomic, write_json
from study.storage.layout import StudyFolder
from study.storage.secrets import code_redactor
from study.storage.shapes import COUNT, FLAG, OBJECT, TEXT, TIME, Shape, read_record

SOURCE_SUFFIXES = {".py", ".yaml", ".yml", ".toml", ".cfg", ".txt", ".sh", ".json", ".html", ".css"}
MAX_SOURCE_BYTES = 1 << 20
GIT_SECONDS = 60.0
GIT_PLACES = frozenset({
    "GIT_DIR", "GIT_COMMON_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_SHALLOW_FILE", "GIT_GRAFT_FILE",
})  # fmt: skip
"""Variables that name a repository: in a git hook, say, one that is not this code's."""
PACKAGES = ("study", "train", "sweeps", "kernels", "analysis", "hydra_plugins", "conf")
IN_JOBS = ("study", "train", "sweeps", "kernels")
"""What jobs import: a config that is edited afterwards, or the analysis, changes no run."""
IN_JOBS_TOO = ("analysis/__init__.py", "analysis/inputs/__init__.py", "analysis/inputs/recorded.py")
"""Of the analysis they import how records are read."""
RESULTS = (":(exclude,glob)**/dvc.lock", ":(exclude)reports")
"""Tracked by git, and no code: a pipeline that writes them anew does not change what runs."""
MARKER = ".frozen.json"
"""In a copy of the code (see study.process.code_snapshot): the version that it is of, and where that came from."""
COPY = Shape(
    "the marker of a copy of the code",
    {"format": COUNT, "id": TEXT, "home": TEXT, "time": TIME},
    ("id",),
    "remove {folder}, and give the study's command again, which copies the code anew",
)
VERSION = Shape(
    "what is recorded of a code version",
    {
        "format": COUNT,
        "dirty": FLAG,
        "redacted": FLAG,
        "sources": OBJECT,
        **dict.fromkeys(("sha", "patch", "note"), TEXT),
    },
    remedy="restore it from a backup, or leave it: nobody can tell then whether the code has changed since",
)


@dataclass(frozen=True)
class CodeVersion:
    """A version of the code: `sha` is the commit, or none/no-git; `patch` what differs from it, new files included.

    sources: the fingerprint of what jobs import.
    """

    sha: str
    digest: str
    patch: str
    note: str = ""
    sources: Mapping[str, str] | None = None

    @property
    def id(self) -> str:
        """`<sha>-<hash of the patch>`, the name of its files; `clean` for an empty patch."""
        return f"{self.sha}-{self.digest}"

    @property
    def dirty(self) -> bool:
        """Whether anything differs from the commit."""
        return bool(self.patch)


def home() -> Path:
    """Return the checkout or site-packages of this package; in a copy of the code, those that it was taken from."""
    root = Path(study.__file__).resolve().parents[1]
    said = (read_record(root / MARKER, COPY) or {}).get("home")
    return root if said is None else Path(said)


def python_options(copied: bool) -> list[str]:
    """Return Python's options, unbuffered, for a process that imports the checkout or, `copied`, a copy of the code.

    Without -P the working directory, which may be the checkout, would come before all others.
    """
    return ["-P", "-u"] if copied else ["-u"]


def current(root: Path | None = None) -> CodeVersion:
    """Return the version of the code below `root`, by default of the checkout (see :func:`home`)."""
    root = root or home()
    sources = fingerprint(root)
    if not _in_git(root):
        digest = _hash(b"".join(_sources(root)))
        note = "not a git checkout: the hash is of the packages' source files"
        return CodeVersion("no-git", digest, "", note, sources)
    head = _git(root, "rev-parse", "--short=12", "HEAD", check=False).strip()
    patch = _patch(root, head)
    digest = _hash(patch.encode(errors="surrogateescape")) if patch else "clean"
    return CodeVersion(head or "no-commit", digest, patch, sources=sources)


def fingerprint(root: Path) -> dict[str, str]:
    """Return what tells the sources that jobs import from others: `times` (and sizes), seen fast, and `content`."""
    return {"times": _times(root), "content": _content(root)}


def is_same(root: Path, sources: Mapping[str, object]) -> bool:
    """Whether the sources below `root` are those of this fingerprint; reads them only where a time or size differs."""
    return sources.get("times") == _times(root) or sources.get("content") == _content(root)


def files(root: Path) -> list[str]:
    """Return the files of the packages that are code: what git tracks, and new sources that it does not ignore."""
    if not _in_git(root):
        return [str(path.relative_to(root)) for path in _source_paths(root)]
    tracked = _git(root, "ls-files", "-z", "--", *PACKAGES).split("\0")
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *PACKAGES).split("\0")
    found = {name for name in tracked if name and (root / name).is_file()}
    return sorted(found | {name for name in new if name and _is_new_source(root / name)})


def save(version: CodeVersion, folder: StudyFolder) -> Path:
    """Write `<id>.json` and, if there is one, `<id>.patch` into the study's code folder; return the JSON's path.

    The patch is written without the secrets that the code holds; `redacted` then says so, and the id, which is the
    hash of the whole patch, stays.
    """
    folder.code.mkdir(parents=True, exist_ok=True)
    path = folder.code / f"{version.id}.json"
    if path.exists():
        return path
    patch = code_redactor(os.environ)(version.patch)
    if patch:
        # Sources need not be UTF-8: their bytes are kept as they are.
        write_atomic(folder.code / f"{version.id}.patch", patch.encode(errors="surrogateescape"))
    write_json(
        path,
        {
            "format": 1,
            "sha": version.sha,
            "dirty": version.dirty,
            "patch": f"{version.id}.patch" if version.patch else None,
            "redacted": patch != version.patch,
            "note": version.note,
            "sources": version.sources,
            "python": platform.python_version(),
        },
    )
    return path


def _patch(root: Path, head: str) -> str:
    """Return the diff to HEAD, untracked sources as new files; made on a copy of the index, which stays as it is."""
    base = [head] if head else ["4b825dc642cb6eb9a060e54bf8d69288fbee4904"]
    with tempfile.TemporaryDirectory() as scratch:
        index = Path(scratch) / "index"
        real = Path(_git(root, "rev-parse", "--git-path", "index").strip())
        real = real if real.is_absolute() else root / real
        if real.exists():
            # With its time: by that git knows which files may have changed in the same tick as it was written.
            shutil.copy2(real, index)
        own = {"GIT_INDEX_FILE": str(index)}
        untracked = list(_untracked(root, own))
        if untracked:
            listing = "\0".join(untracked)
            _git(
                root, "add", "--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul", env=own, stdin=listing
            )
        return _git(root, "diff", "--binary", "--no-ext-diff", "--no-color", *base, "--", ".", *RESULTS, env=own)


def _untracked(root: Path, env: Mapping[str, str]) -> Iterator[str]:
    listed = _git(root, "ls-files", "--others", "--exclude-standard", "-z", env=env)
    for name in filter(None, listed.split("\0")):
        if _is_new_source(root / name):
            yield f":(literal){name}"


def _is_new_source(path: Path) -> bool:
    return path.suffix in SOURCE_SUFFIXES and path.is_file() and path.stat().st_size <= MAX_SOURCE_BYTES


def _in_git(root: Path) -> bool:
    if shutil.which("git") is None:
        return False
    inside = _git(root, "rev-parse", "--is-inside-work-tree", check=False).strip() == "true"
    # An environment inside some other checkout is ignored there: that commit says nothing about this code.
    ignored = _git(root, "check-ignore", str(root / "study"), check=False).strip()
    return inside and not ignored


def _sources(root: Path) -> Iterator[bytes]:
    for path in _source_paths(root):
        yield str(path.relative_to(root)).encode() + b"\0" + path.read_bytes()


def _source_paths(root: Path) -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES and path.is_file():
                yield path


def stamp() -> str:
    """Return what changes when somebody edits what this process and its trainers import."""
    return _times(Path(study.__file__).resolve().parents[1])


def _times(root: Path) -> str:
    """Return a hash of what jobs import by name, size and time: a millisecond or two, where `Path.rglob` takes ten."""
    return _hash(repr(sorted((name, s.st_size, s.st_mtime_ns) for name, s in _walk(str(root)))).encode())


def _content(root: Path) -> str:
    found = ((name.encode(), (root / name).read_bytes()) for name, _ in sorted(_walk(str(root))))
    return _hash(b"".join(b"%b\0%d\0%b" % (name, len(data), data) for name, data in found))


def _walk(root: str) -> Iterator[tuple[str, os.stat_result]]:
    folders, suffixes = list(IN_JOBS), tuple(SOURCE_SUFFIXES)
    for name in IN_JOBS_TOO:
        with suppress(FileNotFoundError):
            yield name, Path(root, name).stat()
    while folders:
        folder = folders.pop()
        with suppress(FileNotFoundError), os.scandir(f"{root}/{folder}") as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}"
                if entry.is_dir():
                    folders.append(name)
                elif entry.name.endswith(suffixes) and entry.is_file():  # an editor's lock is a link to nothing
                    yield name, entry.stat()


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]


def _git(root: Path, *arguments: str, env: Mapping[str, str] | None = None, stdin: str = "", check: bool = True) -> str:
    """Return what git prints; with `check`, ValueError with its message where it fails, else an empty text."""
    kept = {name: value for name, value in os.environ.items() if name not in GIT_PLACES}
    try:
        done = subprocess.run(
            ["git", "-c", "core.quotepath=off", *arguments],
            cwd=root,
            env={**kept, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", **(env or {})},
            input=stdin.encode(errors="surrogateescape"),
            capture_output=True,
            check=False,
            timeout=GIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"git {arguments[0]} gave no answer in {GIT_SECONDS:.0f} s in {root}: check its file system"
        ) from None
    if done.returncode != 0:
        if not check:
            return ""
        raise ValueError(f"git {arguments[0]} failed in {root}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode(errors="surrogateescape")


def load(folder: StudyFolder, version: str) -> dict[str, Any]:
    """Return what is recorded of a code version; empty where nothing is, or what is there is no such record."""
    return read_record(folder.code / f"{version}.json", VERSION) or {}
