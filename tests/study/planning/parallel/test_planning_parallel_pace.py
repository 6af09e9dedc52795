"""Bounds of time are below what the model says, and so the best are those that pricing everything finds."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.planning.parallel.answer import answer, needed
from study.planning.parallel.pace import Pace
from study.planning.parallel.question import Question
from study.planning.parallel.search import Priced
from study.planning.parallel.space import space
from tests.study.planning.parallel.questions import CPU, MODEL, question
from train.spec.config import BatchConfig, MemoryConfig, ModelConfig, PrecisionConfig
from train.spec.step_time import step_time

LAST_DIGITS = 1 + 1e-9
WIDE = ModelConfig(width=4096, layers=16, head_dim=128, kv_heads=8, mlp_width=14336, qk_norm=False)
WINDOWS = replace(MODEL, window=128, global_every=3)
EXPERTS = replace(MODEL, mlp_width=704, experts=8, shared_experts=1)
VARIANTS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "plain": ((), {}),
    "wide": ((), {"model": WIDE}),
    "windows": ((), {"model": WINDOWS}),
    "an uneven batch": ((), {"batch": BatchConfig(tokens=50 * 1024)}),
    "some blocks in bf16": (("precision=fp8",), {"precision": PrecisionConfig(name="fp8", fp8_keep_blocks=1)}),
    "fp32": (("precision=fp32",), {}),
    "a budget": (("memory.checkpointing=budget",), {"memory": MemoryConfig(checkpointing="budget", budget_gib=4.0)}),
    "passes of a pipeline": (("parallel.pp=2", "parallel.pp_micro_batches=8"), {}),
    "offloaded": ((), {"memory": MemoryConfig(offload="optimizer")}),
    "not compiled": ((), {"batch": BatchConfig(tokens=50 * 1024)}),
    "experts": ((), {"model": EXPERTS}),
    "on a CPU": ((f"cluster={CPU}",), {}),
}


def asked(name: str, gpus: int) -> Question:
    words, sections = VARIANTS[name]
    found = question(f"gpus={gpus}", *words, **sections)
    if name == "not compiled":
        plain = replace(found.config, compile=replace(found.config.compile, blocks=False))
        return replace(found, config=plain, fixed=found.fixed | {"compile.blocks"})
    return found


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(sorted(VARIANTS)), gpus=st.sampled_from((1, 2, 8)), seed=st.integers(0, 99))
def test_no_step_is_shorter_than_its_bounds(name: str, gpus: int, seed: int) -> None:
    there = asked(name, {"passes of a pipeline": 16, "on a CPU": min(gpus, 2)}.get(name, gpus))
    pace, found = Pace(there), space(there).candidates
    assert found
    for one in random.Random(seed).sample(list(found), min(len(found), 12)):
        exact = step_time(one.config, one.axes, there.profile).seconds * LAST_DIGITS
        assert pace.seconds(one) <= exact
        assert pace.closer(one) <= exact
        assert pace.seconds(one) <= pace.closer(one) * LAST_DIGITS


@pytest.mark.parametrize("name", ["plain", "windows", "not compiled", "experts"])
def test_the_best_are_those_of_pricing_everything(name: str) -> None:
    one_question = asked(name, 4)
    every = [
        Priced(one, needed(one), step_time(one.config, one.axes, one_question.profile))
        for one in space(one_question).candidates
    ]
    every.sort(key=lambda one: one.order)
    for memory in (141_000_000_000, 4_000_000_000):  # neither changes what a layout takes or how fast it is
        found = answer(replace(one_question, memory=memory, top=5), step_time)
        fitting = [one for one in every if one.needed <= memory]
        assert [one.order for one in found.best] == [one.order for one in fitting[:5]]
        assert found.best or not fitting
        assert found.found.priced <= len(fitting)
        assert found.found.priced + found.found.slower + found.found.too_large == len(found.space.candidates)
