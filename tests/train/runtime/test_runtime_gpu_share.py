"""What a process may take of a GPU that it shares."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from train.runtime import gpu_share
from train.spec.gpu_share import VARIABLE, share

GIB = 1 << 30
DEVICE = torch.device("cuda", 0)


@pytest.fixture
def fractions(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A GPU of 80 GiB, 60 of them free, 6 held by this process; what torch was told to keep to."""
    told: list[float] = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80 * GIB))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (60 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 6 * GIB)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda fraction, _: told.append(fraction))
    return told


def test_a_run_alone_has_what_is_free(fractions: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    gpu_share.keep_to_it(DEVICE)
    assert (gpu_share.memory(DEVICE), gpu_share.room(DEVICE), fractions) == (80 * GIB, 66 * GIB, [])


@pytest.mark.parametrize(("said", "memory"), [("0.25", 19 * GIB), ("0.9", 71 * GIB), ("0.001", 0)])
def test_one_of_several_has_its_part_at_most(
    fractions: list[float], monkeypatch: pytest.MonkeyPatch, said: str, memory: int
) -> None:
    monkeypatch.setenv(VARIABLE, said)
    gpu_share.keep_to_it(DEVICE)
    assert (gpu_share.memory(DEVICE), gpu_share.room(DEVICE)) == (memory, min(memory, 66 * GIB))
    assert fractions == [memory / (80 * GIB)]


@pytest.mark.parametrize("said", ["", "0", "-1", "1.5", "half", "nan"])
def test_what_is_no_part_is_refused(said: str) -> None:
    with pytest.raises(ValueError, match=f"STUDY_GPU_SHARE='{said}' is not allowed"):
        share({VARIABLE: said})
