"""What devices are said to compute, and which run a run goes on from."""

from __future__ import annotations

import pytest

from train.spec.device_peaks import STATED, stated
from train.spec.lineage import Parent, parse


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H200", "bf16", 989.5e12), ("NVIDIA H200", "fp32", 67e12), ("NVIDIA H200", "fp8", 989.5e12),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.5e12), ("NVIDIA H100 PCIe", "bf16", 756.5e12),
        ("NVIDIA H100 NVL", "bf16", 835.5e12), ("NVIDIA GH200 480GB", "bf16", 989.5e12),
        ("NVIDIA B200", "bf16", 2250e12), ("NVIDIA A100-SXM4-80GB", "bf16", 312e12),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5e12), ("NVIDIA A10G", "bf16", 70e12), ("NVIDIA L40S", "bf16", 362e12),
        ("NVIDIA L4", "bf16", 121e12), ("NVIDIA L4", "fp32", 30.3e12), ("NVIDIA GeForce RTX 4090", "bf16", 165.2e12),
        ("NVIDIA GeForce RTX 3090", "fp16", 71e12), ("Tesla V100-SXM2-16GB", "fp32", 15.7e12),
        ("NVIDIA H100 80GB HBM3", "fp32", 67e12), ("NVIDIA H100 PCIe", "fp32", 51e12),
        ("NVIDIA H100 NVL", "fp32", 60e12), ("NVIDIA GH200 480GB", "fp32", 67e12), ("NVIDIA B200", "fp32", 75e12),
        ("NVIDIA A10G", "fp32", 35e12), ("NVIDIA L40S", "fp32", 91.6e12), ("NVIDIA GeForce RTX 4090", "fp32", 82.6e12),
        ("NVIDIA GeForce RTX 3090", "fp32", 35.6e12),
        ("Tesla V100-SXM2-16GB", "bf16", None), ("Some Chip", "bf16", None),
    ],
)  # fmt: skip
def test_peaks_are_those_of_the_data_sheets(name: str, precision: str, peak: float | None) -> None:
    assert stated(name, precision) == peak


def test_products_of_tensor_cores_are_faster_and_all_are_between_tera_and_peta() -> None:
    for peaks in STATED.values():
        assert 10e12 <= peaks["fp32"] <= 100e12
        assert peaks.get("bf16", 71e12) >= 1.9 * peaks["fp32"]


@pytest.mark.parametrize(
    ("text", "parent"),
    [
        ("0123456789ab@4096", Parent("0123456789ab", 4096)), (None, None), ("", None), ("/a/folder", None),
        ("0123456789ab", None), ("0123456789ab@", None), ("0123456789AB@1", None), ("0123456789abc@1", None),
        ("0123456789ab@1 ", None),
    ],
)  # fmt: skip
def test_a_parent_is_a_key_and_its_tokens(text: str | None, parent: Parent | None) -> None:
    assert parse(text) == parent
    assert parent is None or str(parent) == text
