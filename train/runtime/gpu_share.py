"""What this process may take of a GPU that it has with others (train.spec.gpu_share), and what it has of its time.

Each sizes its micro-batch for its part, and one that wants more runs out of memory alone.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from train.spec.gpu_share import SHARED_BY, part, share

LOOK_SECONDS = 1.0
GPU_SECONDS = "gpu"
"""Among the seconds of a run: those of training, each counted for the part of the GPU that the run had of it."""


def memory(device: torch.device) -> int:
    """Return what the tensors of this process may take of a CUDA device [bytes]."""
    return part(torch.cuda.get_device_properties(device).total_memory, share(os.environ))


def room(device: torch.device) -> int:
    """Return what this process has of a CUDA device, with what is free there, and no more than its part [bytes]."""
    free, _ = torch.cuda.mem_get_info(device)
    return min(free + torch.cuda.memory_reserved(device), memory(device))


def keep_to_it(device: torch.device) -> None:
    """Have torch refuse this process more than its part of a CUDA device, as where memory has run out."""
    if share(os.environ) < 1:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(memory(device) / total, device)


class TimeShare:
    """The part of its GPU's time that this process has: 1 over the processes that use it now.

    Where nobody says how many these are, it is the part of the memory.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._planned, self._path = share(environment), environment.get(SHARED_BY)
        self._looked, self._now = -math.inf, self._planned

    def now(self) -> float:
        """Return the part; looked up once a second at most."""
        if self._path is not None and time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
            try:
                self._now = 1 / max(1, int(Path(self._path).read_text(encoding="ascii")))
            except (OSError, ValueError):
                self._now = self._planned
        return self._now

    def add(self, seconds: dict[str, float], trained: float) -> None:
        """Add a step's time to the seconds of training and, where a GPU is or was shared, to those of a whole one."""
        part = self.now()
        if part < 1 or self._path is not None or GPU_SECONDS in seconds:
            seconds[GPU_SECONDS] = seconds.get(GPU_SECONDS, seconds["train"]) + trained * part
        seconds["train"] += trained
