"""A step's time from a config, its layout and a cluster profile: what the busiest rank computes, waits for and updates.

Not modelled: reading data, evaluations, checkpoints, logging, kernels other than those that a run takes by itself, the
clock of one day or another, and traffic of others on the links.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from train.spec.communication.cluster import ClusterProfile, stride_of
from train.spec.communication.layers import stream_bytes
from train.spec.communication.messages import SEND, Message
from train.spec.communication.stages import MicroBatches, Stage, micro_batches_of, short, stages
from train.spec.communication.step import step_messages
from train.spec.config import RunConfig
from train.spec.counts import flops_per_token, window_of
from train.spec.mesh import Axes, strategy
from train.spec.step_time import host, overlap
from train.spec.step_time.block import block_time, shape_of
from train.spec.step_time.copies import copied
from train.spec.step_time.device import Device, device_of
from train.spec.step_time.ends import embedding_time, head_shape, head_time
from train.spec.step_time.recompute import modes
from train.spec.step_time.result import COPIES, GAPS, SUMS, StepTime, added
from train.spec.step_time.timeline import Pipeline
from train.spec.step_time.update import accumulated, update_time
from train.spec.step_time.update import check as update_check


@dataclass(frozen=True)
class _Rank:
    """What one rank of the pipeline computes in a step [s], by part, in each of its passes."""

    number: int
    forward: dict[str, float]
    backward: dict[str, float]
    recomputed: float
    blocks: int

    @property
    def seconds(self) -> float:
        return sum(self.forward.values()) + sum(self.backward.values())


def step_time(config: RunConfig, axes: Axes, cluster: ClusterProfile, slowest: float = 1.0) -> StepTime:
    """Return where a step's time goes, on GPUs of this cluster; the config is resolved, `axes` are its ranks.

    slowest: how many times as long the slowest of several ranks computes as the others do, which all wait for it.
    ValueError that names the key where the profile lacks a figure, and for what is not modelled.
    """
    if not slowest >= 1.0:
        raise ValueError(f"slowest={slowest:g} is not allowed: the slowest rank's time over the others', at least 1")
    assert config.batch.tokens is not None, "the config is resolved"
    device = device_of(cluster)
    update_check(config, device)
    work = _Work(config, axes, device, micro_batches_of(config, axes, device.type))
    ranks = [work.rank(number) for number in range(axes.pp)]
    busiest = max(ranks, key=lambda rank: rank.seconds)
    messages = cluster.step_seconds(step_messages(config, axes, busiest.number, device.type), axes)
    room = sum(busiest.forward.values()), sum(busiest.backward.values())
    count = len(work.micro.sizes)
    exposed = overlap.exposed(messages, config, room, device.memory, count)
    each = host.of_block(config, axes)
    kernels = host.kernels(busiest.blocks, count, busiest.recomputed, each)
    waits = host.waits(busiest.blocks, count, busiest.recomputed, each)
    between = kernels * host.GAP[host.graphed(config, axes.size)] + waits
    gaps = {GAPS: between} if device.type == "cuda" else {}
    moved = {COPIES: copied(messages, config), SUMS: accumulated(config, axes, busiest.number, count)}
    parts = added((1.0, busiest.forward), (1.0, busiest.backward), (1.0, gaps), (1.0 / device.memory, moved))
    compute = sum(parts.values())
    pipeline = None
    if axes.pp > 1:
        within = sum(exposed.get(axis, 0.0) for axis in overlap.WITHIN)
        pipeline = work.pipeline(cluster, ranks, within / busiest.seconds)
    bubble = pipeline.bubble if pipeline else 0.0
    if axes.size > 1 and slowest > 1.0:
        exposed["stragglers"] = (slowest - 1.0) * compute
    update = update_time(config, axes, busiest.number, device)
    launched = max(
        host.launches(config, host.kernels(rank.blocks, count, rank.recomputed, each), rank.blocks, count)
        for rank in ranks
    )
    taken = compute + sum(exposed.values()) + bubble + update  # while the GPU waits for others, launches go on
    return StepTime(
        compute=compute,
        launch=host.waited(config, axes.size, launched, taken, device.type),
        exposed=exposed,
        bubble=bubble,
        update=update,
        tokens=config.batch.tokens,
        model_flops=float(config.batch.tokens) * _flops(config),
        ranks=axes.size,
        parts={name: seconds for name, seconds in parts.items() if seconds > 0.0},
        pipeline=pipeline,
    )


def _flops(config: RunConfig) -> int:
    return flops_per_token(config.model, config.data.vocab_size, config.data.sequence_length)


@dataclass(frozen=True)
class _Work:
    """What the ranks of a pipeline (or the one that there is) compute in a step."""

    config: RunConfig
    axes: Axes
    device: Device
    micro: MicroBatches

    def rank(self, number: int) -> _Rank:
        """Return what one rank computes, all its stages and micro-batches together."""
        forward: dict[str, float] = {}
        backward: dict[str, float] = {}
        recomputed, mine = 0.0, stages(self.config, self.axes, number)
        blocks = sum(len(stage.blocks) for stage in mine)
        for sequences, count in Counter(self.micro.sizes).items():
            shares = self._shares(number, blocks, sequences)
            recomputed = blocks * sum(share for mode, share in shares.items() if mode != "none")
            for stage in mine:
                there, back = self._stage(stage, sequences, shares)
                forward, backward = added((1.0, forward), (count, there)), added((1.0, backward), (count, back))
        return _Rank(number, forward, backward, recomputed, blocks)

    def _shares(self, number: int, blocks: int, sequences: int) -> dict[str, float]:
        """Return the share of a rank's blocks that has each mode of checkpointing."""
        found = modes(self.config, self.axes, number, blocks=blocks, sequences=sequences, device=self.device)
        return {mode: count / blocks for mode, count in found.items()}

    def _stage(
        self, stage: Stage, sequences: int, shares: dict[str, float]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Return the parts of a stage's forward and backward pass for one micro-batch."""
        config, axes, device = self.config, self.axes, self.device
        sharded = strategy(config.parallel, axes).startswith("fsdp")
        forward: dict[str, float] = {}
        backward: dict[str, float] = {}
        for (window, narrow), count in self._kinds(stage):
            shape = shape_of(config, axes, sequences, window=window, sharded=sharded, narrow=narrow)
            time = block_time(shape, device)
            again = [(count * share, time.again[mode]) for mode, share in shares.items()]
            forward = added((1.0, forward), (count, time.forward))
            backward = added((1.0, backward), (count, time.backward), *again)
        tokens = sequences * config.data.sequence_length // axes.cp  # ranks of tp look all of them up, each in its rows
        ends = []
        if stage.first:
            rows = config.data.vocab_size // axes.tp
            ends.append(embedding_time(tokens, config.model.width, rows, short(config), device))
        if stage.last:
            ends.append(head_time(head_shape(config, axes, sequences, sharded, device.type), device))
        for there, back in ends:
            forward, backward = added((1.0, forward), (1.0, there)), added((1.0, backward), (1.0, back))
        return forward, backward

    def _kinds(self, stage: Stage) -> list[tuple[tuple[int | None, bool], int]]:
        """Return the kinds of a stage's blocks, by window and whether their products are in fp8, with their numbers."""
        model, precision = self.config.model, self.config.precision
        keep = precision.fp8_keep_blocks if precision.name == "fp8" else model.layers
        found = Counter((window_of(model, n), keep <= n < model.layers - keep) for n in stage.blocks)
        return list(found.items())

    def pipeline(self, cluster: ClusterProfile, ranks: list[_Rank], waiting: float) -> Pipeline:
        """Return what a pipeline's schedule runs.

        waiting: what its passes wait for messages within layers, as a share of what they compute.
        """
        config, axes = self.config, self.axes
        passes, sequences = max(1, self.micro.passes), self.micro.sizes[0]
        times: dict[int, tuple[float, float]] = {}
        for rank in ranks:
            shares = self._shares(rank.number, rank.blocks, sequences)
            for stage in stages(config, axes, rank.number):
                there, back = self._stage(stage, sequences, shares)
                times[stage.number] = (1.0 + waiting) * sum(there.values()), (1.0 + waiting) * sum(back.values())
        size = stream_bytes(config, axes, sequences) // axes.tp
        message = cluster.seconds(Message(SEND, "pp", axes.pp, size, 1, "stream", "forward"), stride_of("pp", axes))
        forward, backward = zip(*(times[stage] for stage in sorted(times)), strict=True)
        layout = replace(config.parallel, pp=axes.pp)
        return Pipeline(layout, len(self.micro.sizes) // passes, passes, forward, backward, message)
