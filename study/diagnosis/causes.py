"""What limits a run, named from the shares of its step; and the first thing to try, with the key that does it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from study.text import percent

LEAST = 0.10
"""Share of the step that something must cost to be named: what costs less is not worth the change."""
MEMORY_BOUND = 0.5
"""Share of calculating kernels' time in those that are bound by memory, from which on the run is memory-bound."""


@dataclass(frozen=True)
class Evidence:
    """What the causes are told from: means over ranks.

    shares: of the step, by part (study.diagnosis.shares.Split), and `waiting`: for other ranks, in collectives.
    memory: share of kernels' time in those that memory limits. hidden: share of communication under computation.
    launches: kernels (on a CPU: operations) per step. kernel_seconds: their median. slowest: the rank that others wait
    for, and in which part of a step it takes longer, by how much [s]. sync: the longest synchronisation's call and
    owner. longest: the communication kernel that takes most time. replayed: share of kernels launched by a CUDA graph.
    """

    shares: Mapping[str, float]
    on_gpu: bool
    memory: float = 0.0
    hidden: float | None = None
    launches: float = 0.0
    kernel_seconds: float = 0.0
    slowest: int | None = None
    slow_part: tuple[str, float] | None = None
    sync: tuple[str, str] | None = None
    longest: str | None = None
    ranks: int = 1
    replayed: float = 0.0


@dataclass(frozen=True)
class Finding:
    """A cause, the share of the step that it costs (of `memory` and `compute`: in which it is so), why, what to try."""

    cause: str
    share: float
    why: str
    first: str


TITLES = {
    "input": "input-bound",
    "host": "launch-bound (CPU-bound)",
    "sync": "held up by host synchronisation",
    "allocator": "held up by the memory allocator",
    "communication": "communication-exposed",
    "pipeline": "pipeline bubble",
    "stragglers": "stragglers",
    "copy": "held up by memory copies",
    "memory": "memory-bound",
    "compute": "compute-bound",
}
"""Every cause and what it is called."""


def findings(evidence: Evidence) -> list[Finding]:
    """Return what holds the run up, the dearest first; nothing where it calculates all but a little of the time."""
    shares = evidence.shares
    costs = {
        "input": shares["input"],
        "host": shares["host"],
        "sync": shares["sync"],
        "allocator": shares["allocator"],
        "communication": shares["communication"],
        "pipeline": shares["pipeline"],
        "stragglers": shares["waiting"],
        "copy": shares["copy"],
    }
    found = [Finding(cause, share, *_said(cause, evidence)) for cause, share in costs.items() if share >= LEAST]
    return sorted(found, key=lambda one: -one.share)


def limit(evidence: Evidence, held_up: Sequence[Finding]) -> Finding:
    """Return what limits the run: what holds it up most, else whether its kernels are bound by memory or arithmetic."""
    if held_up:
        return held_up[0]
    cause = "memory" if evidence.memory >= MEMORY_BOUND else "compute"
    return Finding(cause, evidence.shares["compute"], *_said(cause, evidence))


def _said(cause: str, evidence: Evidence) -> tuple[str, str]:
    """Return why a cause is named and what to try first."""
    return _TOLD[cause](evidence) if cause in _TOLD else _SAID[cause]


_SAID = {
    "allocator": (
        "the host waits in cudaMalloc and cudaFree: memory is full, and is given back and taken again",
        "Lower parallel.micro_batch_sequences or set memory.checkpointing=selective, so that memory is not full.",
    ),
    "pipeline": (
        "ranks wait for the messages of other stages",
        "Use more micro-batches (lower parallel.micro_batch_sequences), then parallel.pp_schedule=interleaved.",
    ),
    "copy": (
        "the GPU copies memory and calculates nothing meanwhile",
        "Set memory.offload=none if memory allows it; the list of kernels names the copies.",
    ),
}


def _input(evidence: Evidence) -> tuple[str, str]:
    who = "the GPU" if evidence.on_gpu else "the step"
    return (
        f"{who} waits while the loop fetches its batch",
        "Set runtime.prefetch_batches=4, which reads ahead in a thread; then try a faster disk.",
    )


def _host(evidence: Evidence) -> tuple[str, str]:
    if not evidence.on_gpu:
        return (
            f"between {evidence.launches:,.0f} operations of {_brief(evidence.kernel_seconds)} each (median), Python "
            "runs alone",
            "Raise parallel.micro_batch_sequences, so that each operation has more to do.",
        )
    if evidence.replayed >= 0.5:
        return (
            f"the step is a CUDA graph of {evidence.launches:,.0f} kernels of {_brief(evidence.kernel_seconds)} each "
            "(median): between them the GPU has nothing to do",
            "Raise batch.tokens or parallel.micro_batch_sequences, or train several points on the GPU at once "
            "(cluster.pack=4): nothing else is left to gain on so small a model.",
        )
    return (
        f"the host launches {evidence.launches:,.0f} kernels a step, slower than the GPU runs them: "
        f"{_brief(evidence.kernel_seconds)} each (median)",
        "Set compile.step_graph=true (several GPUs: compile.blocks=true compile.cuda_graphs=true), or raise "
        "parallel.micro_batch_sequences.",
    )


def _sync(evidence: Evidence) -> tuple[str, str]:
    call, owner = evidence.sync or ("a synchronisation", "")
    by = f"{call} of {owner}" if owner else call
    return (
        f"after {by} the GPU has nothing queued until the host has launched more",
        f"Take {owner or call} out of the step, or do it every runtime.log_steps steps only (health.* keys also read "
        "values on the host).",
    )


def _communication(evidence: Evidence) -> tuple[str, str]:
    hidden = (
        "" if evidence.hidden is None else f", {percent(evidence.hidden)} of their time is hidden under computation"
    )
    most = "" if evidence.longest is None else f", most time is in {evidence.longest}"
    alone = "" if evidence.ranks > 1 else " (profile.ranks=all tells slow links from slow ranks)"
    return (
        f"messages go while nothing is calculated{hidden}{most}",
        "Raise parallel.micro_batch_sequences, so that each message has more computation to hide under; with FSDP "
        f"parallel.zero=2 gathers weights once a step{alone}.",
    )


def _stragglers(evidence: Evidence) -> tuple[str, str]:
    if evidence.slowest is None:
        return (
            "ranks wait for each other in turn, none more than others",
            "Compare the ranks' shares: uneven batches (data.packing) or a shared node are the usual reasons.",
        )
    part = ""
    if evidence.slow_part is not None:
        name, seconds = evidence.slow_part
        part = f", which takes {_brief(seconds)} a step longer than the others in {_PARTS[name]}"
    return (
        f"the others wait for rank {evidence.slowest}{part}",
        f"Run without the node of rank {evidence.slowest} (cluster.exclude=NODE; python -m study show names it).",
    )


def _memory(evidence: Evidence) -> tuple[str, str]:
    return (
        f"{percent(evidence.memory)} of the kernels' time is in those that move more than they calculate",
        "Set compile.blocks=true, which fuses them, and precision=bf16, which halves their bytes.",
    )


def _compute(evidence: Evidence) -> tuple[str, str]:
    more = "precision=bf16 (fp8 on H100 and later) or more GPUs" if evidence.on_gpu else "a GPU"
    return "nothing holds it up", f"Nothing is wrong; {more} would make it faster."


_TOLD: Mapping[str, Callable[[Evidence], tuple[str, str]]] = {
    "input": _input,
    "host": _host,
    "sync": _sync,
    "communication": _communication,
    "stragglers": _stragglers,
    "memory": _memory,
    "compute": _compute,
}

_PARTS = {
    "compute": "computation",
    "communication": "communication",
    "pipeline": "its pipeline",
    "copy": "copies",
    "input": "fetching its batch",
    "sync": "synchronisation",
    "allocator": "allocating memory",
    "host": "launching",
}


def _brief(seconds: float) -> str:
    return (
        f"{seconds * 1e6:.0f} µs"
        if seconds < 1e-3
        else f"{seconds * 1e3:.3g} ms"
        if seconds < 1
        else f"{seconds:.3g} s"
    )
