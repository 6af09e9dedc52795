"""The answer: the fastest layouts; or by how much the smallest misses, and the smallest change that fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from study.planning.parallel import profiles
from study.planning.parallel.links import fullest
from study.planning.parallel.pace import Pace
from study.planning.parallel.progress import Progress, silent
from study.planning.parallel.question import Question
from study.planning.parallel.room import Room, least_states
from study.planning.parallel.search import Bounds, Found, Priced, Prices, least_memory, search
from study.planning.parallel.space import Candidate, Space, smallest, space
from train.spec.accounting.step import needed_or_over, sheet
from train.spec.communication.cluster import ClusterProfile
from train.spec.config import RunConfig
from train.spec.mesh import Axes
from train.spec.resolve import resolve

DOUBLINGS = 7
"""How often GPUs are doubled, and a batch or a length halved, in search of what fits."""


class StepTime(Protocol):
    """A predicted step (train.spec.step_time): seconds by what they go to."""

    @property
    def compute(self) -> float:
        """Kernels."""

    @property
    def launch(self) -> float:
        """Waiting for the host to launch them."""

    @property
    def exposed(self) -> Mapping[str, float]:
        """Messages that nothing hides, by axis."""

    @property
    def bubble(self) -> float:
        """Waiting for other stages of a pipeline."""

    @property
    def update(self) -> float:
        """The optimizer."""

    @property
    def model_flops(self) -> float:
        """Of a step, without what is made again."""

    @property
    def seconds(self) -> float:
        """All of it."""

    @property
    def tokens_per_second(self) -> float:
        """Of all ranks."""

    @property
    def binding(self) -> str:
        """What limits it."""

    def mfu(self, peak: float) -> float:
        """Return model FLOPs over a peak."""


class Model(Protocol):
    """What predicts a step."""

    def __call__(self, config: RunConfig, axes: Axes, cluster: ClusterProfile) -> StepTime:
        """Return a step of a resolved config on a cluster."""


@dataclass(frozen=True)
class Change:
    """Words that make layouts fit, what the smallest then needs [bytes]."""

    words: str
    needed: int


@dataclass(frozen=True)
class Answer:
    """All that is said. sent: bytes over each level, of each of the best. miss: the smallest, where none fits."""

    question: Question
    space: Space
    found: Found[StepTime]
    sent: tuple[Mapping[str, float], ...]
    miss: tuple[Candidate, int] | None = None
    cure: Change | None = None

    @property
    def best(self) -> Sequence[Priced[StepTime]]:
        """The layouts that are listed."""
        return self.found.best


def answer(question: Question, model: Model, told: Progress = silent) -> Answer:
    """Return the answer by a model of the step; ValueError where nothing can run on so many GPUs."""
    there = space(question, told)
    if not there.candidates:
        raise ValueError(_nothing(question, there))
    room, pace, profile = Room(question), Pace(question), question.profile
    bounds = Bounds(room.memory, pace.seconds, pace.closer)
    prices = Prices(
        lambda one: needed_or_over(one.config, one.axes, question.device, question.memory),
        lambda one: model(one.config, one.axes, profile),
    )
    found = search(there.candidates, bounds, prices, question.memory, question.top, told=told)
    sent = tuple(fullest(profile, one.candidate.config, one.candidate.axes) for one in found.best)
    answered = Answer(question, there, found, sent)
    if found.best:
        return answered
    miss = least_memory(smallest(there.candidates), room.memory, needed)
    return replace(answered, miss=miss, cure=cure(question))


def needed(candidate: Candidate) -> int:
    """Return what the fullest GPU has to have [bytes]."""
    config = candidate.config
    return sheet(config, candidate.axes, config.runtime.device).needed


def cure(question: Question) -> Change | None:
    """Return the smallest change with which a layout fits: a key that stays let go, GPUs, the batch, the length."""
    for words, changed in _changes(question):
        if least_states(changed) > changed.memory:
            continue
        there = smallest(space(_cut(changed)).candidates)
        found = least_memory(there, Room(changed).memory, needed, enough=changed.memory)
        if found is not None and found[1] <= changed.memory:
            return Change(words or _freed(question, changed, found[0]), found[1])
    return None


def _cut(question: Question) -> Question:
    """Return the question with the stage of ZeRO that needs least, where stage and schedule are open."""
    if question.stays("parallel.zero") or question.stays("parallel.pp_schedule"):
        return question
    config = question.config
    config = replace(config, parallel=replace(config.parallel, zero=3))
    return replace(question, config=config, fixed=question.fixed | {"parallel.zero"})


def settings(candidate: Candidate) -> dict[str, Any]:
    """Return a candidate as the keys and values of a study."""
    config, axes = candidate.config, candidate.axes
    parallel = config.parallel
    found: dict[str, Any] = {f"parallel.{name}": getattr(axes, name) for name in ("dp_replicate", "dp_shard", "cp")}
    found |= {"parallel.tp": axes.tp, "parallel.pp": axes.pp, "parallel.strategy": parallel.strategy}
    if config.model.experts:
        found["parallel.ep"] = axes.ep
    found["parallel.zero"] = parallel.zero
    if axes.pp > 1:
        found |= {"parallel.pp_schedule": parallel.pp_schedule, "parallel.pp_stages": parallel.pp_stages}
    found["parallel.micro_batch_sequences"] = candidate.sequences
    found["memory.checkpointing"] = config.memory.checkpointing
    if config.memory.checkpointing == "every":
        found["memory.every"] = config.memory.every
    return {**found, "compile.blocks": config.compile.blocks, "precision.name": config.precision.name}


def as_words(values: Mapping[str, Any]) -> list[str]:
    """Return keys and values as words of a command line."""
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()]


def _changes(question: Question) -> Iterator[tuple[str, Question]]:
    """Yield questions with one thing changed, the cheapest change first; no words: those of the key that is let go."""
    one = replace(question.config, compile=replace(question.config.compile, blocks=False))
    plain = replace(question, config=one, fixed=question.fixed | {"compile.blocks", "precision.name"})
    for key in sorted(question.fixed - {"compile.blocks", "precision.name"}):
        yield "", replace(plain, fixed=plain.fixed - {key})
    batch, length = one.batch.tokens, one.data.sequence_length
    assert batch is not None, "the config is resolved"
    for power in range(1, DOUBLINGS + 1):
        gpus = question.gpus * 2**power
        if profiles.joins(question.profile, gpus) and batch // length >= 1:
            yield f"gpus={gpus}", replace(plain, gpus=gpus)
    for power in range(1, DOUBLINGS + 1):
        if batch % (length * 2**power) == 0:
            tokens = batch // 2**power
            smaller = replace(one, batch=replace(one.batch, tokens=tokens))
            yield f"batch.tokens={tokens}", replace(plain, config=smaller)
    for power in range(1, DOUBLINGS + 1):
        if length % 2**power == 0:
            shorter = replace(one, data=replace(one.data, sequence_length=length // 2**power))
            try:
                yield f"data.sequence_length={length // 2**power}", replace(plain, config=resolve(shorter))
            except ValueError:
                return


def _freed(question: Question, changed: Question, candidate: Candidate) -> str:
    """Return the word for the key that was let go, as the candidate has it."""
    (key,) = question.fixed - changed.fixed
    values = settings(candidate)
    return as_words({key: values[key]})[0] if key in values else f"no {key}"


def _nothing(question: Question, there: Space) -> str:
    """Return why no layout can run, and the nearest number of GPUs with which one can."""
    most = max(there.refused, key=lambda why: there.refused[why], default="the given keys leave no layout")
    said = f"gpus={question.gpus}: no layout of so many GPUs can run: {most} (as numbers N)"
    step = profiles.innermost(question.profile)
    for gpus in (*range(question.gpus - question.gpus % step, 0, -step), *range(step - 1, 0, -1)):
        joined = gpus < question.gpus and profiles.joins(question.profile, gpus)
        if joined and space(replace(question, gpus=gpus)).candidates:
            return f"{said}; the nearest that can is gpus={gpus}"
    return said
