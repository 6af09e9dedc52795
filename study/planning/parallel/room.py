"""The least memory of a candidate, found in microseconds: most that do not fit are dropped by it.

It is below what train.spec.accounting.step says of the same candidate, which the tests hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from study.planning.parallel.question import Question
from study.planning.parallel.space import Candidate, Layout
from train.spec.accounting import held, kept, outside
from train.spec.accounting.held import Part
from train.spec.accounting.step import in_flight
from train.spec.activations import Kept
from train.spec.config import ParallelConfig
from train.spec.mesh import Axes, strategy
from train.spec.pipeline_layout import micro_batches

Key = tuple[object, ...]


@dataclass(frozen=True)
class Weights:
    """What a rank of a pipeline holds whatever its micro-batch [bytes].

    states: weights and moments. gradients: all of them, as they are summed.
    """

    rank: int
    states: int
    gradients: int
    part: Part


@dataclass(frozen=True)
class Floor:
    """What a layout's micro-batches have in common.

    ranks: weights, blocks, bytes that all blocks keep of a token, and bytes of weights that stay gathered. beside:
    bytes of what is no tensor. layout: it lives as long as this does, which is found by its identity.
    """

    layout: Layout
    ranks: tuple[tuple[Weights, int, float, int], ...]
    sharded: bool
    beside: int


def least_states(question: Question) -> float:
    """Return the bytes of weights and moments of each GPU if they were cut evenly over all: no layout has less."""
    alone = replace(question.config, parallel=ParallelConfig())
    part = held.part_of(alone, Axes(), 0)
    offload = _offload(question)
    weights = 4 * part.shard if offload != "parameters" else 0
    return (weights + (held.moments(alone, part, 1, 1) if offload == "none" else 0)) / question.gpus


def _offload(question: Question) -> str:
    """Return what lies in host memory: nothing without a GPU."""
    return question.config.memory.offload if question.device == "cuda" else "none"


@dataclass
class Room:
    """Least memory of the candidates of one question."""

    question: Question
    _weights: dict[Key, tuple[Weights, ...]] = field(default_factory=dict)
    _kept: dict[Key, Kept] = field(default_factory=dict)
    _least: dict[int, Floor] = field(default_factory=dict)

    def memory(self, candidate: Candidate) -> float:
        """Return bytes that each GPU has to have at least: states, what waits for backward passes, what is gathered."""
        config, axes, size = candidate.layout.config, candidate.layout.axes, candidate.sequences
        size = min(size, candidate.layout.share)
        count = -(-candidate.layout.share // size)
        if axes.pp > 1:
            count = micro_batches(config.parallel, min(count, config.parallel.pp_micro_batches or count))
        floor = self._of(candidate.layout)
        tokens = size * self.question.config.data.sequence_length
        most = 0.0
        for weights, blocks, each, gathered in floor.ranks:
            part = weights.part
            waiting = in_flight(config, count, weights.rank) if axes.pp > 1 else 1.0
            busy = waiting * (tokens * each - blocks) + gathered  # a block's bytes are rounded
            gradients = weights.gradients
            if (part.ddp or count > 1) and not (part.sharded and axes.pp > 1):
                busy += gradients
            most = max(most, weights.states + max(busy, gradients))
        return most + outside.margin(int(most), floor.sharded, self.question.device) - 1 + floor.beside

    def _of(self, layout: Layout) -> Floor:
        found = self._least.get(id(layout))
        if found is None:
            found = self._least[id(layout)] = self._held(layout)
        return found

    def _held(self, layout: Layout) -> Floor:
        config, axes = layout.config, layout.axes
        parallel, memory = config.parallel, config.memory
        how = strategy(parallel, axes)
        key: Key = (axes.fsdp, axes.tp, axes.ep, axes.pp, parallel.pp_schedule, parallel.pp_stages, how)
        ranks = self._weights.get(key)
        if ranks is None:
            ranks = self._weights[key] = tuple(self._rank(layout, rank) for rank in {0, axes.pp - 1})
        modes = {"none": ("none",) * 2, "selective": ("selective",) * 2, "every": ("full", "none")}
        first, other = (self._mode(layout, mode).on(axes) for mode in modes.get(memory.checkpointing, ("full",) * 2))
        gathers = parallel.zero < 3 or axes.pp > 1
        found = []
        for weights in ranks:
            part, blocks = weights.part, weights.part.blocks
            full = -(-blocks // memory.every) if memory.checkpointing == "every" else blocks
            gathered = kept.number_bytes(config) * part.gathered if part.sharded and gathers else 0
            found.append((weights, blocks, full * first + (blocks - full) * other, gathered))
        sharded, device = ranks[0].part.sharded, self.question.device
        beside = outside.context(device) + outside.nccl(outside.communicators(axes, sharded), device)
        return Floor(layout, tuple(found), sharded, beside)

    def _rank(self, layout: Layout, rank: int) -> Weights:
        config, axes = layout.config, layout.axes
        part = held.part_of(config, axes, rank)
        offload = _offload(self.question)
        moments = held.moments(config, part, axes.fsdp, axes.tp, axes.ep) if offload == "none" else 0
        whole = 4 * part.shard if offload != "parameters" else 0
        return Weights(rank, moments + whole, whole, part)

    def _mode(self, layout: Layout, mode: str) -> Kept:
        key = (mode, layout.config.precision.name, layout.axes.ep > 1)
        if key not in self._kept:
            self._kept[key] = kept.block(layout.config, self.question.device, mode, 1)
        return self._kept[key]
