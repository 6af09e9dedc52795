"""These tests launch kernels: on a GPU, or in Triton's interpreter in a process of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import kernels
from tests.kernels.oracle import INTERPRETED

if not INTERPRETED and not torch.cuda.is_available():
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def forced() -> Iterator[None]:
    """Triton or an error; NaN in all memory that is handed out, so that whatever is not written shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    with kernels.use("triton"):
        yield
    torch.use_deterministic_algorithms(False)
