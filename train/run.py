"""`python -m train.run --config runs/<study>/<key>/config.yaml`: train one run to its budget, or to `--until` tokens.

Exit codes: 0 reached, 1 failed, 3 diverged, 75 stopped by a signal after saving (start it again to go on).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from train.signals import StopFlag
from train.spec.config import RunConfig

REACHED, FAILED, DIVERGED, INTERRUPTED = 0, 1, 3, 75


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    started = time.perf_counter()
    options = _parser().parse_args(arguments)
    flag = StopFlag()
    flag.install()
    try:
        ended = _ended(options.config.parent / "outcome.json")
        if ended is not None:
            return ended
        config = load(options.config)
        return _train(config, options.config.parent, options.until, flag, started)
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        print(f"error: {error}", file=sys.stderr)
        return FAILED


def load(path: Path) -> RunConfig:
    """Return the resolved config in a YAML file; ValueError that names the file or key where it cannot be read."""
    import yaml

    from train.spec.read import read
    from train.spec.resolve import resolve

    try:
        mapping = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"--config {path}: there is no such file") from None
    except yaml.YAMLError as error:
        raise ValueError(f"--config {path} is not YAML: {error}") from None
    if not isinstance(mapping, dict):
        raise ValueError(f"--config {path} holds no mapping of sections (model, data, budget, ...)")
    return resolve(read(RunConfig, mapping))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m train.run",
        description="Train one run to its token budget. Checkpoints, metrics.jsonl and outcome.json go into the "
        "folder of the config. Started again, it goes on from its newest checkpoint.",
        epilog="Exit codes: 0 reached, 1 failed, 3 diverged, 75 stopped by a signal after saving a checkpoint.",
    )
    parser.add_argument("--config", type=Path, required=True, help="the run's config.yaml")
    parser.add_argument("--until", type=int, help="stop at the first step boundary at or past this [tokens]")
    return parser


def _ended(path: Path) -> int | None:
    """Return the exit code of a run that has ended already, saying so; None if it has not."""
    if not path.exists():
        return None
    outcome = json.loads(path.read_text(encoding="utf-8"))
    print(f"already {outcome['state']} at {outcome['tokens']:,} tokens: {path}")
    return DIVERGED if outcome["state"] == "diverged" else REACHED


def _train(config: RunConfig, folder: Path, until: int | None, flag: StopFlag, started: float) -> int:
    import torch

    from train import distributed
    from train.loop import End, Loop
    from train.memory import keep_freed_memory
    from train.setup import build, device_of

    torch.set_num_threads(config.runtime.threads)
    keep_freed_memory()
    world = distributed.world_of()
    device = device_of(config, world)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.join(world, device)
    loop = Loop(build(config, folder, world, device), flag, started)
    assert config.budget.tokens is not None
    try:
        end = loop.run(config.budget.tokens if until is None else until)
    finally:
        loop.close()
    distributed.leave(world)
    if flag and world.writes and end is End.INTERRUPTED:
        print(f"stopped by {flag.received.name if flag.received else 'another rank'} at step {loop.progress.step}")
    return {End.REACHED: REACHED, End.DIVERGED: DIVERGED, End.INTERRUPTED: INTERRUPTED}[end]


if __name__ == "__main__":
    sys.exit(main())
