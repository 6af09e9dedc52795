"""One row through `python -m train.run` as a user starts it: the whole loop, with its records, at its defaults.

The config says what is trained and nothing of how; a step's time is the one that the run records. Start-up is from the
start of the process to its first record, of the tenth step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.peers.ours import config_of, prepare_data
from benchmarks.peers.rows import SHAPES, Row, find
from train.spec.yamlfile import dump


def measure(row: Row, data: Path) -> dict[str, float]:
    """Return the row's figures from the second half of a run's records."""
    prepare_data(row, data)
    config = config_of(replace(row, settings=()), data / f"v{SHAPES[row.shape].vocabulary}", "auto")
    config = replace(
        config,
        parallel=replace(config.parallel, micro_batch_sequences=None),
        precision=replace(config.precision, name="bf16"),
        budget=replace(config.budget, tokens=row.tokens * row.steps),
    )
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        (run / "config.yaml").write_text(dump(asdict(config)), encoding="utf-8")
        began = time.time()
        subprocess.run([sys.executable, "-m", "train.run", "--config", str(run / "config.yaml")], check=True)
        ended = time.time()
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if record["kind"] == "train"]
    times = [record["metrics"]["seconds_step"] for record in records]
    seconds = statistics.median(times[len(times) // 2 :])
    return {
        "step_seconds": seconds,
        **row.figures(seconds),
        "gib": records[-1]["metrics"].get("peak_memory_gib", 0.0),
        "start_seconds": records[0]["time"] - began,
        "run_seconds": ended - began,
        "loss": records[-1]["metrics"]["loss"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="run one row of benchmarks.small_models through train.run")
    parser.add_argument("row")
    parser.add_argument("--data", type=Path, default=Path("/tmp/trainer_peers"))
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    row = find(options.row)
    row = replace(row, steps=options.steps or row.steps)
    Path(os.environ["PEERS_RESULT"]).write_text(json.dumps(measure(row, options.data)))


if __name__ == "__main__":
    main()
