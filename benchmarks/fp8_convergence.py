"""Losses of the same run in bf16 and fp8, beside those of bf16 from another seed: is the difference seed noise?

    python -m benchmarks.fp8_convergence [--shape 150m] [--steps 500] [--runs bf16:0 bf16:1 fp8:0 rowwise:0]

Made-up tokens of which every second is a function of the one before (benchmarks.fake_corpus), so there is something to
learn. Prints the mean loss [nats/token] of the last tenth of the steps, and some on the way.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from benchmarks.fake_corpus import write_corpus
from benchmarks.peers.ours import fill
from benchmarks.peers.rows import SHAPES
from train.build import device_of
from train.runtime.distributed import World
from train.spec.command_line import Parser
from train.spec.config import RunConfig
from train.spec.from_mapping import read
from train.spec.resolve import resolve
from train.trainer import Trainer

FORMATS = {
    "fp32": {"name": "fp32"},
    "bf16": {"name": "bf16"},
    "fp16": {"name": "fp16"},
    "fp8": {"name": "fp8"},
    "rowwise": {"name": "fp8", "fp8_scaling": "rowwise"},
}


def losses(shape: str, run: str, steps: int, sequences: int, root: Path) -> list[float]:
    """Return the loss of every step [nats/token] of one run, FORMAT:SEED."""
    name, _, seed = run.partition(":")
    size = SHAPES[shape]
    config = resolve(
        read(
            RunConfig,
            {
                "model": vars(size.model),
                "data": {"name": "fake", "vocab_size": 4096, "sequence_length": size.length},
                "batch": {"tokens": sequences * size.length},
                "budget": {"tokens": steps * sequences * size.length},
                "optim": {"lr": 6e-4},
                "precision": FORMATS[name],
                "eval": {"sequences": 1},
                "compile": {"blocks": torch.cuda.is_available()},
                "parallel": {"micro_batch_sequences": sequences},
                "runtime": {"data_root": str(root)},
                "seed": int(seed or 0),
            },
        )
    )
    torch._dynamo.reset()
    device = device_of(config, World())
    torch.manual_seed(config.seed)
    trainer = Trainer(config, root, World(), device, fill=fill)
    torch.manual_seed(config.seed)
    fill(trainer.model.whole)
    return [float(loss) for loss in torch.stack([trainer.train_step()[0] for _ in range(steps)]).tolist()]


def main() -> None:
    parser = Parser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", default="150m", choices=list(SHAPES))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--runs", nargs="+", default=["bf16:0", "bf16:1", "fp8:0", "rowwise:0"])
    parser.add_argument("--data", type=Path, default=Path("/tmp/fp8_convergence"))
    parser.add_argument("--write", type=Path, help="file for all losses as JSON")
    options = parser.parse_args()
    if not options.data.exists():
        write_corpus(options.data, 4096, 4_000_000, 4 * SHAPES[options.shape].length + 4)
    every, found = max(1, options.steps // 5), {}
    for run in options.runs:
        found[run] = losses(options.shape, run, options.steps, options.sequences, options.data)
        tail = found[run][-max(1, options.steps // 10) :]
        way = " ".join(f"{value:.4f}" for value in found[run][every - 1 :: every])
        print(f"{run}: last tenth {sum(tail) / len(tail):.4f}; on the way {way}", flush=True)
        if options.write:
            options.write.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
