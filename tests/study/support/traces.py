"""Traces as torch's profiler writes them, of a host and a GPU that are played: causes are planted and known."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GEMM = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
MESSAGE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
LAUNCH = 4.0
"""What a launch costs the host [µs]."""
BEGIN = 4589308918694.078
"""Clocks of traces begin anywhere [µs]."""


@dataclass
class Machine:
    """A host that launches and a GPU with streams that run; writes down both. Times in µs."""

    rank: int = 0
    device: str | None = "NVIDIA H200"
    host: float = BEGIN
    free: dict[str, float] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    number: int = 0

    def add(self, cat: str, name: str, start: float, end: float, tid: int = 1, **args: Any) -> None:
        """Write down an event."""
        event = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": end - start}
        self.events.append({**event, "args": args})

    def step(self, *parts: Any) -> None:
        """Do what each of these functions does, as a step."""
        self.steps += 1
        begin = self.host
        for part in parts:
            part(self)
        self.add("user_annotation", f"ProfilerStep#{self.steps}", begin, self.host)

    def phase(self, name: str, took: float) -> None:
        """Spend time on the host, marked."""
        self.add("user_annotation", name, self.host, self.host + took)
        self.host += took

    def launch(self, name: str, took: float, stream: str = "7", op: str = "aten::op", **args: Any) -> None:
        """Run a kernel as soon as its stream is free; args: of the operation, as shapes."""
        self.number += 1
        begin, self.host = self.host, self.host + LAUNCH
        self.add("cpu_op", op, begin, self.host, **{"External id": self.number}, **args)
        ids = {"External id": self.number, "correlation": self.number}
        self.add("cuda_runtime", "cudaLaunchKernel", begin + 1, self.host - 1, **ids)
        start = max(self.host, self.free.get(stream, 0.0))
        cat = "gpu_memcpy" if name.startswith("Mem") else "kernel"
        self.add(cat, name, start, start + took, tid=int(stream), **ids)
        self.free[stream] = start + took

    def after(self, stream: str, other: str) -> None:
        """Let a stream wait for what is queued on another one."""
        self.free[stream] = max(self.free.get(stream, 0.0), self.free.get(other, 0.0))

    def call(self, name: str, took: float | None = None) -> None:
        """Call the runtime; without a duration the host waits until the GPU has done all."""
        end = max([self.host, *self.free.values()]) if took is None else self.host + took
        self.add("cuda_runtime", name, self.host, end, **{"External id": self.number, "correlation": 0})
        self.host = end

    def allocate(self, size: int, address: int, total: int, on_gpu: bool = True) -> None:
        """Take memory (size above zero), or give it back."""
        args = {"Total Reserved": total, "Total Allocated": total, "Bytes": size, "Addr": address, "Device Id": 0}
        event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": self.host}
        self.events.append({**event, "s": "t", "args": {**args, "Device Type": int(on_gpu)}})

    def text(self) -> str:
        """Return the trace as a file holds it."""
        header = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": self.device}] if self.device else []}
        header |= {"distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": 4}, "displayTimeUnit": "ms"}
        flow = {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": BEGIN, "cat": "ac2g", "name": "ac2g"}
        return json.dumps({**header, "traceEvents": [flow, *self.events], "traceName": "x"}, indent=2)

    def write(self, folder: Path, packed: bool = True) -> Path:
        """Write it where the trainer writes its own; return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"step-000000009-rank-{self.rank}.json{'.gz' if packed else ''}"
        data = self.text().encode()
        path.write_bytes(gzip.compress(data) if packed else data)
        return path


def products(machine: Machine, count: int = 20, took: float = 300.0) -> None:
    """Launch large matrix products."""
    for _ in range(count):
        machine.launch(GEMM, took, op="aten::mm")


def healthy(rank: int = 0, steps: int = 4) -> Machine:
    """Return a machine that calculates: messages are hidden, the batch is ready, the host is far ahead."""
    machine = Machine(rank)
    for _ in range(steps):
        machine.step(_ready, products, _hidden, products, _updates)
    return machine


def _ready(machine: Machine) -> None:
    machine.phase("data", 50.0)


def _hidden(machine: Machine) -> None:
    machine.after("20", "7")
    machine.launch(REDUCE, 1500.0, stream="20")


def _updates(machine: Machine) -> None:
    for _ in range(10):
        machine.launch(ADD, 40.0)


def slow_loader() -> Machine:
    """Return one whose batch takes longer than the step."""
    machine = Machine()
    for _ in range(4):
        machine.step(lambda m: m.phase("data", 9000.0), products, _updates)
    return machine


def tiny_kernels() -> Machine:
    """Return one whose kernels are shorter than their launches."""
    machine = Machine()
    for _ in range(4):
        machine.step(_ready, lambda m: products(m, 500, 1.5))
    return machine


def bare_gather() -> Machine:
    """Return one whose weights are gathered before each product needs them, not earlier."""
    machine = Machine()

    def gathered(m: Machine) -> None:
        for _ in range(10):
            m.after("20", "7")
            m.launch(GATHER, 200.0, stream="20")
            m.after("7", "20")
            m.launch(GEMM, 400.0, op="aten::mm")

    for _ in range(4):
        machine.step(_ready, gathered)
    return machine


def sync_per_step() -> Machine:
    """Return one that reads the loss in each step, after which the host has much to do before it launches again."""
    machine = Machine()

    def read(m: Machine) -> None:
        begin = m.host
        m.launch("Memcpy DtoH (Device -> Pageable)", 1.0, op="aten::copy_")
        m.call("cudaStreamSynchronize")
        m.add("cpu_op", "aten::item", begin, m.host, **{"External id": 0})
        m.host += 2500.0

    for _ in range(4):
        machine.step(_ready, products, read)
    return machine


def pipeline(rank: int = 1) -> Machine:
    """Return a stage that waits for the first micro-batch of each step, and for the last gradient."""
    machine = Machine(rank)

    def stage(m: Machine) -> None:
        for number in range(4):
            begin = m.host
            m.launch(MESSAGE, 3000.0 if number == 0 else 20.0, stream="20")
            m.after("7", "20")
            m.launch(GEMM, 1000.0, op="aten::mm")
            m.add("user_annotation", f"Forward {number}", begin, m.host)
            m.after("20", "7")

    for _ in range(4):
        machine.step(_ready, stage)
    return machine


def straggler(slow: int = 2, ranks: int = 4) -> list[Machine]:
    """Return ranks that reduce gradients together in each step, one of which calculates half as long again."""
    machines = [Machine(rank) for rank in range(ranks)]
    longest = 20 * 300.0 * 1.5

    def own(m: Machine) -> None:
        took = 450.0 if m.rank == slow else 300.0
        products(m, 20, took)
        m.after("20", "7")
        m.launch(REDUCE, 200.0 + longest - 20 * took, stream="20")
        m.after("7", "20")

    for machine in machines:
        for _ in range(4):
            machine.step(_ready, own)
    return machines


def memory_bound() -> Machine:
    """Return one that adds large tensors most of the time."""
    machine = Machine()
    sums: dict[str, Any] = {"Input Dims": [[2**28], [2**28], []], "Input type": ["float", "float", "Scalar"]}

    def added(m: Machine) -> None:
        for _ in range(8):
            m.launch(GEMM, 300.0, op="aten::mm")
            m.launch(ADD, 900.0, op="aten::add", **sums)

    for _ in range(4):
        machine.step(_ready, added)
    return machine


def crowded() -> Machine:
    """Return one whose memory is full: it is given back and taken again in each step."""
    machine = Machine()
    for _ in range(4):
        machine.step(_ready, products, _retry)
    return machine


def _retry(machine: Machine) -> None:
    machine.host = max(machine.host, *machine.free.values())
    machine.call("cudaFree", 900.0)
    machine.call("cudaMalloc", 900.0)
