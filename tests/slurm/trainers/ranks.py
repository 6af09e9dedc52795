"""Stands in for the trainer of a search with several ranks: the first waits for all others, then writes a loss.

It notes who took part and where: one line for each unit in RUN/ranks.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path

import yaml

WAIT_SECONDS = 900.0


def main() -> int:
    words = sys.argv
    file = Path(words[words.index("--config") + 1])
    run, config = file.parent, yaml.safe_load(file.read_text(encoding="utf-8"))
    budget = config["budget"]["tokens"]
    until = int(words[words.index("--until") + 1]) if "--until" in words else budget
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    here = run / "meeting" / f"{until}.{os.environ.get('MASTER_PORT', '0')}"
    here.mkdir(parents=True, exist_ok=True)
    arriving = here.with_name(f"{here.name}.{rank}")
    arriving.write_text(os.environ.get("SLURMD_NODENAME", ""), encoding="utf-8")
    arriving.rename(here / str(rank))
    limit = time.monotonic() + WAIT_SECONDS
    while len(list(here.iterdir())) < world:
        if time.monotonic() > limit:
            print(f"rank {rank}: not all {world} ranks came", file=sys.stderr)
            return 1
        time.sleep(0.05)
    if rank:
        return 0
    nodes = [(here / str(number)).read_text(encoding="utf-8") for number in range(world)]
    with (run / "ranks").open("a", encoding="utf-8") as note:
        note.write(json.dumps({"until": until, "nodes": nodes}) + "\n")
    loss = 2.0 + abs(math.log10(config["optim"]["lr"] / 0.003)) + 1000.0 / until
    record = {"kind": "validation", "step": until, "tokens": until, "time": time.time(), "metrics": {"loss": loss}}
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as metrics:
        metrics.write(json.dumps(record) + "\n")
    if until >= budget:
        outcome = {"format": 1, "state": "completed", "step": 1, "tokens": until}
        (run / "outcome.new").write_text(
            json.dumps({**outcome, "loss": {"validation_nats_per_token": loss}}), encoding="utf-8"
        )
        (run / "outcome.new").rename(run / "outcome.json")
    return 0


sys.exit(main())
