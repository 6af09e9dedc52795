"""What the profiler shows of the kernels that miss their goals: time by kernel, products alone, two other ways.

`python -m benchmarks.kernels_profile [--small] [--write FOLDER]`: for each case the kernels of one pass with their
share, the gaps between them and, for linear + CE, the rate of its three matrix products alone in the same minute, with
clock and power while they run. Then linear + CE in other chunks, and with the softmax of one chunk on a second stream
beside the products of the next. About 30 s on an H200; `--small` runs everything tiny, also on a CPU.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

import kernels
from benchmarks._kernels_cases import DEVICE, drawn, linear_case, loss_case, norm_cases, rope_case
from benchmarks._kernels_timing import once
from kernels.cross_entropy import linear
from kernels.cross_entropy.math import Options, whole
from kernels.cross_entropy.plan import Plan
from train.spec.command_line import Parser

GPU = DEVICE == "cuda"
PRODUCTS = ("gemm", "nvjet", "cutlass", "xmma", "splitk", "cublas", "aten::mm", "aten::addmm")


def timed(work: Callable[[], object], repeats: int = 5) -> float:
    """Return the median time [s] of a few calls after one that does not count."""
    once(work)
    return sorted(once(work) for _ in range(repeats))[repeats // 2]


def kernels_of(work: Callable[[], object], repeats: int = 3) -> Iterator[str]:
    """Profile some passes; yield a line for each kernel, then one of products, of the rest and of gaps."""
    work()
    kind = DeviceType.CUDA if GPU else DeviceType.CPU
    with profile(activities=[ProfilerActivity.CUDA if GPU else ProfilerActivity.CPU]) as profiler:
        for _ in range(repeats):
            work()
        if GPU:
            torch.cuda.synchronize()
    events = [event for event in profiler.events() or [] if event.device_type == kind]
    spans = sorted((event.time_range.start, event.time_range.end) for event in events)
    total: dict[str, list[float]] = defaultdict(list)
    for event in events:
        total[event.name].append(event.time_range.end - event.time_range.start)
    busy, until = 0.0, 0.0
    for start, end in spans:
        busy, until = busy + max(0.0, end - max(start, until)), max(until, end)
    whole = until - spans[0][0]
    products = sum(sum(times) for name, times in total.items() if any(part in name.lower() for part in PRODUCTS))
    for name, times in sorted(total.items(), key=lambda item: -sum(item[1]))[:8]:
        yield f"    {sum(times) / repeats:10.1f} us  {len(times) / repeats:4.1f} times  {name[:90]}"
    yield (
        f"    {whole / repeats:10.1f} us a pass: products {products / repeats:.1f}, other kernels "
        f"{(sum(map(sum, total.values())) - products) / repeats:.1f}, nothing runs {(whole - busy) / repeats:.1f}"
    )


def products(rows: int, width: int, vocabulary: int) -> Iterator[str]:
    """Yield the rate of each product of a chunk alone, and clock and power while the last runs again and again."""
    x, head, errors = drawn(rows, width), drawn(vocabulary, width, scale=width**-0.5), drawn(rows, vocabulary)
    total = torch.zeros(vocabulary, width, device=DEVICE)
    ways: dict[str, Callable[[], object]] = {
        "logits": lambda: torch.mm(x, head.t(), out=errors),
        "gradient of hidden": lambda: torch.mm(errors, head),
        "gradient of the weight": lambda: linear._add_product(total, errors, x, False),
    }
    for name, work in ways.items():
        yield f"    {2e-12 * rows * width * vocabulary / timed(work, 9):8.1f} TFLOP/s  {name}, {rows} tokens"
    if GPU and shutil.which("nvidia-smi"):
        for _ in range(60):
            ways["gradient of the weight"]()
        wanted = "--query-gpu=clocks.sm,power.draw,power.limit,clocks_event_reasons.sw_power_cap"
        told = subprocess.run(["nvidia-smi", wanted, "--format=csv"], capture_output=True, text=True, check=False)
        yield "    " + told.stdout.strip().replace("\n", "\n    ")
        torch.cuda.synchronize()


def overlapped(inputs: Any, parts: int) -> None:
    """Do linear + CE with gradients in `parts` chunks, the softmax of each on a second stream beside products."""
    (hidden, head), (target,) = inputs["x"], inputs["rest"]
    rows, engine = len(hidden) // parts, Plan(Options(), whole(0), GPU).engine()
    buffers = [hidden.new_empty(rows, len(head)) for _ in range(2)]
    grad, total = torch.empty_like(hidden), hidden.new_empty(head.shape, dtype=torch.float32)
    side = torch.cuda.Stream() if GPU else None  # type: ignore[no-untyped-call]
    done: list[Any] = []

    def logits_and_softmax(number: int) -> None:
        part = slice(number * rows, (number + 1) * rows)
        torch.mm(hidden[part], head.t(), out=buffers[number % 2])
        if side is None:
            engine.fused(buffers[number % 2], target[part], Options(), buffers[number % 2], None)
            return
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            engine.fused(buffers[number % 2], target[part], Options(), buffers[number % 2], None)
            done.append(side.record_event())

    logits_and_softmax(0)
    for number in range(parts):
        if number + 1 < parts:
            logits_and_softmax(number + 1)
        if done:
            torch.cuda.current_stream().wait_event(done[number])
        part = slice(number * rows, (number + 1) * rows)
        torch.mm(buffers[number % 2], head, out=grad[part])
        linear._add_product(total, buffers[number % 2], hidden[part], number == 0)


def report(small: bool) -> Iterator[str]:
    """Yield the lines of the report."""
    tokens, width, vocabulary = (64, 32, 320) if small else (16384, 4096, 128256)
    cases = [linear_case(n, width, vocabulary, 1.0, None) for n in (tokens, tokens // 4)]
    cases += [loss_case(tokens, vocabulary, 1.0, None), norm_cases(tokens, width, None)[0], rope_case(tokens, None)]
    for case in cases:
        inputs = case.make()
        yield f"{case.name} ({case.variants[0].name}), floor {case.floor * 1e6:.1f} us"
        yield from kernels_of(lambda case=case, inputs=inputs: case.variants[0].run(inputs))  # type: ignore[misc]
        if not case.name.startswith("linear"):
            continue
        yield from products(min(len(inputs["x"][0]), tokens // 2), width, vocabulary)
        before = linear.TRITON_CHUNK_BYTES
        work: Callable[[], object] = lambda case=case, inputs=inputs: case.variants[0].run(inputs)  # type: ignore[misc]  # noqa: E731
        for size in (2 << 30, 1 << 30, 512 << 20, 2 << 30):
            linear.TRITON_CHUNK_BYTES = size
            yield f"    {timed(work) * 1e3:8.2f} ms  forward and backward, chunks of at most {size / 2**30:.1f} GiB"
        linear.TRITON_CHUNK_BYTES = before
        for parts in (2, 4, 8):
            seconds = timed(lambda parts=parts, inputs=inputs: overlapped(inputs, parts))  # type: ignore[misc]
            yield f"    {seconds * 1e3:8.2f} ms  forward, {parts} chunks, softmax beside the next product"
        with torch.no_grad():
            both = linear_forward(inputs)
        yield f"    {timed(both) * 1e3:8.2f} ms  forward with gradients as it is, one stream"


def linear_forward(inputs: Any) -> Callable[[], object]:
    """Return the forward pass of linear + CE with the gradients it makes, without scaling them in backward."""
    hidden, head = (x.detach().requires_grad_() for x in inputs["x"])

    def work() -> object:
        with torch.enable_grad():
            return kernels.linear_cross_entropy(hidden, head, inputs["rest"][0])

    return work


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny sizes, on any device: tests the script")
    parser.add_argument("--write", type=Path, help="folder for kernels_profile.txt")
    options = parser.parse_args()
    if not (options.small or GPU):
        print("no CUDA device here: this benchmark needs one (or --small)", file=sys.stderr)
        return 1
    import triton

    device = torch.cuda.get_device_name() if GPU else "cpu"
    stamp = f"{datetime.datetime.now(datetime.UTC).date()}, {device}, torch {torch.__version__}, triton"
    lines = [f"$ python -m benchmarks.kernels_profile\n{stamp} {triton.__version__}"]
    print(lines[0], flush=True)
    for line in report(options.small):
        lines.append(line)
        print(line, flush=True)
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "kernels_profile.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
