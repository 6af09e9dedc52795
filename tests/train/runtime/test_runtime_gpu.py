"""What is asked of a machine before blocks are compiled for its GPU."""

from __future__ import annotations

import pytest
import torch

from train.runtime.gpu import gpu_of, obstacle


@pytest.mark.parametrize(
    ("environment", "programs", "triton", "says"),
    [
        ({}, {"gcc"}, True, None),
        ({}, {"clang"}, True, None),
        ({"CC": "/opt/cc"}, set(), True, None),
        ({}, set(), True, "set CC"),
        ({}, {"gcc"}, False, "Triton"),
    ],
)
def test_why_nothing_can_be_compiled(
    environment: dict[str, str], programs: set[str], triton: bool, says: str | None
) -> None:
    found = obstacle(environment, lambda name: name if name in programs else None, triton)
    assert (found is None) if says is None else (found is not None and says in found)


def test_a_cpu_is_no_gpu() -> None:
    assert gpu_of(torch.device("cpu")) is None
