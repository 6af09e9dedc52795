"""Everything that a run is made of, built from its config."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from train.data.loader import TokenSequences
from train.distributed import World
from train.memory import micro_batch_sequences
from train.model.transformer import Transformer, initialise
from train.optimizer import make_optimizer
from train.spec.config import SCIENTIFIC, RunConfig
from train.spec.manifest import Manifest, folder, read_manifest


@dataclass(frozen=True)
class Setup:
    """A run's parts. `micro` is in sequences per rank; `validation` holds the fixed sequences, (count, length + 1)."""

    config: RunConfig
    folder: Path
    world: World
    device: torch.device
    model: Transformer
    optimizer: torch.optim.Optimizer
    data: TokenSequences
    validation: Tensor
    manifest: Manifest
    micro: int

    @property
    def autocast(self) -> torch.autocast:
        """The context in which forward passes run: matrix products in the config's format."""
        bf16 = self.config.precision.name == "bf16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=bf16)

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint belongs to: the scientific config and the data's fingerprint."""
        config = asdict(self.config)
        science = {name: config[name] for name in SCIENTIFIC}
        science["data"] = {k: v for k, v in science["data"].items() if k not in ("source", "fingerprint")}
        return {"config": science, "fingerprint": self.manifest.fingerprint}


def device_of(config: RunConfig, world: World) -> torch.device:
    """Return the device of this rank; ValueError where the config wants CUDA and there is none."""
    wanted = config.runtime.device
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise ValueError("runtime.device='cuda' but torch finds no CUDA device: use runtime.device=auto or cpu")
    if wanted == "cpu" or not available:
        return torch.device("cpu")
    return torch.device("cuda", world.local_rank % torch.cuda.device_count())


def build(config: RunConfig, run_folder: Path, world: World, device: torch.device) -> Setup:
    """Return the parts of a run from its resolved config; ValueError where the data do not fit the config."""
    where = folder(config.data, config.runtime.data_root)
    manifest = read_manifest(where)
    _check_data(config, manifest, where)
    _check_world(config, world)
    length = config.data.sequence_length
    data = TokenSequences(where, "train", length, config.seed)
    validation = torch.from_numpy(data.validation(config.eval.sequences))
    torch.manual_seed(config.seed * 1_000_003 + world.rank)
    model = Transformer(config.model, config.data.vocab_size, length)
    initialise(model, config.seed)
    model.to(device)
    optimizer = make_optimizer(model, config.optim, config.model.tied_embeddings)
    micro = config.parallel.micro_batch_sequences or micro_batch_sequences(config.model, length, device.type)
    return Setup(config, run_folder, world, device, model, optimizer, data, validation, manifest, micro)


def _check_data(config: RunConfig, manifest: Manifest, where: Path) -> None:
    wanted = config.data.fingerprint
    if wanted is not None and wanted != manifest.fingerprint:
        raise ValueError(
            f"data.fingerprint={wanted!r} but {where} holds {manifest.fingerprint!r}: it was prepared anew since this "
            "run was frozen; prepare the same data again or start a new study"
        )
    if manifest.tokenizer.vocab_size != config.data.vocab_size:
        raise ValueError(
            f"data.vocab_size={config.data.vocab_size} but {where} was prepared with {manifest.tokenizer.vocab_size}"
        )


def _check_world(config: RunConfig, world: World) -> None:
    replicas = config.parallel.dp_replicate
    if replicas is not None and replicas != world.size:
        raise ValueError(
            f"parallel.dp_replicate={replicas} but the world has {world.size} processes: "
            f"leave it null or start {replicas}"
        )
