"""The ordinary trainer on ranks of this machine, with a pipeline and traced: what its steps leave idle. On the CPU."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, replace
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
    ProfileConfig,
    RunConfig,
    RuntimeConfig,
)
from train.spec.pipeline_layout import stages_per_rank
from train.spec.pipeline_schedule.trace import Measured, read
from train.spec.resolve import resolve
from train.spec.yamlfile import dump

VOCABULARY, LENGTH = 512, 128
WIDTH, LAYERS, HEAD = 256, 8, 64
FIRST, RECORDED = 3, 24
"""The first step that is traced, and how many are."""
POLL_SECONDS, GRACE_SECONDS, MOST_SECONDS = 0.2, 10.0, 300.0


def config_of(layout: ParallelConfig, count: int, data_root: Path, recorded: int = RECORDED) -> RunConfig:
    """Return the run of `count` micro-batches of one sequence a step, `recorded` of whose steps every rank traces."""
    tokens = count * LENGTH
    return resolve(
        RunConfig(
            model=ModelConfig(width=WIDTH, layers=max(LAYERS, layout.pp * stages_per_rank(layout)), head_dim=HEAD),
            data=DataConfig(name=made_up.NAME, vocab_size=VOCABULARY, sequence_length=LENGTH),
            batch=BatchConfig(tokens=tokens),
            budget=BudgetConfig(tokens=tokens * (FIRST + recorded)),
            eval=EvalConfig(sequences=layout.pp, count=1),
            parallel=replace(layout, micro_batch_sequences=1),
            profile=ProfileConfig(start=FIRST, steps=recorded, ranks="all"),
            runtime=RuntimeConfig(device="cpu", data_root=str(data_root), system_seconds=0.0),
        )
    )


def measure(layout: ParallelConfig, count: int, folder: Path, recorded: int = RECORDED) -> Measured:
    """Train some steps in a new folder below one that has the made-up corpus, and read the traces.

    ValueError with the ranks' own words where one fails.
    """
    run = folder / f"{layout.pp_schedule}-{count}"
    run.mkdir()
    (run / "config.yaml").write_text(dump(asdict(config_of(layout, count, folder, recorded))), encoding="utf-8")
    done = run_ranks(Launch(run, layout.pp), grace=GRACE_SECONDS, most_seconds=MOST_SECONDS, poll=POLL_SECONDS)
    failed = done.failed
    if failed is not None:
        what = f"{layout.pp_schedule} with {count} micro-batches: rank {failed.rank} failed"
        raise ValueError(f"{what}: {' / '.join(failed.said[-2:]) or 'it said nothing'}")
    return read([_trace(run / "profile", rank) for rank in range(layout.pp)], layout)


def _trace(folder: Path, rank: int) -> dict[str, object]:
    with gzip.open(next(folder.glob(f"step-*-rank-{rank}.json.gz")), "rt", encoding="utf-8") as file:
        return dict(json.load(file))
