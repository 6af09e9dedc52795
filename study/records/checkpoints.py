"""A run's checkpoints as its folder shows them: where each stands, and keeping one for others to go on from.

The trainer's own files (`train.checkpoint.layout`) are read here without torch. Whether a checkpoint is whole is for
the trainer to say, which hashes it when it loads: that may be minutes for a large model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from study.storage.files import read_json
from study.storage.layout import RunFolder

PREFIX, MANIFEST, PIN, ABANDONED = "step-", "manifest.json", "pinned", "abandoned"


@dataclass(frozen=True)
class Saved:
    """A checkpoint: tokens that its weights have seen, its folder, and the run's time by kind [s]."""

    tokens: int
    folder: Path
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def pinned(self) -> bool:
        """Whether it stays whatever the trainer's retention says."""
        return (self.folder / PIN).exists()


def saved(run: RunFolder) -> list[Saved]:
    """Return a run's checkpoints, oldest first; those without a manifest are not checkpoints yet.

    Not those of a path that the run has abandoned: nobody goes on from them.
    """
    return list(_newest_first(run))[::-1]


def reached(run: RunFolder) -> int:
    """Return the tokens of a run's newest checkpoint; 0 where it has none."""
    return next((one.tokens for one in _newest_first(run)), 0)


def _newest_first(run: RunFolder) -> Iterator[Saved]:
    for folder in sorted(run.checkpoints.glob(f"{PREFIX}*"), reverse=True):
        if (folder / ABANDONED).exists():
            continue
        manifest = read_json(folder / MANIFEST)
        if manifest is not None and folder.name.removeprefix(PREFIX).isdigit():
            progress = manifest["progress"]
            yield Saved(int(progress["tokens"]), folder, dict(progress.get("seconds") or {}))


def pin(run: RunFolder, tokens: int) -> bool:
    """Keep the checkpoint at these tokens until :func:`unpin`; False where there is none."""
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
