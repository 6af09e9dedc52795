"""The diagnosis of a recording: the traces of one or several ranks become shares, causes and what they rest on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from study.diagnosis import kernels
from study.diagnosis.causes import Evidence, Finding, findings, limit
from study.diagnosis.kernels import Kernel, Sync
from study.diagnosis.memory import Memory, memory_of
from study.diagnosis.shares import RankTime, spent
from study.diagnosis.stragglers import Waiting, excess, waiting
from study.diagnosis.trace import Trace, read_trace
from study.diagnosis.windows import Window, window_of
from train.spec import interrupts
from train.spec.device_peaks import ceilings

PARALLEL_BYTES = 1 << 25
"""Files of several ranks are read by as many processes from this size of all on."""


@dataclass(frozen=True)
class OfRank:
    """One rank: its seconds per step, shares of them, and the share of its communication under computation."""

    rank: int
    file: str
    seconds_step: float
    shares: Mapping[str, float]
    overlap: float | None


@dataclass(frozen=True)
class Diagnosis:
    """What a recording says. shares, overlap, memory_bound: means over ranks; kernels, syncs, memory: of one rank."""

    limit: Finding
    findings: Sequence[Finding]
    device: str
    steps: int
    seconds_step: float
    shares: Mapping[str, float]
    overlap: float | None
    memory_bound: float
    ranks: Sequence[OfRank]
    slowest_rank: int | None
    kernels: Sequence[Kernel]
    launches: float
    kernel_seconds: float
    syncs: Sequence[Sync]
    copies_to_host: float
    memory: Memory | None
    ceilings_measured: bool | None
    events: int


def read_traces(paths: Sequence[Path]) -> list[Trace]:
    """Return the traces in these files, one a rank. ValueError where one is not a whole trace, or ranks are twice."""
    if len(paths) > 1 and sum(path.stat().st_size for path in paths) >= PARALLEL_BYTES:
        count = min(len(paths), os.cpu_count() or 1)
        with ProcessPoolExecutor(count, initializer=interrupts.left_to_the_parent) as pool:
            with interrupts.held_back():  # submitting starts the processes
                found = pool.map(read_trace, paths, range(len(paths)))
            traces = list(found)
    else:
        traces = [read_trace(path, number) for number, path in enumerate(paths)]
    ranks = [trace.rank for trace in traces]
    for number, trace in enumerate(traces):
        if trace.rank in ranks[:number]:
            raise ValueError(
                f"{trace.path} is of rank {trace.rank}, as is {traces[ranks.index(trace.rank)].path}: keep the traces "
                "of one recording in the folder"
            )
    return sorted(traces, key=lambda trace: trace.rank)


def diagnose(traces: Sequence[Trace], top: int = 10) -> Diagnosis:
    """Return what the traces of a recording say, with the `top` largest of kernels, synchronisations and owners."""
    windows = [window_of(trace) for trace in traces]
    times = [spent(trace, window) for trace, window in zip(traces, windows, strict=True)]
    waits = waiting(traces, windows, times)
    ranks = [_of_rank(*one, waits) for one in zip(traces, windows, times, strict=True)]
    shares = {name: float(np.mean([rank.shares[name] for rank in ranks])) for name in ranks[0].shares}
    first, window = traces[0], windows[0]
    known = [rank.overlap for rank in ranks if rank.overlap is not None]
    hidden = float(np.mean(known)) if known else None
    listed, waited = kernels.top_kernels(first, window, top), kernels.syncs(first, window, top)
    launched, median = kernels.launches(first, window)
    bound = float(np.mean([kernels.memory_share(*one) for one in zip(traces, windows, strict=True)]))
    messages = [one.name for one in listed if one.kind in ("communication", "message")]
    evidence = Evidence(
        shares, first.on_gpu, bound, hidden, launched, median, waits.slowest, _slow_part(ranks, waits.slowest),
        (waited[0].call, waited[0].owner) if waited else None, messages[0] if messages else None, len(traces),
        kernels.replayed(first, window),
    )  # fmt: skip
    found = findings(evidence)
    device = first.devices[0] if first.on_gpu and first.devices else "GPU" if first.on_gpu else "CPU"
    peak = ceilings(device)
    return Diagnosis(
        limit(evidence, found), found, device, window.steps, float(np.mean([rank.seconds_step for rank in ranks])),
        shares, hidden, bound, ranks, waits.slowest, listed, launched, median, waited,
        kernels.copies_to_host(first, window), memory_of(first, top), None if peak is None else peak.measured,
        sum(trace.events for trace in traces),
    )  # fmt: skip


def _of_rank(trace: Trace, window: Window, time: RankTime, waits: Waiting) -> OfRank:
    """Return a rank's shares; what it waited for others is no communication."""
    shares = time.split.shares(window.length)
    waited = min(waits.shares.get(trace.rank, 0.0), shares["communication"])
    shares |= {"communication": shares["communication"] - waited, "waiting": waited}
    return OfRank(trace.rank, str(trace.path), window.length / 1e6 / window.steps, shares, time.hidden)


def _slow_part(ranks: Sequence[OfRank], slowest: int | None) -> tuple[str, float] | None:
    if slowest is None:
        return None
    own = {name for name in ranks[0].shares if name != "waiting"}
    seconds = {one.rank: {name: one.shares[name] * one.seconds_step for name in sorted(own)} for one in ranks}
    return excess(seconds, slowest)
