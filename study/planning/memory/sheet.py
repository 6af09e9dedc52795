"""The answer for one model: bytes by component on the fullest GPU, the same by stage of ZeRO and by checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from study.planning.memory.question import Subject, axes_of
from train.spec.accounting import flops
from train.spec.accounting import step as memory
from train.spec.accounting.parameters import Parameters, parameters
from train.spec.config import RunConfig
from train.spec.mesh import Axes, share_of_batch
from train.spec.micro_batch import even

STAGES = (0, 1, 2, 3)
POLICIES = ("none", "selective", "every", "full")


@dataclass(frozen=True)
class Variant:
    """The same run with one thing changed: its sheet, and what its checkpointing makes again, FLOPs of a token."""

    name: str
    sheet: memory.Sheet
    recomputed: int

    def fits(self, subject: Subject) -> bool:
        """Whether a GPU has what it needs."""
        return self.sheet.needed <= subject.memory


@dataclass(frozen=True)
class Answer:
    """All that is said of a subject. share: sequences of a step on each data-parallel rank. cure: what fits, if it does
    not: the smallest change, and what it then needs [bytes]."""

    subject: Subject
    counts: Parameters
    flops: flops.Flops
    chosen: Variant
    share: int
    largest: int
    stages: tuple[Variant, ...]
    policies: tuple[Variant, ...]
    cure: tuple[str, int] | None = None

    @property
    def fits(self) -> bool:
        """Whether a GPU has what the run needs."""
        return self.chosen.fits(self.subject)


def answer(subject: Subject) -> Answer:
    """Return the answer for a subject; its micro-batch is the one given, or the largest that fits, at least 1."""
    config, axes = subject.config, subject.axes
    model, data = config.model, config.data
    largest = largest_micro_batch(subject)
    size = config.parallel.micro_batch_sequences or max(1, largest)
    chosen = variant("as asked", config, axes, size)
    found = Answer(
        subject,
        parameters(model, data.vocab_size),
        flops.per_token(model, data.vocab_size, data.sequence_length),
        chosen,
        share_of_batch(config, axes),
        largest,
        tuple(_stages(config, axes, size)),
        tuple(variant(name, _checkpointing(config, name), axes, size) for name in POLICIES),
    )
    return found if found.fits else replace(found, cure=cure(subject, size, largest))


def variant(name: str, config: RunConfig, axes: Axes, sequences: int) -> Variant:
    """Return a run by name, in micro-batches of so many sequences."""
    again = flops.recomputed(config.model, config.data.sequence_length, config.memory)
    return Variant(name, memory.sheet(config, axes, device_of(config), sequences), again)


def device_of(config: RunConfig) -> str:
    """Return what a run is planned on: a GPU unless it says that it trains on CPUs."""
    return "cpu" if config.runtime.device == "cpu" else "cuda"


def largest_micro_batch(subject: Subject) -> int:
    """Return the largest micro-batch that fits, of sizes into which a rank's share of a step is cut evenly; 0: none."""
    share, device = share_of_batch(subject.config, subject.axes), device_of(subject.config)
    low, high = 0, share
    while low < high:  # what is needed grows with the micro-batch
        middle = -(-(low + high) // 2)
        if memory.sheet(subject.config, subject.axes, device, middle).needed <= subject.memory:
            low = middle
        else:
            high = middle - 1
    return even(share, low) if low else 0


def cure(
    subject: Subject, size: int, largest: int, joined: Callable[[Axes], bool] = lambda _: True
) -> tuple[str, int] | None:
    """Return the smallest change with which the run fits, as words to add, and what it needs then [bytes].

    A smaller micro-batch if one fits, else micro-batches of one sequence and the fewest further changes: those that
    cost nothing but time to compute first, then sharding, more GPUs, the host's memory. joined: whether there can be
    such ranks.
    """
    if largest:
        needed = memory.sheet(subject.config, subject.axes, device_of(subject.config), largest).needed
        return f"parallel.micro_batch_sequences={largest}", needed
    one = ["parallel.micro_batch_sequences=1"] if size > 1 else []
    for change in sorted(Change.all(), key=Change.cost):
        changed = change.of(subject)
        if changed is not None and joined(changed.axes):
            needed = memory.sheet(changed.config, changed.axes, device_of(changed.config), 1).needed
            if needed <= changed.memory:
                return " ".join([*one, *change.words(changed)]), needed
    return None


@dataclass(frozen=True)
class Change:
    """Changes to a run. checkpointing, offload: "" where they stay. doublings: of its GPUs."""

    checkpointing: str = ""
    sharded: bool = False
    doublings: int = 0
    offload: str = ""

    @classmethod
    def all(cls) -> Iterator[Change]:
        """Yield all that are thought of."""
        for parts in product(("", "selective", "full"), (False, True), range(11), ("", "optimizer", "parameters")):
            yield cls(*parts)

    def cost(self) -> tuple[int, ...]:
        """Return what orders changes: how many there are, then how much each asks for."""
        parts = (self.offload == "parameters", bool(self.offload), self.doublings, self.sharded)
        count = sum(map(bool, (self.checkpointing, self.sharded, self.doublings, self.offload)))
        return count, *map(int, parts), ("", "selective", "full").index(self.checkpointing)

    def of(self, subject: Subject) -> Subject | None:
        """Return the changed subject; None where it cannot be so."""
        config = subject.config
        if self.sharded:
            if config.parallel.dp_shard is None and config.parallel.zero == 3:
                return None
            parallel = replace(config.parallel, strategy="auto", dp_replicate=1, dp_shard=None, zero=3)
            config = replace(config, parallel=parallel)
        if self.doublings and config.parallel.dp_shard is not None:
            return None
        checkpointing, offload = (
            self.checkpointing or config.memory.checkpointing,
            self.offload or config.memory.offload,
        )
        config = replace(config, memory=replace(config.memory, checkpointing=checkpointing, offload=offload))
        try:
            axes = axes_of(config, subject.gpus * 2**self.doublings)
        except ValueError:
            return None
        return Subject(config, axes, subject.memory)

    def words(self, changed: Subject) -> list[str]:
        """Return the words that make it."""
        found = {
            f"memory.checkpointing={self.checkpointing}": self.checkpointing,
            "parallel=fsdp": self.sharded,
            f"gpus={changed.gpus}": self.doublings,
            f"memory.offload={self.offload}": self.offload,
        }
        return [word for word, holds in found.items() if holds]


def _stages(config: RunConfig, axes: Axes, size: int) -> Iterator[Variant]:
    for stage in STAGES:
        if stage == 0 and axes.cp * axes.ep > 1:
            continue
        yield variant(f"ZeRO-{stage}", *memory.with_stage(config, axes, stage), size)


def _checkpointing(config: RunConfig, name: str) -> RunConfig:
    return replace(config, memory=replace(config.memory, checkpointing=name))
