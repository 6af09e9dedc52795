"""A stand-in for `python -m train.run` with its contract: resumes, appends metrics, saves on signals, exit codes."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import yaml

STEPS, SLOW_STEPS = 100, 3000
"""Slow ones go on until they are told to stop, or for ten minutes."""
stopped: list[int] = []


def main() -> int:
    config = Path(sys.argv[sys.argv.index("--config") + 1])
    run = config.parent
    seed = yaml.safe_load(config.read_text())["seed"]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: stopped.append(number))
    rank = int(os.environ.get("RANK", "0"))
    if rank > 0:
        return other_rank(seed)
    checkpoint = run / "checkpoints" / "step"
    checkpoint.parent.mkdir(exist_ok=True)
    begun = int(checkpoint.read_text()) if checkpoint.exists() else 0
    note(run, f"begin {begun}")
    print(f"training seed {seed} from step {begun} with {os.environ.get('OMP_NUM_THREADS')} threads", flush=True)
    failure = misbehave(seed, run)
    if failure is not None:
        return failure
    for step in range(begun, STEPS if seed < 200 else SLOW_STEPS):
        if stopped:
            time.sleep(4.0 if seed == 300 else 0.0)
            note(run, f"saved {step}")
            checkpoint.write_text(str(step))
            return 75
        record = {"kind": "train", "step": step, "tokens": 128 * min(step, STEPS), "time": time.time()}
        with (run / "metrics.jsonl").open("a") as metrics:
            metrics.write(json.dumps(record | {"metrics": {"loss": 3.0}}) + "\n")
        time.sleep(0.2 if seed >= 200 else 1e9 if seed == 107 and step == 5 else 0.002)
    loss = {"validation_nats_per_token": 2.5, "validation_bits_per_byte": 1.0, "train_nats_per_token": 2.6}
    write_outcome(run, {"format": 1, "state": "completed", "step": STEPS, "tokens": 128 * STEPS, "loss": loss})
    note(run, f"end {STEPS}")
    return 0


def misbehave(seed: int, run: Path) -> int | None:
    if seed == 101:
        raise RuntimeError("the sun was in my eyes")
    if seed == 105:
        raise OSError(28, "No space left on device", str(run / "metrics.jsonl"))
    if seed == 106:
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", file=sys.stderr)
        return 1
    if seed == 102:
        write_outcome(run, {"format": 1, "state": "diverged", "step": 7, "tokens": 896, "loss": {}})
        return 3
    if seed == 103:
        return 0
    if seed == 104:
        os.kill(os.getpid(), signal.SIGKILL)
    return None


def other_rank(seed: int) -> int:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    print(json.dumps({name: os.environ[name] for name in names}), flush=True)
    if seed == 101:
        print("RuntimeError: rank trouble", file=sys.stderr)
        return 1
    return 0


def write_outcome(run: Path, outcome: dict[str, object]) -> None:
    staged = run / ".outcome"
    staged.write_text(json.dumps(outcome))
    staged.replace(run / "outcome.json")


def note(run: Path, text: str) -> None:
    with (run / "diary").open("a") as diary:
        diary.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
