"""Vocabulary-parallel losses and layers on DTensors on two gloo ranks, by references and by interpreted kernels."""

from __future__ import annotations

import pytest

from tests.forked import run_ranks
from tests.kernels.ranks import RANKS


@pytest.mark.slow
def test_two_ranks_compute_what_one_does() -> None:
    said = run_ranks(RANKS, "tests.kernels.ranks", TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")
    assert said.count("right") == RANKS
