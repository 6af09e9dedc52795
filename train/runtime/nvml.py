"""What NVIDIA's management library (NVML) tells of GPUs: how busy, how full, how much power. It is part of the driver.

NVML is asked by ctypes and not through CUDA: nothing waits for a GPU, and a graph that is being recorded is not spoilt.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LIBRARY = "libnvidia-ml.so.1"


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(frozen=True)
class Gpu:
    """A GPU at a moment; None: it does not tell.

    busy: the share of the last part of a second in which kernels ran [percent]. used, total: memory of all processes
    [bytes]. power: [W].
    """

    busy: int | None = None
    used: int | None = None
    total: int | None = None
    power: float | None = None


class Nvml:
    """GPUs by their UUIDs, `GPU-…`; those that NVML does not know, or all where there is no NVML, tell nothing."""

    def __init__(self, uuids: Sequence[str], library: Any = None) -> None:
        """Load the library (milliseconds); `library`: another one with the same functions."""
        self._gpus: list[ctypes.c_void_p | None] = [None] * len(uuids)
        try:
            self._library = ctypes.CDLL(LIBRARY) if library is None else library
            if self._library.nvmlInit_v2() == 0:
                self._gpus = [self._found(uuid) for uuid in uuids]
        except (OSError, AttributeError):  # no such library, or one without these functions
            self._gpus = [None] * len(uuids)

    def read(self) -> list[Gpu]:
        """Return the GPUs as they are now, in the order of their UUIDs."""
        return [Gpu() if gpu is None else self._read(gpu) for gpu in self._gpus]

    def _found(self, uuid: str) -> ctypes.c_void_p | None:
        gpu = ctypes.c_void_p()
        return gpu if self._library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(gpu)) == 0 else None

    def _read(self, gpu: ctypes.c_void_p) -> Gpu:
        rates, memory, power = _Utilization(), _Memory(), ctypes.c_uint()
        known = self._library.nvmlDeviceGetUtilizationRates(gpu, ctypes.byref(rates)) == 0
        told = self._library.nvmlDeviceGetMemoryInfo(gpu, ctypes.byref(memory)) == 0
        metered = self._library.nvmlDeviceGetPowerUsage(gpu, ctypes.byref(power)) == 0
        return Gpu(
            int(rates.gpu) if known else None,
            int(memory.used) if told else None,
            int(memory.total) if told else None,
            power.value / 1000 if metered else None,
        )
