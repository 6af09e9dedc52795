"""What devices are said to do: dense FLOP/s by format (without sparsity), bytes/s of their memory; by data sheets.

Of some it is known too what they were measured to do, which is less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TERA = 1e12

STATED: dict[str, dict[str, float]] = {
    "H200": {"fp32": 67 * TERA, "bf16": 989.5 * TERA},
    "H100 PCIe": {"fp32": 51 * TERA, "bf16": 756.5 * TERA},
    "H100 NVL": {"fp32": 60 * TERA, "bf16": 835.5 * TERA},
    "H100": {"fp32": 67 * TERA, "bf16": 989.5 * TERA},
    "GH200": {"fp32": 67 * TERA, "bf16": 989.5 * TERA},
    "B200": {"fp32": 75 * TERA, "bf16": 2250 * TERA},
    "A100": {"fp32": 19.5 * TERA, "bf16": 312 * TERA},
    "A10G": {"fp32": 35 * TERA, "bf16": 70 * TERA},
    "L40S": {"fp32": 91.6 * TERA, "bf16": 362 * TERA},
    "L4": {"fp32": 30.3 * TERA, "bf16": 121 * TERA},
    "RTX 4090": {"fp32": 82.6 * TERA, "bf16": 165.2 * TERA},
    "RTX 3090": {"fp32": 35.6 * TERA, "bf16": 71 * TERA},
    "V100": {"fp32": 15.7 * TERA},
}
"""By a part of the device's name as CUDA gives it; the longest part that fits counts."""


def stated(device_name: str, precision: str) -> float | None:
    """Return the dense peak [FLOP/s] of a device for a run's precision, None where it is not known.

    fp8 runs are measured against the bf16 peak, as everybody does: only a part of their products is in fp8. fp16 has
    the rate of bf16.
    """
    fitting = [part for part in STATED if part in device_name]
    if not fitting:
        return None
    return STATED[max(fitting, key=len)].get("fp32" if precision == "fp32" else "bf16")


@dataclass(frozen=True)
class Ceilings:
    """What a device does at best: FLOP/s by format, bandwidth of its memory [bytes/s], read and written together.

    measured: whether it was measured, by a large product and a large copy; else its maker says so.
    """

    by_format: Mapping[str, float]
    bandwidth: float
    measured: bool

    def flops(self, form: str) -> float:
        """Return FLOP/s in a format: bf16, fp32 or fp8; of others, as of fp32."""
        return self.by_format.get(form) or self.by_format["bf16" if form == "fp8" else "fp32"]

    def balance(self, form: str) -> float:
        """Return the FLOPs per byte from which on arithmetic is the limit, not memory."""
        return self.flops(form) / self.bandwidth


BANDWIDTH: dict[str, float] = {
    "H200": 4.8 * TERA,
    "H100 PCIe": 2.0 * TERA,
    "H100 NVL": 3.9 * TERA,
    "H100": 3.35 * TERA,
    "GH200": 4.0 * TERA,
    "B200": 8.0 * TERA,
    "A100": 2.039 * TERA,
    "A10G": 0.6 * TERA,
    "L40S": 0.864 * TERA,
    "L4": 0.3 * TERA,
    "RTX 4090": 1.008 * TERA,
    "RTX 3090": 0.936 * TERA,
    "V100": 0.9 * TERA,
}
"""Bytes/s of memory by data sheets: of the A100 that of 80 GB, of the GH200 that of 96 GB."""

MEASURED: dict[str, Ceilings] = {
    # A copy of a large tensor, bf16 and fp8 products of 8192^3, torch 2.11; fp32 as its maker says. They are those of
    # conf/cluster/measured/h200_x4.yaml, whose bf16 is of the slowest day.
    "H200": Ceilings({"bf16": 798 * TERA, "fp8": 1304 * TERA, "fp32": 67 * TERA}, 4.27 * TERA, measured=True)
}
"""By the same parts of names."""


def ceilings(device_name: str) -> Ceilings | None:
    """Return what a device does at best, as measured where it was; None where the device is not known."""
    fitting = [part for part in STATED if part in device_name]
    if not fitting:
        return None
    part = max(fitting, key=len)
    peaks = STATED[part]
    return MEASURED.get(part) or Ceilings({"bf16": peaks["fp32"], **peaks}, BANDWIDTH[part], measured=False)
