"""Steps of small models, ours beside a plain compiled model and torchtitan 0.2.2, in one run on one GPU.

    python -m benchmarks.small_models [--shapes 256x4 …] [--seconds 500] [--write benchmarks/results]

40,960 tokens a step in rows of 512, a vocabulary of 8,192, bf16. Ours three times: the step alone, as one CUDA graph
and with its kernels launched singly, and `train.run` as it comes. Each row is a process with a time limit; the table
is written after every row. What torchtitan needs: see benchmarks.trainer_peers.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.peers.rows import SMALL, small_rows
from benchmarks.trainer_peers import Result, about, run
from train.spec.command_line import Parser


def table(results: list[Result]) -> str:
    """Return milliseconds a step of each shape, and how many times as fast ours is."""
    steps = {result.row.name: result.figures["step_seconds"] * 1e3 for result in results if result.figures}
    starts = {
        result.row.shape: f"{result.figures['start_seconds']:.1f}"
        for result in results
        if result.row.trainer == "run" and result.figures
    }
    lines = [
        about(),
        "",
        "| layers of width | plain, compiled [ms] | torchtitan [ms] | ours, kernels launched singly [ms] | ours [ms] "
        "| over plain | goal | over torchtitan | goal | train.run [ms] | over our step | its tenth step after [s] |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for shape, goals in SMALL.items():
        names = [f"plain-{shape}", f"titan-{shape}", f"ours-{shape}-launched", f"ours-{shape}"]
        found, whole = [steps.get(name) for name in names], steps.get(f"run-{shape}")
        if found == [None] * 4 and whole is None:
            continue
        ours = found[3]
        ratios = ["" if peer is None or ours is None else f"{peer / ours:.2f}" for peer in found[:2]]
        shown = " | ".join("" if each is None else f"{each:.2f}" for each in found)
        width, layers = shape.split("x")
        share = "" if whole is None or ours is None else f"{ours / whole:.2f}"
        run_row = f"{'' if whole is None else f'{whole:.2f}'} | {share} | {starts.get(shape, '')}"
        lines.append(
            f"| {layers} of {width} | {shown} | {ratios[0]} | {goals[0]} | {ratios[1]} | {goals[1]} | {run_row} |"
        )
    failed = [f"{result.row.name}: {result.failure}" for result in results if result.failure]
    return "\n".join([*lines, *failed]) + "\n"


def main() -> None:
    parser = Parser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", nargs="*", default=list(SMALL), choices=list(SMALL))
    parser.add_argument("--trainers", nargs="*", default=["plain", "titan", "ours", "run"])
    parser.add_argument("--seconds", type=float, default=1e9, help="time for all rows; what is left then is left out")
    parser.add_argument("--limit", type=float, default=120.0, help="time for one row [s]")
    parser.add_argument("--write", type=Path, default=Path("benchmarks/results"), help="folder for the table")
    parser.add_argument("--logs", type=Path, default=Path("/tmp/small_models_logs"))
    options = parser.parse_args()
    options.logs.mkdir(parents=True, exist_ok=True)
    options.write.mkdir(parents=True, exist_ok=True)
    end, results = time.perf_counter() + options.seconds, list[Result]()
    for row in small_rows():
        left = end - time.perf_counter()
        if row.shape not in options.shapes or row.trainer not in options.trainers:
            continue
        if left < 15:
            results.append(Result(row, {}, 0.0, "no time left"))
            continue
        results.append(run(row, min(options.limit, left), [], options.logs / f"{row.name}.log"))
        print(f"{row.name}: {results[-1].failure or results[-1].figures} in {results[-1].seconds:.0f} s", flush=True)
        (options.write / "small_models.md").write_text(table(results), encoding="utf-8")
    print(table(results))


if __name__ == "__main__":
    main()
