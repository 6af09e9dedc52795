"""Times GPU work: variants interleaved, inputs rotated, CUDA graphs where possible, a matrix product as witness."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

CACHE = 60 << 20
"""The GPU's L2 [bytes]: inputs rotate over three times as much."""


@dataclass
class Variant:
    """One way to do a case's work: `run(inputs)` on one of the input sets; what it returns is counted as its result."""

    name: str
    run: Callable[[Any], Any]
    captured: bool = True


@dataclass
class Case:
    """Work to be timed: its floor [s], a maker of one set of inputs, what may run it, a goal [s] or None."""

    name: str
    floor: float
    make: Callable[[], Any]
    variants: list[Variant]
    goal: float | None = None
    errors: dict[str, float] = field(default_factory=dict)


@dataclass
class Timed:
    """Median and 20th and 80th percentiles [s], memory beyond inputs and results [bytes], or what went wrong."""

    median: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    extra: int = 0
    failure: str = ""


def tensors(x: Any) -> list[Tensor]:
    """Return all tensors in nested lists, tuples and dicts."""
    if isinstance(x, Tensor):
        return [x]
    values = x.values() if isinstance(x, dict) else x if isinstance(x, list | tuple) else ()
    return [t for value in values for t in tensors(value)]


def size(x: Any) -> int:
    return sum(t.numel() * t.element_size() for t in {t.data_ptr(): t for t in tensors(x)}.values())


def extra_memory(variant: Variant, inputs: Any) -> int:
    """Return the peak of memory above inputs and results [bytes]."""
    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = variant.run(inputs)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    known = {t.data_ptr() for t in tensors(inputs)}
    kept = size([t for t in tensors(result) if t.data_ptr() not in known])
    return max(0, peak - kept)


def prepared(variant: Variant, sets: Sequence[Any]) -> Callable[[], None]:
    """Return what runs the variant once on every input set: a CUDA graph's replay if it can be captured."""

    def all_sets() -> None:
        for inputs in sets:
            variant.run(inputs)

    if not torch.cuda.is_available() or not variant.captured:
        return all_sets
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        all_sets()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_sets()
    return graph.replay


def once(work: Callable[[], object]) -> float:
    """Return how long one call takes on the device [s]."""
    if not torch.cuda.is_available():
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    before.record()
    work()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / 1e3


class Witness:
    """A matrix product of 2^41 operations on random bf16, timed among everything else: the clock as it was."""

    def __init__(self, width: int) -> None:
        self.width = width
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.a, self.b = (torch.randn(width, width, device=device).bfloat16() for _ in range(2))
        self.rates: list[float] = []

    def __call__(self) -> None:
        """Time it once more."""
        self.rates.append(2 * self.width**3 / once(lambda: torch.mm(self.a, self.b)))

    def median(self, since: int = 0) -> float:
        """Return the median rate [FLOP/s] of the timings from number `since` on."""
        return statistics.median(self.rates[since:])


def measure(case: Case, witness: Witness, rounds: int = 20, seconds: float = 1.5) -> dict[str, Timed]:
    """Time all variants of a case in turn, again and again, for about `seconds` or `rounds` rounds each."""
    first = case.make()
    sets = [first]
    wanted = max(2, min(8, -(-3 * CACHE // max(1, size(first)))))
    sets += [case.make() for _ in range(wanted - 1)]
    found: dict[str, Timed] = {}
    works: dict[str, Callable[[], None]] = {}
    for variant in case.variants:
        timed = found[variant.name] = Timed()
        try:
            variant.run(first)
            timed.extra = extra_memory(variant, first)
            works[variant.name] = prepared(variant, sets)
            works[variant.name]()
        except Exception as error:  # a peer that cannot do it is a result, too
            timed.failure = f"{type(error).__name__}: {error}".splitlines()[0][:100]
            if torch.cuda.is_available():
                torch.cuda.synchronize()
    samples: dict[str, list[float]] = {name: [] for name in works}
    deadline = time.perf_counter() + seconds * max(1, len(works))
    for number in range(rounds):
        if number >= 5 and time.perf_counter() > deadline:
            break
        witness()
        for name, work in works.items():
            samples[name].append(once(work) / len(sets))
    for name, values in samples.items():
        ordered = sorted(values)
        found[name].median = statistics.median(values)
        found[name].low = ordered[len(ordered) // 5]
        found[name].high = ordered[len(ordered) * 4 // 5]
    return found
