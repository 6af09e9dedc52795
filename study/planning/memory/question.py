"""What is asked of a memory sheet, from the words of a command line."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.text.commandline import Key
from study.config.schema import StudyConfig
from study.planning import own_words
from train.spec import mesh
from train.spec.axes import MESH_AXES
from train.spec.config import RunConfig
from train.spec.largest import shown
from train.spec.mesh import Axes
from train.spec.resolve import resolve

MOST_RANKS = 10**6
Compose = Callable[[Sequence[str]], StudyConfig]
TRAINED, FROZEN = ("policy", "critic"), ("reference", "reward")
ROLES = ("policy", "reference", "reward", "critic")
"""The four models of reinforcement learning from human feedback (Ouyang et al. 2022): two are trained."""
KEYS = (
    Key("gpus", "how many GPUs there are; default: what the cluster section says", None, kind="int"),
    Key("out", "folder of memory.md, memory.csv, memory.svg and memory.png; default: no files", None),
    Key("roles", "models that share the GPUs: policy and critic are trained, reference and reward are not; rlhf: all "
        "four; policy.model=8b is of one of them", None, kind="list"),
    Key("rollouts", "roles: sequences that each GPU generates at once; default: its share of a step", None, kind="int"),
    Key("generate", "what generation takes instead of training: so many sequences of data.sequence_length at once on "
        "each replica", None, kind="int"),
    Key("cached", "generate: numbers that a token keeps in each layer, for latent attention (512 + 64 in DeepSeek-V2); "
        "default: keys and values of the model's heads", None, kind="int"),
)  # fmt: skip
"""Words beside keys and groups of a study."""
OWN = {key.name: key.help for key in KEYS}
"""What each of them means."""


@dataclass(frozen=True)
class Subject:
    """A run on so many GPUs of so much memory [bytes]."""

    config: RunConfig
    axes: Axes
    memory: int

    @property
    def gpus(self) -> int:
        """How many GPUs it is on."""
        return self.axes.size


@dataclass(frozen=True)
class Generation:
    """Sequences that one replica generates at once.

    cached: numbers that a token keeps in each layer; None: keys and values of the model's heads.
    """

    sequences: int
    cached: int | None = None


@dataclass(frozen=True)
class Question:
    """What is asked: one subject by role, "model" where there are no roles; where the files go; rollouts of a GPU.

    generation: what is generated, where that is asked instead of training.
    """

    subjects: Mapping[str, Subject]
    out: Path | None = None
    rollouts: int | None = None
    generation: Generation | None = None

    @property
    def single(self) -> Subject:
        """The only subject there is."""
        (found,) = self.subjects.values()
        return found


def ask(words: Sequence[str], compose: Compose) -> Question:
    """Return the question that words ask; ValueError names the word, its value and what would do."""
    own, rest = own_words.split(words, OWN)
    roles = _roles(own.get("roles"))
    by_role, shared = _by_role(rest, roles)
    gpus, rollouts = (own_words.number(name, own.get(name)) for name in ("gpus", "rollouts"))
    if rollouts is not None and not roles:
        raise ValueError(f"rollouts={rollouts} belongs to roles: add roles=rlhf, or leave it out")
    generated = _generation(own, roles)
    subjects = {
        role: _subject(_composed(shared, by_role.get(role, []), role, compose), gpus) for role in (roles or ("model",))
    }
    sizes = {role: subject.gpus for role, subject in subjects.items()}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{role} {size}" for role, size in sizes.items())
        raise ValueError(f"roles that share GPUs are on different numbers of them ({told}): give gpus=N for all")
    return Question(subjects, own_words.folder(own, OWN), rollouts, generated)


def _composed(shared: Sequence[str], own: Sequence[str], role: str, compose: Compose) -> StudyConfig:
    """Return the config of a role; what is wrong with its own words is said with the role before it."""
    if not own:
        return compose(shared)
    try:
        return compose([*shared, *own])
    except ValueError as error:
        raise ValueError(f"{role}: {error}") from None


def _generation(own: Mapping[str, str], roles: Sequence[str]) -> Generation | None:
    sequences, cached = (own_words.number(name, own.get(name)) for name in ("generate", "cached"))
    if sequences is None:
        if cached is not None:
            raise ValueError(f"cached={cached} belongs to generation: add generate=1, or leave it out")
        return None
    if roles:
        raise ValueError(f"generate={sequences} is of one model: leave roles= out, or give rollouts={sequences}")
    return Generation(sequences, cached)


def _roles(said: str | None) -> tuple[str, ...]:
    if said is None:
        return ()
    names = ROLES if said == "rlhf" else tuple(said.strip("[]").split(","))
    for name in names:
        if name not in ROLES:
            near = difflib.get_close_matches(name, ROLES, n=1, cutoff=0.4)
            hint = f": did you mean {near[0]}?" if near else f": choose from {', '.join(ROLES)}, or rlhf for all"
            raise ValueError(f"roles={said} names {name!r}, which is no role{hint}")
    if len(set(names)) < len(names):
        raise ValueError(f"roles={said} names a role twice: each is one model")
    return names


def _by_role(words: Sequence[str], roles: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the words of each role (critic.model=1b) and those of all."""
    found: dict[str, list[str]] = {}
    shared = []
    for word in words:
        role, dot, rest = word.partition(".")
        if not dot or role not in ROLES:
            shared.append(word)
        elif role in roles:
            found.setdefault(role, []).append(rest)
        else:
            raise ValueError(f"{word} is of the role {role}, which is not asked for: add it to roles=, or roles=rlhf")
    return found, shared


def _subject(config: StudyConfig, gpus: int | None) -> Subject:
    cluster = config.cluster
    for name, least in {"nodes": 1, "gpus_per_node": 0, "tasks_per_node": 0}.items():
        if not least <= getattr(cluster, name) <= MOST_RANKS:
            said = shown(getattr(cluster, name))
            raise ValueError(f"cluster.{name}={said} is not allowed: {least} to {MOST_RANKS:,}")
    world = gpus or max(1, cluster.nodes * max(cluster.gpus_per_node, cluster.tasks_per_node))
    run = resolve(config.run())
    run = replace(run, runtime=replace(run.runtime, device="cuda"))
    return Subject(run, axes_of(run, world), own_words.gpu_bytes(cluster.gpu_memory_gb))


def axes_of(run: RunConfig, world: int) -> Axes:
    """Return the axes of a run on so many GPUs; ValueError, with the nearest number that works, for another number."""
    try:
        mesh.check(run, world, saves=False)
    except mesh.WorldError as error:
        step = 1
        for name in MESH_AXES:
            step *= getattr(run.parallel, name) or 1
        near = step if None not in _open(run) else max(1, round(world / step)) * step
        raise ValueError(f"gpus={world}: {str(error).partition(': start')[0]}; the nearest is gpus={near}") from None
    return mesh.axes(run.parallel, world)


def _open(run: RunConfig) -> list[int | None]:
    return [getattr(run.parallel, name) for name in MESH_AXES]
