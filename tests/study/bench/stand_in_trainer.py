"""Stands in for the trainer of two ranks: steps, checkpoints and words as it leaves them, without torch.

`python -m tests.study.bench.stand_in_trainer --config RUN/config.yaml [--until TOKENS] [--unsaved]`, with
`--device-weights` or without. A rank whose peer has gone says so and ends with exit code 1; with --hangs it waits.
Started for the first time to go to the end, it stays at a step until that happens: a test that kills a rank meets it
there, however late it looks.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import sys
import time
from pathlib import Path

from train.spec.frozen_run import load

DONE = "done"
STAYS = 7
"""The step at which ranks stay that are started for the first time."""


def gone(peer: Path) -> bool:
    """Say whether the other rank has ended before its end."""
    with contextlib.suppress(ProcessLookupError):
        if (other := peer.read_text()) != DONE:
            os.kill(int(other), 0)
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path)
    parser.add_argument("--until", type=int)
    parser.add_argument("--hangs", action="store_true")
    parser.add_argument("--unsaved", action="store_true")
    parser.add_argument("--device-weights", action="store_true")
    options = parser.parse_args()
    folder, rank = options.config.parent, int(os.environ["RANK"])
    config = load(options.config)
    budget, batch = config.budget.tokens, config.batch.tokens
    assert budget is not None and batch is not None
    metrics = folder / "metrics.jsonl"
    held = len(metrics.read_text().splitlines()) if metrics.exists() else 0
    alive = folder / f"alive-{os.environ['MASTER_PORT']}-{rank}"
    staged = alive.with_name(f".{alive.name}")
    staged.write_text(str(os.getpid()))
    staged.rename(alive)
    peer = alive.with_name(alive.name[:-1] + str(1 - rank))
    while not peer.exists():
        time.sleep(0.01)
    root = folder / "checkpoints"
    step = 0
    for found in sorted(root.glob("step-*"), reverse=True):
        shard = found / "__1_0.distcp"
        if hashlib.sha256(shard.read_bytes()).hexdigest() == (found / "hash").read_text():
            step = int(found.name.partition("-")[2])
            print(f"resumed from {found.name} at {step * batch:,} tokens", flush=True)
            break
        print(f"checkpoint {found} is incomplete (__1_0.distcp is not what was written): an older one is used")
    stays = STAYS if options.until is None and not held else 0
    while step * batch < min(options.until or budget, budget):
        step += 1
        time.sleep(0.02)
        while step > stays > 0 and not gone(peer):
            time.sleep(0.01)
        if not gone(peer):
            if rank == 0 and step > held:
                with metrics.open("a") as file:
                    values = {"loss": 5.0 - step / 100, "seconds_step": 0.03}
                    file.write(json.dumps({"kind": "train", "step": step, "metrics": values}) + "\n")
            if rank == 0 and not options.unsaved and step % config.runtime.checkpoint_keep_steps == 0:
                place = root / f"step-{step:09d}"
                place.mkdir(parents=True, exist_ok=True)
                (place / "__1_0.distcp").write_bytes(bytes(100))
                (place / "hash").write_text(hashlib.sha256(bytes(100)).hexdigest())
            continue
        while options.hangs:
            time.sleep(1)
        print("RuntimeError: [/src/gloo/pair.cc:537] the peer has gone", file=sys.stderr)
        return 1
    staged.write_text(DONE)
    staged.rename(alive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
