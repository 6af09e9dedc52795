"""Save checkpoints without end: `python -m tests.train.checkpoint.savers FOLDER STEP` prints each step saved."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from train.checkpoint.save import Saver


def main(folder: Path, step: int) -> None:
    saver = Saver(folder)
    while True:
        step += 1
        state = {"weights": torch.full((200_000,), float(step))}
        saver.save(step, state, {"progress": {"step": step}, "identity": {}})
        saver.wait()
        print(step, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
