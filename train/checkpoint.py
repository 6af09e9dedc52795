"""Complete checkpoints: staged beside their place, checked by hash, moved in by one rename.

A checkpoint is a folder `step-<n>` with `state.pt` (tensors) and `manifest.json` (progress, what it belongs to, size
and sha256 of the file). The folder appears in one rename, so a killed save leaves a staging folder that nobody reads.
What a crash of the machine or a full disk tears is caught by size and hash: the newest checkpoint that is whole is the
one found.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

FORMAT = 1
MANIFEST = "manifest.json"
STATE = "state.pt"
_STAGING = ".staging-"
_PREFIX = "step-"


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on disk. `progress` and `identity` are what `save` was given."""

    folder: Path
    progress: Mapping[str, Any]
    identity: Mapping[str, Any]

    def load(self) -> dict[str, Any]:
        """Return the state's tensors, on the CPU."""
        state: dict[str, Any] = torch.load(self.folder / STATE, map_location="cpu", weights_only=True)
        return state


def save(
    root: Path,
    step: int,
    *,
    state: Mapping[str, Any],
    progress: Mapping[str, Any],
    identity: Mapping[str, Any],
    keep: int = 2,
) -> Path:
    """Write a checkpoint of `step` under `root`, keep the newest `keep` of them, return its folder."""
    root.mkdir(parents=True, exist_ok=True)
    for left in root.glob(f"{_STAGING}*"):
        shutil.rmtree(left)
    name = f"{_PREFIX}{step:09d}"
    staging = root / f"{_STAGING}{name}"
    staging.mkdir()
    with (staging / STATE).open("wb") as file:
        torch.save(dict(state), file)
        file.flush()
        os.fsync(file.fileno())
    manifest = {
        "format": FORMAT,
        "progress": dict(progress),
        "identity": dict(identity),
        "files": {STATE: _describe(staging / STATE)},
    }
    write_synced(staging / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    _sync_folder(staging)
    place = root / name
    if place.exists():  # only a torn one, or one that is being replaced by its equal
        shutil.rmtree(place)
    staging.rename(place)
    _sync_folder(root)
    for old in sorted(root.glob(f"{_PREFIX}*"))[:-keep]:
        shutil.rmtree(old)
    return place


def newest(root: Path) -> Checkpoint | None:
    """Return the newest whole checkpoint under `root`; torn ones are named on standard error and passed over."""
    for folder in sorted(root.glob(f"{_PREFIX}*"), reverse=True):
        try:
            return _open(folder)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            print(f"checkpoint {folder} is not whole ({error}): an older one is used", file=sys.stderr)
    return None


def write_synced(path: Path, text: str) -> None:
    """Write a small file and wait until it is on disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, text: str) -> None:
    """Replace a small file in one step: a reader finds the old one or the new one, never a part."""
    staged = path.with_name(f".{path.name}.staging")
    write_synced(staged, text)
    staged.replace(path)
    _sync_folder(path.parent)


def _open(folder: Path) -> Checkpoint:
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if manifest["format"] != FORMAT:
        raise ValueError(f"format {manifest['format']!r}, this version reads {FORMAT}")
    for name, described in manifest["files"].items():
        if _describe(folder / name) != described:
            raise ValueError(f"{name} is not what was written")
    return Checkpoint(folder, dict(manifest["progress"]), dict(manifest["identity"]))


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
