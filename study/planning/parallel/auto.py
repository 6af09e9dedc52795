"""`parallel=auto` in a study: the layout of a point, chosen by the search before the point is submitted.

A layout is no part of a point's key, and formats of numbers, which are, stay as the study says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from study.config.given import parts
from study.config.schema import ClusterConfig, StudyConfig
from study.executors import load
from study.planning.parallel import profiles
from study.planning.parallel.answer import Answer, answer, needed
from study.planning.parallel.profiles import MEMORY
from study.planning.parallel.question import SEARCHED, Question, about
from study.planning.parallel.room import Room, least_states
from study.planning.parallel.search import least_memory
from study.planning.parallel.space import smallest, space
from study.planning.parallel.words import refusal, verdict
from study.planning.ranks import tasks
from train.spec.communication.cluster import ClusterProfile
from train.spec.config import (
    BudgetConfig,
    EvalConfig,
    HealthConfig,
    ParallelConfig,
    ProfileConfig,
    RunConfig,
    ScheduleConfig,
    SpikesConfig,
)
from train.spec.device_choices import is_short
from train.spec.step_time import step_time

AUTO, CHOSEN = "auto", "chosen"
MOST_GPUS = 4096
LEARNING: Mapping[str, Any] = {
    "lr": 1e-3, "lr_scale": 1.0, "embedding_lr_scale": 1.0, "head_lr_scale": 1.0, "norm_lr_scale": 1.0,
    "weight_decay": 0.0, "head_decay": 0.0, "embedding_decay": 0.0, "norm_decay": 0.0, "beta1": 0.9, "beta2": 0.95,
}  # fmt: skip
"""Keys of the optimizer on which no layout depends: points that differ in them alone have one answer."""


@dataclass(frozen=True)
class Choice:
    """The layout of a run: the run with it, its ranks, and why, in a sentence or two."""

    run: RunConfig
    ranks: int
    why: str


@dataclass
class Chooser:
    """Chooses layouts; points that differ only in what no layout depends on are searched for once."""

    _found: dict[str, Answer] = field(default_factory=dict)

    def choose(self, run: RunConfig, config: StudyConfig, overrides: Sequence[str]) -> Choice:
        """Return the layout of a resolved run. ValueError where the profile is missing, or where nothing fits.

        config: as it was composed, with its cluster section by `with_ranks`; what it or its overrides give a value
        stays.
        """
        found = self._answer(run, config, overrides)
        laid_out = found.best[0].candidate.config
        compiled = replace(run.compile, blocks=laid_out.compile.blocks)
        parallel = replace(laid_out.parallel, layout=CHOSEN)
        runtime = replace(run.runtime, device=laid_out.runtime.device)
        chosen = replace(run, parallel=parallel, memory=laid_out.memory, compile=compiled, runtime=runtime)
        return Choice(chosen, found.question.gpus, verdict(found))

    def _answer(self, run: RunConfig, config: StudyConfig, overrides: Sequence[str]) -> Answer:
        cluster = config.cluster
        if cluster.profile is None:
            raise ValueError(
                "parallel=auto needs cluster.profile, the profile of the machine by which layouts are compared: there "
                f"are {', '.join(profiles.names())}, or give the path of one (python -m study bench comm "
                "profile=FILE.yaml writes one of this machine)"
            )
        profile = profiles.profile(cluster.profile, "cluster.profile")
        _check_gpus(cluster, profile)
        given = _given(config, overrides)
        alike = _alike(run)
        if "compile.blocks" not in given and is_short(run, tasks(cluster)):
            alike, given["compile.blocks"] = replace(alike, compile=replace(run.compile, blocks=False)), ""
        key = repr((alike, sorted(given), cluster))
        if key not in self._found:
            try:
                self._found[key] = _searched(alike, cluster, profile, given)
            except ValueError as error:
                shape = f"{run.model.width} x {run.model.layers}"
                raise ValueError(f"parallel=auto of {shape}: {_by_keys(str(error), cluster, profile)}") from None
        return self._found[key]


def with_ranks(cluster: ClusterConfig) -> ClusterConfig:
    """Return the cluster section with a process for each GPU; ValueError where it says another number of them."""
    gpus = cluster.gpus_per_node
    if not load(cluster.executor).allocates or gpus == 0 or "gpus" in parts(cluster):
        return cluster
    if cluster.tasks_per_node not in (1, gpus):
        raise ValueError(
            f"cluster.tasks_per_node={cluster.tasks_per_node} with parallel=auto: a rank has one GPU, so it is "
            f"cluster.gpus_per_node={gpus}, or left out"
        )
    return replace(cluster, tasks_per_node=gpus)


def is_auto(run: RunConfig) -> bool:
    """Say whether a layout is to be chosen for a run."""
    return run.parallel.layout == AUTO


def _check_gpus(cluster: ClusterConfig, profile: ClusterProfile) -> None:
    """Raise ValueError where jobs would have no GPUs, and the profile is of GPUs."""
    if not load(cluster.executor).allocates or "gpus" in parts(cluster):
        return
    if profile.device == "cuda" and cluster.gpus_per_node == 0:
        raise ValueError(
            f"parallel=auto with cluster.profile={cluster.profile}, of GPUs, but cluster.gpus_per_node=0: say how many "
            f"there are, as cluster.gpus_per_node={profiles.innermost(profile)} (and cluster.nodes), or take "
            "cluster.auto=[gpus], the fewest that a layout fits"
        )


def _searched(run: RunConfig, cluster: ClusterConfig, profile: ClusterProfile, given: Mapping[str, str]) -> Answer:
    """Return the answer for the ranks that the cluster section says; where it leaves them open, for the fewest that do.

    ValueError where no layout fits.
    """
    said = [f"{MEMORY}="] if MEMORY in given else []
    memory = profiles.memory(profile, said, cluster.gpu_memory_gb)
    if "gpus" not in parts(cluster):
        question = about(run, profile, tasks(cluster), memory, given)
    else:
        question = next(_fitting(run, profile, memory, given), None) or about(
            run, profile, profiles.innermost(profile), memory, given
        )
    found = answer(replace(question, top=2), step_time)
    if not found.best:
        raise ValueError(refusal(found))
    return found


def _fitting(run: RunConfig, profile: ClusterProfile, memory: int, given: Mapping[str, str]) -> Iterator[Question]:
    """Yield questions about 1, 2, 4, … GPUs that a layout of the run fits."""
    for gpus in (2**power for power in range(MOST_GPUS.bit_length())):
        try:
            question = about(run, profile, gpus, memory, given)
        except ValueError:  # the profile does not join so many, or what stays makes another number
            continue
        if least_states(question) > question.memory:
            continue
        there = smallest(space(question).candidates)
        least = least_memory(there, Room(question).memory, needed, enough=question.memory)
        if least is not None and least[1] <= question.memory:
            yield question


def _given(config: StudyConfig, overrides: Sequence[str]) -> dict[str, str]:
    """Return the keys that stay as they are: those that overrides name, and those that are not as by default."""
    named = {line.lstrip("+~").partition("=")[0] for line in overrides}
    default = StudyConfig(parallel=ParallelConfig(dp_replicate=1, dp_shard=None))
    found = {"precision.name"}
    for key in (*SEARCHED, MEMORY):
        section, _, name = key.partition(".")
        value, usual = (getattr(getattr(one, section), name) for one in (config, default))
        if key in named or value != usual:
            found.add(key)
    return dict.fromkeys(found, "")


def _alike(run: RunConfig) -> RunConfig:
    """Return the run without what no layout depends on."""
    assert run.batch.tokens is not None, "the run is resolved"
    return replace(
        run,
        optim=replace(run.optim, **LEARNING),
        schedule=ScheduleConfig(),
        spikes=SpikesConfig(threshold=0.0),
        budget=BudgetConfig(tokens=1000 * run.batch.tokens),
        batch=replace(run.batch, ramp_from=None),
        eval=EvalConfig(),
        health=HealthConfig(),
        profile=ProfileConfig(),
        data=replace(run.data, name="", source=None, sources=(), fingerprint=None),
        seed=0,
    )


def _by_keys(text: str, cluster: ClusterConfig, profile: ClusterProfile) -> str:
    """Return what a search says with the keys of a study instead of its gpus=."""
    if not load(cluster.executor).allocates:
        return re.sub(r"\bgpus=(\d+)", r"cluster.tasks_per_node=\1", text)
    each = cluster.gpus_per_node or profiles.innermost(profile)
    kind = "gpus" if profile.device == "cuda" else "tasks"

    def keys(found: re.Match[str]) -> str:
        gpus = int(found[1])
        here = min(gpus, each)
        return f"cluster.nodes={-(-gpus // here)} cluster.{kind}_per_node={here}"

    return re.sub(r"\bgpus=(\d+)", keys, text)
