"""Speed as metrics: tokens and model FLOPs per second, and their share of what the devices could do."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from train.spec.device_peaks import stated

_SIDE = {"cuda": 8192, "cpu": 1024}
_SECONDS = 0.2


@dataclass(frozen=True)
class Devices:
    """What trains: how many devices, and the peak rate of one [FLOP/s], as stated and as measured; None: unknown."""

    count: int
    stated: float | None = None
    measured: float | None = None


def devices(count: int, device: torch.device, precision: str, measure: bool) -> Devices:
    """Return the devices of a run; measuring takes a fraction of a second."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    compute = torch.float32 if precision == "fp32" else torch.bfloat16
    return Devices(count, stated(name, precision), measured(device, compute) if measure else None)


def measured(device: torch.device, dtype: torch.dtype) -> float:
    """Return the rate of a large square matrix product on the device [FLOP/s]: what a model could reach at most."""
    side = _SIDE.get(device.type, 1024)
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < _SECONDS or done < 2:
        if done == 1:  # the first one loads the library
            _wait(device)
            began = time.perf_counter()
        for _ in range(1 if done == 0 else 10):
            torch.mm(a, b, out=out)
        _wait(device)
        done += 1
    return 10 * (done - 1) * 2 * side**3 / (time.perf_counter() - began)


def rates(tokens_per_second: float, flops_per_token: int, devices: Devices) -> dict[str, float]:
    """Return speed as metrics. mfu: model FLOP/s over the stated peak of all devices, mfu_measured: the measured."""
    flops = tokens_per_second * flops_per_token
    found = {
        "tokens_per_second": tokens_per_second,
        "tokens_per_second_per_device": tokens_per_second / devices.count,
        "model_flops_per_second": flops,
    }
    if devices.stated is not None:
        found["mfu"] = flops / (devices.count * devices.stated)
    if devices.measured is not None:
        found["mfu_measured"] = flops / (devices.count * devices.measured)
    return found


def peak_memory(device: torch.device) -> dict[str, float]:
    """Return the most memory that tensors took on this rank's GPU since the run began [GiB]; nothing on a CPU."""
    if device.type != "cuda":
        return {}
    return {"peak_memory_gib": torch.cuda.max_memory_allocated(device) / 2**30}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
