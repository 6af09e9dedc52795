"""Saving: the training loop hands over copies and goes on; a thread writes, checks and moves in the checkpoint."""

from __future__ import annotations

import errno
import threading
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from train.checkpoint.layout import Retention, commit, discard, stage, staging_of
from train.checkpoint.staging import Staging
from train.runtime.console import warn
from train.runtime.files import describe

WRITE_SECONDS = 1800.0
"""How long ranks wait for one another while they write; disks are slower than networks [s]."""

_ROOM = "; free space there, the last good checkpoint is kept"
_RIGHT = "; let this user write there again, the last good checkpoint is kept"
_HINTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _ROOM),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _RIGHT),
}


class SaveError(Exception):
    """A checkpoint could not be written; the ones before it are untouched."""


class Saver:
    """Writes checkpoints under `root`, at most one at a time, on every rank alike.

    Several ranks need an initialised process group; the saver makes a gloo group of its own, so that its messages
    never meet the training's. `background=False` writes before `save` returns.
    """

    def __init__(
        self, root: Path, rank: int = 0, size: int = 1, *, retention: Retention | None = None, background: bool = True
    ) -> None:
        self._root, self._rank, self._size = root, rank, size
        self.retention = retention or Retention()
        self._background = background
        self._staging = Staging()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._latest_failure: str | None = None
        # every rank of the job takes part, in the same order as everything else that makes groups
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=WRITE_SECONDS)) if size > 1 else None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def failure(self) -> str | None:
        """Why the latest save that has ended failed; None where it did not."""
        return self._latest_failure

    def save(
        self,
        step: int,
        state: Mapping[str, Tensor],
        manifest: Mapping[str, Any],
        retention: Retention | None = None,
        *,
        obstacle: Exception | None = None,
    ) -> None:
        """Start to write the checkpoint of a step; `manifest` has progress and identity, the first rank's counts.

        `state` is by train.checkpoint.state. Waits for the save before this one. A failure is said on standard error
        when it happens and raised by `wait`. `obstacle`: why this rank already knows that there must be no checkpoint;
        the save then fails with it on every rank.
        """
        self.join()
        self._failure = None
        copies = self._staging.copy(state)
        kept = retention or self.retention
        if not self._background:
            self._write(step, state, copies, manifest, kept, obstacle=obstacle)
            return
        work, why = (step, dict(state), copies, dict(manifest), kept), {"obstacle": obstacle}
        self._thread = threading.Thread(target=self._write, args=work, kwargs=why, name="checkpoint", daemon=True)
        self._thread.start()

    def before_update(self) -> None:
        """Call before weights or moments change: the GPU's copies of them are made first."""
        self._staging.before_update()

    def join(self) -> None:
        """Wait until nothing is being written, whatever became of it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wait(self) -> None:
        """Wait until nothing is being written; SaveError where the latest save failed."""
        self.join()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise SaveError(str(failure)) from failure

    def _write(
        self,
        step: int,
        state: Mapping[str, Tensor],
        copies: Mapping[str, Tensor],
        manifest: Mapping[str, Any],
        retention: Retention,
        *,
        obstacle: Exception | None,
    ) -> None:
        try:
            self._staging.arrived()
            self._agreed(lambda: self._begin(step, obstacle))
            self._write_shards(step, state, copies)
            files = self._agreed(lambda: self._described(step))
            every = {name: described for part in files for name, described in part.items()}
            self._agreed(lambda: commit(self._root, step, manifest, every, retention) if self._rank == 0 else None)
            self._latest_failure = None
        except Exception as error:
            self._failure, self._latest_failure = error, str(error)
            if self._rank == 0:
                discard(self._root)
                warn(f"checkpoint of step {step} was not saved: {error}")

    def _begin(self, step: int, obstacle: Exception | None) -> None:
        if obstacle is not None:
            raise obstacle
        if self._rank == 0:
            stage(self._root, step)

    def _write_shards(self, step: int, state: Mapping[str, Tensor], copies: Mapping[str, Tensor]) -> None:
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        from train.checkpoint.planner import Disk, StagedPlanner

        writer = FileSystemWriter(staging_of(self._root, step), sync_files=True)
        writer.fs = Disk()
        planner = StagedPlanner(copies)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it tells a single process that it is one
            alone = self._group is None
            try:
                save(dict(state), storage_writer=writer, planner=planner, process_group=self._group, no_dist=alone)
            except CheckpointException as error:  # no Exception, and its text is a traceback
                rank, (failure, _) = min(error.failures.items())
                raise SaveError(_words(rank, failure, self._root)) from error

    def _described(self, step: int) -> dict[str, Any]:
        """Return size and hash of the files that this rank wrote."""
        mine = sorted(staging_of(self._root, step).glob(f"__{self._rank}_*"))
        if self._rank == 0:
            mine.append(staging_of(self._root, step) / ".metadata")
        return {path.name: describe(path) for path in mine}

    def _agreed(self, act: Callable[[], Any]) -> list[Any]:
        """Do something on every rank and return all results; raise on every rank what failed on one."""
        try:
            mine: tuple[Any, Exception | None] = (act(), None)
        except Exception as error:
            mine = (None, error)
        if self._group is None:
            every = [mine]
        else:
            every = [mine] * self._size
            dist.all_gather_object(every, mine, group=self._group)
        for rank, (_, failure) in enumerate(every):
            if failure is not None:
                raise SaveError(_words(rank, failure, self._root)) from failure
        return [result for result, _ in every]


def _words(rank: int, error: BaseException, root: Path) -> str:
    """Return what failed on a rank, where, and what to do about it."""
    text = str(error) or type(error).__name__
    if isinstance(error, OSError):
        where = f" in {root}" if error.filename is None else ""
        return f"rank {rank}: {text}{where}{_HINTS.get(error.errno or 0, '')}"
    return f"rank {rank}: {text}"
