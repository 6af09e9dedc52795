"""One point of a study through torchtitan 0.2.2: its own trainer and loop over the corpus, and a held-out loss.

Run under torchrun with a point's settings (`benchmarks.peers.points.titan_settings`) as a JSON file. Its llama has no
norms of queries and keys, its own initial values, and weight decay for every weight.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.rows import Shape
from benchmarks.peers.script import Tokens
from benchmarks.peers.titan import extended
from train.spec.config import ModelConfig
from train.spec.from_mapping import read


class RandomRows(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Endless rows from random places of memory-mapped tokens."""

    def __init__(self, files: list[str], length: int) -> None:
        self.files, self.length = files, length

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        tokens = Tokens(self.files, self.length)
        while True:
            for row in tokens.random(64):
                yield {"input": row[:-1]}, row[1:]


def arguments(settings: dict[str, Any]) -> list[str]:
    """Return torchtitan's command line for a point."""
    options = {
        "model.name": "llama3",
        "model.flavor": settings["name"],
        "training.seq-len": settings["length"],
        "training.local-batch-size": settings["batch"],
        "training.steps": settings["steps"],
        "metrics.log-freq": 10,
        "optimizer.name": "AdamW",
        "optimizer.lr": settings["lr"],
        "optimizer.beta1": settings["betas"][0],
        "optimizer.beta2": settings["betas"][1],
        "optimizer.weight-decay": settings["weight_decay"],
        "lr-scheduler.warmup-steps": max(1, round(settings["warmup"] * settings["steps"])),
        "lr-scheduler.decay-type": "cosine",
        "lr-scheduler.min-lr-factor": 0.0,
        "activation-checkpoint.mode": "none",
        "debug.seed": settings["seed"],
        "job.dump-folder": settings["out"],
    }
    return [*(word for name, value in options.items() for word in (f"--{name}", str(value))), "--compile.enable"]


def held_out(trainer: Any, settings: dict[str, Any]) -> float:
    """Return the mean loss of the held-out rows [nats/token]; not compiled, which would take longer than it saves."""
    tokens = Tokens(settings["validation"], settings["length"]).spread(settings["validation_rows"])
    total, model = 0.0, trainer.model_parts[0]
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), trainer.maybe_enable_amp:
        for part in torch.split(tokens, 32):
            rows = part.to(trainer.device)
            logits = model(rows[:, :-1]).flatten(0, 1).float()
            total += float(torch.nn.functional.cross_entropy(logits, rows[:, 1:].flatten(), reduction="sum"))
    return total / tokens[:, 1:].numel()


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.argv = [sys.argv[0], *arguments(settings)]  # read when torchtitan is imported
    length = settings["length"]
    shape = Shape(read(ModelConfig, settings["model"]), settings["vocabulary"], length)
    original = extended(settings["name"], shape, lambda rank: RandomRows(settings["train"], length))

    class Finishing(original):  # type: ignore[misc, valid-type]
        began = 0.0

        def train_step(self, data_iterator: Any) -> None:
            self.began = self.began or time.time()
            super().train_step(data_iterator)
            if self.step == settings["steps"]:
                torch.cuda.synchronize()
                seconds = time.time() - self.began
                tokens = settings["steps"] * settings["batch"] * length
                found = {"loss": held_out(self, settings), "tokens": tokens, "seconds": seconds}
                (Path(settings["out"]) / "result.json").write_text(json.dumps(found), encoding="utf-8")

    from torchtitan.train import main as train

    train(Finishing)


if __name__ == "__main__":
    main()
