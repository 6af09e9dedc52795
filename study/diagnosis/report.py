"""A diagnosis as text for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from study.diagnosis.causes import TITLES, Finding
from study.diagnosis.kernels import Kernel
from study.diagnosis.of_traces import Diagnosis
from study.diagnosis.step_times import StepTimes
from study.text import aligned, cut, percent

PARTS = {
    "compute": "compute",
    "communication": "exposed communication",
    "waiting": "waiting for other ranks",
    "pipeline": "pipeline bubble",
    "copy": "memory copies",
    "input": "idle: input",
    "sync": "idle: after a host synchronisation",
    "allocator": "idle: allocating memory",
    "host": "idle: launching (CPU)",
}
"""What a share is called on a GPU."""
_ON_CPU = PARTS | {"compute": "operations", "input": "input", "host": "between operations (Python)"}
_NAME = 42
LEAST_SHOWN = 0.0005
"""Share of the step that is shown."""


def of_traces(found: Diagnosis, name: str, usual: float | None) -> str:
    """Return the text. usual: seconds of a step without profiler, if known."""
    ranks = f"{len(found.ranks)} ranks" if len(found.ranks) > 1 else f"rank {found.ranks[0].rank}"
    lines = [*_verdict(name, found.limit, found.findings)]
    usually = f", {seconds(usual)} without profiler" if usual else ""
    lines += ["", f"{found.steps} steps of {seconds(found.seconds_step)}{usually} on {found.device}, {ranks}"]
    parts = PARTS if found.device != "CPU" else _ON_CPU
    lines += [
        f"  {row}"
        for row in aligned([[parts[n], percent(s, 1)] for n, s in found.shares.items() if s >= LEAST_SHOWN], [1])
    ]
    if found.overlap is not None:
        lines.append(f"  {percent(found.overlap, 1)} of communication is hidden under computation")
    lines += _ranks(found)
    lines += _kernels(found)
    if found.syncs:
        rows = [[one.call, one.owner or "-", f"{one.calls:.1f}", seconds(one.seconds)] for one in found.syncs[:5]]
        lines += ["", "host synchronisations, per step", *_table(["call", "in", "calls", "time"], rows, [2, 3])]
    if found.copies_to_host:
        lines.append(f"  {found.copies_to_host:.1f} copies to the host per step")
    if (memory := found.memory) is not None:
        lines += ["", f"memory of the {memory.device}: peak {gib(memory.peak_bytes)}, of which"]
        lines += [f"  {row}" for row in aligned([[cut(n, 60), gib(size)] for n, size in memory.owners], [1])]
    return "\n".join(lines)


def of_step_times(times: StepTimes, name: str, commands: Sequence[str]) -> str:
    """Return the text for a run without a trace; commands: those that make one."""
    lines = _verdict(name, times.findings[0] if times.findings else None, times.findings)
    lines += ["", f"{times.records} logged steps, {seconds(times.seconds_step)} each (median)"]
    lines += [f"  {row}" for row in aligned([[_phase(n), percent(s, 1)] for n, s in times.shares.items()], [1])]
    if times.mfu is not None:
        lines.append(f"  MFU {percent(times.mfu, 1)}")
    return "\n".join([*lines, "", "for the rest record a trace:", *commands])


def _verdict(name: str, limit: Finding | None, found: Sequence[Finding]) -> list[str]:
    if limit is None:
        return [f"{name}: nothing in its step times holds it up; what limits its steps only a trace tells"]
    lines = [f"{name}: {TITLES[limit.cause]} ({percent(limit.share)} of the step)"]
    lines += [f"  {limit.why}", f"first thing to try: {limit.first}"]
    lines += [f"also: {TITLES[one.cause]} ({percent(one.share)}): {one.why}" for one in found if one != limit]
    return lines


def _phase(name: str) -> str:
    return {"data": "waiting for data", "rest": "in no phase"}.get(name, name.replace("_", " and "))


def _ranks(found: Diagnosis) -> list[str]:
    if len(found.ranks) < 2:
        return []
    rows = [
        [str(one.rank), seconds(one.seconds_step), *(percent(one.shares[part]) for part in _columns(found.shares))]
        for one in found.ranks
    ]
    heads = ["rank", "step", *_columns(found.shares)]
    return ["", *_table(heads, rows, range(len(heads)))]


def _columns(shares: Mapping[str, float]) -> list[str]:
    return [name for name in shares if name in ("compute", "communication", "waiting") or shares[name] >= 0.01]


def _kernels(found: Diagnosis) -> list[str]:
    rows = [
        [cut(one.name, _NAME), one.kind, f"{one.calls:.0f}", seconds(one.seconds), _rate(one)] for one in found.kernels
    ]
    what = "operations, by their own time" if found.device == "CPU" else "kernels"
    heads = [what, "kind", "calls", "time", "achieved"]
    lines = ["", *_table(heads, rows, [2, 3])]
    if found.ceilings_measured is not None and any(one.of_ceiling for one in found.kernels):
        lines.append(f"  ceilings: {'measured' if found.ceilings_measured else 'as the maker states them'}")
    return lines


def _rate(kernel: Kernel) -> str:
    rates = [f"{kernel.flops / 1e12:.3g} TFLOP/s"] if kernel.flops else []
    rates += [f"{kernel.bytes / 1e12:.2f} TB/s"] if kernel.bytes and not rates else []
    part = [] if kernel.of_ceiling is None else [f"({percent(kernel.of_ceiling)})"]
    return " ".join(rates + part)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] | range) -> list[str]:
    return [f"  {row}".rstrip() for row in aligned([heads, *rows], list(right))]


def seconds(value: float) -> str:
    """Return a duration as 12 µs, 3.4 ms or 1.2 s."""
    if value < 1e-3:
        return f"{value * 1e6:.3g} µs"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def gib(size: int) -> str:
    """Return bytes as 1.2 GiB or 34 MiB."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
