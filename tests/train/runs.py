"""Runs of the trainer as real processes, and what they left behind."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from tests.forked import trainers
from tests.warm import Started, fresh
from train.spec.config import RunConfig

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 900.0
"""What takes seconds is waited for so long: a machine that is busy elsewhere or syncs slowly is not wrong."""


def write_config(folder: Path, config: RunConfig) -> Path:
    """Write config.yaml into a new run folder and return its path."""
    folder.mkdir(parents=True)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(asdict(config)))
    return path


def start(config: Path, *arguments: str, env: dict[str, str] | None = None) -> Started:
    """Start `python -m train.run` on a config."""
    return started("train.run", "--config", str(config), *arguments, env=env)


def faulty(config: Path, *fault: str, env: dict[str, str] | None = None) -> Started:
    """Start the same with a fault of `tests.train.faults`."""
    return started("tests.train.faults", *fault, "--config", str(config), env=env)


def started(module: str, *arguments: str, env: dict[str, str] | None = None) -> Started:
    """Start `python -m module` with these variables on top of the environment."""
    whole = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    if torch.cuda.is_available():  # a process that was forked has no GPU
        return fresh(module, *arguments, cwd=REPOSITORY, env=whole)
    return trainers().start(module, *arguments, cwd=REPOSITORY, env=whole)


def finish(process: Started, code: int = 0) -> str:
    """Wait for a run; return what it printed after checking its exit code."""
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == code, err
    return out + err


def records(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run, without the machine's load: ten seconds are short for a test on a busy machine."""
    rows = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if row["kind"] != "system"]


def records_so_far(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run that goes on: those whose line is whole."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def values(folder: Path) -> list[tuple[Any, ...]]:
    """Return what must be the same in two runs of one config: all but times, speeds and memory."""
    timing = ("tokens_per_second", "model_flops_per_second", "mfu", "seconds_", "peak_memory")
    return [
        (r["kind"], r["step"], r["tokens"], *(v for k, v in sorted(r["metrics"].items()) if not k.startswith(timing)))
        for r in sorted(records(folder), key=lambda r: (r["step"], r["kind"]))
    ]


def read_outcome(folder: Path) -> dict[str, Any]:
    """Return a run's outcome."""
    outcome: dict[str, Any] = json.loads((folder / "outcome.json").read_text())
    return outcome


def with_runtime(config: RunConfig, **changes: Any) -> RunConfig:
    """Return the config with keys of `runtime` changed."""
    return replace(config, runtime=replace(config.runtime, **changes))
