"""Looking at steps from outside: torch's profiler by schedule, exposed communication, memory at an out-of-memory error.

Everything is off unless the config asks for it (section `profile`), except what is written when memory runs out.
"""

from __future__ import annotations

import gzip
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import DeviceType

from train.spec.config import ProfileConfig

Interval = tuple[float, float]
_COMMUNICATION = ("nccl", "c10d::")


def starts(step: int, config: ProfileConfig) -> bool:
    """Say whether a recording's warm-up is the step after `step` finished ones (where the first is recorded: it)."""
    if config.start is None:
        return False
    first = max(0, config.start - 2)
    if config.every is None:
        return step == first
    return step >= first and (step - first) % config.every == 0


class Profiler:
    """Records some steps of this rank as Chrome traces in `<run>/profile`, and what communication cost in them."""

    def __init__(
        self, config: ProfileConfig, folder: Path, rank: int, record: Callable[[int, dict[str, float]], None]
    ) -> None:
        """`record` is given the number of the last recorded step and its metrics, where there is a GPU."""
        self._config, self._folder, self._rank, self._record = config, folder / "profile", rank, record
        self._running: torch.profiler.profile | None = None
        self._on = config.start is not None and (rank == 0 or config.ranks == "all")
        self._left = 0
        if config.memory_history and torch.cuda.is_available():
            torch.cuda.memory._record_memory_history(max_entries=200_000)

    @property
    def records(self) -> bool:
        """Whether it records, or warms up to."""
        return self._running is not None

    def begin(self, step: int) -> None:
        """Call before the next step, after `step` of them, as the first may be recorded."""
        if self._on and self._running is None and starts(step, self._config):
            self._start()

    def boundary(self, step: int) -> None:
        """Call after each step, of which there have been `step`."""
        if not self._on:
            return
        if self._running is not None:
            self._running.step()
            self._left -= 1
            if self._left == 0:
                self._finish(step)
        self.begin(step)

    def close(self) -> None:
        """End a recording that has not ended."""
        if self._running is not None:
            self._running.stop()
            self._running = None

    def _start(self) -> None:
        warmup = 0 if self._config.start == 1 else 1
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        steps = self._config.steps
        # One step more than is recorded: with the schedule's own end the last trace would be saved within a step.
        # Before the first step there is none to warm up in: without a schedule all is recorded from here on.
        schedule = torch.profiler.schedule(wait=0, warmup=warmup, active=steps + 1, repeat=1) if warmup else None
        self._running = torch.profiler.profile(
            activities=activities,
            schedule=schedule,
            record_shapes=self._config.shapes,
            profile_memory=self._config.memory,
        )
        self._running.record_steps = True  # without a schedule torch would not mark the steps
        self._running.start()
        self._left = warmup + steps

    def _finish(self, step: int) -> None:
        assert self._running is not None
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._running.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        trace = self._folder / f"step-{step:09d}-rank-{self._rank}.json.gz"
        self._export(trace)
        kernels = spans(self._running, DeviceType.CUDA)
        if kernels:
            self._record(step, communication(kernels, self._config.steps))
        self._running = None

    def _export(self, trace: Path) -> None:
        """Write the trace. torch itself would compress it as much as can be, which takes several times as long."""
        assert self._running is not None
        plain = trace.with_name(f".{trace.name.removesuffix('.gz')}")
        self._running.export_chrome_trace(str(plain))
        part = trace.with_name(f".{trace.name}")
        with plain.open("rb") as source, gzip.open(part, "wb", compresslevel=1) as packed:
            shutil.copyfileobj(source, packed, 1 << 20)
        plain.unlink()
        part.rename(trace)


def spans(profile: torch.profiler.profile, device: DeviceType) -> list[tuple[str, float, float]]:
    """Return (name, start, end) [s] of what ran on a type of device in a recording, by a clock that begins anywhere.

    Ranges that only have a name there, as the whole step has on a GPU, did not run. torch's own `events()` first makes
    objects of everything on the host, which takes longer than many steps.
    """
    results = getattr(profile.profiler, "kineto_results", None)
    if results is None:
        return []
    return [
        (event.name(), event.start_ns() / 1e9, (event.start_ns() + event.duration_ns()) / 1e9)
        for event in results.events()
        if event.device_type() == device and not event.is_user_annotation()
    ]


def communication(kernels: Sequence[tuple[str, float, float]], steps: int) -> dict[str, float]:
    """Return what kernels (name, start, end) [s] say of `steps` steps, per step.

    busy: time in which anything ran. communication: in which NCCL ran. exposed: in which NCCL ran and nothing else did.
    """
    talk = [(a, b) for name, a, b in kernels if name.startswith(_COMMUNICATION)]
    work = [(a, b) for name, a, b in kernels if not name.startswith(_COMMUNICATION)]
    busy, talking, working = covered([*talk, *work]), covered(talk), covered(work)
    return {
        "seconds_busy": busy / steps,
        "seconds_communication": talking / steps,
        "seconds_communication_exposed": (busy - working) / steps,
    }


def covered(intervals: Sequence[Interval]) -> float:
    """Return the length of the union of intervals."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


@contextmanager
def memory_told(
    folder: Path, rank: int, dump: Callable[[str], Any] = torch.cuda.memory._dump_snapshot
) -> Iterator[None]:
    """Let errors pass; where memory ran out, first write what held it into the run's folder and say where that is."""
    try:
        yield
    except torch.OutOfMemoryError:
        place = folder / "profile"
        place.mkdir(parents=True, exist_ok=True)
        snapshot = place / f"out-of-memory-rank-{rank}.pickle"
        try:
            dump(str(snapshot))
            print(
                f"out of memory on rank {rank}: {snapshot} lists the allocations (open it at "
                "https://pytorch.org/memory_viz; profile.memory_history=true adds their source lines). To use less: "
                "memory.checkpointing, parallel.micro_batch_sequences, parallel.dp_shard",
                file=sys.stderr,
                flush=True,
            )
        except Exception as error:
            print(f"out of memory on rank {rank}, and no snapshot could be written: {error}", file=sys.stderr)
        raise
