"""The memory sheet: what is asked, what is answered, and what it says where the answer is no."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest

from study.__main__ import main
from study.config.schema import ClusterConfig, StudyConfig
from study.config.single import composed
from study.planning.memory.figure import COLOURS, colours, grouped, visible
from study.planning.memory.generation import Generating, generating
from study.planning.memory.generation import verdict as said_of
from study.planning.memory.question import Question, Subject, ask, axes_of
from study.planning.memory.sheet import Answer, Change, answer, largest_micro_batch
from study.planning.memory.together import together
from study.planning.memory.words import comma_separated, fields, refusal, tables, verdict
from train.spec.accounting import outside
from train.spec.accounting.step import COMPONENTS
from train.spec.accounting.step import sheet as sheet_of
from train.spec.config import BatchConfig, BudgetConfig, DataConfig, ModelConfig, ParallelConfig, PrecisionConfig
from train.spec.mesh import Axes

MODEL = ModelConfig(width=1024, layers=8, head_dim=64)
FSDP = ParallelConfig(dp_replicate=1, dp_shard=None)


def config(words: Sequence[str] = (), **changes: Any) -> StudyConfig:
    """Return a config in place of a composed one; memory= and width= of the words count."""
    given = dict(word.partition("=")[::2] for word in words)
    model = replace(MODEL, width=int(given.get("width", 1024)))
    return StudyConfig(
        data=DataConfig(sequence_length=1024, vocab_size=8192),
        batch=BatchConfig(tokens=64 * 1024),
        budget=BudgetConfig(tokens=10**8),
        precision=PrecisionConfig(name="bf16"),
        **{
            "model": model,
            "parallel": FSDP,
            "cluster": ClusterConfig(gpu_memory_gb=float(given.get("memory", 80))),
            **changes,
        },
    )


def subject(gpus: int = 4, memory: float = 80, **changes: Any) -> Subject:
    question = ask([f"gpus={gpus}", f"memory={memory}"], lambda words: config(words, **changes))
    return question.single


def test_a_question_has_its_own_words_and_those_of_a_study(tmp_path: Path) -> None:
    seen: list[Sequence[str]] = []

    def compose(words: Sequence[str]) -> StudyConfig:
        seen.append(list(words))
        return config(words)

    found = ask(["model=7b", "gpus=8", f"out={tmp_path}", "data.vocab_size=9"], compose)
    assert seen == [["model=7b", "data.vocab_size=9"]]
    assert (found.out, found.rollouts) == (tmp_path, None)
    assert (found.single.gpus, found.single.axes, found.single.memory) == (8, Axes(dp_shard=8), 80 * 10**9)
    assert found.single.config.model.init_std is not None, "it is resolved"
    seen.clear()
    several = ask(["roles=policy,reward", "reward.model=1b", "rollouts=3", "model=8b", "gpus=2"], compose)
    assert (list(several.subjects), several.rollouts) == (["policy", "reward"], 3)
    assert seen == [["model=8b"], ["model=8b", "model=1b"]]
    assert list(ask(["roles=rlhf", "gpus=2"], compose).subjects) == ["policy", "reference", "reward", "critic"]


def test_gpus_are_those_of_the_cluster_where_none_are_named() -> None:
    cluster = ClusterConfig(nodes=2, gpus_per_node=8, tasks_per_node=8)
    assert ask([], lambda words: config(words, cluster=cluster)).single.gpus == 16
    assert ask([], config).single.gpus == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpus=0"], r"gpus=0 is not allowed: a whole number from 1 to 1,000,000"),
        (["gpus=1e30"], r"gpus=1e30 is not allowed: a whole number from 1 to 1,000,000"),
        (["gpus=nan"], r"gpus=nan is not allowed"),
        (["gpus=2.5"], r"gpus=2.5 is not allowed"),
        (["cached=1e30"], r"cached=1e30 is not allowed"),
        (["gpus=two"], r"gpus=two is not allowed"),
        (["gpu=2"], r"unknown key 'gpu' in gpu=2: did you mean gpus=2\?"),
        (["out="], r"out= has no value; it says: folder of memory\.md"),
        ([f"out={__file__}"], r"test_planning_memory\.py is a file: give the folder of memory\.md"),
        (["roles=policy,judge"], r"roles=policy,judge names 'judge', which is no role: choose from policy, "),
        (["roles=critics"], r"names 'critics', which is no role: did you mean critic\?"),
        (["roles=policy,policy"], r"names a role twice"),
        (["rollouts=4"], r"rollouts=4 belongs to roles: add roles=rlhf"),
        (["roles=policy", "reward.model=1b"], r"reward\.model=1b is of the role reward, which is not asked for"),
    ],
)
def test_a_word_that_means_nothing_is_named_with_what_would_do(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ask(words, config)


def test_ranks_that_do_not_divide_name_the_nearest_number() -> None:
    run = subject().config
    six = replace(run, parallel=replace(FSDP, tp=2, pp=2))
    with pytest.raises(
        ValueError, match=r"^gpus=6: parallel\.tp=2 x parallel\.pp=2 makes 4 .*; the nearest is gpus=8$"
    ):
        axes_of(six, 6)
    assert axes_of(six, 8) == Axes(dp_shard=2, tp=2, pp=2)
    fixed = replace(run, parallel=ParallelConfig(dp_replicate=3))
    with pytest.raises(ValueError, match=r"^gpus=4: parallel\.dp_replicate=3 makes 3 ranks .*; the nearest is gpus=3$"):
        axes_of(fixed, 4)


def test_the_micro_batch_is_the_largest_that_fits() -> None:
    asked = subject(memory=5.7)
    size = largest_micro_batch(asked)
    assert 16 % size == 0 and 1 < size < 16
    needed = [sheet_of(asked.config, asked.axes, "cuda", n).needed for n in (size, 2 * size)]  # cut evenly
    assert needed[0] <= asked.memory < needed[1]
    found = answer(asked)
    assert found.chosen.sheet.sequences == found.largest == size
    assert found.fits and found.cure is None
    assert largest_micro_batch(replace(asked, memory=10**9)) == 0
    given = subject(parallel=replace(FSDP, micro_batch_sequences=2))
    assert answer(given).chosen.sheet.sequences == 2


def test_the_stages_and_policies_are_the_run_with_one_thing_changed() -> None:
    found = answer(subject(parallel=replace(FSDP, micro_batch_sequences=4)))
    assert [one.name for one in found.stages] == ["ZeRO-0", "ZeRO-1", "ZeRO-2", "ZeRO-3"]
    assert found.stages[3].sheet == found.chosen.sheet == found.policies[0].sheet
    needed = [one.sheet.needed for one in found.stages]
    assert needed == sorted(needed, reverse=True)
    kept = [one.sheet.needed for one in found.policies]
    assert kept == sorted(kept, reverse=True)
    again = [one.recomputed for one in found.policies]
    assert again[:2] == [0, 0] and 0 < again[2] < again[3] < found.flops.forward
    shared = answer(subject(parallel=replace(FSDP, cp=2)))
    assert [one.name for one in shared.stages] == ["ZeRO-1", "ZeRO-2", "ZeRO-3"]


def no(memory: float, **changes: Any) -> Answer:
    found = answer(subject(memory=memory, **changes))
    assert not found.fits
    return found


def test_what_does_not_fit_names_the_smallest_change_that_does() -> None:
    many = no(5.7, parallel=replace(FSDP, micro_batch_sequences=16))
    assert many.cure is not None
    assert many.cure[0] == "parallel.micro_batch_sequences=8" and many.cure[1] <= 5.7e9
    said = refusal(many)
    assert verdict(many) == said
    assert said.startswith("does not fit: with parallel.micro_batch_sequences=16 each of gpus=4 needs ")
    assert "GB more than cluster.gpu_memory_gb=5.7; parallel.micro_batch_sequences=8 fits (" in said


COPIES = ParallelConfig(dp_replicate=None)


@pytest.mark.parametrize(
    ("memory", "parallel", "words"),
    [
        (2.7, FSDP, "memory.checkpointing=full"),
        (2.7, replace(FSDP, micro_batch_sequences=4), "parallel.micro_batch_sequences=1 memory.checkpointing=full"),
        (2.4, FSDP, "gpus=32"),
        (3.2, COPIES, "parallel=fsdp"),
        (2.7, COPIES, "memory.checkpointing=full parallel=fsdp"),
        (3.8, replace(COPIES, dp_replicate=4), "memory.checkpointing=full"),
        (0.8, FSDP, None),
    ],
)
def test_the_smallest_change_is_looked_for(memory: float, parallel: ParallelConfig, words: str | None) -> None:
    found = no(memory, parallel=parallel)
    if words is None:
        assert found.cure is None
        assert "none of sharding, checkpointing, offloading and more GPUs is enough: set" in refusal(found)
        return
    assert found.cure is not None
    assert found.cure[0] == words and found.cure[1] <= memory * 1e9


def test_changes_that_cannot_be_are_passed_over() -> None:
    fixed, copies = subject(parallel=ParallelConfig(dp_replicate=2, dp_shard=2)), subject(parallel=COPIES)
    assert Change(doublings=1).of(fixed) is None, "a mesh that is given has no further ranks"
    assert Change(sharded=True).of(subject()) is None, "they are already"
    assert Change(offload="parameters").of(copies) is None, "there are no shards to move"
    moved = Change("full", True, 1, "parameters").of(copies)
    assert moved is not None
    assert (moved.axes, moved.config.memory.checkpointing) == (Axes(dp_shard=8), "full")
    assert Change("full", True, 1, "parameters").words(moved) == [
        "memory.checkpointing=full", "parallel=fsdp", "gpus=8", "memory.offload=parameters"
    ]  # fmt: skip


def test_the_tables_say_what_the_sheet_holds() -> None:
    found = answer(subject(parallel=replace(FSDP, micro_batch_sequences=4)))
    by_title = {table.title.partition(",")[0].partition(" (")[0]: table for table in tables(found)}
    assert len(by_title) == 5
    total = found.counts.total
    states = {row[0]: row[1:] for row in by_title["States"].rows}
    assert states["weights, fp32"] == (f"{4 * total / 1e9:,.2f}", f"{total / 1e9:,.2f}")
    assert states["optimizer states (adamw)"] == (f"{8 * total / 1e9:,.2f}", f"{2 * total / 1e9:,.2f}")
    assert states["together"][0] == f"{18 * total / 1e9:,.2f}"
    peak = {row[0]: row[1] for row in by_title["Fullest GPU at its peak"].rows}
    assert peak["needed"] == f"{found.chosen.sheet.needed:,}"
    assert (
        sum(int(peak[name].replace(",", "")) for name in found.chosen.sheet.peak.parts) == found.chosen.sheet.peak.total
    )
    written = dict(line.split(",") for line in comma_separated(fields(found)).splitlines()[1:])
    assert int(written["chosen.parts.weights"]) == found.chosen.sheet.peak.parts["weights"]
    assert int(written["stages.ZeRO-0.needed"]) == found.stages[0].sheet.needed
    assert written["cure"] == ""


def test_four_models_share_their_gpus() -> None:
    layout = replace(FSDP, micro_batch_sequences=1)
    words = ["roles=rlhf", "gpus=4", "reward.width=512"]
    question: Question = ask(words, lambda words: config(words, parallel=layout))
    found = together(question)
    by_role = {one.role: one for one in found.placed}
    assert by_role["policy"].staying == pytest.approx(by_role["policy"].params * 12 / 4, rel=0.01), "fp32 and moments"
    assert by_role["reference"].staying == pytest.approx(by_role["policy"].params * 2 / 4, rel=0.01), "bf16"
    assert by_role["reward"].params < by_role["reference"].params
    assert [one.trained for one in found.placed] == [True, False, False, True]
    resting = sum(one.staying for one in found.placed)
    assert found.phases["critic trains"] == resting + by_role["critic"].at_work
    assert found.cache == 16 * 1024 * 2 * 8 * 1024 * 2, "16 sequences of a step on each GPU"
    assert found.phases["policy generates"] > resting + found.cache
    assert found.needed == max(found.phases.values()) + found.margin + found.context + found.nccl
    assert found.nccl == 3 * outside.CHANNELS * outside.BUFFERS, "all models are on the same groups of ranks"
    assert found.fits
    one = together(replace(question, rollouts=1))
    assert one.cache == found.cache // 16
    critics = ask(["roles=critic", "gpus=4"], lambda words: config(words, parallel=layout))
    assert list(together(critics).phases) == ["critic trains"]


def generated(*words: str, **changes: Any) -> Generating:
    question = ask(words, lambda rest: config(rest, **changes))
    assert question.generation is not None
    return generating(question.single, question.generation)


def test_generation_keeps_weights_in_bf16_and_keys_and_values_of_all_sequences() -> None:
    found = generated("gpus=1", "generate=3")
    assert found.a_token == 2 * 8 * 1024 * 2, "keys and values of eight layers in bf16"
    assert found.parts["keys and values"] == 3 * 1024 * found.a_token
    assert found.parts["weights"] == 2 * found.params
    fewer = replace(MODEL, kv_heads=4)
    assert generated("gpus=1", "generate=3", model=fewer).a_token == found.a_token // 4
    shared = ParallelConfig(tp=2, dp_replicate=1, dp_shard=1)
    assert generated("gpus=2", "generate=3", parallel=shared).a_token == found.a_token // 2
    latent = generated("gpus=2", "generate=3", "cached=576", parallel=shared)
    assert latent.a_token == 576 * 8 * 2, "tensor parallelism does not cut a latent"


def test_as_many_sequences_are_generated_as_are_said_to_fit() -> None:
    found = generated("gpus=1", "generate=1", "memory=4")
    assert found.fits and found.most > 1
    assert generated("gpus=1", f"generate={found.most}", "memory=4").fits
    over = generated("gpus=1", f"generate={found.most + 1}", "memory=4")
    assert not over.fits and said_of(over).endswith(f"; generate={found.most} fits")
    lengths = list(found.by_length.items())
    assert [length for length, _ in lengths] == [256, 512, 1024, 2048, 4096]
    assert found.by_length[1024] == found.most
    assert all(more > fewer for (_, more), (_, fewer) in pairwise(lengths))
    assert "not one sequence fits" in said_of(generated("gpus=1", "generate=1", "memory=1"))


def test_a_picture_has_one_colour_for_components_that_belong_together() -> None:
    found = grouped({"weights": 3, "casts": 1, "gathered": 2, "margin": 1, "context": 1})
    assert found == {"weights": 3, "copies": 3, "margin, context, NCCL": 2}


def test_no_two_parts_of_a_bar_have_colours_that_look_alike() -> None:
    parts = list(dict.fromkeys(next(iter(grouped({name: 1}))) for name in (*COMPONENTS, "margin")))
    shown = colours(parts)
    assert len(parts) == 8 and shown["margin, context, NCCL"] == colours(["margin, context, NCCL"])[parts[-1]]
    for one, other in combinations([*COLOURS, shown[parts[-1]]], 2):
        apart = [abs(int(one[at : at + 2], 16) - int(other[at : at + 2], 16)) for at in (1, 3, 5)]
        assert sum(apart) > 100, (one, other)


RUN = ["model=tiny", "gpus=2", "parallel=fsdp", "precision=bf16"]


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "memory", *RUN, f"out={tmp_path / 'sheet'}"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("64 x 2 on 2 GPUs of 80 GB (dp_shard 2), bf16, adamw\n")
    assert "\nStages of ZeRO" in printed and "\nFits: " in printed
    files = {path.name: path for path in (tmp_path / "sheet").iterdir()}
    assert sorted(files) == ["memory.csv", "memory.md", "memory.png", "memory.svg"]
    assert f"`python -m study plan memory {' '.join(RUN)} out=" in files["memory.md"].read_text("utf-8")
    assert "| ZeRO-3 |" in files["memory.md"].read_text("utf-8")
    assert files["memory.svg"].read_text("utf-8").count("<path") > 8 * 5, "a bar of several parts for each variant"


def test_the_command_answers_what_generation_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "memory", *RUN, "generate=4", f"out={tmp_path}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["sequences"], found["fits"]) == (4, True)
    assert found["needed"] == sum(found["parts"].values()) + sum(found["beside"].values())
    assert len(found["files"]) == 4


def test_the_command_answers_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "memory", *RUN, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["command"], found["what"], found["gpus"], found["fits"]) == ("plan", "memory", 2, True)
    assert sum(found["chosen"]["parts"].values()) == found["chosen"]["tensors"]
    assert main(["plan", "memory", *RUN, "--json", "cluster.gpu_memory_gb=0.01"]) == 2
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert not found["fits"] and found["error"].startswith("does not fit: ")
    assert captured.err == f"study plan: {found['error']}\n"
    roles = ["roles=rlhf", "cluster.gpu_memory_gb=0.01", *RUN]
    assert main(["plan", "memory", *roles, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"].endswith("is enough: take smaller models")


def test_models_that_do_not_fit_together_are_told_the_fewest_gpus_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "memory", "roles=rlhf", "model=30b", "precision=bf16", "cluster.gpu_memory_gb=80", "--json"]
    assert main([*words, "gpus=1"]) == 2
    told = json.loads(capsys.readouterr().out)
    cure, needed = told["cure"]["words"], told["cure"]["needed"]
    assert told["error"].endswith(f"{cure} fits ({needed / 1e9:,.2f} GB)")
    assert main([*words, *cure.split()]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["fits"], found["needed"], found["cure"]) == (True, needed, None)
    assert main([*words, f"gpus={found['gpus'] // 2}", "parallel=fsdp"]) == 2, "half as many are too few"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["memroy"], "unknown plan 'memroy': did you mean memory?"),
        (["xyz"], "unknown plan 'xyz': there is memory"),
        (["model.width=64"], "which plan? Name it before the keys: study plan memory|step|parallel model.width=64"),
        (["memory", "step", "model=tiny"], "memory and step are two plans: ask for one after the other"),
        (["memory", "top=5"], "top=5 is a word of study plan parallel, not of study plan memory: leave it out"),
        (["parallel", "slowest=2"], "slowest=2 is a word of study plan step, not of study plan parallel"),
        (
            ["memory", "cluster=h200_x4"],
            "cluster=h200_x4 names a profile, which study plan step and study plan parallel "
            "read: study plan memory takes cluster.gpu_memory_gb=GB of a GPU instead",
        ),
        (["memory", "cluster=slrum"], "cluster=slrum is not an option of cluster: choose one of local, slurm"),
        (["memory", "reference=70b_x64"], "reference= is a group that is added to a config: write +reference=OPTION"),
        (["memory", "=5"], "=5 has no key before its =: write KEY=VALUE"),
        (["memory", "roles=rlhf", "reward.model=1c"], "reward: model=1c is not an option of model"),
        (["memory", "--gpus=8"], "there is no --gpus=8: keys are written without dashes, gpus=8; usage: "),
        (["memory", "--gpus", "8"], "there is no --gpus 8: keys are written without dashes, gpus=8; usage: "),
        (["memory", "--json=yes"], "--json takes no value: leave =yes out; usage: "),
        (["memory", "--jsn"], "there is no --jsn: did you mean --json?"),
        (["memory", "model=9b"], "model=9b is not an option of model: choose one of 124m, "),
        (["memory", "model.widht=8"], "unknown key 'model.widht': did you mean model.width?"),
        (["memory", "model.width=8x"], "model.width"),
        (["memory", "model=7b,8b"], "model=7b,8b stands for several values: give one"),
        (["memory", "cluster.gpu_memory_gb=-1"], "cluster.gpu_memory_gb=-1 is not allowed: GB of one GPU, more than 0"),
        (["memory", "cluster.gpu_memory_gb=1e30"], "cluster.gpu_memory_gb=1e+30 is not allowed"),
        (["memory", "cluster.nodes=-1"], "cluster.nodes=-1 is not allowed: 1 to 1,000,000"),
        (["memory", "cluster.gpus_per_node=1e30"], "cluster.gpus_per_node=1e+30 is not allowed: 0 to 1,000,000"),
        (["memory", "model.width=1e30"], "model.width=1e+30 is not allowed: at most 1,048,576"),
        (["memory", "model=tiny", "parallel.tp=3", "parallel.dp_shard=null"], "parallel.tp=3 does not divide"),
    ],
)
def test_bad_words_end_with_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"study plan: {message}") and captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_config_is_what_a_sweep_composes() -> None:
    found = composed(["model=30b", "parallel=fsdp"])
    assert (found.model.width, found.model.layers, found.parallel.dp_shard) == (6144, 60, None)


PAGE = Path(__file__).parents[4] / "docs" / "howto" / "memory.md"
SHOWN = re.findall(r"```bash\npython -m study ([^\n]*)\n```\n\n```text\n(.*?)\n```", PAGE.read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize(("command", "shown"), SHOWN)
def test_the_page_shows_what_its_commands_print(command: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(SHOWN) == 3
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == f"{shown}\n"


def test_the_legend_names_no_part_that_is_too_small_to_see() -> None:
    bars = [{"weights": 40_000, "messages": 79, "logits": 0}, {"weights": 30_000, "messages": 0, "moments": 80}]
    order = ["weights", "moments", "weights", "messages", "logits"]
    assert visible(bars, order, 80_000) == ["weights", "moments"]
    assert visible(bars, order, 79_000) == ["weights", "moments", "messages"], "against the axis, not against a bar"
    assert visible([{"weights": 100_000, "moments": 80}], order, 80_000) == ["weights"], (
        "which a bar may be longer than"
    )
