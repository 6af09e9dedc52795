"""A trainer in which something goes wrong: `python -m tests.train.faults KIND --step N --rank R --config …`.

hang: the rank sleeps in the middle of a step. brake: it takes no step from this one on while the run's folder has a
file BRAKE, so that whoever watches can act before the run ends, however late it is to look. nan: its gradients of the
step are not numbers. full: from the step on its files cannot grow, as on a full disk; `--until-step` makes room again.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch

from kernels.core.dtensor import local
from train import run
from train.parallel.parallel_model import ParallelModel
from train.trainer import Trainer

ROOM = 4000
"""Bytes that a file can have on a full disk here: metrics fit, shards do not."""


BRAKE = "brake"


def fault_that_waits() -> None:
    """Wait for ever, under a name that is found in a stack."""
    while True:
        time.sleep(1000)


def inject(kind: str, wanted: range, rank: int, folder: Path) -> None:
    """Make the rank's steps number `wanted` go wrong in the run of this folder."""
    forward_backward, train_step = ParallelModel.forward_backward, Trainer.train_step

    def faulty_backward(model: ParallelModel, *rest: Any, **named: Any) -> Any:
        loss = forward_backward(model, *rest, **named)
        if kind == "nan" and now[0] in wanted:
            for _, weight in model.named_parameters():
                assert weight.grad is not None
                local(weight.grad).fill_(torch.nan)
        return loss

    def faulty_step(trainer: Trainer, *rest: Any, **named: Any) -> Any:
        now[0] = trainer.state.step + 1
        if kind == "hang" and now[0] in wanted:
            fault_that_waits()
        while kind == "brake" and now[0] in wanted and (folder / BRAKE).exists():
            time.sleep(0.005)
        if kind == "full":
            room = ROOM if now[0] in wanted else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        return train_step(trainer, *rest, **named)

    now = [0]
    if int(os.environ.get("RANK", "0")) == rank:
        trainer: Any = Trainer
        model: Any = ParallelModel
        trainer.train_step, model.forward_backward = faulty_step, faulty_backward


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["hang", "brake", "nan", "full"])
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--until-step", type=int, default=10**9)
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--config", type=Path, required=True)
    ours, theirs = parser.parse_known_args()
    last = ours.step + 1 if ours.kind == "nan" else ours.until_step
    inject(ours.kind, range(ours.step, last), ours.rank, ours.config.parent)
    return run.main(["--config", str(ours.config), *theirs])


if __name__ == "__main__":
    sys.exit(main())
