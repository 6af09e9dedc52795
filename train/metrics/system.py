"""How busy the machine is while a run trains: CPU, memory and GPUs, under the names that MLflow has for them.

Everything is read on the host, from /proc and from NVML: no call waits for a GPU. What a machine does not tell is left
out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from train.runtime.distributed import World
from train.runtime.nvml import Gpu, Nvml

PROC = Path("/proc")
MEGA = 1e6
KIB = 1024
IDLE = (3, 4)
"""Places of the ticks in /proc/stat that a core spent idle, and idle while something waited for a disk."""


class SystemMetrics:
    """Samples the machine, at most every so many seconds; the first sample is of the first such time."""

    def __init__(
        self,
        every: float,
        gpus: Callable[[], Sequence[Gpu]] = list,
        proc: Path = PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """every: seconds between samples, 0: there are none. gpus: returns the run's GPUs on this node as they are."""
        self._every, self._gpus, self._proc, self._clock = every, gpus, proc, clock
        self._at = clock()
        if every > 0:
            self._ticks, self._own = cpu_ticks(self._read("stat")), time.process_time()

    def due(self) -> dict[str, float]:
        """Return a sample where one is due, else nothing.

        CPU load is that since the sample before: `cpu_utilization_percentage` of all cores of the node,
        `process_cpu_utilization_percentage` of this process in percent of a core.
        """
        passed = self._clock() - self._at
        if self._every <= 0 or passed < self._every:
            return {}
        before, own = self._ticks, self._own
        self._at, self._ticks, self._own = self._at + passed, cpu_ticks(self._read("stat")), time.process_time()
        found = {"process_cpu_utilization_percentage": 100 * (self._own - own) / passed}
        found |= load(before, self._ticks)
        found |= node_memory(self._read("meminfo")) | process_memory(self._read("self/statm"))
        for place, gpu in enumerate(self._gpus()):
            found |= {f"gpu_{place}_{name}": value for name, value in of_gpu(gpu).items()}
        return {name: round(value, 1) for name, value in found.items()}

    def _read(self, name: str) -> str:
        try:
            return (self._proc / name).read_text(encoding="ascii", errors="replace")
        except OSError:  # another system than Linux
            return ""


def system_metrics(every: float, world: World, device: torch.device) -> SystemMetrics:
    """Return the metrics of the node of this rank; its GPUs are looked for with the first sample."""
    held: list[Nvml] = []

    def gpus() -> Sequence[Gpu]:
        if not held:
            held.append(Nvml(uuids(world, device)))
        return held[0].read()

    return SystemMetrics(every, gpus if device.type == "cuda" else list)


def uuids(world: World, device: torch.device) -> list[str]:
    """Return the UUIDs of the GPUs of a run on this node: this rank's, or those that its ranks here may have."""
    count = torch.cuda.device_count()
    places = [device.index or 0] if world.size == 1 else range(min(count, world.size))
    return [f"GPU-{torch.cuda.get_device_properties(place).uuid}" for place in places]


def cpu_ticks(stat: str) -> tuple[int, int]:
    """Return how long all cores were busy, and how long there were cores, since the start [ticks]; of /proc/stat."""
    words = stat.partition("\n")[0].split()
    ticks = [int(word) for word in words[1:9]] if words[:1] == ["cpu"] else []
    return sum(ticks) - sum(ticks[place] for place in IDLE if place < len(ticks)), sum(ticks)


def load(before: tuple[int, int], after: tuple[int, int]) -> dict[str, float]:
    """Return the share of the cores' time in which they were busy between two moments."""
    busy, there = after[0] - before[0], after[1] - before[1]
    return {"cpu_utilization_percentage": 100 * busy / there} if there > 0 else {}


def node_memory(meminfo: str) -> dict[str, float]:
    """Return how full the node's memory is, of /proc/meminfo: what could not be had without swapping."""
    lines = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    try:
        total, free = (int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (KeyError, ValueError, IndexError):
        return {}
    used = total - free
    return {"system_memory_usage_megabytes": used * KIB / MEGA, "system_memory_usage_percentage": 100 * used / total}


def process_memory(statm: str) -> dict[str, float]:
    """Return the memory that this process has, of /proc/self/statm [pages]."""
    words = statm.split()
    if len(words) < 2:
        return {}
    return {"process_memory_usage_megabytes": int(words[1]) * os.sysconf("SC_PAGESIZE") / MEGA}


def of_gpu(gpu: Gpu) -> dict[str, float]:
    """Return what a GPU tells; its memory is that of all processes on it."""
    found: dict[str, float | None] = {
        "utilization_percentage": gpu.busy,
        "memory_usage_megabytes": None if gpu.used is None else gpu.used / MEGA,
        "memory_usage_percentage": 100 * gpu.used / gpu.total if gpu.used is not None and gpu.total else None,
        "power_usage_watts": gpu.power,
    }
    return {name: value for name, value in found.items() if value is not None}
