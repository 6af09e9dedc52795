"""What a run is made of, from its config: the mesh of its ranks, data, model, optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from train.data.dataloader import DataLoader, RowSource
from train.data.dataset import open_training
from train.data.validation import ValidationSet, open_validation
from train.memory.activation_budget import Filler
from train.memory.activation_checkpointing import wrap
from train.memory.micro_batch import micro_batch_of
from train.memory.optimizer_offload import OffloadedState
from train.model.init import initialise
from train.optim.build import make_optimizer
from train.optim.optimizer import Optimizer
from train.parallel.context import cut_batch
from train.parallel.mesh import Mesh, make_mesh
from train.parallel.model_part import ModelPart
from train.parallel.parallel_model import ParallelModel
from train.parallel.parallelize import Fill, make_parts
from train.precision import policy
from train.precision.loss_scaler import LossScaler
from train.precision.policy import formats
from train.runtime import sdpa_backends
from train.runtime.compile_cache import use_cache
from train.runtime.console import say
from train.runtime.distributed import World
from train.runtime.step_graph import Compute, StepGraph
from train.spec import mesh as layout
from train.spec.config import RunConfig
from train.spec.manifest import Manifest, folder, read_manifest
from train.spec.step_graph import obstacle
from train.state import TrainState

if TYPE_CHECKING:
    from train.parallel.pipeline import Pipeline


def device_of(config: RunConfig, world: World) -> torch.device:
    """Return the device of this rank; ValueError where the config wants CUDA and there is none."""
    wanted = config.runtime.device
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise ValueError("runtime.device='cuda' but torch finds no CUDA device: use runtime.device=auto or cpu")
    if wanted == "cpu" or not available:
        return torch.device("cpu")
    return torch.device("cuda", world.local_rank % torch.cuda.device_count())


def build_mesh(config: RunConfig, world: World, device: torch.device) -> Mesh:
    """Return the mesh of the ranks; ValueError where the config does not fit them or their devices."""
    layout.check(config, world.size, saves=False, begun=True)
    policy.check(config, device)
    return make_mesh(config.parallel, world, device)


@dataclass(frozen=True)
class Data:
    """The corpus of a run: batches to train on, rows to validate on, and which text it is."""

    loader: DataLoader
    validation: ValidationSet
    fingerprint: str


def build_data(
    config: RunConfig, state: TrainState, mesh: Mesh, device: torch.device, rows: RowSource | None = None
) -> Data:
    """Return the data of this rank, read from where `state` says; ValueError where it does not fit the config.

    rows: instead of the corpus' training rows.
    """
    where = folder(config.data, config.runtime.data_root)
    manifest = read_manifest(where)
    _check_data(config, manifest, where)
    rows = open_training(config.data, config.runtime.data_root, config.seed) if rows is None else rows
    loader = DataLoader(rows, config, state, mesh, cut=partial(cut_batch, mesh=mesh), device=device)
    return Data(loader, open_validation(config), manifest.fingerprint)


def build_model(config: RunConfig, mesh: Mesh, device: torch.device, fill: Fill | None = None) -> ParallelModel:
    """Return this rank's part of the model, on the device. `fill` gives the weights other values than the config's."""
    use_cache(config.compile)
    sdpa_backends.prefer(device)
    torch.manual_seed(config.seed * 1_000_003 + mesh.world.rank)
    parts = make_parts(config, mesh, device, fill or first_values(config))
    assert config.batch.tokens is not None
    largest = config.batch.tokens
    if device.type == "cuda" and config.compile.blocks and config.batch.ramp_from is not None:
        largest = config.batch.ramp_from  # micro-batches have one shape, to which smaller batches would be padded
    share = mesh.most(largest // config.data.sequence_length)
    micro = micro_batch_of(config, mesh.axes, share, device, mesh.world.least_)
    return ParallelModel(
        parts,
        mesh,
        device,
        micro,
        formats(config.precision),
        one_shape=bool(config.compile.blocks),
        pipeline=_pipeline(config, mesh, parts, device, micro.size) if mesh.axes.pp > 1 else None,
        filler=_filler(config, mesh, parts, device) if config.memory.checkpointing == "budget" else None,
    )


def build_optimizer(config: RunConfig, model: ParallelModel) -> Optimizer:
    """Return one optimizer over the weights of all parts here."""
    optimizer = make_optimizer(
        list(model.named_parameters()),
        {name: spec for module in model.modules for name, spec in module.specs.items()},
        config.model,
        config.optim,
        iteration_dtype=torch.float32 if model.formats.compute is torch.float32 else torch.bfloat16,
        state_dtype=model.formats.state,
    )
    if config.memory.offload == "optimizer":
        OffloadedState(optimizer, model.device)
    return optimizer


def build_step_graph(
    config: RunConfig, model: ParallelModel, optimizer: Optimizer, scaler: LossScaler, compute: Compute
) -> StepGraph | None:
    """Return what replays `compute`, all that a step does on the device; None where steps are not replayed.

    ValueError where compile.step_graph=true asks for what cannot be.
    """
    wanted, reason = config.compile.step_graph, obstacle(config, model.device.type, model.mesh.world.size)
    if wanted and reason is not None:
        raise ValueError(f"compile.step_graph=true is refused: {reason}; use compile.step_graph=null")
    if reason is not None or wanted is False:
        return None

    def held() -> Iterator[Tensor]:
        for _, weight in model.named_parameters():
            yield weight
            yield from (value for value in optimizer.state[weight].values() if isinstance(value, Tensor))
        yield from scaler.tensors

    return StepGraph(compute, held, model.device, say)


def first_values(config: RunConfig, *, on_device: bool = False) -> Fill:
    """Return what gives the weights their initial values; on_device: seeded ones are drawn there, for measurements."""
    place = config.model.init_from
    if place is None:
        return lambda module: initialise(module, config.seed, on_device=on_device)
    from train.hub.init_from import load_initial_weights

    return lambda module: load_initial_weights(module, Path(place).expanduser())


def _filler(config: RunConfig, mesh: Mesh, parts: tuple[ModelPart, ...], device: torch.device) -> Filler:
    """Return what fills the device with activations; ranks choose alike, by the fullest of them."""
    blocks = [block for part in parts for block in part.module.blocks.values()]
    limit = config.memory.budget_gib

    def use(chosen: list[str]) -> None:
        wrap(blocks, chosen, config.compile)

    return Filler(blocks, device, None if limit is None else int(limit * 2**30), mesh.world.least_, use)


def _pipeline(
    config: RunConfig, mesh: Mesh, parts: tuple[ModelPart, ...], device: torch.device, micro: int
) -> Pipeline:
    from train.parallel.pipeline import Pipeline

    used = formats(config.precision)
    return Pipeline(
        config.parallel,
        mesh,
        parts,
        device,
        micro=micro,
        width=config.model.width,
        dtype=used.compute,
        forward=lambda: used.autocast(device.type),
        tied=config.model.tied_embeddings,
    )


def _check_data(config: RunConfig, manifest: Manifest, where: Path) -> None:
    wanted = config.data.fingerprint
    if wanted is not None and wanted != manifest.fingerprint:
        raise ValueError(
            f"data.fingerprint={wanted!r} but {where} holds {manifest.fingerprint!r}: it was prepared anew since this "
            "run was frozen; prepare the same data again or start a new study"
        )
    if manifest.tokenizer.vocab_size != config.data.vocab_size:
        found = manifest.tokenizer.vocab_size
        raise ValueError(
            f"data.vocab_size={config.data.vocab_size} but {where} was prepared with {found}: set it to {found}"
        )
