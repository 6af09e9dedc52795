"""What torch's distributed checkpoints write of a run: the staged copies. Apart, as importing them takes a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex


class StagedPlanner(DefaultSavePlanner):
    """Plans by the live tensors, which know their place in the whole, and writes their staged copies."""

    def __init__(self, copies: Mapping[str, Tensor]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._copies = copies

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Return the copy of this rank's part."""
        return self._copies[index.fqn]
