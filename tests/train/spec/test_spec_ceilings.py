"""What devices do at best, measured or stated."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.spec.communication.cluster import read_profile
from train.spec.device_peaks import BANDWIDTH, MEASURED, STATED, ceilings


def test_what_was_measured_counts_before_what_is_stated() -> None:
    h200, a100 = ceilings("NVIDIA H200"), ceilings("NVIDIA A100-SXM4-80GB")
    assert h200 is not None
    assert a100 is not None
    assert (h200.measured, a100.measured) == (True, False)
    assert h200.flops("bf16") < STATED["H200"]["bf16"]
    assert h200.bandwidth < BANDWIDTH["H200"]
    assert a100.flops("bf16") == 312e12
    assert a100.balance("bf16") == pytest.approx(312 / 2.039)


def test_ceilings_are_those_of_the_profile_that_was_measured_with_them() -> None:
    compute = read_profile(Path(__file__).parents[3] / "conf" / "cluster" / "measured" / "h200_x4.yaml").compute
    h200 = MEASURED["H200"]
    assert (h200.flops("fp8"), h200.bandwidth) == pytest.approx((compute.matmul_rate("fp8"), compute.copy), rel=1e-12)
    assert compute.matmul_rate("bf16") == pytest.approx(694e12), "the slowest day, by which runs are planned"
    assert h200.flops("bf16") == pytest.approx(798e12), "the fastest day, which kernels are held against"


def test_formats_that_a_device_lacks_have_a_rate_of_another() -> None:
    v100, a100 = ceilings("Tesla V100-SXM2-16GB"), ceilings("NVIDIA A100-SXM4-80GB")
    assert v100 is not None
    assert a100 is not None
    assert v100.flops("bf16") == v100.flops("fp32") == 15.7e12
    assert a100.flops("fp8") == a100.flops("bf16")


def test_every_device_with_a_peak_has_a_bandwidth() -> None:
    assert BANDWIDTH.keys() == STATED.keys()
    assert MEASURED.keys() <= STATED.keys()
    assert ceilings("Some Chip") is None
