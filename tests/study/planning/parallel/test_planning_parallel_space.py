"""Questions, the layouts that are looked at, and what each needs at least."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.planning.parallel import profiles
from study.planning.parallel.answer import answer, needed
from study.planning.parallel.answer import settings as settings_of
from study.planning.parallel.links import fullest
from study.planning.parallel.question import ask
from study.planning.parallel.room import Room, least_states
from study.planning.parallel.search import least_memory
from study.planning.parallel.space import (
    STAGES,
    TOO_MANY,
    UNEVEN,
    Candidate,
    Space,
    _others,
    _parallels,
    _schedules,
    _sizes,
    meshes,
    refusal,
    smallest,
    space,
)
from study.planning.parallel.words import command
from tests.study.planning.parallel.questions import CPU, MODEL, config, question
from train.spec import mesh
from train.spec.accounting.step import needed_or_over, sheet
from train.spec.axes import MESH_AXES
from train.spec.communication.cluster import write_profile
from train.spec.config import CompileConfig
from train.spec.mesh import Axes
from train.spec.step_time import step_time


def test_a_question_has_a_profile_gpus_and_what_stays() -> None:
    found = question("parallel.tp=2", "memory.checkpointing=full", "gpus=16", "top=3")
    assert (found.gpus, found.top, found.memory, found.profile.name) == (16, 3, 141 * 10**9, "h200_x8_400g")
    assert found.fixed == {"parallel.tp", "memory.checkpointing"}
    assert found.config.precision.name == "bf16", "unless it is said"
    assert found.config.model.init_std is not None, "it is resolved"
    assert question().gpus == 8, "one host"
    assert question("precision=fp32").fixed == {"precision.name"}
    assert question("cluster.gpu_memory_gb=80").memory == 80 * 10**9


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpus=8"], "cluster= is missing: give the profile of the machine"),
        (["top=3", "top=4"], "top is given twice: top=3 and top=4; leave one out"),
        (["cluster=h200_x8"], "cluster=h200_x8 is no profile: did you mean cluster=h200_x8_400g?"),
        (["cluster=nowhere.yaml"], "cluster=nowhere.yaml is no profile"),
        (["cluster=h200_x8_400g", "gpus=60"], "gpus=60: levels.nvlink.ranks=8"),
        (["cluster=."], "cluster=. is no profile"),
        (["cluster=./"], "cluster=./ is a folder: name the file of the profile in it"),
        (
            ["cluster=h200_x8_400g", "gpus=12"],
            "12 ranks do not fill such domains equally: take a divisor or a multiple of 8; the nearest is gpus=16",
        ),
        (["cluster=h200_x8_400g", "gpus=60"], "the nearest is gpus=64"),
        (["cluster=h200_x4", "gpus=8", "cluster.gpu_memory_gb=141"], "they do not join 8 ranks"),
        (["cluster=h200_x4", "gpus=8", "cluster.gpu_memory_gb=141"], "the nearest is gpus=4"),
        (["cluster=h200_x8_400g", "gpus=64", "parallel.tp=3"], "gpus=64 is not a multiple of the 3 ranks"),
        (["cluster=h200_x8_400g", "gpus=64", "parallel.tp=3"], "the nearest is gpus=72"),
        (["cluster=h200_x8_400g", "gpus=0"], "gpus=0 is not allowed"),
        (["cluster=h200_x8_400g", "gpu=8"], "did you mean gpus=8?"),
        (["cluster=h200_x8_400g", "parallel=fsdp"], "parallel=fsdp names one layout"),
        (["cluster=h200_x8_400g", "parallel.strategy=fsdp1"], "parallel.strategy=fsdp1 is not searched"),
        (["cluster=h200_x8_400g", "precision=fp16"], "has no rate for fp16 (it has bf16, fp32, fp8): add"),
        (["cluster=h200_x8_400g", "top=none"], "top=none is not allowed"),
        (["cluster=h200_x8_400g", "top=1e30"], "top=1e30 is not allowed: a whole number from 1 to 1,000"),
        (["cluster=h200_x8_400g", "gpus=1e9"], "gpus=1e9 is not allowed: a whole number from 1 to 131,072"),
        (["cluster=h200_x8_400g", "parallel.dp_replicate=9999999"], "parallel.dp_replicate=9999999 is not allowed"),
        (["cluster=h200_x8_400g", "measure=1001"], "how many of the fastest are run, 1,000 at most"),
    ],
)
def test_what_is_wrong_with_a_question_is_one_line(words: list[str], said: str) -> None:
    with pytest.raises(ValueError) as error:
        ask(words, config)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_profile_may_be_a_file_without_a_memory(tmp_path: Path) -> None:
    whole = profiles.profile("h200_x4")
    mine = replace(whole, name="mine", compute=replace(whole.compute, memory=None))
    path = tmp_path / "mine.yaml"
    path.write_text(write_profile(mine), "utf-8")
    assert ask([f"cluster={path}", "cluster.gpu_memory_gb=141"], config).profile == mine
    with pytest.raises(ValueError, match="does not say how much memory a GPU has: give"):
        ask([f"cluster={path}"], config)


def test_ranks_that_shard_share_experts_in_every_way_or_as_it_is_said() -> None:
    model = replace(MODEL, experts=8)
    every = {
        (axes.fsdp, axes.ep) for axes in meshes(question("gpus=16", model=model)) if axes.cp * axes.tp * axes.pp == 1
    }
    assert every == {(size, ep) for size in (1, 2, 4, 8, 16) for ep in (1, 2, 4, 8) if ep <= size}
    assert {axes.ep for axes in meshes(question("gpus=16", "parallel.ep=4", model=model))} == {4}
    assert {axes.ep for axes in meshes(question("gpus=16"))} == {1}
    found = answer(question("gpus=8", "top=3", model=model), step_time)
    assert all(settings_of(one.candidate)["parallel.ep"] == one.candidate.axes.ep for one in found.best)
    assert "parallel.ep=" in command(found)


@pytest.mark.parametrize("gpus", [1, 2, 6, 8, 64])
def test_meshes_are_all_ways_to_share_gpus_out(gpus: int) -> None:
    there = list(meshes(replace(question(), gpus=gpus)))
    sizes = range(1, gpus + 1)
    every = 0
    for first in (size for size in sizes if gpus % size == 0):
        for second in (size for size in sizes if gpus // first % size == 0):
            for third in (size for size in sizes if gpus // first // second % size == 0):
                rest = gpus // first // second // third
                every += sum(rest % size == 0 for size in range(1, min(rest, MODEL.layers) + 1))
    assert len(there) == len(set(there)) == every
    assert all(axes.size == gpus and axes.pp <= MODEL.layers for axes in there)


def small(found: Space, count: int, seed: int) -> list[Candidate]:
    return random.Random(seed).sample(list(found.candidates), min(count, len(found.candidates)))


WORDS = st.lists(
    st.sampled_from(("parallel.tp=2", "parallel.pp=2", "parallel.cp=2", "memory.checkpointing=every", "precision=fp8"))
)


@settings(max_examples=15, deadline=None)
@given(words=WORDS, gpus=st.sampled_from((2, 8, 16, 24)), seed=st.integers(0, 99), offload=st.sampled_from(
    ("none", "optimizer", "parameters")))  # fmt: skip
def test_candidates_are_what_the_trainer_takes_and_need_no_less_than_their_bound(
    words: list[str], gpus: int, seed: int, offload: str
) -> None:
    if gpus == 2:  # processes without GPUs
        words = [f"cluster={CPU}", *(word for word in dict.fromkeys(words) if word.startswith("memory"))]
    asked = question(f"gpus={gpus}", *dict.fromkeys(words))
    asked = replace(asked, config=replace(asked.config, memory=replace(asked.config.memory, offload=offload)))
    there, room = space(asked), Room(asked)
    assert [one.number for one in there.candidates] == list(range(len(there.candidates)))
    for one in small(there, 12, seed):
        mesh.check(one.config, gpus)
        assert mesh.axes(one.config.parallel, gpus) == one.axes
        assert least_states(asked) <= room.memory(one) <= needed(one)
        assert one.accumulated * one.sequences >= one.layout.share


@pytest.mark.parametrize(
    "words", [(), ("parallel.pp=4",), ("memory.checkpointing=every",), ("parallel.pp=2", "parallel.dp_replicate=2")]
)
def test_the_smallest_and_the_largest_micro_batch_of_a_layout_hold_the_least(words: tuple[str, ...]) -> None:
    asked = question("gpus=8", *words)
    candidates = space(asked).candidates
    ends = smallest(candidates)
    assert len({id(one.layout) for one in ends}) == len({id(one.layout) for one in candidates}) < len(candidates)
    assert len(ends) <= 2 * len({id(one.layout) for one in candidates}) < len(candidates)
    bound = Room(asked).memory
    every, few = (least_memory(some, bound, needed) for some in (candidates, ends))
    assert every is not None and few is not None and every[1] == few[1]


def test_what_is_refused_is_counted_by_reason() -> None:
    found = space(question("gpus=16"))
    assert found.refused["parallel.tp does not divide model.kv_heads"] > 0
    assert found.size == len(found.candidates) + sum(found.refused.values())
    assert found.refused["parallel.pp with pp_schedule=interleaved makes N stages but the model has N layers"] > 0
    assert len(found.refused) < 12, "kinds, without their numbers"
    many = space(question("gpus=128"))
    assert many.refused[TOO_MANY] > 0
    assert all(one.axes.data <= 64 for one in many.candidates)


def test_groups_of_ranks_are_joined_by_the_profile() -> None:
    there = question("gpus=24", "precision=bf16", "memory.checkpointing=none", "parallel.pp=1", "parallel.cp=1")
    found = space(there)
    assert found.refused[UNEVEN] > 0
    shards = {one.axes.dp_shard for one in found.candidates}
    assert 12 not in shards and 24 in shards, "twelve neighbours are a host and a half"
    for one in found.candidates:
        fullest(there.profile, one.config, one.axes)


def test_a_fixed_key_stays() -> None:
    words = ("parallel.zero=2", "parallel.pp=2", "parallel.pp_schedule=1f1b", "parallel.micro_batch_sequences=2")
    found = space(question(*words, "memory.checkpointing=full", "precision=bf16"))
    assert found.candidates
    for one in found.candidates:
        parallel = one.config.parallel
        assert (parallel.zero, parallel.pp, parallel.pp_schedule, one.sequences) == (2, 2, "1f1b", 2)
        assert (one.config.memory.checkpointing, one.config.precision.name) == ("full", "bf16")


def test_weights_that_are_not_cut_have_no_stages() -> None:
    copies = [one for one in space(question()).candidates if one.axes == Axes(dp_replicate=8)]
    assert {one.config.parallel.zero for one in copies} == {3}
    assert {mesh.strategy(one.config.parallel, one.axes) for one in copies} == {"ddp"}


def test_a_layout_is_compiled_or_not_but_is_no_two_candidates() -> None:
    found = space(question("gpus=2", "precision=bf16")).candidates
    kinds = [(replace(one.config, compile=CompileConfig()), one.axes, one.sequences) for one in found]
    assert len({repr(kind) for kind in kinds}) == len(kinds)
    assert {one.config.compile.blocks for one in found} == {True, False}


@pytest.mark.parametrize(
    ("given", "fixed", "interleaved"),
    [
        ({}, (), [2, 4]),
        ({"pp": 2, "pp_layers": (1, 1, 2, 2, 1, 1)}, (), [3]),
        ({"pp": 1, "pp_layers": (4, 4)}, (), [2, 4]),
        ({"pp": 2, "pp_stages": 3}, ("parallel.pp_stages",), [3]),
        ({"pp": 2, "pp_stages": 3}, (), [2, 4]),
        ({"pp": 2, "pp_stages": None}, ("parallel.pp_stages",), [2, 4]),
    ],
)
def test_stages_of_a_rank(given: dict[str, Any], fixed: tuple[str, ...], interleaved: list[int]) -> None:
    asked = question("gpus=2")
    parallel = replace(asked.config.parallel, **given)
    asked = replace(asked, config=replace(asked.config, parallel=parallel), fixed=frozenset(fixed))
    found = list(_schedules(asked))
    counts = [count for name, count in found if name == "interleaved"]
    assert counts == interleaved and all(type(count) is int for count in counts)
    assert [count for name, count in found if name in ("1f1b", "gpipe")] == [1, 1]
    assert [count for name, count in found if name == "zbv"] == [2]
    assert STAGES == (2, 4)
    one = replace(asked, config=replace(asked.config, parallel=replace(parallel, pp_schedule="1f1b")),
                  fixed=frozenset({*fixed, "parallel.pp_schedule"}))  # fmt: skip
    assert list(_schedules(one)) == [("1f1b", 1)]


EXPERTS = replace(MODEL, mlp_width=704, experts=8, shared_experts=1)


@pytest.mark.parametrize(
    ("words", "sections"),
    [
        (("gpus=8",), {}),
        (("gpus=24",), {"model": replace(MODEL, kv_heads=2, mlp_width=2820)}),
        (("gpus=8",), {"model": EXPERTS}),
        (("gpus=16", "parallel.zero=1"), {"compile": CompileConfig(blocks=None)}),
        (("gpus=8", "memory.checkpointing=full", "precision=bf16"), {}),
        ((f"cluster={CPU}", "gpus=2"), {}),
    ],
)
def test_the_space_is_that_of_asking_the_trainer_about_every_layout(
    words: tuple[str, ...], sections: dict[str, Any]
) -> None:
    asked = question(*words, **sections)
    base, candidates, refused = asked.config, [], Counter[str]()
    assert base.batch.tokens is not None
    for axes in meshes(asked):
        sizes = _sizes(asked, mesh.share_of_batch(base, axes))
        too_many = axes.data > base.batch.tokens // base.data.sequence_length
        unfit = TOO_MANY if too_many else "" if profiles.groups_joined(asked.profile, axes) else UNEVEN
        for parallel in _parallels(asked, axes):
            for memory, precision, either in _others(asked):
                for compiled in either:
                    one = replace(base, parallel=parallel, memory=memory, precision=precision, compile=compiled)
                    why = unfit or refusal(one, asked.gpus)
                    if not why:
                        candidates += [(axes, one, size) for size in sizes]
                        break
                    refused[why] += len(sizes)
    there = space(asked)
    assert [(one.axes, one.layout.config, one.sequences) for one in there.candidates] == candidates
    assert [one.number for one in there.candidates] == list(range(len(candidates)))
    assert there.refused == refused


@pytest.mark.parametrize("name", [{"tp": 2}, {"pp": 4, "pp_schedule": "1f1b", "pp_stages": 1}, {"dp_shard": 4}])
def test_what_does_not_fit_is_known_by_one_rank_that_is_too_full(name: dict[str, Any]) -> None:
    asked = question("gpus=4")
    parallel = replace(asked.config.parallel, micro_batch_sequences=2, **{"dp_shard": 1, **name})
    one = replace(asked.config, parallel=parallel)
    axes = mesh.axes(parallel, math.prod(size for key, size in name.items() if key in MESH_AXES))
    exact = sheet(one, axes, "cuda").needed
    assert needed_or_over(one, axes, "cuda", exact) == exact
    assert exact - 1 < needed_or_over(one, axes, "cuda", exact - 1) <= exact
    assert 1 < needed_or_over(one, axes, "cuda", 1) <= exact
