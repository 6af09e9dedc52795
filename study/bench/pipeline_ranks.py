"""The ordinary trainer on ranks of this machine, with a pipeline and traced: what its steps leave idle."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from study.bench import made_up
from study.bench.trainer_ranks import Launch, run_ranks
from train.spec.config import (
    BatchConfig,
    BudgetConfig,
    DataConfig,
    EvalConfig,
    ModelConfig,
    ParallelConfig,
    PrecisionConfig,
    ProfileConfig,
    RunConfig,
    RuntimeConfig,
)
from train.spec.pipeline_layout import stages_per_rank
from train.spec.pipeline_schedule.trace import Measured, read
from train.spec.resolve import resolve
from train.spec.yamlfile import dump

VOCABULARY = 512
FIRST = 3
"""The first step that is traced."""


@dataclass(frozen=True)
class Size:
    """What is trained, one sequence of `length` tokens a micro-batch, and how many steps every rank traces."""

    device: str
    width: int
    layers: int
    head: int
    length: int
    precision: str
    recorded: int


ON_CPU = Size("cpu", width=256, layers=8, head=64, length=128, precision="fp32", recorded=24)
ON_GPUS = Size("cuda", width=4096, layers=8, head=128, length=8192, precision="bf16", recorded=8)
"""With sequences of 4,096 tokens, or half the width beside other work, passes on H200s ended before a CPU under the
profiler had launched the next ones."""
POLL_SECONDS, GRACE_SECONDS, MOST_SECONDS = 0.2, 10.0, 300.0


def config_of(layout: ParallelConfig, count: int, data_root: Path, size: Size = ON_CPU) -> RunConfig:
    """Return the run of `count` micro-batches of one sequence a step, whose last steps every rank traces."""
    tokens = count * size.length
    return resolve(
        RunConfig(
            model=ModelConfig(
                width=size.width, layers=max(size.layers, layout.pp * stages_per_rank(layout)), head_dim=size.head
            ),
            data=DataConfig(name=made_up.NAME, vocab_size=VOCABULARY, sequence_length=size.length),
            batch=BatchConfig(tokens=tokens),
            budget=BudgetConfig(tokens=tokens * (FIRST + size.recorded)),
            precision=PrecisionConfig(name=size.precision),
            eval=EvalConfig(sequences=layout.pp, count=1),
            parallel=replace(layout, micro_batch_sequences=1),
            profile=ProfileConfig(start=FIRST, steps=size.recorded, ranks="all"),
            runtime=RuntimeConfig(device=size.device, data_root=str(data_root), system_seconds=0.0),
        )
    )


def write_corpus(folder: Path, ranks: int, most: int, size: Size) -> None:
    """Write a corpus for runs of up to `most` micro-batches a step, in which no text is read twice."""
    tokens = most * (size.length + 1) * (FIRST + size.recorded + 1)
    checked = 2 * ranks * (size.length + 1)
    made_up.write_corpus(
        folder, VOCABULARY, max(made_up.TOKENS["train"], tokens), max(made_up.TOKENS["validation"], checked)
    )


def measure(layout: ParallelConfig, count: int, folder: Path, size: Size = ON_CPU) -> Measured:
    """Train some steps in a new folder below one that has the made-up corpus, and read the traces.

    ValueError with the ranks' own words where one fails.
    """
    run = folder / f"{layout.pp_schedule}-{count}"
    run.mkdir()
    (run / "config.yaml").write_text(dump(asdict(config_of(layout, count, folder, size))), encoding="utf-8")
    done = run_ranks(
        Launch(run, layout.pp, saves=False), grace=GRACE_SECONDS, most_seconds=MOST_SECONDS, poll=POLL_SECONDS
    )
    failed = done.failed
    if failed is not None:
        what = f"{layout.pp_schedule} with {count} micro-batches: rank {failed.rank} failed"
        raise ValueError(f"{what}: {' / '.join(failed.said[-2:]) or 'it said nothing'}")
    found = read([_trace(run / "profile", rank) for rank in range(layout.pp)], layout)
    shutil.rmtree(run)  # traces of many micro-batches are large
    return found


def _trace(folder: Path, rank: int) -> dict[str, object]:
    with gzip.open(next(folder.glob(f"step-*-rank-{rank}.json.gz")), "rt", encoding="utf-8") as file:
        return dict(json.load(file))
