"""The least time of a candidate's step: by pieces of train.spec.step_time that many candidates have in common.

First what its busiest rank computes and updates, what its blocks wait for within their layers, and the least that a
pipeline stands idle; then, for those that this leaves, also their other messages. Both are below what step_time says of
the same candidate, which the tests hold.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from study.planning.parallel import within
from study.planning.parallel.question import Question
from study.planning.parallel.space import Candidate, Layout
from study.planning.parallel.within import Waits
from train.spec.accounting import kept
from train.spec.communication.cluster import stride_of
from train.spec.communication.layers import stream_bytes
from train.spec.communication.messages import SEND, Message
from train.spec.communication.stages import Stage, short, stages
from train.spec.communication.step import step_messages
from train.spec.counts import window_of
from train.spec.mesh import strategy
from train.spec.micro_batch import even, even_parts
from train.spec.pipeline_layout import micro_batches
from train.spec.pipeline_schedule.closed_forms import closed_step, least_step
from train.spec.pipeline_schedule.simulation import Times
from train.spec.step_time import host, overlap, timeline
from train.spec.step_time.block import block_time, shape_of
from train.spec.step_time.copies import copied
from train.spec.step_time.device import Device, device_of
from train.spec.step_time.ends import embedding_time, head_shape, head_time
from train.spec.step_time.update import update_time

Key = tuple[object, ...]
ALIKE = 1e-6
"""Ranks whose work differs by less than this share of it may each be the busiest."""


@dataclass(frozen=True)
class Cut:
    """What a pipeline's ranks have. stages: of each rank. blocks: of the rank with fewest."""

    stages: tuple[tuple[Stage, ...], ...]
    blocks: int


@dataclass(frozen=True)
class Work:
    """A micro-batch's compute [s]. ranks: of each; busiest: those that may be it. forward, backward: of each stage.

    waits: what blocks of a rank that may be the busiest wait for within their layers, at least.
    """

    ranks: tuple[float, ...]
    busiest: tuple[int, ...]
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    waits: Waits

    @property
    def most(self) -> float:
        """Of the busiest rank."""
        return max(self.ranks)


@dataclass
class Pace:
    """Least times of the candidates of one question."""

    question: Question
    _cuts: dict[Key, Cut] = field(default_factory=dict)
    _works: dict[Key, Work] = field(default_factory=dict)
    _updates: dict[Key, float] = field(default_factory=dict)
    _sent: dict[Key, tuple[dict[Message, float], float]] = field(default_factory=dict)
    _messages_seconds: dict[Key, float] = field(default_factory=dict)
    _waits: dict[Key, Waits] = field(default_factory=dict)
    _blocks: dict[Key, tuple[float, float]] = field(default_factory=dict)
    _ends: dict[Key, tuple[tuple[float, float], tuple[float, float]]] = field(default_factory=dict)

    @cached_property
    def _device(self) -> Device:
        return device_of(self.question.profile)

    def seconds(self, candidate: Candidate) -> float:
        """Return the time of a step at least [s], of its messages with those within layers alone."""
        work, count = self._work(candidate), _count(candidate)
        waits = work.waits.times(count)
        idle = (1.0 + work.waits.exposed / work.most) * self._idle(candidate)
        return self._step(candidate, waits.exposed, waits.copies, idle)

    def closer(self, candidate: Candidate) -> float:
        """Return the time of a step at least [s], with all its messages."""
        exposed, copies, inner = self._messages(candidate)
        waiting = inner / (_count(candidate) * self._work(candidate).most)
        idle = (1.0 + waiting) * self._idle(candidate)
        if candidate.axes.pp > 1 and candidate.layout.config.parallel.pp_micro_batches is None:
            idle = max(idle, self._pipeline_idle(candidate, waiting))
        return self._step(candidate, exposed, copies, idle)

    def _step(self, candidate: Candidate, exposed: float, copies: float, idle: float) -> float:
        layout, count = candidate.layout, _count(candidate)
        config = layout.config
        blocks, each, on_gpu = self._cut(layout).blocks, host.of_block(config, layout.axes), self._device.type == "cuda"
        kernels = host.kernels(blocks, count, 0.0, each)
        gaps = min(host.GAP.values()) * kernels + host.waits(blocks, count, 0.0, each)
        computed = count * self._work(candidate).most + gaps * on_gpu + copies
        taken = computed + self._update(layout) + exposed + idle
        if not on_gpu:
            return taken + host.LAUNCH * kernels
        if config.compile.cuda_graphs or layout.axes.size == 1:  # on one GPU steps may be recorded
            return taken
        return max(taken, host.LAUNCH * kernels)

    def _idle(self, candidate: Candidate) -> float:
        """Return how long a pipeline stands idle if all its stages were as the shortest one [s]."""
        layout = candidate.layout
        parallel = layout.config.parallel
        if layout.axes.pp == 1 or parallel.pp_micro_batches is not None:
            return 0.0
        work, count = self._work(candidate), _count(candidate)
        each = len(work.forward) // layout.axes.pp
        least = closed_step(parallel, count, each * min(work.forward), each * min(work.backward))
        return max(0.0, (least or 0.0) - count * work.most)

    def _pipeline_idle(self, candidate: Candidate, waiting: float) -> float:
        """Return how long a pipeline's busiest rank stands idle at least [s].

        waiting: what passes wait for messages within layers, as a share of what they compute.
        """
        config, axes, work = candidate.layout.config, candidate.axes, self._work(candidate)
        parallel, count = config.parallel, _count(candidate)
        forward, backward = (tuple((1.0 + waiting) * time for time in of) for of in (work.forward, work.backward))
        size = stream_bytes(config, axes, candidate.sequences) // axes.tp
        sent = Message(SEND, "pp", axes.pp, size, 1, "stream", "forward")
        message = self._seconds_of(sent, stride_of("pp", axes))
        if 2 * count * len(forward) > timeline.SIMULATED:  # by a closed form, which is as quick
            step = timeline.run(parallel, count, forward, backward, message).step
        else:
            half = tuple(time / 2 for time in backward)
            step = least_step(parallel, count, Times(forward, half, half, message))
        return step - (1.0 + waiting) * count * work.most

    def _cut(self, layout: Layout) -> Cut:
        parallel = layout.config.parallel
        key: Key = (layout.axes.pp, parallel.pp_schedule, parallel.pp_stages)
        found = self._cuts.get(key)
        if found is None:
            there = tuple(stages(layout.config, layout.axes, rank) for rank in range(layout.axes.pp))
            found = Cut(there, min(sum(len(stage.blocks) for stage in mine) for mine in there))
            self._cuts[key] = found
        return found

    def _work(self, candidate: Candidate) -> Work:
        layout, config, axes = candidate.layout, candidate.layout.config, candidate.layout.axes
        parallel, memory = config.parallel, config.memory
        sharded = strategy(parallel, axes).startswith("fsdp")
        size = _size(candidate)
        key: Key = (axes.pp, axes.tp, axes.cp, axes.ep, parallel.pp_schedule, parallel.pp_stages, sharded, size)
        key += (memory.checkpointing, config.precision.name, config.compile.blocks)
        found = self._works.get(key)
        if found is None:
            found = self._works[key] = self._worked(layout, size, sharded)
        return found

    def _worked(self, layout: Layout, size: int, sharded: bool) -> Work:
        forward: dict[int, float] = {}
        backward: dict[int, float] = {}
        ranks, waits = [], []
        embedding, head = self._both_ends(layout, size, sharded)
        for mine in self._cut(layout).stages:
            blocks = sum(len(stage.blocks) for stage in mine)
            modes = Counter(kept.modes(layout.config, [number for stage in mine for number in stage.blocks]))
            times = [(count / blocks, self._block(layout, size, sharded, mode)) for mode, count in modes.items()]
            there = sum(share * time[0] for share, time in times)
            back = sum(share * time[1] for share, time in times)
            for stage in mine:
                ends = [embedding] * stage.first + [head] * stage.last
                forward[stage.number] = len(stage.blocks) * there + sum(end[0] for end in ends)
                backward[stage.number] = len(stage.blocks) * back + sum(end[1] for end in ends)
            ranks.append(sum(forward[stage.number] + backward[stage.number] for stage in mine))
            waits.append(sum((self._within(layout, size, mode).times(n) for mode, n in modes.items()), Waits()))
        numbers = sorted(forward)
        near = (1.0 - ALIKE) * max(ranks) if self._plain else 0.0
        busiest = tuple(rank for rank, work in enumerate(ranks) if work >= near)
        return Work(
            tuple(ranks),
            busiest,
            tuple(forward[number] for number in numbers),
            tuple(backward[number] for number in numbers),
            Waits(min(waits[rank].exposed for rank in busiest), min(waits[rank].copies for rank in busiest)),
        )

    def _within(self, layout: Layout, size: int, mode: str) -> Waits:
        config, axes = layout.config, layout.axes
        key: Key = (axes.tp, axes.cp, axes.ep, size, config.memory.checkpointing, mode, config.precision.name)
        found = self._waits.get(key)
        if found is None:
            messages = within.messages(config, axes, size, mode, self._device.type)
            each = {one: one.count * self._seconds_of(one, stride_of(one.axis, axes)) for one in messages}
            found = self._waits[key] = within.waits(each, config, self._device.memory)
        return found

    @cached_property
    def _plain(self) -> bool:
        """Whether all blocks take the same time: one window, one format, no budget that decides what is kept."""
        config = self.question.config
        kept_as_they_are = config.precision.fp8_keep_blocks == 0 and config.memory.checkpointing != "budget"
        return kept_as_they_are and len(self._windows) == 1

    @cached_property
    def _windows(self) -> set[int | None]:
        model = self.question.config.model
        return {window_of(model, layer) for layer in range(model.layers)}

    def _block(self, layout: Layout, size: int, sharded: bool, mode: str) -> tuple[float, float]:
        """Return the least time of a block forward, and backward with what is made again."""
        config, axes = layout.config, layout.axes
        key: Key = (axes.tp, axes.cp, axes.ep, size, sharded, mode, config.precision.name, config.compile.blocks)
        found = self._blocks.get(key)
        if found is None:
            fp8 = config.precision.name == "fp8"
            formats = {fp8, fp8 and config.precision.fp8_keep_blocks == 0}
            times = [
                block_time(shape_of(config, axes, size, window=window, sharded=sharded, narrow=narrow), self._device)
                for window in self._windows
                for narrow in formats
            ]
            again = "none" if config.memory.checkpointing == "budget" else mode
            found = self._blocks[key] = (
                min(sum(time.forward.values()) for time in times),
                min(sum(time.backward.values()) + sum(time.again[again].values()) for time in times),
            )
        return found

    def _both_ends(self, layout: Layout, size: int, sharded: bool) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the times of the embedding and of the head, each forward and backward."""
        config, axes = layout.config, layout.axes
        key: Key = (axes.tp, axes.cp, size, sharded, config.precision.name)
        found = self._ends.get(key)
        if found is None:
            tokens = size * config.data.sequence_length // axes.cp
            rows = config.data.vocab_size // axes.tp
            parts = (
                embedding_time(tokens, config.model.width, rows, short(config), self._device),
                head_time(head_shape(config, axes, size, sharded, self._device.type), self._device),
            )
            first, last = ((sum(there.values()), sum(back.values())) for there, back in parts)
            found = self._ends[key] = (first, last)
        return found

    def _update(self, layout: Layout) -> float:
        config, axes = layout.config, layout.axes
        parallel = config.parallel
        key: Key = (axes.fsdp, axes.tp, axes.ep, axes.pp, parallel.pp_schedule, parallel.pp_stages)
        key += (strategy(parallel, axes), config.precision.name)
        found = self._updates.get(key)
        if found is None:
            ranks = {0, axes.pp // 2, axes.pp - 1}
            found = self._updates[key] = min(update_time(config, axes, rank, self._device) for rank in ranks)
        return found

    def _messages(self, candidate: Candidate) -> tuple[float, float, float]:
        """Return what messages add at least: exposed, copies around them, and those within layers [s]."""
        work, config = self._work(candidate), candidate.layout.config
        count, found = _count(candidate), []
        for rank in work.busiest:
            messages, copies = self._sent_by(candidate, rank)
            mine = [stage.number for stage in self._cut(candidate.layout).stages[rank]]
            forward, backward = (count * sum(of[number] for number in mine) for of in (work.forward, work.backward))
            # What is hidden may cost more or less than what is not.
            rooms = [(forward, backward)] if self._plain else [(0.0, 0.0), (math.inf, math.inf)]
            waits = [overlap.exposed(messages, config, room, self._device.memory, count) for room in rooms]
            inside = min(sum(one.get(axis, 0.0) for axis in overlap.WITHIN) for one in waits)
            found.append((min(sum(one.values()) for one in waits), copies, inside))
        exposed, copied, inner = (min(one) for one in zip(*found, strict=True))
        return exposed, copied, inner

    def _sent_by(self, candidate: Candidate, rank: int) -> tuple[dict[Message, float], float]:
        """Return the messages of a rank with their seconds, and the seconds of copies around them."""
        config, axes = candidate.layout.config, candidate.axes
        parallel, memory = config.parallel, config.memory
        inner = axes.tp * axes.cp * axes.ep > 1  # whose messages alone are sent again within blocks
        again = memory.checkpointing if inner else ""
        key: Key = (axes, parallel.zero, parallel.pp_schedule, parallel.pp_stages, candidate.sequences, rank)
        key += (config.compile.blocks, config.precision.name, again)
        found = self._sent.get(key)
        if found is None:
            sent = step_messages(candidate.config, axes, rank, self._device.type)
            messages = {one: one.count * self._seconds_of(one, stride_of(one.axis, axes)) for one in sent}
            found = self._sent[key] = (messages, copied(messages, config) / self._device.memory)
        return found

    def _seconds_of(self, message: Message, stride: int) -> float:
        key: Key = (message.collective, message.ranks, message.size, stride)
        found = self._messages_seconds.get(key)
        if found is None:
            found = self._messages_seconds[key] = self.question.profile.seconds(message, stride)
        return found


def _size(candidate: Candidate) -> int:
    """Return the sequences of a micro-batch that all of a step's have at least."""
    layout = candidate.layout
    if layout.axes.pp > 1:
        return candidate.sequences
    size = even(layout.share, min(candidate.sequences, layout.share))
    return size if layout.config.compile.blocks else min(even_parts(layout.share, size))


def _count(candidate: Candidate) -> int:
    """Return the micro-batches of a step, with those that only fill a pipeline."""
    layout, parallel = candidate.layout, candidate.layout.config.parallel
    wanted = -(-layout.share // candidate.sequences)
    if layout.axes.pp == 1:
        return -(-layout.share // even(layout.share, min(candidate.sequences, layout.share)))
    parts = even_parts(wanted, parallel.pp_micro_batches or wanted)
    return sum(micro_batches(parallel, part) for part in parts)
