"""A stand-in for `python -m train.run --until`: losses that follow from the config, checkpoints, signals, exit codes.

A learning rate above 0.5 diverges, one below 0.001 crashes. STAND_IN_SECONDS: how long a unit takes.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import yaml

stopped: list[int] = []


def loss_at(lr: float, tokens: int) -> float:
    """Return a loss [nats per token] that falls with tokens, lowest for lr = 0.03."""
    return 2.0 + abs(math.log10(lr / 0.03)) + 1000.0 / tokens


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: stopped.append(number))
    words = sys.argv
    config_file = Path(words[words.index("--config") + 1])
    run, config = config_file.parent, yaml.safe_load(config_file.read_text())
    lr, budget = config["optim"]["lr"], config["budget"]["tokens"]
    until = int(words[words.index("--until") + 1]) if "--until" in words else budget
    begun = newest(run)
    if begun == 0 and config["schedule"]["parent"]:
        key, _, tokens = config["schedule"]["parent"].partition("@")
        begun = int(tokens)
        read(run.parent / key, begun)
    pauses = 0
    while True:
        code = advance(run, lr, begun, until, budget)
        pauses += 1
        more = further(pauses, until) if code == 0 and until < budget else None
        if more is None:
            return code
        begun, until = until, more


def advance(run: Path, lr: float, begun: int, until: int, budget: int) -> int:
    """Go from `begun` to `until` tokens; return the exit code."""
    with (run / "diary").open("a") as diary:
        diary.write(f"{begun} {until}\n")
    if lr < 0.001:
        raise RuntimeError("this learning rate is too small for me")
    limit = time.monotonic() + float(os.environ.get("STAND_IN_SECONDS", "0"))
    while time.monotonic() < limit:
        if stopped:
            return 75
        time.sleep(0.01)
    if lr > 0.5:
        write(run / "outcome.json", {"format": 1, "state": "diverged", "step": 1, "tokens": until, "loss": {}})
        return 3
    loss = loss_at(lr, until)
    if until > begun:
        record = {"kind": "validation", "step": until, "tokens": until, "time": time.time(), "metrics": {"loss": loss}}
        with (run / "metrics.jsonl").open("a") as metrics:
            metrics.write(json.dumps(record) + "\n")
    save(run, until)
    if until >= budget:
        losses = {"validation_nats_per_token": loss}
        write(run / "outcome.json", {"format": 1, "state": "completed", "step": 1, "tokens": until, "loss": losses})
    return 0


def further(number: int, tokens: int) -> int | None:
    """Ask whoever started this process how far to go on."""
    if "PAUSE" not in os.environ:
        return None
    place = os.environ["PAUSE"]
    write(Path(f"{place}.asked"), {"number": number, "tokens": tokens})
    limit = time.monotonic() + 30.0
    while time.monotonic() < limit and not stopped:
        answer = Path(f"{place}.answer")
        said = json.loads(answer.read_text()) if answer.exists() else {}
        if said.get("number") == number:
            until: int | None = said["until"]
            return until
        time.sleep(0.01)
    return None


def newest(run: Path) -> int:
    """Return the tokens of a run's newest checkpoint, 0 where it has none."""
    return max((int(folder.name[5:]) for folder in (run / "checkpoints").glob("step-*")), default=0)


def read(run: Path, tokens: int) -> None:
    """Load a checkpoint of another run: fails where it has not been kept."""
    json.loads((run / "checkpoints" / f"step-{tokens:09d}" / "manifest.json").read_text())


def save(run: Path, tokens: int) -> None:
    """Save a checkpoint and remove all others but pinned ones: less is kept than the trainer keeps."""
    root = run / "checkpoints"
    folder = root / f"step-{tokens:09d}"
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "manifest.json", {"progress": {"tokens": tokens}})
    for other in root.glob("step-*"):
        if other != folder and not (other / "pinned").exists():
            shutil.rmtree(other)


def write(path: Path, value: object) -> None:
    staged = path.with_name(f".{path.name}")
    staged.write_text(json.dumps(value))
    staged.replace(path)


if __name__ == "__main__":
    sys.exit(main())
