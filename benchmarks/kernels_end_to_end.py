"""What the kernels are worth in training: tokens/s of 150M and 1B with KERNELS=reference, triton and auto.

    python -m benchmarks.kernels_end_to_end [--steps 14] [--write benchmarks/results]

Each row is a process of its own, compiled and eager, in one run on one machine; the table is written after every row.
`reference` is plain torch, what a user without our kernels has; `auto` is the default, in which compiled blocks leave
a block's first norm to Inductor.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.trainer_peers import ENVIRONMENT
from train.spec.command_line import Parser

ROWS = ("ours-150m", "ours-1b")
MODES = ("reference", "triton", "auto")


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--rows", nargs="*", default=list(ROWS))
    parser.add_argument("--seconds", type=float, default=120.0, help="limit of one row")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    lines = [
        _header(),
        "",
        "| row | blocks | KERNELS | tok/s | MFU | GiB | against reference |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    print("\n".join(lines), flush=True)
    for row in options.rows:
        for compiled in (True, False):
            base = 0.0
            for mode in MODES:
                found = _run(row, compiled, mode, options)
                rate = found.get("tokens_per_second_per_gpu", 0.0)
                base = base or rate
                how = "compiled" if compiled else "eager"
                ratio = f"{rate / base:.3f}" if base and rate else ""
                mfu, gib = found.get("mfu", 0.0), found.get("gib", 0.0)
                lines.append(f"| {row} | {how} | {mode} | {rate:,.0f} | {100 * mfu:.1f}% | {gib:.1f} | {ratio} |")
                print(lines[-1], flush=True)
                if options.write is not None:
                    options.write.mkdir(parents=True, exist_ok=True)
                    (options.write / "kernels_end_to_end.md").write_text("\n".join(lines) + "\n")


def _run(row: str, compiled: bool, mode: str, options: argparse.Namespace) -> dict[str, float]:
    """Return a row's figures; none, with the end of what it said, where it failed."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks.peers.ours", row, "--steps", str(options.steps)]
        command += ["--device", options.device, "--set", f"compile.blocks={str(compiled).lower()}"]
        environment = {**os.environ, **ENVIRONMENT, "KERNELS": mode, "PEERS_RESULT": str(result)}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=options.seconds, check=False
            )
        except subprocess.TimeoutExpired:
            print(f"{row} {mode}: stopped after {options.seconds:.0f} s", flush=True)
            return {}
        if not result.exists():
            print(f"{row} {mode}: exit code {done.returncode}: {done.stderr.strip()[-400:]}", flush=True)
            return {}
        figures: dict[str, float] = json.loads(result.read_text())
        return figures


def _header() -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return f"{datetime.date.today()}, {device}, Python {platform.python_version()}, torch {torch.__version__}"


if __name__ == "__main__":
    main()
