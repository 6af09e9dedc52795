"""A training step as its memory sees it: what the fullest rank holds at each moment, and which moment is the peak.

Gradients are made as the backward pass goes and let go by the update (train.trainer), activations go as it comes: so
the most is held either while the head makes its loss, before any gradient, or in the backward pass of one block, or at
the update. train.spec.footprint adds all of it up, which is above each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from train.spec.accounting import held, kept, outside
from train.spec.accounting.held import Part
from train.spec.config import RunConfig
from train.spec.mesh import Axes, share_of_batch
from train.spec.pipeline_layout import micro_batches, stages_per_rank

COMPONENTS = (
    "weights", "moments", "gradients", "casts", "gathered", "gradient buffers", "activations", "recomputed block",
    "block at work", "logits", "head", "messages", "update", "workspaces",
)  # fmt: skip
"""What a moment consists of, in the order in which sheets show it."""


@dataclass(frozen=True)
class Moment:
    """What a rank holds at one moment of a step, by component [bytes]."""

    name: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """All of it [bytes]: what torch.cuda.max_memory_allocated is compared with."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Sheet:
    """A rank's moments. rank: of the pipeline. host: what lies in its CPU's memory. margin, context, nccl: beside
    tensors [bytes].

    sequences: of a micro-batch. micro_batches: of a step. waiting: of them, those that wait for their backward pass.
    """

    rank: int
    sequences: int
    micro_batches: int
    waiting: float
    moments: tuple[Moment, ...]
    host: int
    context: int
    margin: int
    nccl: int = 0

    @property
    def peak(self) -> Moment:
        """The moment at which most is held."""
        return max(self.moments, key=lambda moment: moment.total)

    @property
    def needed(self) -> int:
        """What the GPU has to have [bytes]: the peak, what the allocator reserves over it, what CUDA and NCCL take."""
        return self.peak.total + self.margin + self.context + self.nccl


def sheet(config: RunConfig, axes: Axes, device: str = "cuda", sequences: int | None = None) -> Sheet:
    """Return the sheet of the fullest rank, for micro-batches of so many sequences (None: parallel's, or 1)."""
    size = sequences or config.parallel.micro_batch_sequences or 1
    sheets = [of_rank(config, axes, device, size, rank) for rank in range(axes.pp)]
    return max(sheets, key=lambda one: one.needed)


def needed_or_over(config: RunConfig, axes: Axes, device: str, most: int) -> int:
    """Return what the fullest rank has to have [bytes]; where that is over `most`, what some rank over it has.

    As `sheet`, but quicker for what does not fit: both ends of a pipeline, the fullest as a rule, are asked first.
    """
    size, needed = config.parallel.micro_batch_sequences or 1, 0
    for rank in dict.fromkeys((0, axes.pp - 1, *range(axes.pp))):
        needed = max(needed, of_rank(config, axes, device, size, rank).needed)
        if needed > most:
            break
    return needed


def of_rank(config: RunConfig, axes: Axes, device: str, sequences: int, rank: int) -> Sheet:
    """Return the sheet of one rank of the pipeline."""
    share = share_of_batch(config, axes)
    size = min(sequences, share)
    count = -(-share // size)
    waiting = 1.0
    if axes.pp > 1:
        count = micro_batches(config.parallel, min(count, config.parallel.pp_micro_batches or count))
        waiting = in_flight(config, count, rank)
    step = _Step(config, axes, device, size, count, waiting, held.part_of(config, axes, rank))
    moments = tuple(step.moments())
    most = max(moment.total for moment in moments)
    sharded = step.part.sharded
    return Sheet(
        rank,
        size,
        count,
        waiting,
        moments,
        step.host,
        outside.context(device),
        outside.margin(most, sharded, device),
        outside.nccl(outside.communicators(axes, sharded, config.model.tied_embeddings), device),
    )


def in_flight(config: RunConfig, count: int, rank: int) -> float:
    """Return how many of `count` micro-batches, through all blocks of a rank, wait at most for their backward pass.

    By the order of torch.distributed.pipelining's schedules: what a rank passes forward before its first backward pass,
    and that one. With zb1p and zbv a micro-batch waits for the gradients of weights, on every rank as on the first.
    """
    parallel, pp, stages = config.parallel, config.parallel.pp, stages_per_rank(config.parallel)
    behind = pp - 1 - rank
    most = {
        "gpipe": float(count),
        "1f1b": float(behind + 1),
        "interleaved": ((stages - 1) * pp + 2 * behind + 1) / stages,
    }.get(parallel.pp_schedule, float(pp))
    return min(float(count), most)


@dataclass(frozen=True)
class _Step:
    config: RunConfig
    axes: Axes
    device: str
    sequences: int
    count: int
    waiting: float
    part: Part

    @property
    def tokens(self) -> int:
        """Of a micro-batch on this rank, all of them where tensor parallelism gathers."""
        return self.sequences * self.config.data.sequence_length // self.axes.cp

    @property
    def size(self) -> int:
        return kept.number_bytes(self.config)

    @property
    def offload(self) -> str:
        return self.config.memory.offload if self.device == "cuda" else "none"

    @property
    def host(self) -> int:
        states = {"weights": 4 * self.part.shard, "gradients": 4 * self.part.shard, "moments": self._moments}
        of = {"parameters": ("weights", "gradients", "moments"), "optimizer": ("moments",)}
        return sum(states[name] for name in of.get(self.offload, ()))

    @property
    def _biases(self) -> int:
        """Bytes of the biases by which experts are chosen, of which every rank has all of its layers."""
        model = self.config.model
        return 4 * model.experts * self.part.blocks if model.router_bias_speed else 0

    @cached_property
    def _moments(self) -> int:
        return held.moments(self.config, self.part, self.axes.fsdp, self.axes.tp, self.axes.ep)

    @cached_property
    def _modes(self) -> Sequence[str]:
        """What is kept of each of the rank's blocks."""
        return kept.modes(self.config, self.part.block_numbers)

    @cached_property
    def _kept(self) -> Mapping[str, int]:
        """Bytes that a block keeps of a micro-batch, by what is kept."""
        each = dict.fromkeys(self._modes)
        return {mode: kept.block_bytes(self.config, self.axes, self.device, mode, self.sequences) for mode in each}

    @cached_property
    def _head_kept(self) -> kept.Head:
        return kept.head(self.config, self.axes, self.device, self.tokens, self.part.sharded)

    def moments(self) -> Iterator[Moment]:
        """Yield the moments of a step in their order, of the last micro-batch."""
        part = self.part
        if part.last:
            yield self._made("loss", part.blocks, {**self._head(), **self._whole(self._head_gathers())})
        for left in self._lefts():
            yield self._made(f"backward of block {left} of {part.blocks}", left, self._backward(left), ended=True)
        if part.first and part.sharded:
            yield self._made("backward of the embedding", 0, self._embedding(), ended=True)
        yield self._updated()

    def _lefts(self) -> Iterator[int]:
        """Yield how many blocks are left in the backward passes that can be the peak.

        From one to the next as many activations go and as many gradients come, so that the most is held at either end.
        """
        blocks, memory = self.part.blocks, self.config.memory
        period = memory.every if memory.checkpointing == "every" else 1
        yield from (left for left in range(blocks, 0, -1) if left >= blocks - 1 - period or left <= 1 + period)

    def _made(self, name: str, left: int, more: Mapping[str, int], ended: bool = False) -> Moment:
        """Return a moment with `left` blocks' activations, and `more`. ended: the head's backward pass is done."""
        others = self.waiting - 1.0
        whole, here = (sum(self._kept[mode] for mode in modes) for modes in (self._modes, self._modes[:left]))
        cut = self.tokens / self.axes.tp
        of_ends = kept.ends(self.config, self.device, self.part.first, self.part.last) * cut
        of_this = 0.0 if ended else of_ends
        casts = self._casts(left) + others * self._casts(self.part.blocks)
        found = {
            **self._states(left, ended),
            "casts": round(casts),
            "activations": round(others * (whole + of_ends) + here + of_this),
            "head": self._heads_waiting(),
            "messages": self._messages(),
            "workspaces": outside.workspaces(self.config, self.axes, self.device),
        }
        for key, value in more.items():
            found[key] = found.get(key, 0) + value
        return Moment(name, {key: found[key] for key in COMPONENTS if found.get(key)})

    def _states(self, left: int, ended: bool) -> dict[str, int]:
        part, on_device = self.part, self.offload != "parameters"
        weights = (4 * part.shard if on_device else 0) + self._biases
        moments = self._moments if self.offload == "none" else 0
        there = part.ddp or self.count > 1
        made = part.shard if there else (part.blocks - left) * part.block.shard + (part.head.shard if ended else 0)
        gradients = 4 * made if on_device else 0
        if part.sharded and self.axes.pp > 1:  # a pipeline reduces them, and frees weights, after its last micro-batch
            gradients = self._reduced * part.gathered
        elif part.sharded and self.config.parallel.zero == 1 and self.count > 1:
            gradients = 4 * part.gathered  # whole: the last micro-batch sums them up, and frees them block by block
        return {"weights": weights, "moments": moments, "gradients": gradients}

    def _casts(self, left: int) -> int:
        """Return the copies of blocks' matrices in the format of products, which their backward passes use."""
        narrow = kept.narrows(self.config)
        copied = not self.config.precision.fp8_gather if narrow else not self.part.sharded and self.size < 4
        if not copied:
            return 0
        modes = self._modes[:left]
        numbers = self.part.block.matrices * max(1, sum(mode != "full" for mode in modes))
        return numbers if narrow else self.size * numbers

    def _whole(self, at_a_time: int, behind: int | None = None) -> dict[str, int]:
        """Return what FSDP2 has gathered: all below stage 3 and in a pipeline, else `at_a_time` [numbers].

        behind: what backward passes still to come use, without `at_a_time` as stage 3 has it. Below stage 3 a step of
        one micro-batch frees the rest, block by block; with several, those before the last free nothing.
        """
        if not self.part.sharded:
            return {}
        if self.config.parallel.zero == 3 and self.axes.pp == 1:
            return {"gathered": self.size * at_a_time}
        if behind is None or self.axes.pp > 1 or self.count > 1:
            return {"gathered": self.size * self.part.gathered}
        return {"gathered": self.size * behind}

    def _head_gathers(self) -> int:
        """Return the numbers of the head's weight, and of the message that brought it, which goes with the next one."""
        numbers = self.part.head if self.part.head.whole else self.part.embedding
        return 2 * numbers.gathered

    def _head(self) -> dict[str, int]:
        found = self._head_kept
        return {"casts": found.cast, "logits": found.logits, "head": found.weight_gradient + found.hidden}

    def _heads_waiting(self) -> int:
        """Return the gradients that the head has made of further micro-batches, whose backward passes are to come.

        With gpipe of all others, where weights' gradients wait as of as many as there are ranks; else it is the next
        in turn.
        """
        schedule = self.config.parallel.pp_schedule
        others = {"gpipe": self.count - 1, "zb1p": self.axes.pp - 1, "zbv": self.axes.pp - 1}.get(schedule, 0)
        if self.axes.pp == 1 or not self.part.last:
            return 0
        found = self._head_kept
        hidden = round(self.size * self.tokens * self.config.model.width / self.axes.tp)
        return min(others, self.count - 1) * (found.weight_gradient + hidden)

    def _backward(self, left: int) -> dict[str, int]:
        part, block = self.part, self.part.block
        found = {
            **self._whole(
                (1 + self._ahead(left)) * block.gathered,  # this block's, and those on their way
                left * block.gathered + part.embedding.gathered,
            ),
            "block at work": kept.at_work(self.config, self.axes, self.device, self.tokens),
            "gradient buffers": 4 * block.whole,
        }
        if part.sharded:  # this block's in the format of products; before it the last one's, on their way
            before = part.head.gathered if left == part.blocks else block.gathered
            found["gradient buffers"] = self.size * block.gathered + self._reduced * before
        mode = self._modes[left - 1]
        if mode != "none":
            found["recomputed block"] = kept.recomputed_bytes(self.config, self.axes, self.device, mode, self.sequences)
        return found

    def _ahead(self, left: int) -> int:
        """Return how many blocks are gathered ahead of one that has left - 1 before it; at the end an end's weight."""
        return max(1, min(self.config.parallel.fsdp_prefetch, left - 1))

    @property
    def _reduced(self) -> int:
        return 2 if self.config.precision.reduce == "bf16" and self.size == 2 else 4

    def _embedding(self) -> dict[str, int]:
        """Return the embedding's gradient: gathered weight, gradient of its format, message of both formats."""
        numbers = self.part.embedding.gathered
        return {**self._whole(numbers, numbers), "gradient buffers": (self.size + self._reduced) * numbers}

    def _messages(self) -> int:
        """Return the buffers into which a pipeline's stages receive streams and their gradients, one a micro-batch.

        With several stages on a rank, torch waits for what it sent only at the end of the step: as much again.
        """
        if self.axes.pp == 1:
            return 0
        stages = stages_per_rank(self.config.parallel)
        ends = (2 * stages - int(self.part.first) - int(self.part.last)) * (1 if stages == 1 else 2)
        return round(ends * self.count * self.size * self.config.model.width * self.tokens / self.axes.tp)

    def _updated(self) -> Moment:
        """Return the update: all gradients and moments, and what Muon's iterations have of one matrix."""
        part = self.part
        found = {**self._states(0, ended=True), "moments": 0 if self.offload == "parameters" else self._moments}
        found["gradients"] = 0 if self.offload == "parameters" else 4 * part.shard
        found["workspaces"] = outside.workspaces(self.config, self.axes, self.device)
        found["update"] = held.rounding(self.config, part, self.axes.fsdp, self.axes.tp, self.axes.ep)
        if self.config.optim.name == "muon" and self.offload != "parameters":
            found["update"] += 5 * self.size * part.block.matrices // 2  # an estimate: five times the largest matrix
        return Moment("update", {key: found[key] for key in COMPONENTS if found.get(key)})


def with_stage(config: RunConfig, axes: Axes, stage: int) -> tuple[RunConfig, Axes]:
    """Return the same run with a stage of ZeRO (0: copies of everything), over the same ranks.

    ValueError for stage 0 where ranks share a sequence, as those share weights as well.
    """
    parallel = config.parallel
    if stage == 0:
        if axes.ep > 1:
            raise ValueError(
                f"stage 0 is not possible with parallel.ep={axes.ep}: ranks that share experts shard weights"
            )
        if axes.cp > 1:
            raise ValueError(
                f"stage 0 is not possible with parallel.cp={axes.cp}: ranks that share a sequence share weights"
            )
        alone = "auto" if axes.tp * axes.pp > 1 else "ddp"
        changed = replace(parallel, strategy=alone, dp_replicate=axes.data, dp_shard=1, zero=3)
        return replace(config, parallel=changed), replace(axes, dp_replicate=axes.data, dp_shard=1)
    whole = axes if axes.dp_shard > 1 else replace(axes, dp_replicate=1, dp_shard=axes.data)
    changed = replace(parallel, strategy="auto", dp_replicate=whole.dp_replicate, dp_shard=whole.dp_shard, zero=stage)
    return replace(config, parallel=changed), whole
