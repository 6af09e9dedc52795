"""What one device does at most: matrix products by shape and format, copies, launches, attention."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.grouped.api import grouped_linear
from train.spec.communication.cluster import Compute, Rate

ROUNDS, CALLS = 5, 10
FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SIDES = (1024, 2048, 4096, 8192)
"""Sides of square products; `NARROW` are those of a model's layers, where one side is short."""
NARROW = (
    (16384, 4096, 1024), (16384, 1024, 4096), (16384, 4096, 128256),
    (40960, 256, 704), (40960, 384, 1024), (40960, 768, 2048), (40960, 2048, 5632), (40960, 384, 8192),
)  # fmt: skip
GROUPED = ((8, 4096, 4096, 1024), (8, 1024, 4096, 1024), (64, 512, 2048, 1408), (64, 64, 2048, 1408))
"""Groups, rows of each, columns in, columns out: products of experts in one launch."""
COPIED, SENT = 1 << 30, 1 << 28
"""Bytes that are copied within the device, and from the host."""
CPU_SIDES = {"fp32": (256, 512, 1024), "bf16": (256, 512)}
"""Sides of square products on a CPU. In bf16 few have instructions for it, and it is slow."""
CPU_COPIED, CPU_CALLS = 1 << 26, 2
"""Bytes that a CPU copies, more than its caches hold; calls of a round."""
LAUNCHES = 1000
ATTENTION = ((2, 32, 8192, 128), (8, 16, 4096, 128), (64, 12, 1024, 64), (80, 6, 512, 64))
"""Sequences, heads, length, channels of a head."""


def ceilings(device: torch.device, say: Callable[[str], None] = lambda text: None) -> Compute:
    """Return what a CUDA device reaches now; takes some twenty seconds of it."""
    say("matrix products")
    rates = tuple(matmul_rates(device))
    say("copies, launches, attention")
    return Compute(
        matmul=rates,
        grouped=tuple(grouped_rates(device, GROUPED if torch.cuda.get_device_capability(device) >= (9, 0) else ())),
        attention=tuple(rate for shape in ATTENTION for rate in attention_rates(device, *shape)),
        copy=copy_rate(device, COPIED),
        host_to_device=host_rate(device, SENT),
        launch=launch_seconds(device),
        memory=float(torch.cuda.get_device_properties(device).total_memory),
    )


def cpu_ceilings(ranks: int) -> Compute:
    """Return what a process reaches on the CPU now, with as many threads as torch has; takes some seconds.

    ranks: processes of this host, each of which has an equal part of its memory.
    """
    device = torch.device("cpu")
    rates = []
    for name, sides in CPU_SIDES.items():
        for side in sides:
            a, b = (torch.randn(side, side, dtype=FORMATS[name]) for _ in range(2))
            seconds = seconds_of(partial(torch.matmul, a, b), device, CPU_CALLS)
            rates.append(Rate(f"{side} x {side} x {side}", name, 2 * side**3 / seconds))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / ranks
    return Compute(matmul=tuple(rates), copy=copy_rate(device, CPU_COPIED, CPU_CALLS), memory=memory)


def matmul_rates(device: torch.device, shapes: tuple[tuple[int, int, int], ...] = ()) -> Iterator[Rate]:
    """Yield rates of m x k by k x n products [FLOP/s], 2 m k n FLOPs each."""
    every = shapes or (*((side, side, side) for side in SIDES), *NARROW)
    for name, dtype in FORMATS.items():
        for m, k, n in every:
            a, b = torch.randn(m, k, device=device, dtype=dtype), torch.randn(k, n, device=device, dtype=dtype)
            yield _rate(f"{m} x {k} x {n}", name, 2 * m * k * n, partial(torch.matmul, a, b), device)
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9):
        for m, k, n in every:
            yield _rate(f"{m} x {k} x {n}", "fp8", 2 * m * k * n, _fp8_product(m, k, n, device), device)


def grouped_rates(device: torch.device, shapes: tuple[tuple[int, int, int, int], ...]) -> Iterator[Rate]:
    """Yield rates of m x k by k x n products in bf16 [FLOP/s], one for each of so many groups."""
    for groups, m, k, n in shapes:
        rows = torch.randn(groups * m, k, device=device, dtype=torch.bfloat16)
        weight = torch.randn(groups, n, k, device=device, dtype=torch.bfloat16)
        ends = torch.arange(m, groups * m + 1, m, device=device, dtype=torch.int32)
        call = partial(grouped_linear, rows, weight, ends)
        yield _rate(f"{groups} x {m} x {k} x {n}", "bf16", 2 * groups * m * k * n, call, device)


def _fp8_product(m: int, k: int, n: int, device: torch.device) -> Callable[[], Tensor]:
    a = torch.randn(m, k, device=device).to(torch.float8_e4m3fn)
    b = torch.randn(n, k, device=device).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)


def attention_rates(device: torch.device, sequences: int, heads: int, length: int, channels: int) -> Iterator[Rate]:
    """Yield rates of causal attention in bf16 [FLOP/s], half the square counted: 2 products forward, 7 with backward.

    Backward makes the scores again, and its four products.
    """
    shape = (sequences, heads, length, channels)
    q, k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    product = sequences * heads * length * length * channels  # 2 FLOPs each, of half the square
    of = f"{sequences} x {heads} x {length} x {channels}, causal"

    def forward() -> Tensor:
        with torch.no_grad():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def both() -> None:
        torch.autograd.backward(F.scaled_dot_product_attention(q, k, v, is_causal=True).sum())

    yield _rate(f"{of}, forward", "bf16", 2 * product, forward, device)
    yield _rate(f"{of}, forward and backward", "bf16", 7 * product, both, device)


def copy_rate(device: torch.device, size: int, calls: int = CALLS) -> float:
    """Return the rate of copies within the device's memory [B/s], bytes read and written."""
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds_of(lambda: target.copy_(source), device, calls)


def host_rate(device: torch.device, size: int) -> float:
    """Return the rate of copies from page-locked memory of the host to the device [B/s]."""
    source = torch.ones(size // 4, pin_memory=device.type == "cuda")
    target = torch.empty(size // 4, device=device)
    return size / seconds_of(lambda: target.copy_(source, non_blocking=True), device)


def launch_seconds(device: torch.device) -> float:
    """Return the time from one kernel to the next where each does next to nothing [s]: Python's share is in it."""
    number = torch.zeros(1, device=device)

    def many() -> None:
        for _ in range(LAUNCHES):
            number.add_(1)

    return seconds_of(many, device, calls=1) / LAUNCHES


def _rate(of: str, format: str, count: float, call: Callable[[], object], device: torch.device) -> Rate:
    return Rate(of, format, count / seconds_of(call, device))


def seconds_of(call: Callable[[], object], device: torch.device, calls: int = CALLS) -> float:
    """Return the seconds of a call: the median of some rounds, the device idle before and after each."""
    rounds = []
    for _ in range(ROUNDS + 1):
        _wait(device)
        began = time.perf_counter()
        for _ in range(calls):
            call()
        _wait(device)
        rounds.append((time.perf_counter() - began) / calls)
    return statistics.median(rounds[1:])  # the first one warms up


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
