"""What torch's distributed checkpoints write of a run, and to where. Apart, as importing them takes a second."""

from __future__ import annotations

import io
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import MetadataIndex

from train.checkpoint.relaid import Relaid


class StagedPlanner(DefaultSavePlanner):
    """Plans by the live tensors, which know their place in the whole, and writes their staged copies."""

    def __init__(self, copies: Mapping[str, Tensor]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._copies = copies

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Return the copy of this rank's part."""
        copy, live = self._copies[index.fqn], self.state_dict[index.fqn]
        return live.region(copy, index.offset) if isinstance(live, Relaid) else copy


class Disk(FileSystem):
    """Files of this machine; what the disk refuses is raised as that, with the path.

    A tensor's archive that is cut off raises an error about positions in it, and the disk's own only stands behind it.
    """

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        """Open a file."""
        try:
            with super().create_stream(path, mode) as stream:
                yield stream
        except Exception as error:
            behind: BaseException | None = error
            while behind is not None and not isinstance(behind, OSError):
                behind = behind.__context__
            if behind is None:
                raise
            raise OSError(behind.errno, behind.strerror, str(path)) from error

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Make a folder, but not those above it: torch would begin a run that was moved anew at its old place."""
        Path(path).mkdir(exist_ok=True)
