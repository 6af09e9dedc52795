"""Stands in for the trainer where a test is about jobs: notes that it ran, sleeps or fails as told, writes an outcome.

QUICK_GATE: a file that it waits for; QUICK_SECONDS: how long it runs then. QUICK_FAIL: the seed that then fails.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import yaml


def main() -> None:
    run = Path(sys.argv[sys.argv.index("--config") + 1]).parent
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    with (run / "ran").open("a", encoding="utf-8") as note:
        note.write(f"{os.environ.get('SLURM_ARRAY_JOB_ID')}_{os.environ.get('SLURM_ARRAY_TASK_ID')}\n")
    (run / "devices").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", ""), encoding="utf-8")
    print(f"seed {config['seed']} begins", flush=True)
    gate = os.environ.get("QUICK_GATE")
    while gate and not Path(gate).exists():
        time.sleep(0.1)
    time.sleep(float(os.environ.get("QUICK_SECONDS", "0")))
    if str(config["seed"]) == os.environ.get("QUICK_FAIL"):
        raise RuntimeError(f"seed {config['seed']} brings bad luck")
    tokens = config["budget"]["tokens"]
    loss = {"validation_nats_per_token": 1.0 + config["seed"] / 100}
    outcome = {"format": 1, "state": "completed", "step": 1, "tokens": tokens, "loss": loss}
    (run / "outcome.new").write_text(json.dumps(outcome), encoding="utf-8")
    (run / "outcome.new").rename(run / "outcome.json")


main()
