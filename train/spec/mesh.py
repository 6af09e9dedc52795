"""The mesh of a run: its axes from the config, and which combinations are refused and why, before anything starts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from train.spec import deprecated, precision
from train.spec.axes import MESH_AXES
from train.spec.config import ParallelConfig, RunConfig
from train.spec.counts import kv_heads, mlp_width
from train.spec.experts import check_experts, check_shared_experts
from train.spec.pipeline_layout import check_pipeline

LEAST_BUCKET = 1e-3
"""Smallest parallel.ddp_bucket_mib [MiB]: about a thousand bytes, less than any weight."""


class WorldError(ValueError):
    """The mesh does not make up the number of processes that there are."""


@dataclass(frozen=True)
class Axes:
    """How many ranks each axis has.

    dp_replicate: copies of the sharded model; dp_shard: ranks over which one copy's weights, gradients and moments are
    cut; cp: ranks that share a sequence; tp: ranks that share a layer's matrices; pp: ranks that share the layers. ep
    is no axis of its own: of those of dp_shard x cp, ranks that share experts.
    """

    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(getattr(self, name) for name in MESH_AXES)

    @property
    def data(self) -> int:
        """How many parts the global batch is cut into."""
        return self.dp_replicate * self.dp_shard

    @property
    def fsdp(self) -> int:
        """How many parts weights are cut into for sharding: ranks that share a sequence share weights as well."""
        return self.dp_shard * self.cp

    @property
    def expert_fsdp(self) -> int:
        """How many parts a rank's experts are cut into for sharding."""
        return self.fsdp // self.ep


def axes(parallel: ParallelConfig, world_size: int) -> Axes:
    """Return the axes for `world_size` ranks; WorldError where they do not make up the world.

    One of dp_replicate and dp_shard may be null: it takes the ranks that the others leave.
    """
    given = {name: getattr(parallel, name) for name in MESH_AXES}
    for name, size in given.items():
        if size is not None and size < 1:
            raise ValueError(f"parallel.{name}={size} is not allowed: an axis has at least one rank")
    open_axes = [name for name, size in given.items() if size is None]
    if len(open_axes) > 1:
        raise ValueError(
            "parallel.dp_replicate and parallel.dp_shard are both null: one of them takes the ranks that the other "
            "axes leave, so give the other"
        )
    product = math.prod(size for size in given.values() if size is not None)
    said = (
        " x ".join(f"parallel.{name}={size}" for name, size in given.items() if size is not None and size > 1)
        or "parallel: every axis of size 1"
    )
    if open_axes:
        if world_size % product:
            raise WorldError(
                f"{said} makes {product} ranks, which do not divide the world of {world_size} processes: "
                f"start a multiple of {product}"
            )
        given[open_axes[0]] = world_size // product
    elif product != world_size:
        raise WorldError(
            f"{said} makes {product} ranks but the world has {world_size} processes: start {product}, "
            "or set parallel.dp_replicate or parallel.dp_shard to null, which takes what is left"
        )
    return Axes(**{name: size for name, size in given.items() if size is not None}, ep=parallel.ep)


def strategy(parallel: ParallelConfig, shape: Axes) -> str:
    """Return how data-parallel ranks hold the model: none (no such ranks), ddp, fsdp or fsdp1.

    One rank of tensor parallelism or a pipeline without data parallelism holds plain parts of the model: none.
    """
    if shape.data * shape.cp == 1:
        return "none"
    if parallel.strategy != "auto":
        return parallel.strategy
    return "ddp" if shape.dp_shard * shape.cp * shape.tp * shape.pp == 1 else "fsdp"


def share_of_batch(config: RunConfig, axes: Axes) -> int:
    """Return the sequences of a step that the fullest rank has."""
    assert config.batch.tokens is not None, "the config is resolved"
    return -(-(config.batch.tokens // config.data.sequence_length) // axes.data)


def copies(parallel: ParallelConfig, shape: Axes | None = None) -> bool:
    """Say whether every rank has the whole model, as far as that is known without the mesh's shape."""
    return "ddp" in (parallel.strategy, shape and strategy(parallel, shape))


def check(config: RunConfig, world_size: int | None = None, saves: bool = True, begun: bool = False) -> None:
    """Raise ValueError, with the reason, for a layout that cannot run; also without knowing the world's size.

    saves: whether checkpoints are to be written, as every run of `train.run` does. begun: the run has begun, so that
    what only a new run is refused for (train.spec.deprecated) passes.
    """
    parallel = config.parallel
    for name in MESH_AXES:
        size = getattr(parallel, name)
        if size is not None and size < 1:
            raise ValueError(f"parallel.{name}={size} is not allowed: an axis has at least one rank")
    if parallel.micro_batch_sequences is not None and parallel.micro_batch_sequences < 1:
        raise ValueError(
            f"parallel.micro_batch_sequences={parallel.micro_batch_sequences} is not allowed: at least one sequence"
        )
    if parallel.zero not in (1, 2, 3):
        raise ValueError(f"parallel.zero={parallel.zero} is not allowed: choose 1, 2 or 3")
    _check_messages(parallel)
    shape = None if world_size is None else axes(parallel, world_size)
    _check_strategy(parallel)
    if not begun:
        deprecated.refuse(config, copies(parallel, shape))
    if saves and parallel.strategy == "fsdp1":
        raise ValueError(
            "parallel.strategy=fsdp1 cannot save checkpoints: its flat parameters do not map to named weights; it "
            "exists to compare speed and memory: use parallel.strategy=fsdp, or train.run --unsaved"
        )
    check_experts(config)
    check_shared_experts(config, None if shape is None else shape.fsdp)
    check_cut(config, shape)
    check_pipeline(config, shape is not None and strategy(parallel, shape) == "fsdp")
    sharded = shape is None or strategy(parallel, shape) == "fsdp"
    precision.check(config, sharded, None if shape is None else shape.fsdp)


def check_cut(config: RunConfig, shape: Axes | None = None) -> None:
    """Raise ValueError where axes cannot cut a model and its sequences, whatever schedule, format or memory there is.

    It is part of `check`, and enough to drop a mesh with all of its layouts.
    """
    if config.parallel.tp > 1:
        check_experts(config)
    _check_tensor(config)
    _check_sharded_tensor(config, shape)
    _check_context(config)


def _check_messages(parallel: ParallelConfig) -> None:
    bucket, ahead = parallel.ddp_bucket_mib, parallel.fsdp_prefetch
    if bucket is not None and not LEAST_BUCKET <= bucket < math.inf:
        raise ValueError(
            f"parallel.ddp_bucket_mib={bucket} is not allowed: MiB of gradients in a message, at least {LEAST_BUCKET}, "
            "or null"
        )
    if ahead < 1:
        raise ValueError(
            f"parallel.fsdp_prefetch={ahead} is not allowed: torch gathers at least 1 block ahead, give 1 or more"
        )


def _check_strategy(parallel: ParallelConfig) -> None:
    sharded = parallel.dp_shard is None or parallel.dp_shard > 1
    if parallel.strategy == "ddp" and sharded:
        raise ValueError(
            "parallel.strategy=ddp keeps the whole model on each rank but parallel.dp_shard="
            f"{parallel.dp_shard or 'null'}: use parallel.strategy=fsdp, or parallel.dp_replicate"
        )
    if parallel.strategy in ("ddp", "fsdp1") and (parallel.tp > 1 or parallel.pp > 1):
        raise ValueError(
            f"parallel.strategy={parallel.strategy} does not compose with tp={parallel.tp}, pp={parallel.pp}: it takes "
            "whole plain weights; use parallel.strategy=fsdp (dp_shard=1 keeps copies as ddp does)"
        )
    if parallel.strategy == "fsdp1" and parallel.zero == 1:
        raise ValueError("parallel.zero=1 is not supported with parallel.strategy=fsdp1: use zero=2, zero=3 or fsdp")


def _check_tensor(config: RunConfig) -> None:
    tp, model, data = config.parallel.tp, config.model, config.data
    if config.parallel.async_tp and tp == 1:
        raise ValueError("parallel.async_tp=true without tensor parallelism: set parallel.tp above 1 or async_tp=false")
    if config.parallel.async_tp and config.runtime.device == "cpu":
        raise ValueError("parallel.async_tp=true needs CUDA devices with peer access: not on runtime.device=cpu")
    if config.parallel.async_tp and not config.compile.blocks:
        raise ValueError("parallel.async_tp=true overlaps within compiled blocks only: set compile.blocks=true")
    for name, count in (
        ("model.kv_heads", kv_heads(model)),
        ("model.mlp_width", mlp_width(model)),
        ("data.vocab_size", data.vocab_size),
    ):
        if count % tp:
            bytes_too = " (data.tokenizer=bytes always has 257: use bpe)" if data.tokenizer == "bytes" else ""
            raise ValueError(
                f"parallel.tp={tp} does not divide {name}={count}: each rank holds an equal part of heads, hidden "
                f"channels and vocabulary; parallel.tp may be {_tensor_sizes(config)} here, or change "
                f"{name}{bytes_too if name == 'data.vocab_size' else ''}"
            )


def _tensor_sizes(config: RunConfig) -> str:
    """Return which sizes of tensor parallelism this model and vocabulary can have, in words."""
    shared = math.gcd(kv_heads(config.model), mlp_width(config.model), config.data.vocab_size)
    sizes = [str(size) for size in range(1, shared + 1) if shared % size == 0]
    return " or ".join(filter(None, (", ".join(sizes[:-1]), sizes[-1])))


def _check_sharded_tensor(config: RunConfig, shape: Axes | None) -> None:
    """FSDP2 cuts a tensor-parallel rank's hidden channels again, and cuts no axis but the first unevenly."""
    parallel = config.parallel
    ranks = shape.fsdp if shape is not None else (parallel.dp_shard or 1) * parallel.cp
    width, tp = mlp_width(config.model), parallel.tp
    pieces = tp * ranks
    if tp > 1 and width % pieces:
        raise ValueError(
            f"model.mlp_width={width} over parallel.tp={tp} leaves each rank {width // tp} hidden channels, which "
            f"dp_shard x cp = {ranks} ranks cannot share equally, as sharding within tensor parallelism has to: set "
            f"model.mlp_width to a multiple of {pieces}, such as {-(-width // pieces) * pieces}"
        )


def _check_context(config: RunConfig) -> None:
    cp, tp, length = config.parallel.cp, config.parallel.tp, config.data.sequence_length
    # Each rank has two chunks of the sequence (see train.parallel.context), of which tensor parallelism cuts the sum.
    pieces = math.lcm(2 * cp if cp > 1 else 1, cp * tp)
    if length % pieces:
        raise ValueError(
            f"data.sequence_length={length} is not a multiple of {pieces}, which parallel.cp={cp} and parallel.tp={tp} "
            f"cut it into: the nearest is {max(1, round(length / pieces)) * pieces}"
        )
    if config.parallel.context == "ring" and cp > 1:
        raise ValueError(
            "parallel.context=ring is not supported: torch's ring attention has no CPU path and its CUDA path replaces "
            "scaled_dot_product_attention for the whole process; use parallel.context=gather"
        )
