"""`parallel=auto`: what is chosen for a point, what stays as it is given, and what is refused before submission."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from study.config.schema import ClusterConfig, StudyConfig
from study.executors.base import AnySite
from study.planning import sizing
from study.planning.parallel import auto, profiles
from study.planning.parallel.answer import answer, needed, settings
from study.planning.parallel.auto import Choice, Chooser, with_ranks
from study.planning.parallel.question import Question, about
from study.planning.parallel.room import Room
from study.planning.parallel.search import least_memory
from study.planning.parallel.space import smallest, space
from study.records.points import to_point
from tests.study.planning.parallel.questions import CPU, config, question
from train.spec import mesh
from train.spec.config import BudgetConfig, ModelConfig, OptimConfig, ParallelConfig, PrecisionConfig
from train.spec.resolve import resolve
from train.spec.step_time import step_time

AUTO = ParallelConfig(layout="auto", dp_replicate=1, dp_shard=None)
BF16 = PrecisionConfig(name="bf16")
SLURM = ClusterConfig(executor="slurm", gpus_per_node=8, tasks_per_node=8, profile="h200_x8_400g")
LARGE = ModelConfig(width=4096, layers=32, head_dim=128, kv_heads=8, mlp_width=14336, qk_norm=False)


def study(**changes: Any) -> StudyConfig:
    return config(**{"parallel": AUTO, "precision": BF16, "cluster": SLURM, **changes})


def chosen(*overrides: str, chooser: Chooser | None = None, **changes: Any) -> Choice:
    """Return what is chosen without pipelines, which take long to search."""
    asked = study(**changes)
    return (chooser or Chooser()).choose(resolve(asked.run()), asked, ["parallel.pp=1", *overrides])


def test_the_choice_is_the_winner_of_the_search_and_leaves_the_key_alone() -> None:
    found = chosen()
    words = ("gpus=8", "precision=bf16", "parallel.pp=1", "top=1")
    best = answer(question(*words), step_time).best[0].candidate
    for key, value in settings(best).items():
        section, _, name = key.partition(".")
        assert getattr(getattr(found.run, section), name) == value, key
    assert (found.ranks, found.run.parallel.layout, found.run.runtime.device) == (8, "chosen", "cuda")
    assert found.why.startswith("Predicted fastest: ") and "precision=bf16 keeps" not in found.why
    given = to_point(resolve(study(parallel=ParallelConfig()).run()), {})
    assert to_point(found.run, {}).key == given.key
    mesh.check(found.run, 8)
    assert resolve(found.run) == found.run


def test_what_is_given_stays() -> None:
    found = chosen("parallel.tp=2", parallel=replace(AUTO, tp=2, micro_batch_sequences=2)).run
    assert (found.parallel.tp, found.parallel.micro_batch_sequences) == (2, 2)
    assert chosen("memory.checkpointing=none").run.memory.checkpointing == "none"
    assert chosen("parallel.dp_replicate=1").run.parallel.dp_replicate == 1
    plain = chosen(precision=PrecisionConfig()).run
    assert plain.precision == PrecisionConfig(), "a format is part of a point"


def test_points_that_differ_in_learning_alone_are_searched_for_once() -> None:
    chooser = Chooser()
    layouts = {
        chosen(chooser=chooser, optim=OptimConfig(lr=lr), seed=seed).run.parallel
        for lr in (1e-3, 2e-3)
        for seed in (0, 1)
    }
    assert len(layouts) == 1 and len(chooser._found) == 1
    chosen(chooser=chooser, optim=OptimConfig(name="muon", lr=1e-3))
    assert len(chooser._found) == 2, "its states are smaller"


def test_a_run_that_is_soon_over_compiles_nothing() -> None:
    assert chosen(budget=BudgetConfig(tokens=10**6)).run.compile.blocks is False
    assert chosen(budget=BudgetConfig(tokens=10**11)).run.compile.blocks is True


def test_the_fewest_gpus_that_a_layout_fits_are_taken_where_they_are_open() -> None:
    cluster = replace(SLURM, gpus_per_node=0, tasks_per_node=1, auto=("gpus",), gpu_memory_gb=100.0)
    found = chosen(cluster=cluster, model=LARGE)
    assert found.ranks == 2, "one of 100 GB is too small for 8B and its states"
    laid_out = sizing.layout(cluster, found.run, AnySite())
    assert (laid_out.nodes, laid_out.gpus_per_node, laid_out.tasks_per_node) == (1, 2, 2)


def test_a_rank_has_one_gpu() -> None:
    assert with_ranks(replace(SLURM, tasks_per_node=1)).tasks_per_node == 8
    with pytest.raises(ValueError, match=r"cluster.tasks_per_node=3 .* it is cluster.gpus_per_node=8, or left out"):
        with_ranks(replace(SLURM, tasks_per_node=3))
    assert with_ranks(ClusterConfig()) == ClusterConfig()


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (replace(SLURM, profile=None), "parallel=auto needs cluster.profile, .* there are h100_x8_400g, "),
        (replace(SLURM, profile="h200"), "cluster.profile=h200 is no profile: did you mean cluster.profile=h200_x1"),
        (replace(SLURM, gpus_per_node=0, tasks_per_node=1), r"cluster.gpus_per_node=0: .* cluster.auto=\[gpus\]"),
        (replace(SLURM, nodes=3, tasks_per_node=4, gpus_per_node=4),
         r"cluster.nodes=3 cluster.gpus_per_node=4: .* nearest is cluster.nodes=4 cluster.gpus_per_node=4"),
        (replace(SLURM, gpu_memory_gb=12.0),
         r"32: no layout of cluster.nodes=1 cluster.gpus_per_node=8 fits: .* GB more .* cluster.nodes=\d+ .* fits"),
        (ClusterConfig(profile="h200_x8_400g", tasks_per_node=8, gpu_memory_gb=12.0), "cluster.tasks_per_node=16 fits"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_can(cluster: ClusterConfig, said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        chosen(cluster=cluster, model=LARGE)
    assert "\n" not in str(error.value)


def test_processes_without_gpus_are_laid_out_by_a_profile_of_them() -> None:
    cluster = ClusterConfig(profile=str(CPU), tasks_per_node=2)
    found = chosen(cluster=cluster, precision=PrecisionConfig())
    assert (found.ranks, found.run.runtime.device, found.run.compile.blocks) == (2, "cpu", False)
    with pytest.raises(ValueError, match=r"runtime.device=cuda, but cluster profile cpu is of device: cpu"):
        asked = study(cluster=cluster)
        cuda = replace(asked, runtime=replace(asked.runtime, device="cuda"))
        Chooser().choose(resolve(cuda.run()), cuda, ())


def test_gpus_are_doubled_until_a_layout_fits_to_the_byte() -> None:
    profile = profiles.profile("h200_x8_400g")
    given = {"parallel.pp": "", "precision.name": ""}
    run = resolve(study().run())
    least = []
    for gpus in (1, 2):
        one = about(run, profile, gpus, 10**12, given)
        found = least_memory(smallest(space(one).candidates), Room(one).memory, needed)
        assert found is not None
        least.append(found[1])
    assert least[1] < least[0]
    for memory, fits in ((least[0], 1), (least[0] - 1, 2), (least[1], 2)):
        assert next(auto._fitting(run, profile, memory, given)).gpus == fits


def test_gpus_that_a_profile_does_not_join_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def refused(run: Any, profile: Any, gpus: int, memory: int, given: Any) -> Question:
        tried.append(gpus)
        raise ValueError(f"gpus={gpus}")

    monkeypatch.setattr(auto, "about", refused)
    assert list(auto._fitting(resolve(study().run()), profiles.profile("h200_x4"), 1, {})) == []
    assert tried == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]


def test_the_winner_is_told_from_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Question] = []

    def noted(one: Question, timed: Any) -> Any:
        asked.append(one)
        return answer(one, timed)

    monkeypatch.setattr(auto, "answer", noted)
    assert chosen("parallel.tp=1", "parallel.cp=1").ranks == 8
    assert [one.top for one in asked] == [2]
