"""This trainer beside torchtitan 0.2.2 in one run on one machine: tokens/s/GPU, MFU, GPU memory, ratio.

    python -m benchmarks.trainer_peers [--rows NAME …] [--gpus 1] [--seconds 500] [--write benchmarks/results]

Each row is a process group of its own with a time limit, and the table and its JSON are written after every row, so
that a row that fails or hangs costs no other. MFU counts 6 FLOPs a weight of a matrix product and attention over the
full square (benchmarks.peers.rows), the same for both, over 989.5 TFLOP/s. GiB is what the allocator has reserved at
its peak. torchtitan comes as a wheel on the path with torchdata, tyro, typeguard, shtab, docstring-parser and einops;
without it, or without GPUs, its rows say so.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.rows import SHAPES, Row, find, rows

ENVIRONMENT = {
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "OMP_NUM_THREADS": "8",
    "PYTHONUNBUFFERED": "1",
}
"""What both trainers run under; torchtitan's own launch script sets the allocator so."""
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True)
class Result:
    """What became of a row: its figures, or the end of what it printed."""

    row: Row
    figures: dict[str, Any]
    seconds: float
    failure: str = ""


def run(row: Row, limit: float, extra: list[str], log: Path, environment: Mapping[str, str] = NOTHING) -> Result:
    """Run one row for at most `limit` seconds. extra: further words for rows that take them. environment: of it alone.

    The environment of this process is below both ENVIRONMENT and that.
    """
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "figures.json"
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(row.gpus)]
        command = [sys.executable, *launcher, "-m", f"benchmarks.peers.{row.trainer}", row.name]
        command += extra if row.trainer.startswith(("ours", "zero_")) else []
        with log.open("w", encoding="utf-8") as out:
            process = subprocess.Popen(
                command,
                env={**os.environ, **ENVIRONMENT, **environment, "PEERS_RESULT": str(result)},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(limit)
                failure = "" if process.returncode == 0 else f"exit code {process.returncode}"
            except subprocess.TimeoutExpired:
                failure = f"stopped after {limit:.0f} s"
            finally:
                _end(process)
        figures = json.loads(result.read_text()) if result.exists() else {}
    if figures:
        return Result(row, figures, time.perf_counter() - began)
    return Result(row, {}, time.perf_counter() - began, f"{failure or 'no figures'}: {_reason(log)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the row's processes, those of its own session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue


def _reason(log: Path) -> str:
    """Return the line of a log that says best why it ended."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    ended = next((place for place, line in enumerate(lines) if "closing signal" in line), 0)  # from outside
    errors = [line for line in lines if "Error" in line and "torch.distributed.elastic" not in line]
    if ended and not errors:
        return lines[ended - 1][-300:]
    return (errors[0] if errors else lines[-1] if lines else "nothing printed")[-300:]


def table(results: list[Result], about: str) -> str:
    """Return the results as a Markdown table."""
    by_name = {result.row.name: result for result in results}
    lines = [
        about,
        "",
        "| row | GPUs | sequences x length, each data rank | tok/s/GPU | MFU | GiB | ratio | goal | memory ratio |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for result in results:
        row, figures = result.row, result.figures
        where = f"| {row.name} | {row.gpus} | {row.sequences} x {SHAPES[row.shape].length} |"
        if not figures:
            lines.append(f"{where} {result.failure.replace('|', '/')} | | | | {row.goal or ''} | |")
            continue
        peer = by_name[row.against].figures if row.against in by_name else {}
        ratio = memory = ""
        if peer:
            ratio = f"{figures['tokens_per_second_per_gpu'] / peer['tokens_per_second_per_gpu']:.3f}"
            memory = f"{figures['gib'] / peer['gib']:.2f}" if peer.get("gib") else ""
        lines.append(
            f"{where} {figures['tokens_per_second_per_gpu']:,.0f} | {figures['mfu']:.1%} | {figures['gib']:.1f} "
            f"| {ratio} | {row.goal or ''} | {memory} |"
        )
    return "\n".join(lines) + "\n"


def about() -> str:
    """Return the machine, the versions and the date."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    count = torch.cuda.device_count()
    today = datetime.datetime.now(datetime.UTC).date()
    return (
        f"{today}, {count} x {gpu}, {platform.machine()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, torchtitan 0.2.2; random tokens, AdamW"
    )


def keep(results: list[Result], folder: Path) -> None:
    """Write the table and the figures."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_peers.md").write_text(table(results, about()), encoding="utf-8")
    record: list[dict[str, Any]] = [
        {"row": result.row.name, "settings": result.row.settings, "seconds": result.seconds, "failure": result.failure}
        | result.figures
        for result in results
    ]
    document = json.dumps({"about": about(), "rows": record}, indent=1)
    (folder / "trainer_peers.json").write_text(document + "\n", encoding="utf-8")


def chosen(names: list[str], gpus: int | None) -> list[Row]:
    """Return the rows that are asked for, by name; none: all but the tiny ones."""
    picked = [find(name) for name in names] or [row for row in rows() if row.shape != "tiny"]
    return [row for row in picked if gpus is None or row.gpus == gpus]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", nargs="*", default=[], help="rows to run; NAME+KEY=VALUE: changed so; none: all")
    parser.add_argument("--gpus", type=int, help="only rows on so many GPUs")
    parser.add_argument("--seconds", type=float, default=1e9, help="time for all rows; what is left then is left out")
    parser.add_argument("--limit", type=float, default=180.0, help="time for one row [s]")
    parser.add_argument("--write", type=Path, default=Path("benchmarks/results"), help="folder for table and JSON")
    parser.add_argument("--logs", type=Path, default=Path("/tmp/trainer_peers_logs"))
    parser.add_argument("--ours", default="", help="arguments for our rows, in one string")
    options = parser.parse_args()
    options.logs.mkdir(parents=True, exist_ok=True)
    end, results = time.perf_counter() + options.seconds, []
    for row in chosen(options.rows, options.gpus):
        left = end - time.perf_counter()
        if left < 20:
            results.append(Result(row, {}, 0.0, "no time left"))
            continue
        results.append(
            run(row, min(options.limit, left), shlex.split(options.ours), options.logs / f"{row.name[:80]}.log")
        )
        keep(results, options.write)
        last = results[-1]
        print(f"{row.name}: {last.failure or last.figures} in {last.seconds:.0f} s", flush=True)
    keep(results, options.write)
    print(table(results, about()))


if __name__ == "__main__":
    main()
