"""Copies for a checkpoint: weights change only after theirs are made. A GPU's own test is in tests/gpu."""

from __future__ import annotations

import pytest
import torch

from train.checkpoint.staging import Staging


class Stream:
    """Stands in for a GPU's queue of work: notes which others it waits for."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", 1)
        self.waited: list[object] = []

    def wait_stream(self, other: object) -> None:
        self.waited.append(other)


def test_the_update_waits_for_the_copies_on_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    training, copying = Stream(), Stream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: {copying.device: training}[device])
    staging = Staging()
    staging.before_update()
    assert not training.waited, "nothing was copied from a GPU"
    staging._stream = copying  # type: ignore[assignment]
    staging.before_update()
    assert training.waited == [copying]
