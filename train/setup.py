"""Everything that a run is made of, built from its config."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from train.checkpoint.identity import identity_of
from train.data.dataloader import Reader, RowSource, make_reader
from train.data.dataset import open_training
from train.data.validation import ValidationSet, open_validation
from train.memory.activation_budget import Filler
from train.memory.activation_checkpointing import wrap
from train.memory.optimizer_offload import OffloadedState
from train.model.init import initialise
from train.model.transformer import Transformer
from train.optim.build import make_optimizer
from train.optim.optimizer import Optimizer
from train.parallel.context import cut_batch
from train.parallel.mesh import Mesh, make_mesh
from train.parallel.model_part import Stage
from train.parallel.parallelize import Fill, make_stages
from train.precision import policy
from train.precision.history import History
from train.precision.loss_scaler import LossScaler
from train.precision.policy import Formats, formats
from train.runtime import sdpa_backends
from train.runtime.compile import Compilation, compile_blocks, use_cache
from train.runtime.distributed import World
from train.runtime.malloc import even
from train.spec import mesh as layout
from train.spec.config import RunConfig
from train.spec.footprint import micro_batch_sequences
from train.spec.manifest import Manifest, folder, read_manifest

if TYPE_CHECKING:
    from train.parallel.pipeline import Pipeline


@dataclass(frozen=True)
class Setup:
    """A run's parts on this rank. `micro` is in sequences; `reader` gives this rank's part of a global batch.

    stages: the pieces of the model here, one unless there is a pipeline, which runs them. One optimizer has the weights
    of all of them.
    """

    config: RunConfig
    folder: Path
    world: World
    mesh: Mesh
    device: torch.device
    stages: tuple[Stage, ...]
    optimizer: Optimizer
    data: RowSource
    reader: Reader
    validation: ValidationSet
    manifest: Manifest
    micro: int
    scaler: LossScaler
    history: History
    compilation: Compilation
    pipeline: Pipeline | None = None
    filler: Filler | None = None

    @property
    def formats(self) -> Formats:
        """Which number format is used where."""
        return formats(self.config.precision)

    @property
    def autocast(self) -> torch.autocast:
        """The context in which forward passes run: matrix products in the config's format."""
        return self.formats.autocast(self.device.type)

    @property
    def model(self) -> Transformer:
        """The whole model, where this rank holds it as one piece."""
        assert len(self.stages) == 1
        return self.stages[0].module

    @property
    def modules(self) -> tuple[Transformer, ...]:
        """The parts of the model that this rank holds."""
        return tuple(stage.module for stage in self.stages)

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the weights of all stages here, or this rank's parts of them, by their names in the whole model."""
        for stage in self.stages:
            yield from stage.named_parameters()

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint belongs to."""
        return identity_of(self.config, self.manifest.fingerprint)


def device_of(config: RunConfig, world: World) -> torch.device:
    """Return the device of this rank; ValueError where the config wants CUDA and there is none."""
    wanted = config.runtime.device
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise ValueError("runtime.device='cuda' but torch finds no CUDA device: use runtime.device=auto or cpu")
    if wanted == "cpu" or not available:
        return torch.device("cpu")
    return torch.device("cuda", world.local_rank % torch.cuda.device_count())


def build(
    config: RunConfig,
    run_folder: Path,
    world: World,
    device: torch.device,
    *,
    data: RowSource | None = None,
    fill: Fill | None = None,
) -> Setup:
    """Return the parts of a run from its resolved config; ValueError where data or layout do not fit the config.

    `data` and `fill` stand in for the corpus' training rows and for the seeded initial weights.
    """
    layout.check(config, world.size, saves=False, begun=True)
    policy.check(config, device)
    use_cache(config.compile.cache)
    sdpa_backends.prefer(device)
    where = folder(config.data, config.runtime.data_root)
    manifest = read_manifest(where)
    _check_data(config, manifest, where)
    length = config.data.sequence_length
    data = open_training(config.data, config.runtime.data_root, config.seed) if data is None else data
    validation = open_validation(config)
    torch.manual_seed(config.seed * 1_000_003 + world.rank)
    mesh = make_mesh(config.parallel, world, device)
    stages = make_stages(config, mesh, device, fill or _fill(config))
    optimizer = make_optimizer(
        [item for stage in stages for item in stage.named_parameters()],
        {name: spec for stage in stages for name, spec in stage.module.specs.items()},
        config.model,
        config.optim,
        iteration_dtype=torch.float32 if formats(config.precision).compute is torch.float32 else torch.bfloat16,
        state_dtype=formats(config.precision).state,
    )
    if config.memory.offload == "optimizer":
        OffloadedState(optimizer, device)
    micro = config.parallel.micro_batch_sequences or micro_batch_sequences(config.model, length, device.type)
    assert config.batch.tokens is not None
    micro = even(mesh.most(config.batch.tokens // length), micro)
    pipeline = _pipeline(config, mesh, stages, device, micro) if mesh.axes.pp > 1 else None
    precision = config.precision
    return Setup(
        config=config,
        folder=run_folder,
        world=world,
        mesh=mesh,
        device=device,
        stages=stages,
        optimizer=optimizer,
        data=data,
        reader=make_reader(data, mesh, partial(cut_batch, mesh=mesh), device, config.runtime.prefetch_batches),
        validation=validation,
        manifest=manifest,
        micro=micro,
        scaler=LossScaler(device, precision.loss_scale, precision.loss_scale_steps, formats(precision).scaled),
        history=History([s.module for s in stages], device, precision.fp8_history, shared=world.size > 1),
        compilation=Compilation(config.compile),
        pipeline=pipeline,
        filler=_filler(config, mesh, stages, device) if config.memory.checkpointing == "budget" else None,
    )


def _fill(config: RunConfig) -> Fill:
    """Return what gives the weights their initial values."""
    place = config.model.init_from
    if place is None:
        return lambda module: initialise(module, config.seed)
    from train.hub.start import load_initial_weights

    return lambda module: load_initial_weights(module, Path(place))


def _filler(config: RunConfig, mesh: Mesh, stages: tuple[Stage, ...], device: torch.device) -> Filler:
    """Return what fills the device with activations; ranks choose alike, by the fullest of them."""
    blocks = [block for stage in stages for block in stage.module.blocks.values()]
    limit = config.memory.budget_gib

    def use(chosen: list[str]) -> None:
        wrap(blocks, chosen)
        compile_blocks(blocks, config.compile)

    return Filler(blocks, device, None if limit is None else int(limit * 2**30), mesh.world.least_, use)


def _pipeline(config: RunConfig, mesh: Mesh, stages: tuple[Stage, ...], device: torch.device, micro: int) -> Pipeline:
    from train.parallel.pipeline import Pipeline

    used = formats(config.precision)
    return Pipeline(
        config.parallel,
        mesh,
        stages,
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
        raise ValueError(
            f"data.vocab_size={config.data.vocab_size} but {where} was prepared with {manifest.tokenizer.vocab_size}"
        )
