"""How evenly FSDP2 cuts every preset over 2 to 64 ranks: planned, real and fair bytes of the fullest rank.

Run: `python -m benchmarks.shard_evenness [--ranks 2,3,…] [--out FILE]`. One process in a pretended world: weights on
the meta device, one block (the others are alike), cut as the first rank's are. Bytes are of weights, gradients and two
moments in fp32; what is gathered of a weight, padding included, is compared with the weight's own.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import torch
import torch.distributed as dist
import yaml
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from train.model.transformer import Transformer
from train.parallel.fsdp import shard
from train.parallel.mesh import make_mesh
from train.runtime.distributed import World
from train.spec.command_line import Parser
from train.spec.config import BatchConfig, BudgetConfig, DataConfig, ModelConfig, ParallelConfig, RunConfig
from train.spec.decoder import resolve_model
from train.spec.footprint import footprint
from train.spec.mesh import axes

CONF = Path(__file__).resolve().parents[1] / "conf" / "model"
PRESETS = tuple(sorted(path.stem for path in CONF.glob("*.yaml")))
LENGTH = 128
STATES = 16
"""Bytes of weight, gradient and two moments in fp32 for each number."""


@dataclass(frozen=True)
class Row:
    """What the fullest of `ranks` ranks holds [bytes]; gathered: the most of a weight's padded bytes over its own."""

    preset: str
    ranks: int
    planned: int
    real: int
    fair: float
    gathered: float

    @property
    def ratio(self) -> float:
        """Real bytes over the fair share."""
        return self.real / self.fair


def config_of(preset: str, ranks: int, vocab_size: int) -> RunConfig:
    """Return a run of a preset whose weights are cut over so many ranks."""
    model = resolve_model(ModelConfig(**yaml.safe_load((CONF / f"{preset}.yaml").read_text())), LENGTH)
    return RunConfig(
        model=model,
        data=DataConfig(vocab_size=vocab_size, sequence_length=LENGTH),
        parallel=ParallelConfig(dp_replicate=1, dp_shard=ranks, strategy="fsdp"),
        batch=BatchConfig(tokens=ranks * LENGTH),
        budget=BudgetConfig(tokens=10**9),
    )


@contextmanager
def pretended(ranks: int) -> Iterator[World]:
    """Be the first of so many ranks, the others of which are not there; messages go nowhere."""
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield World(0, ranks)
    finally:
        dist.destroy_process_group()


def measured(preset: str, ranks: int, vocab_size: int = 50_304) -> Row:
    """Return planned, real and fair bytes of one preset."""
    config = config_of(preset, ranks, vocab_size)
    layers = config.model.layers
    with pretended(ranks) as world, torch.device("meta"):
        mesh = make_mesh(config.parallel, world, torch.device("cpu"))
        module = Transformer(replace(config.model, layers=1), vocab_size, LENGTH)
        whole = {name: weight.numel() for name, weight in module.named_parameters()}
        shard(module, config, mesh)
        # Of the memory, not of the numbers in it: FSDP2 pads what it holds.
        held = {name: _numbers(weight) for name, weight in module.named_parameters()}
    times = {name: layers if name.startswith("blocks.") else 1 for name in whole}
    return Row(
        preset,
        ranks,
        planned=footprint(config, axes(config.parallel, ranks), "cuda").states,
        real=STATES * sum(times[name] * held[name] for name in whole),
        fair=STATES * sum(times[name] * whole[name] for name in whole) / ranks,
        gathered=max(ranks * held[name] / whole[name] for name in whole if whole[name] > 1 << 16),
    )


def _numbers(weight: torch.Tensor) -> int:
    assert isinstance(weight, DTensor)
    part = weight.to_local()
    return part.untyped_storage().nbytes() // part.itemsize


def main() -> None:
    """Measure, and print the worst of every preset."""
    parser = Parser(description=__doc__)
    parser.add_argument("--ranks", default=",".join(map(str, range(2, 65))))
    parser.add_argument("--vocab-size", type=int, default=50_304)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    ranks = [int(word) for word in given.ranks.split(",")]
    lines = [
        f"{date.today()}, torch {torch.__version__}, {platform.machine()}; vocabulary {given.vocab_size}, "
        f"{len(ranks)} numbers of ranks from {min(ranks)} to {max(ranks)}",
        "preset       worst real / fair     planned / real        a weight's gathered / own",
    ]
    for preset in PRESETS:
        rows = [measured(preset, count, given.vocab_size) for count in ranks]
        worst, pad = max(rows, key=lambda row: row.ratio), max(rows, key=lambda row: row.gathered)
        plan = [row.planned / row.real for row in rows]
        lines.append(
            f"{preset:12} {worst.ratio:.4f} on {worst.ranks:2}          {min(plan):.4f} to {max(plan):.4f}      "
            f"{pad.gathered:.4f} on {pad.ranks:2}"
        )
    print("\n".join(lines))
    if given.out is not None:
        given.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
