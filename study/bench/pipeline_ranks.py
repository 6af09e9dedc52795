"""The ordinary trainer on ranks of this machine, with a pipeline and traced: what its steps leave idle. On the CPU."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import socket
import time
from array import array
from dataclasses import asdict, replace
from pathlib import Path

from study.process.children import Started, job_environment, kill, spawn, trainer_command
from study.storage.files import last_lines
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
from train.spec.manifest import FORMAT, Manifest, Settings, Shard, Split, TokenizerFile, fingerprint_of
from train.spec.pipeline_layout import stages_per_rank
from train.spec.pipeline_schedule.trace import Measured, read
from train.spec.resolve import resolve
from train.spec.yamlfile import dump

NAME, VOCABULARY, LENGTH = "made-up", 512, 128
WIDTH, LAYERS, HEAD = 256, 8, 64
FIRST, RECORDED = 3, 12
"""The first step that is traced, and how many are."""
POLL_SECONDS, GRACE_SECONDS, MOST_SECONDS = 0.2, 10.0, 300.0


def write_corpus(root: Path) -> None:
    """Write a prepared corpus of random tokens: how long a pass takes does not depend on what they say."""
    folder = root / f"{NAME}-bpe{VOCABULARY}"
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    draw = random.Random(0)
    splits = {}
    for name, count in (("train", 200_000), ("validation", 20_000)):
        tokens, index = folder / f"{name}-00000.bin", folder / f"{name}-00000.idx"
        tokens.write_bytes(array("H", (draw.randrange(VOCABULARY) for _ in range(count))).tobytes())
        index.write_bytes(array("Q", (0, count)).tobytes())
        shard = Shard(tokens.name, count, 1, _sha256(tokens), index.name, _sha256(index))
        splits[name] = Split(documents=1, tokens=count, bytes=4 * count, bytes_per_token=4.0, shards=(shard,))
    tokenizer = TokenizerFile("bpe", VOCABULARY, _sha256(folder / "tokenizer.json"), "tokenizer.json")
    manifest = Manifest(
        format=FORMAT,
        name=NAME,
        tokenizer=tokenizer,
        separator_token=0,
        splits=splits,
        bytes_per_token=4.0,
        source="random tokens",
        settings=Settings(None, "text", "bpe", VOCABULARY, 0.02, None),
        skipped=(),
        skipped_counts={},
        fingerprint=fingerprint_of(tokenizer, 0, splits),
    )
    (folder / "manifest.json").write_text(manifest.dumps(), encoding="utf-8")


def config_of(layout: ParallelConfig, count: int, data_root: Path) -> RunConfig:
    """Return the run of `count` micro-batches of one sequence a step, some of whose steps every rank traces."""
    tokens = count * LENGTH
    return resolve(
        RunConfig(
            model=ModelConfig(width=WIDTH, layers=max(LAYERS, layout.pp * stages_per_rank(layout)), head_dim=HEAD),
            data=DataConfig(name=NAME, vocab_size=VOCABULARY, sequence_length=LENGTH),
            batch=BatchConfig(tokens=tokens),
            budget=BudgetConfig(tokens=tokens * (FIRST + RECORDED)),
            eval=EvalConfig(sequences=layout.pp, count=1),
            parallel=replace(layout, micro_batch_sequences=1),
            profile=ProfileConfig(start=FIRST, steps=RECORDED, ranks="all"),
            runtime=RuntimeConfig(device="cpu", data_root=str(data_root), system_seconds=0.0),
        )
    )


def measure(layout: ParallelConfig, count: int, folder: Path) -> Measured:
    """Train a few steps in a new folder below one that `write_corpus` has written to, and read the traces.

    ValueError with the ranks' own words where one fails.
    """
    run = folder / f"{layout.pp_schedule}-{count}"
    run.mkdir()
    (run / "config.yaml").write_text(dump(asdict(config_of(layout, count, folder))), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    base = job_environment(os.environ) | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    base |= {"WORLD_SIZE": str(layout.pp), "OMP_NUM_THREADS": "1"}
    log, processes = run / "log", dict[int, Started]()
    try:
        for rank in range(layout.pp):
            mine = base | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes[rank] = spawn(trainer_command(run / "config.yaml"), mine, log, log)
        _wait(processes)
    finally:
        kill(processes)
    failed = [rank for rank, process in processes.items() if process.poll() != 0]
    if failed:
        said = " / ".join(last_lines(log)[-2:]) or "it said nothing"
        raise ValueError(f"{layout.pp_schedule} with {count} micro-batches: rank {failed[0]} failed: {said}")
    return read([_trace(run / "profile", rank) for rank in range(layout.pp)], layout)


def _wait(processes: dict[int, Started]) -> None:
    """Wait for all ranks, or some seconds longer than the first that fails."""
    limit = time.monotonic() + MOST_SECONDS
    failing = False
    while any(process.poll() is None for process in processes.values()) and time.monotonic() < limit:
        if not failing and any(process.poll() not in (None, 0) for process in processes.values()):
            failing, limit = True, time.monotonic() + GRACE_SECONDS
        time.sleep(POLL_SECONDS)


def _trace(folder: Path, rank: int) -> dict[str, object]:
    with gzip.open(next(folder.glob(f"step-*-rank-{rank}.json.gz")), "rt", encoding="utf-8") as file:
        return dict(json.load(file))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
