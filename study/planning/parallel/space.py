"""Every layout of a number of GPUs that is worth a look, and what is left out before any price, counted by reason."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import NamedTuple

from study.planning.parallel.profiles import groups_joined
from study.planning.parallel.progress import Progress, silent
from study.planning.parallel.question import FORMATS, Question
from train.spec import mesh
from train.spec.config import CompileConfig, MemoryConfig, ParallelConfig, PrecisionConfig, RunConfig
from train.spec.mesh import Axes, share_of_batch
from train.spec.micro_batch import even
from train.spec.pipeline_layout import SCHEDULES

Others = tuple[MemoryConfig, PrecisionConfig, Sequence[CompileConfig]]
POLICIES = ("none", "selective", "every", "full")
STAGES = (2, 4)
"""Stages of a rank that are tried where a schedule leaves them open."""
TOO_MANY = "more data-parallel ranks than a step has sequences"
UNEVEN = "groups of ranks that have no equal parts in each domain of the profile"


@dataclass(frozen=True, eq=False)
class Layout:
    """A run laid out, but for its micro-batch. share: sequences of a step on the fullest rank."""

    config: RunConfig
    axes: Axes
    share: int


class Candidate(NamedTuple):
    """A layout with its micro-batch. number: its place in the order in which candidates are made."""

    number: int
    layout: Layout
    sequences: int

    @property
    def config(self) -> RunConfig:
        """The whole run."""
        config = self.layout.config
        return replace(config, parallel=replace(config.parallel, micro_batch_sequences=self.sequences))

    @property
    def axes(self) -> Axes:
        """Its mesh."""
        return self.layout.axes

    @property
    def accumulated(self) -> int:
        """How many micro-batches make a step."""
        return -(-self.layout.share // self.sequences)


@dataclass(frozen=True)
class Space:
    """What is searched. refused: how many more there would be, by the reason for which the trainer refuses them."""

    candidates: Sequence[Candidate]
    refused: Mapping[str, int]

    @property
    def size(self) -> int:
        """All that were looked at."""
        return len(self.candidates) + sum(self.refused.values())


def space(question: Question, told: Progress = silent) -> Space:
    """Return all candidates of a question in a fixed order. The trainer's own checks decide what there can be."""
    refused: Counter[str] = Counter()
    found: list[Candidate] = []
    others = _others(question)
    ways = sum(len(either) for _, _, either in others)
    every = list(meshes(question))
    for number, axes in enumerate(every):
        told("laying out meshes", number, len(every))
        share = share_of_batch(question.config, axes)
        sizes = _sizes(question, share)
        parallels = list(_parallels(question, axes))
        if why := _unfit(question, axes, parallels):
            refused[why] += len(sizes) * len(parallels) * ways
            continue
        for parallel in parallels:
            for config, why in _configs(question, parallel, others):
                if why:
                    refused[why] += len(sizes)
                    continue
                layout = Layout(config, axes, share)
                found += [Candidate(len(found) + place, layout, size) for place, size in enumerate(sizes)]
    return Space(found, refused)


def smallest(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return those of which one needs least memory: of each layout the smallest micro-batch and the largest.

    A smaller one keeps less, and one of a whole share sums no gradients of several.
    """
    found = []
    for place, one in enumerate(candidates):
        first = place == 0 or candidates[place - 1].layout is not one.layout
        last = place + 1 == len(candidates) or candidates[place + 1].layout is not one.layout
        if first or last:
            found.append(one)
    return found


def _unfit(question: Question, axes: Axes, parallels: Sequence[ParallelConfig]) -> str:
    """Return why no layout of a mesh can run, whatever else it has; nothing where one may."""
    base = question.config
    assert base.batch.tokens is not None, "the config is resolved"
    if axes.data > base.batch.tokens // base.data.sequence_length:
        return TOO_MANY
    if not groups_joined(question.profile, axes):
        return UNEVEN
    if not parallels or (base.model.experts and axes.tp == 1):  # what shares experts is asked about first
        return ""
    return _refused(lambda: mesh.check_cut(replace(base, parallel=parallels[0]), axes))


def _configs(question: Question, parallel: ParallelConfig, others: Sequence[Others]) -> Iterator[tuple[RunConfig, str]]:
    """Yield the runs of one way to lay out, each with why it is refused, if it is.

    Blocks that are made again are refused or not, however many they are: so that is asked once for each format.
    """
    base = replace(question.config, parallel=parallel)
    known: dict[tuple[bool, str, bool | None], str] = {}
    for memory, precision, either in others:
        for compiled in either:
            key = memory.checkpointing == "none", precision.name, compiled.blocks
            why = known.get(key)
            config = base
            if not why:
                config = replace(base, memory=memory, precision=precision, compile=compiled)
            if why is None:
                why = known[key] = refusal(config, question.gpus)
            yield config, why
            if not why:
                break


def refusal(config: RunConfig, gpus: int) -> str:
    """Return why the trainer refuses a run on so many GPUs, without its numbers; nothing where it does not."""
    return _refused(lambda: mesh.check(config, gpus))


def _refused(check: Callable[[], None]) -> str:
    try:
        check()
    except ValueError as error:
        return _kind(str(error))
    return ""


def meshes(question: Question) -> Iterator[Axes]:
    """Yield every way to share GPUs out to axes, with those that are fixed."""
    config, names = question.config, ("tp", "pp", "cp", "dp_replicate", "dp_shard")
    fixed = {name: getattr(config.parallel, name) for name in names if question.stays(f"parallel.{name}")}

    def rest(left: int, index: int) -> Iterator[dict[str, int]]:
        if index == len(names):
            if left == 1:
                yield {}
            return
        name = names[index]
        for size in [fixed[name]] if name in fixed else _divisors(left):
            if left % size == 0 and not (name == "pp" and size > config.model.layers and name not in fixed):
                yield from ({name: size, **more} for more in rest(left // size, index + 1))

    for sizes in rest(question.gpus, 0):
        yield from _with_experts(question, Axes(**sizes))


def _with_experts(question: Question, axes: Axes) -> Iterator[Axes]:
    """Yield a mesh with every number of its ranks that can share experts, 1 first."""
    parallel, experts = question.config.parallel, question.config.model.experts
    shared = [parallel.ep] if question.stays("parallel.ep") else _divisors(math.gcd(experts, axes.fsdp))
    yield from (replace(axes, ep=ep) for ep in (shared if experts else [parallel.ep]))


@cache
def _divisors(number: int) -> tuple[int, ...]:
    return tuple(size for size in range(1, number + 1) if number % size == 0)


def _parallels(question: Question, axes: Axes) -> Iterator[ParallelConfig]:
    """Yield what a mesh leaves open, once each: stages of ZeRO where weights are cut, schedules where layers are."""
    base = question.config.parallel
    sizes = {name: getattr(axes, name) for name in ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")}
    base = replace(base, strategy="auto", micro_batch_sequences=None, **sizes)
    stages: tuple[int, ...] = (3,)
    if axes.fsdp > 1:  # a pipeline sums gradients once per step in any case, so that 1 is as 2
        stages = (3, 2, 1) if axes.pp == 1 else (3, 2)
    if question.stays("parallel.zero"):
        stages = (base.zero,)
    for zero in stages:
        if axes.pp == 1:
            yield replace(base, zero=zero)
            continue
        for schedule, count in _schedules(question):
            yield replace(base, zero=zero, pp_schedule=schedule, pp_stages=count)


def _schedules(question: Question) -> Iterator[tuple[str, int]]:
    given = question.config.parallel
    for name, schedule in SCHEDULES.items():
        if question.stays("parallel.pp_schedule") and name != given.pp_schedule:
            continue
        if schedule.stages:
            yield name, schedule.stages
        elif given.pp_layers and given.pp > 1:
            yield name, len(given.pp_layers) // given.pp
        elif question.stays("parallel.pp_stages") and given.pp_stages:
            yield name, given.pp_stages
        else:
            yield from ((name, count) for count in STAGES)


def _others(question: Question) -> Sequence[Others]:
    """Return the settings beside the mesh: checkpointing, format; compiled, and not for what cannot be compiled.

    Compiled blocks keep no more than others, and are not predicted to take longer but for the little that theirs, made
    again, run to the end.
    """
    base = question.config
    policies = (base.memory.checkpointing,) if question.stays("memory.checkpointing") else POLICIES
    compiled = (base.compile.blocks,) if question.stays("compile.blocks") else (True, False)
    rates = {rate.format for rate in question.profile.compute.matmul}
    formats = (base.precision.name,) if question.stays("precision.name") else (*(f for f in FORMATS if f in rates),)
    either = [replace(base.compile, blocks=blocks) for blocks in compiled]
    return [
        (replace(base.memory, checkpointing=policy), replace(base.precision, name=form), either)
        for policy in policies
        for form in formats
    ]


def _sizes(question: Question, share: int) -> tuple[int, ...]:
    """Return the micro-batches that are tried: even parts of a rank's share of 1, 2, 4, … sequences, and all of it."""
    parallel = question.config.parallel
    if question.stays("parallel.micro_batch_sequences") and parallel.micro_batch_sequences:
        return (parallel.micro_batch_sequences,)
    sizes = {even(share, 2**power) for power in range(share.bit_length())} | {share}
    return tuple(sorted(sizes))


@lru_cache(1 << 12)
def _kind(message: str) -> str:
    """Return a refusal without its numbers, so that those of one kind count together."""
    head = re.split(r":\s|; |, which", message)[0]
    return re.sub(r"\s+", " ", re.sub(r"\b\d[\d,]*\b", "N", re.sub(r"(?<!schedule)=[\w.,]+", "", head))).strip()
