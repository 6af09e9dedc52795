"""Stands in for the trainer where a test is about how runs end: a rank's nth start ends as FRAGILE's nth word says.

The last word goes on for ever. complete, fail (an exception), hang (beats, then sleeps), stop (stops itself), memory
(asks for more than it may have), devour (takes more than its group has), wait (saves and ends when told to), hold
(completes when RUN/go is there). Words may differ by seed: `7:hang,complete;...`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import yaml

from train.runtime.heartbeat import Heartbeat

told: list[int] = []


def main() -> int:
    run = Path(sys.argv[sys.argv.index("--config") + 1]).parent
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, tell)
    faulthandler.register(signal.SIGQUIT, all_threads=True)
    rank = os.environ.get("RANK", "0")
    with (run / "starts").open("a+", encoding="utf-8") as starts:
        starts.write(f"{os.environ.get('SLURMD_NODENAME')} {os.environ.get('SLURM_MEM_PER_NODE')} {rank}\n")
        starts.seek(0)
        count = sum(line.split()[2] == rank for line in starts)
    words = behaviour(config["seed"]).split(",")
    word = words[min(count, len(words)) - 1]
    print(f"start {count}: {word}", flush=True)
    beat = Heartbeat.of(os.environ, 0.0)
    for step in range(1, 6):
        beat.took(0.01)
        beat.beat(step, "train")
    return int(globals()[word](run, config) or 0)


def behaviour(seed: int) -> str:
    for part in os.environ["FRAGILE"].split(";"):
        of, _, words = part.rpartition(":")
        if of in ("", str(seed)):
            return words
    return "complete"


def tell(number: int, frame: FrameType | None) -> None:
    told.append(number)


def complete(run: Path, config: dict[str, dict[str, int]]) -> None:
    tokens = config["budget"]["tokens"]
    outcome = {"format": 1, "state": "completed", "step": 1, "tokens": tokens, "loss": {}}
    (run / "outcome.new").write_text(json.dumps(outcome), encoding="utf-8")
    (run / "outcome.new").rename(run / "outcome.json")


def fail(run: Path, config: object) -> None:
    raise RuntimeError("it was not a good day")


def hang(run: Path, config: object) -> None:
    print("going to sleep", flush=True)
    while True:
        print("noise", flush=True)  # what is printed is no progress
        time.sleep(0.2)


def stop(run: Path, config: object) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)


def memory(run: Path, config: object) -> None:
    most = int(os.environ.get("FRAGILE_BYTES", str(2**30)))
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    bytearray(2 * most)


def devour(run: Path, config: object) -> None:
    taken = bytearray(2**29)
    for place in range(0, len(taken), 4096):
        taken[place] = 1


def wait(run: Path, config: object) -> int:
    (run / "waits").touch()
    while not told:
        time.sleep(0.05)
    return 75


def hold(run: Path, config: dict[str, dict[str, int]]) -> None:
    (run / "waits").touch()
    while not (run / "go").exists():
        time.sleep(0.05)
    complete(run, config)


if __name__ == "__main__":
    sys.exit(main())
