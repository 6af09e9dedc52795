"""One row through torchtitan 0.2.2 (its wheel on the path): its own trainer, loop, data loader class and metrics.

Random tokens replace its corpus, so that nothing is downloaded. Run under torchrun; rank 0 writes the row's figures.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import json
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.rows import SHAPES, Row, Shape, find


def _stub(name: str, **attributes: Any) -> None:
    """Put an empty module in the place of one that torchtitan imports and this run does not use."""
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__path__ = []
    for key, value in attributes.items():
        setattr(module, key, value)
    sys.modules[name] = module


class RandomTokens(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Endless sequences of independent tokens."""

    def __init__(self, vocabulary: int, length: int, seed: int) -> None:
        self.vocabulary, self.length, self.seed = vocabulary, length, seed

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        worker = torch.utils.data.get_worker_info()
        generator = torch.Generator().manual_seed(self.seed * 100 + (worker.id if worker else 0))
        while True:
            tokens = torch.randint(0, self.vocabulary, (self.length + 1,), generator=generator)
            yield {"input": tokens[:-1]}, tokens[1:]


def arguments(row: Row) -> list[str]:
    """Return torchtitan's command line for the row."""
    return [
        "--model.name", "llama3", "--model.flavor", row.shape, "--training.seq-len", str(SHAPES[row.shape].length),
        "--training.local-batch-size", str(row.sequences), "--training.steps", str(row.steps),
        "--metrics.log-freq", "10", "--optimizer.name", "AdamW", "--lr-scheduler.warmup-steps", "2",
        "--job.dump-folder", "/tmp/torchtitan", *row.settings,
    ]  # fmt: skip


def prepare(row: Row) -> Any:
    """Return torchtitan's Trainer class, timed, its llama family extended by the row's shape, its data replaced."""
    shape = SHAPES[row.shape]
    trainer = extended(row.shape, shape, lambda rank: RandomTokens(shape.vocabulary, shape.length, rank))
    return _timed(trainer, row)


def extended(flavor: str, shape: Shape, rows: Callable[[int], Any]) -> Any:
    """Return torchtitan's Trainer class with this flavor of its llama and these rows of a data-parallel rank."""
    _stub("datasets", Dataset=object, load_dataset=None)
    _stub("datasets.distributed", split_dataset_by_node=None)
    _stub("torch.utils.tensorboard", SummaryWriter=object)
    import torchtitan.protocols.train_spec as specs
    from torchtitan.components.dataloader import ParallelAwareDataloader
    from torchtitan.models.llama3 import TransformerModelArgs, llama3_args
    from torchtitan.train import Trainer

    model = shape.model
    llama3_args[flavor] = TransformerModelArgs(
        dim=model.width,
        n_layers=model.layers,
        n_heads=model.width // (model.head_dim or 1),
        n_kv_heads=model.kv_heads,
        vocab_size=shape.vocabulary,
        rope_theta=model.rope_theta,
        **_hidden(model.width, model.mlp_width or 0),
    )
    original = specs.get_train_spec

    def replaced(name: str) -> Any:
        spec = original(name)
        spec.build_tokenizer_fn = spec.build_validator_fn = None

        def data(dp_world_size: int, dp_rank: int, tokenizer: Any, job_config: Any) -> Any:
            batch = job_config.training.local_batch_size
            return ParallelAwareDataloader(rows(dp_rank), dp_rank, dp_world_size, batch_size=batch, num_workers=2)

        spec.build_dataloader_fn = data
        return spec

    specs.get_train_spec = replaced
    return Trainer


def _hidden(width: int, hidden: int) -> dict[str, Any]:
    """Return the settings by which torchtitan's rule arrives at this hidden width."""
    for factor, multiple in ((None, 256), (1.3, 1024), (None, 64), (None, 16)):
        wanted = int(2 * 4 * width / 3)
        wanted = wanted if factor is None else int(factor * wanted)
        if -(-wanted // multiple) * multiple == hidden:
            return {"ffn_dim_multiplier": factor, "multiple_of": multiple}
    raise ValueError(f"torchtitan has no hidden width {hidden} for width {width}")


def _timed(trainer: Any, row: Row) -> Any:
    """Return the Trainer class with a clock around the steps after the row's warm-up."""

    class Timed(trainer):  # type: ignore[misc]
        def train_step(self, data_iterator: Any) -> None:
            if self.step == row.warmup + 1:
                _wait()
                self.began = time.perf_counter()
            super().train_step(data_iterator)
            if self.step == row.steps:
                _wait()
                seconds = (time.perf_counter() - self.began) / (row.steps - row.warmup)
                _write(row, {"step_seconds": seconds, **row.figures(seconds), **_memory()})

    return Timed


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _memory() -> dict[str, float]:
    if not torch.cuda.is_available():
        return {"gib": 0.0, "gib_allocated": 0.0}
    used = torch.tensor([torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()], device="cuda")
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(used, op=torch.distributed.ReduceOp.MAX)
    reserved, allocated = (used.double() / 2**30).tolist()
    return {"gib": reserved, "gib_allocated": allocated}


def _write(row: Row, figures: dict[str, float]) -> None:
    if int(os.environ.get("RANK", "0")) == 0:
        Path(os.environ["PEERS_RESULT"]).write_text(json.dumps(figures))


def main() -> None:
    parser = argparse.ArgumentParser(description="run one row of benchmarks.trainer_peers through torchtitan")
    parser.add_argument("row")
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    row = find(options.row)
    sys.argv = [sys.argv[0], *arguments(row)]  # read when torchtitan is imported
    trainer = prepare(row)
    from torchtitan.train import main as train

    train(trainer)


if __name__ == "__main__":
    main()
