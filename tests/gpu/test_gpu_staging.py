"""Copies of a GPU's weights for a checkpoint hold what the weights were when they were asked for."""

from __future__ import annotations

import pytest
import torch

from train.checkpoint.staging import Staging

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def test_an_update_waits_for_copies_that_are_late() -> None:
    staging, weight = Staging(), torch.zeros(1 << 24, device="cuda")
    staging.copy({"weight": weight})  # makes the stream
    staging.arrived()
    assert staging._stream is not None
    with torch.cuda.stream(staging._stream):
        torch.cuda._sleep(400_000_000)  # type: ignore[no-untyped-call]  # cycles: about 0.2 s, in which the update would be long done
    copies = staging.copy({"weight": weight})
    staging.before_update()
    weight.fill_(1.0)
    staging.arrived()
    torch.cuda.synchronize()
    assert not copies["weight"].any()
