"""The time of a step by what it goes to, its messages one by one, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from study.planning.memory.question import Subject
from study.planning.memory.sheet import cure, largest_micro_batch
from study.planning.parallel import profiles
from study.planning.parallel.links import fullest
from study.planning.step.question import Question
from train.spec.accounting import step as memory
from train.spec.communication.messages import Message
from train.spec.communication.stages import MicroBatches, micro_batches_of
from train.spec.communication.step import step_messages
from train.spec.step_time import step_time
from train.spec.step_time.result import StepTime


@dataclass(frozen=True)
class Answer:
    """All that is said of a step.

    messages: of the rank of the pipeline whose messages take longest, each with its seconds if nothing else went on.
    sent: bytes by level of the profile, of the rank that sends most. needed: of the fullest GPU [bytes]. cure: where
    that is too much, the smallest change with which it fits, as words, and what is needed then [bytes].
    """

    question: Question
    time: StepTime
    micro: MicroBatches
    messages: Mapping[Message, float]
    sent: Mapping[str, float]
    needed: int
    cure: tuple[str, int] | None = None

    @property
    def fits(self) -> bool:
        """Whether a GPU has what the run needs."""
        return self.needed <= self.question.memory


def answer(question: Question) -> Answer:
    """Return the answer; ValueError that names the key for what the model of a step does not know."""
    config, axes, profile = question.config, question.axes, question.profile
    time = step_time(config, axes, profile, question.slowest)
    each = [profile.step_seconds(step_messages(config, axes, rank, profile.device), axes) for rank in range(axes.pp)]
    found = Answer(
        question,
        time,
        micro_batches_of(config, axes, profile.device),
        max(each, key=lambda one: sum(one.values())),
        fullest(profile, config, axes),
        memory.sheet(config, axes, profile.device, config.parallel.micro_batch_sequences).needed,
    )
    return found if found.fits else replace(found, cure=_cure(question))


def _cure(question: Question) -> tuple[str, int] | None:
    """Return the smallest change with which the run fits GPUs that the profile joins; None: there is none."""
    subject = Subject(question.config, question.axes, question.memory)
    size = question.config.parallel.micro_batch_sequences or 1
    return cure(subject, size, largest_micro_batch(subject), partial(profiles.groups_joined, question.profile))
