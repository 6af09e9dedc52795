"""Reading the frozen config of a run."""

from __future__ import annotations

from pathlib import Path

from train.spec.config import RunConfig


def load(path: Path) -> RunConfig:
    """Return the resolved config in a YAML file; ValueError that names the file or key where it cannot be read."""
    from train.spec.later import read_run
    from train.spec.resolve import resolve
    from train.spec.yamlfile import read_mapping

    return resolve(read_run(read_mapping(path)), begun(path.parent))


def begun(folder: Path) -> bool:
    """Say whether the run in a folder has taken steps: then it goes on as it began."""
    metrics = folder / "metrics.jsonl"
    return metrics.exists() and metrics.stat().st_size > 0
