"""Several models on the same GPUs, number by number: what generation adds, what fits, and on how many GPUs it would."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from study.planning.memory import together as module
from study.planning.memory.question import Question, ask
from study.planning.memory.together import Placed, Together, cure, together
from tests.study.planning.memory.test_planning_memory import FSDP, config
from train.spec.accounting import inference
from train.spec.accounting.step import sheet
from train.spec.config import ParallelConfig

WIDTH, VOCABULARY = 1024, 8192


def asked(*words: str, parallel: ParallelConfig = FSDP, memory: float = 80.0) -> Question:
    layout = replace(parallel, micro_batch_sequences=1)
    given = ["roles=rlhf", "gpus=4", f"memory={memory}", *words]
    question: Question = ask(given, lambda rest: config(rest, parallel=layout))
    return question


@pytest.mark.parametrize(("needed", "fits"), [(79, True), (80, True), (81, False)])
def test_what_is_needed_fits_up_to_all_that_there_is(needed: int, fits: bool) -> None:
    phases = {"a": needed - 6, "b": 3}
    found = Together((), phases, 0, 1, gpus=1, memory=80, margin=1, context=2, nccl=3)
    assert (found.needed, found.fits) == (needed, fits)


def test_generation_adds_a_cache_a_block_and_the_logits_of_one_token() -> None:
    question = replace(asked(), rollouts=3)
    found = together(question)
    policy = question.subjects["policy"]
    resting = sum(one.staying for one in found.placed)
    passing = inference.frozen(policy.config, policy.axes, 1)
    logits = 3 * 4 * (VOCABULARY + 8 * WIDTH)
    assert found.phases["policy generates"] == resting + found.cache + passing.gathered + logits
    assert found.cache == 3 * 1024 * 2 * 8 * WIDTH * 2
    shared = ParallelConfig(tp=2, dp_replicate=1, dp_shard=2)
    cut = together(replace(asked(parallel=shared), rollouts=3))
    two = asked(parallel=shared).subjects["policy"]
    of_tp = inference.frozen(two.config, two.axes, 1)
    assert cut.phases["policy generates"] - cut.cache - sum(one.staying for one in cut.placed) == (
        of_tp.gathered + 3 * 4 * (VOCABULARY // 2 + 8 * WIDTH)
    )


def test_a_rank_has_whole_entries_of_a_vocabulary_that_is_cut() -> None:
    policy: Any = SimpleNamespace(
        config=SimpleNamespace(data=SimpleNamespace(vocab_size=100), model=SimpleNamespace(width=10)),
        axes=SimpleNamespace(tp=3),
    )
    assert module._generating(policy, 2) == 4 * 2 * (33 + 80)


def test_who_generates_nothing_has_no_cache() -> None:
    question = asked()
    judged = replace(question, subjects={"reward": question.subjects["reward"]})
    found = together(judged)
    assert found.cache == 0 and list(found.phases) == ["reward judges"]


def test_what_stays_of_a_trained_model_is_its_states_and_the_rest_comes_and_goes() -> None:
    question = asked()
    found = {one.role: one for one in together(question).placed}
    for role in ("policy", "critic"):
        subject, one = question.subjects[role], found[role]
        whole = sheet(subject.config, subject.axes, "cuda", 1)
        assert one.staying + one.at_work == whole.peak.total and one.sequences == whole.sequences
        last = whole.moments[-1].parts
        assert one.staying == last["weights"] + last["moments"]
    offloaded = replace(
        question,
        subjects={
            role: replace(one, config=replace(one.config, memory=replace(one.config.memory, offload="parameters")))
            for role, one in question.subjects.items()
        },
    )
    assert [one.staying for one in together(offloaded).placed if one.trained] == [0, 0], "all of it lies on the host"
    frozen = found["reference"]
    subject = question.subjects["reference"]
    alone = inference.frozen(subject.config, subject.axes, 1)
    assert (frozen.staying, frozen.at_work, frozen.trained) == (alone.weights, alone.total - alone.weights, False)


def fitting_from(first: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have models fit from so many GPUs on; return the numbers that are tried."""
    tried: list[int] = []

    def judged(question: Question) -> Any:
        gpus = next(iter(question.subjects.values())).gpus
        tried.append(gpus)
        return SimpleNamespace(gpus=gpus, fits=gpus >= first, needed=1000 // gpus)

    monkeypatch.setattr(module, "together", judged)
    return tried


@pytest.mark.parametrize(
    ("first", "found"),
    [(1, ("parallel=fsdp", 250)), (8, ("gpus=8 parallel=fsdp", 125)), (4096, ("gpus=4096 parallel=fsdp", 0)),
     (4097, None)],
)  # fmt: skip
def test_gpus_are_doubled_up_to_ten_times(
    first: int, found: tuple[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = fitting_from(first, monkeypatch)
    question = asked(parallel=ParallelConfig(dp_replicate=4, dp_shard=1))
    assert cure(question) == found
    assert tried == [4 * 2**n for n in range(11) if n == 0 or 4 * 2 ** (n - 1) < first]


def test_a_number_of_gpus_that_one_model_cannot_have_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = fitting_from(8, monkeypatch)
    real = module._sharded
    monkeypatch.setattr(module, "_sharded", lambda one, doublings: real(one, doublings) if doublings > 1 else None)
    assert cure(asked()) == ("gpus=16 parallel=fsdp", 62) and tried == [16]


def test_models_that_are_sharded_already_stay_as_they_are() -> None:
    (subject, *_) = asked(parallel=replace(FSDP, zero=3)).subjects.values()
    same = module._sharded(subject, 0)
    assert same is not None and same.config.parallel.zero == 3 and same.gpus == subject.gpus
    (copies, *_) = asked(parallel=ParallelConfig(dp_replicate=4, dp_shard=1)).subjects.values()
    cut = module._sharded(copies, 1)
    assert cut is not None and cut.gpus == 8 and cut.config.parallel.zero == 3 and cut.axes.fsdp == 8
    assert isinstance(together(asked()).placed[0], Placed)
