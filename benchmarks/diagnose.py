"""How long a large trace takes to read and to diagnose, beside Holistic Trace Analysis on the same file.

    python -m benchmarks.diagnose [--events 1000000] [--hta PYTHON]

The trace has shapes, launches, kernels, flows and messages, as torch's profiler writes them. PYTHON is an interpreter
that has HolisticTraceAnalysis (with pandas below 3), which is no dependency: its own process reads the same folder and
computes the overlap of communication and computation. Seconds are of the processor, as the machine may do other things;
HTA's are of its process and the children of that, without imports.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path

from study.diagnosis.of_traces import diagnose, read_traces
from train.spec.command_line import Parser

STEPS = 5
EVENTS_A_PAIR = 8
_HTA = """
import json, os, sys
from hta.trace_analysis import TraceAnalysis
began = sum(os.times()[:4])
analysis = TraceAnalysis(trace_dir=sys.argv[1])
found = analysis.get_comm_comp_overlap(visualize=False)
print(json.dumps([sum(os.times()[:4]) - began, float(found.iloc[0]["comp_comm_overlap_pctg"])]))
"""


def main() -> int:
    """Print the table."""
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--hta", metavar="PYTHON", help="interpreter that has HolisticTraceAnalysis")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step-000000009-rank-0.json"
        write(path, options.events)
        began = time.process_time()
        traces = read_traces([path])
        read = time.process_time() - began
        found = diagnose(traces)
        whole = time.process_time() - began
        size = path.stat().st_size / 1e6
        print(f"{size:,.0f} MB, {found.events:,} events, {found.steps + 1} steps; seconds of the processor\n")
        print(f"{'':24}{'seconds':>8}{'events/s':>12}{'MB/s':>8}{'overlap %':>11}")
        print(f"{'read':24}{read:8.1f}{found.events / read:12,.0f}{size / read:8.0f}")
        overlap = 100 * (found.overlap or 0.0)
        print(f"{'read and diagnose':24}{whole:8.1f}{found.events / whole:12,.0f}{size / whole:8.0f}{overlap:11.2f}")
        if options.hta:
            said = subprocess.run([options.hta, "-c", _HTA, folder], capture_output=True, text=True, check=True)
            took, theirs = json.loads(said.stdout.splitlines()[-1])
            print(
                f"{'HTA: read and overlap':24}{took:8.1f}{found.events / took:12,.0f}{size / took:8.0f}{theirs:11.2f}"
            )
            print(f"\nours in 1/{took / whole:.1f} of HTA's time")
    return 0


def write(path: Path, events: int) -> None:
    """Write a trace of about so many events: pairs of a product and a message that it hides for the most part."""
    each = events // (STEPS * EVENTS_A_PAIR)
    with path.open("w", encoding="utf-8") as file:
        file.write('{\n  "schemaVersion": 1,\n  "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],\n')
        file.write('  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},\n  "traceEvents": [\n')
        now, number = 4589308918694.0, 0
        for step in range(STEPS):
            begin = now
            for _ in range(each):
                number += 2
                file.write(_pair(now, number))
                now += 20.0
            file.write(_event("user_annotation", f"ProfilerStep#{step}", begin, now - begin, 1, '"External id": 0'))
        file.write('  {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 0}\n  ],"traceName": "x" }')


def _pair(now: float, number: int) -> str:
    shapes = '"Input Dims": [[16384, 4096], [4096, 4096]], "Input type": ["c10::BFloat16", "c10::BFloat16"]'
    reduce = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    lines = []
    for key, name, kernel, stream, start, took in (
        (number, "aten::mm", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", 7, now + 20, 16.0),
        (number + 1, "c10d::allreduce_", reduce, 20, now + 30, 10.0),
    ):
        ids = f'"External id": {key}, "correlation": {key}'
        device = f'{ids}, "device": 0, "context": 1, "stream": {stream}, "grid": [8, 8, 5], "block": [128, 1, 1]'
        lines += [
            _event("cpu_op", name, now, 8.0, 1, f'"External id": {key}, {shapes}'),
            _event("cuda_runtime", "cudaLaunchKernel", now + 2, 3.0, 1, f'{ids}, "cbid": 211'),
            _event("kernel", kernel, start, took, stream, device),
            f'  {{"ph": "s", "id": {key}, "pid": 1, "tid": 1, "ts": {now}, "cat": "ac2g", "name": "ac2g"}},\n',
        ]
    return "".join(lines)


def _event(cat: str, name: str, start: float, took: float, tid: int, args: str) -> str:  # noqa: PLR0917
    where = f'"pid": {0 if cat == "kernel" else 1}, "tid": {tid}'
    return (
        f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", {where},\n'
        f'    "ts": {start:.3f}, "dur": {took:.3f},\n    "args": {{\n      {args}\n    }}\n  }},\n'
    )


if __name__ == "__main__":
    raise SystemExit(main())
