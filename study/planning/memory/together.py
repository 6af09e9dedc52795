"""Several models on the same GPUs, as reinforcement learning from human feedback places them: who holds what, when.

All of them stay where they are; what they have at work comes and goes, one phase of a step after the other: the policy
generates, the frozen models and the critic judge, policy and critic train.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from study.planning.memory.question import FROZEN, TRAINED, Question, Subject
from study.planning.memory.sheet import Change
from train.spec.accounting import held, inference, outside
from train.spec.accounting import step as memory
from train.spec.accounting.parameters import parameters
from train.spec.mesh import share_of_batch

DOUBLINGS = 10
"""How often GPUs are doubled in search of what fits."""


@dataclass(frozen=True)
class Placed:
    """One model on each GPU [bytes]: what stays there all the time, what training or a forward pass adds to it."""

    role: str
    params: int
    trained: bool
    staying: int
    at_work: int
    sequences: int


@dataclass(frozen=True)
class Together:
    """All models of a question. phases: what each GPU holds in each, models that rest included [bytes]."""

    placed: tuple[Placed, ...]
    phases: Mapping[str, int]
    cache: int
    rollouts: int
    gpus: int
    memory: int
    margin: int
    context: int
    nccl: int = 0
    cure: tuple[str, int] | None = None

    @property
    def needed(self) -> int:
        """What a GPU has to have [bytes]."""
        return max(self.phases.values()) + self.margin + self.context + self.nccl

    @property
    def fits(self) -> bool:
        """Whether it has."""
        return self.needed <= self.memory


def together(question: Question) -> Together:
    """Return who holds what. Micro-batches are those given, or one sequence."""
    placed = tuple(_placed(role, subject) for role, subject in question.subjects.items())
    resting = sum(one.staying for one in placed)
    first = next(iter(question.subjects.values()))
    policy = question.subjects.get("policy")
    phases: dict[str, int] = {}
    cached, rollouts = 0, question.rollouts or share_of_batch(first.config, first.axes)
    if policy is not None:
        passing = inference.frozen(policy.config, policy.axes, 1)
        cached = inference.cache(policy.config, policy.axes, rollouts)
        phases["policy generates"] = resting + cached + passing.gathered + _generating(policy, rollouts)
    for one in placed:
        phases[f"{one.role} {'trains' if one.trained else 'judges'}"] = resting + one.at_work
    meshes = {(s.axes, held.part_of(s.config, s.axes, 0).sharded) for s in question.subjects.values()}
    margin = outside.margin(max(phases.values()), any(sharded for _, sharded in meshes), "cuda")
    count = sum(outside.communicators(*mesh) for mesh in meshes)  # models of one layout share their groups
    context, buffers = outside.context("cuda"), outside.nccl(count, "cuda")
    return Together(placed, phases, cached, rollouts, first.gpus, first.memory, margin, context, buffers)


def cure(question: Question) -> tuple[str, int] | None:
    """Return the fewest GPUs, doubled and doubled again, on which sharded models fit, as words, and what each needs."""
    for doublings in range(DOUBLINGS + 1):
        subjects = {role: _sharded(subject, doublings) for role, subject in question.subjects.items()}
        known = {role: subject for role, subject in subjects.items() if subject is not None}
        if len(known) < len(subjects):
            continue
        found = together(replace(question, subjects=known))
        if found.fits:
            words = [f"gpus={found.gpus}"] if doublings else []
            return " ".join([*words, "parallel=fsdp"]), found.needed
    return None


def _sharded(subject: Subject, doublings: int) -> Subject | None:
    already = subject.config.parallel.dp_shard is None and subject.config.parallel.zero == 3
    return Change(sharded=not already, doublings=doublings).of(subject)


def _placed(role: str, subject: Subject) -> Placed:
    config, axes = subject.config, subject.axes
    size = config.parallel.micro_batch_sequences or 1
    count = parameters(config.model, config.data.vocab_size).total
    if role in FROZEN:
        found = inference.frozen(config, axes, size)
        return Placed(role, count, False, found.weights, found.total - found.weights, size)
    assert role in TRAINED
    sheet = memory.sheet(config, axes, "cuda", size)
    update = sheet.moments[-1].parts
    staying = sum(update.get(name, 0) for name in ("weights", "moments"))
    return Placed(role, count, True, staying, sheet.peak.total - staying, sheet.sequences)


def _generating(policy: Subject, rollouts: int) -> int:
    """Return the logits of one new token of every sequence, and its stream through one block."""
    config, axes = policy.config, policy.axes
    return 4 * rollouts * (config.data.vocab_size // axes.tp + 8 * config.model.width)
