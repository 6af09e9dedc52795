"""How a pipeline cuts the model: stages, which rank has which, their layers; and what is refused. Pure Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from itertools import accumulate

from train.spec.config import ModelConfig, ParallelConfig, RunConfig
from train.spec.counts import params


@dataclass(frozen=True)
class Schedule:
    """What a schedule asks for: its stages of one rank (0: as configured), their order, what its backward pass does.

    `v`: the second half of the stages runs back over the ranks, so that the first rank also has the last stage.
    `splits`: gradients of inputs and of weights are computed apart. `rounds`: micro-batches come in equal rounds of as
    many as there are ranks. `fills`: there are at least as many micro-batches as stages.
    """

    stages: int
    v: bool = False
    splits: bool = False
    rounds: bool = False
    fills: bool = False


SPLITS_SINCE = (2, 13)
"""The first version of torch seen to split the backward pass of this model's layers; 2.11 does not."""

STAGES = 2
"""Stages of a rank where the config leaves them open: half the bubble of one stage for twice the messages."""

SCHEDULES = {
    "gpipe": Schedule(1),
    "1f1b": Schedule(1, fills=True),
    "interleaved": Schedule(0, rounds=True),
    "zb1p": Schedule(0, splits=True, rounds=True),
    "zbv": Schedule(2, v=True, splits=True),
}


def stages_per_rank(parallel: ParallelConfig) -> int:
    """Return how many stages one rank has."""
    return SCHEDULES[parallel.pp_schedule].stages or parallel.pp_stages or STAGES


def fitting_stages(parallel: ParallelConfig, layers: int) -> int:
    """Return `pp_stages`: as given, else as `pp_layers` has them, else `STAGES` or one."""
    if parallel.pp_stages is not None:
        return parallel.pp_stages
    if parallel.pp_layers and len(parallel.pp_layers) % parallel.pp == 0:
        return len(parallel.pp_layers) // parallel.pp
    return STAGES if layers >= parallel.pp * STAGES else 1


def stages_of(parallel: ParallelConfig, rank: int) -> list[int]:
    """Return the stages of a rank of the pipeline, in the model's order."""
    pp = parallel.pp
    if SCHEDULES[parallel.pp_schedule].v:
        return [rank, 2 * pp - 1 - rank]
    return [turn * pp + rank for turn in range(stages_per_rank(parallel))]


def rank_of(parallel: ParallelConfig, stage: int) -> int:
    """Return the rank of the pipeline that has a stage."""
    turn, rank = divmod(stage, parallel.pp)
    return parallel.pp - 1 - rank if SCHEDULES[parallel.pp_schedule].v and turn else rank


def layers_of(config: RunConfig) -> tuple[int, ...]:
    """Return the layers of each stage, in the model's order: as given, or as even as can be.

    The last stage also has the head, whose matrix costs as much as some layers do; it gets as many layers fewer, but
    one at least.
    """
    parallel, layers = config.parallel, config.model.layers
    if parallel.pp_layers:
        return tuple(parallel.pp_layers)
    stages = parallel.pp * stages_per_rank(parallel)
    if stages == 1:
        return (layers,)
    head = _head_in_layers(config.model, config.data.vocab_size)
    last = max(1, round((layers + head) / stages - head))
    rest, more = divmod(layers - last, stages - 1)
    return (*(rest + (stage < more) for stage in range(stages - 1)), last)


def share_of(config: RunConfig, pp: int, rank: int) -> tuple[int, bool, bool]:
    """Return what one of `pp` ranks has of the layers: how many, and whether the first and the last are among them."""
    config = _of_ranks(config, pp)
    sizes, stages = layers_of(config), stages_of(config.parallel, rank)
    return sum(sizes[stage] for stage in stages), 0 in stages, len(sizes) - 1 in stages


def blocks_of(config: RunConfig, pp: int, rank: int) -> tuple[int, ...]:
    """Return the numbers of the blocks, in the model's order, that one of `pp` ranks has."""
    config = _of_ranks(config, pp)
    sizes = layers_of(config)
    starts, stages = (0, *accumulate(sizes)), stages_of(config.parallel, rank)
    return tuple(n for stage in stages for n in range(starts[stage], starts[stage] + sizes[stage]))


def _of_ranks(config: RunConfig, pp: int) -> RunConfig:
    return config if config.parallel.pp == pp else replace(config, parallel=replace(config.parallel, pp=pp))


def micro_batches(parallel: ParallelConfig, wanted: int) -> int:
    """Return how many micro-batches one pass of the pipeline takes so that `wanted` fit: the fewest allowed.

    The rest is empty sequences, of which nothing is trained on.
    """
    schedule, pp = SCHEDULES[parallel.pp_schedule], parallel.pp
    count = max(wanted, pp * stages_per_rank(parallel) if schedule.fills else 1)
    while schedule.rounds and count % max(1, count // pp):
        count += 1
    return count


def waiting_passes(parallel: ParallelConfig, count: int) -> float:
    """Return how many of `count` micro-batches, through all layers of a rank, wait at most for their backward pass.

    That is on the first rank, which begins first: all with gpipe; with interleaved what passes before the first
    backward pass comes back (Narayanan et al. 2021, "Efficient large-scale language model training", figure 4); one for
    each rank with the others.
    """
    pp, stages = parallel.pp, stages_per_rank(parallel)
    interleaved = ((stages - 1) * pp + 2 * (pp - 1) + 1) / stages
    most = {"gpipe": float(count), "interleaved": interleaved}.get(parallel.pp_schedule, float(pp))
    return min(float(count), most)


def check_pipeline(config: RunConfig, sharded: bool = False) -> None:
    """Raise ValueError, with the reason, for a pipeline that cannot run; `sharded`: FSDP2 holds its stages' weights."""
    parallel, layers = config.parallel, config.model.layers
    for name in ("pp_stages", "pp_micro_batches"):
        value = getattr(parallel, name)
        if value is not None and value < 1:
            raise ValueError(f"parallel.{name}={value} is not allowed below 1: at least 1, or null for what fits")
    if parallel.pp == 1:
        if parallel.pp_layers:
            raise ValueError(
                f"parallel.pp_layers={list(parallel.pp_layers)} cuts a pipeline, and parallel.pp=1 is none: set "
                "parallel.pp, or parallel.pp_layers=[]"
            )
        return
    stages = parallel.pp * stages_per_rank(parallel)
    where = f"parallel.pp={parallel.pp} with pp_schedule={parallel.pp_schedule}"
    if layers < stages:
        raise ValueError(
            f"{where} makes {stages} stages but the model has {layers} layers: each stage has one at least; "
            + _fewer(parallel, layers)
        )
    given = parallel.pp_layers
    if given and (len(given) != stages or sum(given) != layers or min(given) < 1):
        raise ValueError(
            f"parallel.pp_layers={list(given)} is not allowed: {where} has {stages} stages, whose layers (one each at "
            f"least) add up to model.layers={layers}"
        )
    if SCHEDULES[parallel.pp_schedule].splits:
        _check_split(config, sharded)


def _fewer(parallel: ParallelConfig, layers: int) -> str:
    """Return what to do where there are more stages than layers."""
    if layers < parallel.pp:
        return f"set parallel.pp to at most {layers}, or model.layers to at least {parallel.pp}"
    if SCHEDULES[parallel.pp_schedule].v:
        return f"use pp_schedule=1f1b or zb1p, which run with one stage a rank, or parallel.pp={max(1, layers // 2)}"
    return "set parallel.pp_stages=1, or null for what fits"


def _check_split(config: RunConfig, sharded: bool) -> None:
    """Refuse what cannot be run backward twice, once for inputs and once for weights."""
    name = config.parallel.pp_schedule
    if not can_split():
        raise ValueError(
            f"parallel.pp_schedule={name} needs torch {SPLITS_SINCE[0]}.{SPLITS_SINCE[1]} or newer: older "
            "ones cannot compute gradients of inputs and of weights separately through a custom autograd function, as "
            "norms and the loss have here, and zbv sends to its own rank, which gloo cannot do; use "
            "pp_schedule=interleaved"
        )
    if sharded and config.parallel.zero == 3:
        raise ValueError(
            f"parallel.pp_schedule={name} with parallel.zero=3 is refused: weights that are resharded between the "
            "two halves of a backward pass get no gradients; use parallel.zero=2, or pp_schedule=interleaved"
        )
    if config.compile.blocks:
        raise ValueError(
            f"parallel.pp_schedule={name} with compile.blocks=true is refused: compiled blocks cannot compute "
            "gradients of inputs and of weights apart, and give wrong ones; use pp_schedule=interleaved, or "
            "compile.blocks=false"
        )
    if config.memory.checkpointing != "none":
        raise ValueError(
            f"parallel.pp_schedule={name} with memory.checkpointing={config.memory.checkpointing} is refused: blocks "
            "would be recomputed twice, for the gradients of inputs and for those of weights; use "
            "pp_schedule=interleaved, or memory.checkpointing=none"
        )


def can_split() -> bool:
    """Say whether the installed torch, which is not imported, can run zero-bubble schedules of this model."""
    major, minor = _torch(metadata.version).split(".")[:2]
    return (int(major), int(minor)) >= SPLITS_SINCE


@cache
def _torch(version: Callable[[str], str]) -> str:
    """Return torch's version: looked up once, as a search of layouts asks ten thousands of times."""
    return version("torch")


def _head_in_layers(model: ModelConfig, vocab_size: int) -> float:
    """Return the head's matrix in units of one layer's matrices, by weights."""
    counts = params(model, vocab_size)
    head = vocab_size * model.width
    return head / ((counts.matmul - head) / model.layers)
