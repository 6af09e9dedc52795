"""What devices are said to compute: dense FLOP/s by format, from their makers' data sheets (without sparsity)."""

from __future__ import annotations

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
