"""Which pieces of a model one rank has, and which micro-batches go through them in a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from train.spec.config import RunConfig
from train.spec.footprint import micro_batch_sequences
from train.spec.mesh import Axes, share_of_batch
from train.spec.micro_batch import even, even_parts
from train.spec.pipeline_layout import layers_of, micro_batches, stages_of, stages_per_rank

SHORT = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 2}
"""Bytes of a number in the format of matrix products and of the residual stream (fp8's stream is bf16)."""


@dataclass(frozen=True)
class Stage:
    """Blocks start to stop; with the embedding if `first`, with norm and head if `last`."""

    number: int
    start: int
    stop: int
    first: bool
    last: bool

    @property
    def blocks(self) -> range:
        """The numbers of its blocks."""
        return range(self.start, self.stop)


@dataclass(frozen=True)
class MicroBatches:
    """The sequences of each micro-batch of a step; passes: of a pipeline, 0 where there is none."""

    sizes: tuple[int, ...]
    passes: int = 0

    @cached_property
    def counts(self) -> Mapping[int, int]:
        """How many there are of each size, in the order in which sizes come first."""
        return Counter(self.sizes)


def stages(config: RunConfig, axes: Axes, rank: int) -> tuple[Stage, ...]:
    """Return the stages of one rank of the pipeline, in the model's order; without one the whole model."""
    if axes.pp == 1:
        return (Stage(0, 0, config.model.layers, first=True, last=True),)
    sizes = layers_of(config)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(
        Stage(i, ends[i] - sizes[i], ends[i], first=i == 0, last=i == len(sizes) - 1)
        for i in stages_of(config.parallel, rank)
    )


def micro_batches_of(config: RunConfig, axes: Axes, device: str) -> MicroBatches:
    """Return what the fullest rank's share of a step is cut into, as train.parallel does it.

    Where parallel.micro_batch_sequences is null, a GPU's memory decides once the run is there: what is planned stands
    for it here.
    """
    parallel, share = config.parallel, share_of_batch(config, axes)
    planned = even(share, micro_batch_sequences(config, axes, device))
    if axes.pp > 1:
        stage_count = axes.pp * stages_per_rank(parallel)
        size = parallel.micro_batch_sequences or max(1, min(planned, share // stage_count))
        wanted = -(-share // size)
        parts = even_parts(wanted, parallel.pp_micro_batches or wanted)
        return MicroBatches((size,) * sum(micro_batches(parallel, part) for part in parts), len(parts))
    size = even(share, parallel.micro_batch_sequences or planned)
    if config.compile.blocks:  # micro-batches are padded to one shape
        return MicroBatches((size,) * -(-share // size))
    return MicroBatches(tuple(even_parts(share, size)))


def short(config: RunConfig) -> int:
    """Return the bytes of a number of the residual stream."""
    return SHORT[config.precision.name]


def recomputed(config: RunConfig, stage: Stage) -> int:
    """Return how many of a stage's blocks run forward again in the backward pass, with the messages within them.

    memory.checkpointing=selective keeps what messages brought. `budget` chooses blocks while a run steps: counted as if
    it chose none.
    """
    memory = config.memory
    if memory.checkpointing == "full":
        return len(stage.blocks)
    if memory.checkpointing == "every":
        return sum(number % memory.every == 0 for number in stage.blocks)
    return 0
