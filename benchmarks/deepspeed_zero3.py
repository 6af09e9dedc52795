"""DeepSpeed's ZeRO beside this project's FSDP2 on two ranks: memory, messages and overlap, speed, losses, code.

    python -m benchmarks.deepspeed_zero3 [--setups tiny 256x4 tiny-bf16 1b 8b 1b-steady] [--rows NAME …]
        [--traces FOLDER]
    python -m benchmarks.deepspeed_zero3 --predict

Both sides train the same module from the same weights on the same batches (benchmarks.peers.zero_rows says in which
set-ups). The set-ups tiny, 256x4 and tiny-bf16 run on two gloo ranks on the CPU, 1b, 8b and 1b-steady on two GPUs.
Losses in bf16 can be compared in 1b-steady, whose learning rate is warmed up for long. Where there are not two GPUs
their rows are predicted and not measured, which the tables say. Rows measured by earlier commands stay in
the results until they are measured again. --predict needs neither DeepSpeed nor a GPU.

DeepSpeed has to be on the path; PyPI has it as a source archive of 2 MB, of which

    DS_BUILD_OPS=0 pip wheel --no-deps --no-build-isolation deepspeed==0.19.8

makes a wheel of pure Python (2.2 MB). It needs hjson, py-cpuinfo and einops, pure Python, and ninja and msgpack, which
have binary wheels; the rest comes with torch or with this project. On a CPU it builds one extension when it starts, for
which it needs a C++ compiler.
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
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks.peers import zero_rows
from benchmarks.peers.rows import Row
from benchmarks.peers.zero_report import Compared, Script, code_lines, draw, from_json, joined, report, to_json
from benchmarks.peers.zero_step import TRACED
from benchmarks.peers.zero_trace import figures
from benchmarks.trainer_peers import run
from train.spec import mesh
from train.spec.command_line import Parser
from train.spec.communication.cluster import ClusterProfile, read_profile
from train.spec.communication.step import step_messages

ROOT = Path(__file__).resolve().parents[1]
PROFILE = ROOT / "conf" / "cluster" / "measured" / "h200_x4.yaml"
PEERS = ROOT / "benchmarks" / "peers"
QUIET = {"PYTHONWARNINGS": "ignore", "DS_BUILD_OPS": "0"}
ON_CPU = {**QUIET, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
SCRIPTS = {"torch FSDP2": "zero_script_fsdp2", "DeepSpeed ZeRO-3": "zero_script_deepspeed"}
SCRIPT_STEPS = 20
HERE = "this project: no script, a command (study.sweep or torchrun -m train.run)"
ABSENT = (
    "deepspeed is not installed: put its wheel on the path (--help has the command that makes one), or give "
    "--predict, which needs none"
)


def predictions(row: Row, cluster: ClusterProfile) -> dict[str, float | None]:
    """Return what is predicted of a row, as zero_report.Compared holds it."""
    expected = zero_rows.expected(row, cluster)
    step = None if expected.step is None else expected.step.seconds
    return {
        "states": expected.states,
        "peak": expected.peak,
        "estimate": expected.estimate,
        "step_seconds": step,
        "sent_bytes": sent_bytes(row),
    }


def sent_bytes(row: Row) -> float:
    """Return what one rank sends in a step [bytes]: ours by train.spec.communication, DeepSpeed's by zero_rows."""
    if zero_rows.library_of(row) == "deepspeed":
        return zero_rows.deepspeed_sends(row)
    device = "cpu" if zero_rows.SETUPS[zero_rows.setup_of(row)].cpu else "cuda"
    config = zero_rows.config(row, device)
    found = step_messages(config, mesh.axes(config.parallel, row.gpus), 0, device)
    return sum(one.sent for one in found if one.axis == "fsdp")


def compare(row: Row, cluster: ClusterProfile) -> Compared:
    """Return a row with what is predicted of it."""
    name, library = zero_rows.setup_of(row), zero_rows.library_of(row)
    return Compared(row.name, name, library, zero_rows.stage_of(row), row.settings, predictions(row, cluster))


def measured(row: Row, known: Compared, limit: float, traces: Path, logs: Path) -> Compared:
    """Return a row with what was measured now."""
    cpu = zero_rows.SETUPS[known.setup].cpu
    load, folder = os.getloadavg()[0], traces / row.name
    words = ["--device", "cpu" if cpu else "cuda", "--trace", str(folder)]
    done = run(row, limit, words, logs / f"{row.name}.log", ON_CPU if cpu else QUIET)
    if not done.figures:
        return replace(known, failure=done.failure)
    found = {**done.figures, **figures(folder, row.gpus, TRACED), "load": load}
    return replace(known, measured=found, about=about(cpu))


def about(cpu: bool) -> str:
    """Return machine, versions and date of a measurement."""
    today = datetime.datetime.now(datetime.UTC).date()
    where = f"2 gloo ranks on {os.cpu_count()} cores of {_processor()}"
    if not cpu:
        where = f"2 x {torch.cuda.get_device_name()}"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, deepspeed {version('deepspeed')}"
    return f"{today}, {where}, {versions}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def scripts(limit: float, logs: Path | None) -> list[Script]:
    """Return the ways of writing it; with `logs`, run on the CPU, half of the steps first and then resumed."""
    found = [Script(HERE, 0)]
    for name, module in SCRIPTS.items():
        lines = code_lines(PEERS / f"{module}.py")
        if logs is None:
            found.append(Script(name, lines))
            continue
        losses: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
            for steps in (SCRIPT_STEPS // 2, SCRIPT_STEPS):
                command = [*launch, f"benchmarks.peers.{module}", str(steps), f"{folder}/saved"]
                with (logs / f"{module}-{steps}.log").open("w", encoding="utf-8") as errors:
                    done = subprocess.run(
                        command, cwd=ROOT, env={**os.environ, **ON_CPU}, stdout=subprocess.PIPE, stderr=errors,
                        text=True, check=False, timeout=limit,
                    )  # fmt: skip
                losses += [json.loads(line)["loss"] for line in done.stdout.splitlines() if line.startswith("{")]
        whole = len(losses) == SCRIPT_STEPS
        found.append(Script(name, lines, losses, "" if whole else f"it stopped after {len(losses)} steps"))
    return found


def keep(rows: Sequence[Compared], written: Sequence[Script], folder: Path) -> None:
    """Write the results."""
    folder.mkdir(parents=True, exist_ok=True)
    document = json.dumps(to_json(rows, written), indent=1)
    (folder / "deepspeed_zero3.json").write_text(document + "\n", encoding="utf-8")
    (folder / "deepspeed_zero3.md").write_text(report(rows, written) + "\n", encoding="utf-8")


def earlier(folder: Path) -> tuple[list[Compared], list[Script]]:
    """Return what is in the folder's results."""
    path = folder / "deepspeed_zero3.json"
    return from_json(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else ([], [])


def due(row: Row, options: argparse.Namespace) -> bool:
    """Say whether a row is measured now."""
    setup = zero_rows.setup_of(row)
    wanted = row.name in options.rows if options.rows else setup in options.setups
    return wanted and (zero_rows.SETUPS[setup].cpu or torch.cuda.device_count() >= row.gpus)


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command's words. ValueError for a row or a set-up that there is not."""
    parser = Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="benchmarks.deepspeed_zero3"
    )
    parser.add_argument("--setups", nargs="*", default=list(zero_rows.SETUPS), metavar="NAME", help="none: all")
    parser.add_argument("--rows", nargs="*", default=[], metavar="NAME", help="rows to run instead of whole set-ups")
    parser.add_argument("--predict", action="store_true", help="run nothing; write what is predicted")
    parser.add_argument("--limit", type=float, default=240.0, help="time for one row [s] (default 240)")
    parser.add_argument("--traces", type=Path, help="keep the traces in this folder")
    parser.add_argument("--figure", type=Path, help="also draw the losses into this file (svg, png)")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()) / "deepspeed_zero3_logs")
    parser.add_argument("--write", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results")
    options = parser.parse_args(arguments)
    zero_rows.rows(options.setups)
    for name in options.rows:
        zero_rows.find(name)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; return 0, 1 where a row failed, 2 for words that are none and without DeepSpeed."""
    try:
        options = options_of(arguments)
        if not options.predict and find_spec("deepspeed") is None:
            raise ValueError(ABSENT)
    except ValueError as error:
        print(f"benchmarks.deepspeed_zero3: {error}", file=sys.stderr)
        return 2
    cluster = read_profile(PROFILE)
    before, written = earlier(options.write)
    every = zero_rows.rows()
    found = joined([compare(row, cluster) for row in every], before)
    keep(found, written, options.write)  # what is predicted is there before anything is measured
    if not options.predict:
        options.logs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as temporary:
            traces = options.traces or Path(temporary)
            for place, row in enumerate(every):
                if due(row, options):
                    began = time.perf_counter()
                    found[place] = measured(row, compare(row, cluster), options.limit, traces, options.logs)
                    keep(found, written, options.write)
                    print(_said(found[place], time.perf_counter() - began), flush=True)
    on_cpu = any(zero_rows.SETUPS[name].cpu for name in options.setups)
    if not options.predict and not options.rows and on_cpu:  # the scripts run on the CPU, too
        written = scripts(options.limit, options.logs)
    written = written or scripts(options.limit, None)
    keep(found, written, options.write)
    if options.figure is not None:
        draw(found, options.figure)
    print(report(found, written))
    return 1 if any(row.failure for row in found) else 0


def _said(row: Compared, seconds: float) -> str:
    figures_: Mapping[str, float] = {k: v for k, v in row.measured.items() if isinstance(v, float)}
    return f"{row.name}: {row.failure or figures_} in {seconds:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
