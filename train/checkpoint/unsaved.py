"""A run that saves nothing: to measure with, and for layouts whose state has no names to be saved under (FSDP1)."""

from __future__ import annotations

from train.checkpoint.manager import CheckpointManager


class Unsaved(CheckpointManager):
    """The checkpoints of such a run: there are none, and it begins anew whenever it is started."""

    def due(self) -> bool:
        """Say no."""
        return False

    def there(self) -> bool:
        """Say that nothing is left to be saved."""
        return True

    def restore(self) -> bool:
        """Start from scratch, or from the checkpoint that the run branches from."""
        return self._branch()

    def back_to(self, before: int) -> bool:
        """Say that there is no checkpoint to go back to."""
        del before
        return False
