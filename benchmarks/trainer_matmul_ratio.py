"""How much of torch's own matmul rate a training step reaches.

For each shape, one process times whole optimiser steps (data, forward, loss, backward, clipping, AdamW) and, in turn
with them, only the matrix products of such a step through torch.mm and torch.bmm, into outputs allocated beforehand:
every weight's three products on a micro-batch, and attention's six over the full square. The ratio is products' time
over step time. A causal kernel computes half of attention's square, so the ratio has no ceiling of exactly 1. With one
thread both are CPU time, which neighbours on a busy machine do not change; with more, wall-clock time.

    python -m benchmarks.trainer_matmul_ratio [--widths 64 128 256] [--layers 4] [--write benchmarks/results]
"""

from __future__ import annotations

import datetime
import json
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.fake_corpus import write_corpus
from train.runtime.distributed import World
from train.runtime.malloc import keep_freed_memory
from train.spec.command_line import Parser
from train.spec.config import (
    BatchConfig,
    BudgetConfig,
    DataConfig,
    EvalConfig,
    ModelConfig,
    ParallelConfig,
    RunConfig,
    RuntimeConfig,
)
from train.spec.counts import flops_per_token, head_dim, kv_heads, mlp_width
from train.spec.micro_batch import even_parts
from train.spec.resolve import resolve
from train.trainer import Trainer


@dataclass(frozen=True)
class Row:
    """One line of the table; times in milliseconds per step, rates in GFLOP/s by the project's FLOP rule."""

    width: int
    layers: int
    sequences: int
    micro: int
    step_ms: float
    matmul_ms: float
    ratio: float
    step_gflops: float
    matmul_gflops: float
    tokens_per_second: float


def products(trainer: Trainer, sequences: int) -> Callable[[], None]:
    """Return a function that does one step's matrix products, and nothing else."""
    config, length = trainer.config, trainer.config.data.sequence_length
    micro = max(even_parts(sequences, trainer.model.micro))
    tokens, model = micro * length, config.model
    width, hidden, dim = model.width, mlp_width(model), head_dim(model)
    heads, groups = width // dim, kv_heads(model)
    linears = [((heads + 2 * groups) * dim, width), (width, width), (2 * hidden, width), (width, hidden)]
    jobs = [
        _linear(tokens, rows, columns, repeats)
        for (rows, columns), repeats in [(s, model.layers) for s in linears] + [((config.data.vocab_size, width), 1)]
    ]
    jobs.append(_attention(micro * heads, length, dim, model.layers))
    passes = sequences / micro

    def run() -> None:
        for _ in range(round(passes)):
            for job in jobs:
                job()

    return run


def _linear(tokens: int, rows: int, columns: int, repeats: int) -> Callable[[], None]:
    x, w, dy = torch.randn(tokens, columns), torch.randn(rows, columns), torch.randn(tokens, rows)
    y, dx, dw = torch.empty_like(dy), torch.empty_like(x), torch.empty_like(w)

    def run() -> None:
        for _ in range(repeats):
            torch.mm(x, w.t(), out=y)
            torch.mm(dy, w, out=dx)
            torch.mm(dy.t(), x, out=dw)

    return run


def _attention(batch: int, length: int, dim: int, repeats: int) -> Callable[[], None]:
    tall = [torch.randn(batch, length, dim) for _ in range(3)]
    square = torch.randn(batch, length, length)
    out_tall, out_square = torch.empty_like(tall[0]), torch.empty_like(square)

    def run() -> None:
        a, b, c = tall
        for _ in range(repeats):
            torch.bmm(a, b.transpose(1, 2), out=out_square)  # scores
            torch.bmm(square, c, out=out_tall)  # mix
            torch.bmm(square.transpose(1, 2), a, out=out_tall)  # gradient of values
            torch.bmm(a, c.transpose(1, 2), out=out_square)  # of probabilities
            torch.bmm(square, b, out=out_tall)  # of queries
            torch.bmm(square.transpose(1, 2), a, out=out_tall)  # of keys

    return run


def measure(width: int, layers: int, sequences: int, *, micro: int | None, seconds: float, data: Path) -> Row:
    """Return the row of one shape, from alternating measurements over about `seconds`; medians."""
    length = 128
    config = resolve(
        RunConfig(
            model=ModelConfig(width=width, layers=layers),
            data=DataConfig(name="fake", sequence_length=length),
            batch=BatchConfig(tokens=sequences * length),
            budget=BudgetConfig(tokens=10**9 // length * length),
            eval=EvalConfig(sequences=1),
            parallel=ParallelConfig(micro_batch_sequences=micro),
            runtime=RuntimeConfig(device="cpu", data_root=str(data)),
        )
    )
    trainer = Trainer(config, data, World(), torch.device("cpu"))
    only = products(trainer, sequences)

    def whole() -> Tensor:
        return trainer.train_step()[0]

    for warm in (whole, only, whole):
        warm()
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {"step": [], "matmul": []}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["step"]) < 3:
        for name, job in (("step", whole), ("matmul", only)):
            began = clock()
            job()
            times[name].append(clock() - began)
    step_s, matmul_s = (float(np.median(times[name])) for name in ("step", "matmul"))
    flops = flops_per_token(config.model, config.data.vocab_size, length) * sequences * length
    return Row(
        width=width,
        layers=layers,
        sequences=sequences,
        micro=max(even_parts(sequences, trainer.model.micro)),
        step_ms=1e3 * step_s,
        matmul_ms=1e3 * matmul_s,
        ratio=matmul_s / step_s,
        step_gflops=flops / step_s / 1e9,
        matmul_gflops=flops / matmul_s / 1e9,
        tokens_per_second=sequences * length / step_s,
    )


def table(rows: list[Row], about: str) -> str:
    """Return the figures as a Markdown table."""
    lines = [
        about,
        "",
        "| width | layers | sequences a step | micro-batch | ours [ms/step] | products only [ms] | ratio "
        "| ours [GFLOP/s] | tokens/s |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {r.width} | {r.layers} | {r.sequences} | {r.micro} | {r.step_ms:.1f} | {r.matmul_ms:.1f} | {r.ratio:.2f} "
        f"| {r.step_gflops:.1f} | {r.tokens_per_second:,.0f} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = Parser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 192, 256])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--sequences", type=int, default=32, help="sequences of 128 tokens a step")
    parser.add_argument("--micro", type=int, nargs="+", default=[0], help="micro-batch [sequences]; 0: the default")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0, help="time for each shape")
    parser.add_argument("--write", type=Path, help="folder for trainer_matmul_ratio.md and .json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    rows = []
    with tempfile.TemporaryDirectory() as root:
        write_corpus(Path(root), vocab_size=4096)
        for width in options.widths:
            for micro in options.micro:
                row = measure(
                    width,
                    options.layers,
                    options.sequences,
                    micro=micro or None,
                    seconds=options.seconds,
                    data=Path(root),
                )
                rows.append(row)
                print(f"width {width}, micro-batch {row.micro}: ratio {row.ratio:.2f}", flush=True)
    about = (
        f"Training step against its matrix products: torch {torch.__version__}, {options.threads} thread(s), fp32, "
        f"vocabulary 4,096, sequences of 128, {platform.machine()}, {datetime.date.today().isoformat()}"
    )
    text = table(rows, about)
    print(text)
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "trainer_matmul_ratio.md").write_text(text)
        record = {"about": about, "rows": [asdict(row) for row in rows]}
        (options.write / "trainer_matmul_ratio.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
