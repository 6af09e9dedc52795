"""A run's checkpoints as its folder shows them: where each stands, and keeping one for others to go on from.

The trainer's own files (`train.checkpoint.layout`) are read here without torch. Whether a checkpoint is whole is for
the trainer to say, which hashes it when it loads: that may be minutes for a large model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from study.records.shapes import MANIFEST as MANIFEST_SHAPE
from study.storage.layout import RunFolder
from study.storage.shapes import read_record

PREFIX, MANIFEST, PIN, ABANDONED = "step-", "manifest.json", "pinned", "abandoned"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as its manifest and its marks show it; tokens that its weights have seen, -1 where it does not say.

    loss: the validation loss last measured before it [nats per token]. seconds: the run's time by kind [s]. files: what
    the manifest says of each; None without a manifest that can be read. abandoned: its run went back to before it and
    took another path.

    Only :func:`study.cleanup.checkpoints.stored` looks at the files: their size [bytes]; whether each that the manifest
    names is there with its size (contents are not hashed); something that no trainer of ours writes, "" for none.
    """

    folder: Path
    step: int
    tokens: int
    loss: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, Any] | None = None
    pinned: bool = False
    abandoned: bool = False
    bytes: int = 0
    whole: bool = False
    foreign: str = ""


def read(folder: Path) -> Checkpoint:
    """Return the checkpoint in a folder, whose name ends in its step."""
    manifest = read_record(folder / MANIFEST, MANIFEST_SHAPE) or {}
    about: Mapping[str, Any] = manifest.get("progress") or {}
    loss, tokens = about.get("validation_loss"), about.get("tokens")
    return Checkpoint(
        folder,
        step=int(folder.name.rpartition("-")[2]),
        tokens=-1 if tokens is None else tokens,
        loss=None if loss is None else float(loss),
        seconds=about.get("seconds") or {},
        files=manifest.get("files") if about else None,
        pinned=(folder / PIN).exists(),
        abandoned=(folder / ABANDONED).exists(),
    )


def saved(run: RunFolder) -> list[Checkpoint]:
    """Return a run's checkpoints, oldest first; those without a manifest are not checkpoints yet.

    Not those of a path that the run has abandoned: nobody goes on from them.
    """
    return list(_newest_first(run))[::-1]


def reached(run: RunFolder) -> int:
    """Return the tokens of a run's newest checkpoint; 0 where it has none."""
    return next((one.tokens for one in _newest_first(run)), 0)


def _newest_first(run: RunFolder) -> Iterator[Checkpoint]:
    for folder in sorted(run.checkpoints.glob(f"{PREFIX}*"), reverse=True):
        if folder.name.removeprefix(PREFIX).isdigit():
            one = read(folder)
            if one.tokens >= 0 and not one.abandoned:
                yield one


def pin(run: RunFolder, tokens: int) -> bool:
    """Keep the checkpoint at these tokens until :func:`unpin`; return False where there is none."""
    for one in saved(run):
        if one.tokens == tokens:
            (one.folder / PIN).touch()
            return True
    return False


def unpin(run: RunFolder, tokens: int) -> None:
    """Leave the checkpoint at these tokens to the trainer's retention again."""
    for one in saved(run):
        if one.tokens == tokens:
            (one.folder / PIN).unlink(missing_ok=True)
