"""`python -m study plan step`: what it adds up, what it refuses, what it writes."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as Tree
from collections.abc import Callable
from pathlib import Path

import pytest

from study.__main__ import main
from study.config.single import composed
from study.planning.memory.question import Subject
from study.planning.memory.sheet import largest_micro_batch
from study.planning.parallel.question import ask as ask_layouts
from study.planning.step import plan
from study.planning.step.answer import Answer, answer
from study.planning.step.question import ask
from study.planning.step.words import fields, parts, refusal, rows, tables, title, verdict
from tests.study.planning.parallel.questions import CPU, config
from train.spec.accounting.step import sheet
from train.spec.communication.stages import micro_batches_of
from train.spec.step_time import step_time

ON = ("cluster=h200_x8_400g", "gpus=16", "precision=bf16")
PIPELINE = ("parallel.pp=4", "parallel.dp_replicate=4", "parallel.pp_schedule=1f1b")


def asked(*words: str) -> Answer:
    return answer(ask([*ON, *words], config))


@pytest.mark.parametrize("words", [("parallel.dp_shard=16",), PIPELINE, ("parallel.tp=2", "parallel.dp_shard=8")])
def test_parts_and_limits_add_up_to_the_step(words: tuple[str, ...]) -> None:
    found = asked(*words)
    assert sum(value for _, value, _ in parts(found)) == pytest.approx(found.time.seconds)
    by_limit: dict[str, float] = {}
    for _, value, limit in parts(found):
        by_limit[limit] = by_limit.get(limit, 0.0) + value
    assert by_limit == pytest.approx({name: value for name, value in found.time.limits.items() if value})
    assert found.time == step_time(found.question.config, found.question.axes, found.question.profile)
    assert all(len(table.head) == len(row) for table in tables(found) for row in table.rows)


def test_an_open_micro_batch_is_the_largest_that_fits() -> None:
    found = asked("parallel.dp_shard=16")
    question = found.question
    assert question.chosen and "the largest that fits" in verdict(found)
    subject = Subject(question.config, question.axes, question.memory)
    assert max(found.micro.sizes) == largest_micro_batch(subject)
    assert found.needed == sheet(question.config, question.axes, "cuda", max(found.micro.sizes)).needed
    given = asked("parallel.dp_shard=16", "parallel.micro_batch_sequences=1")
    assert set(given.micro.sizes) == {1} and "largest" not in verdict(given)


def test_all_wait_for_the_slowest() -> None:
    even, late = asked("parallel.dp_shard=16"), asked("parallel.dp_shard=16", "slowest=1.1")
    assert {name: value for name, value, _ in parts(late)}["stragglers"] == pytest.approx(0.1 * even.time.compute)
    assert late.time.seconds >= even.time.seconds, "launches go on meanwhile"


def test_rows_and_fields_say_the_same() -> None:
    found = asked(*PIPELINE)
    said = fields(found)
    assert json.loads(json.dumps(said)) == said
    read = {row["part"]: float(row["seconds"]) for row in csv.DictReader(io.StringIO(rows(found)))}
    assert read.pop("step") == said["seconds"] == pytest.approx(sum(read.values()))
    assert read["pipeline's bubble"] == said["bubble"] > 0
    assert sum(one["sent"] for one in said["messages"]) > 0
    assert "pp 4" in title(found)


def test_what_does_not_fit_is_refused_with_the_smallest_change_that_does() -> None:
    found = asked("parallel.dp_replicate=16", "cluster.gpu_memory_gb=1")
    assert not found.fits and "the largest that fits" not in verdict(found)
    assert "GB more than the 1.00 there are; none of sharding, checkpointing, offloading and mo" in refusal(found)
    found = asked("parallel.dp_replicate=16", "cluster.gpu_memory_gb=3")
    assert not found.fits and found.cure is not None
    words, needed = found.cure
    assert refusal(found).endswith(f"GB more than the 3.00 there are; {words} fits ({needed / 1e9:.2f} GB)")
    assert needed <= 3e9 < found.needed and "\n" not in refusal(found)


def test_a_change_asks_for_no_more_ranks_than_the_profile_joins() -> None:
    found = answer(ask((f"cluster={CPU}", "parallel.dp_replicate=2", "cluster.gpu_memory_gb=1"), config))
    assert not found.fits and (found.cure is None or "gpus=" not in found.cure[0])


def test_a_profile_of_cpus_is_planned_as_cpus() -> None:
    on = (f"cluster={CPU}", "parallel.dp_replicate=2", "parallel.micro_batch_sequences=2")
    found = answer(ask(on, config))
    question = found.question
    sheets = {device: sheet(question.config, question.axes, device, 2) for device in ("cpu", "cuda")}
    assert found.needed == sheets["cpu"].needed < sheets["cuda"].needed, "no CUDA context, no NCCL buffers"
    assert "2 CPU ranks of 4 GB" in title(found) and "The fullest CPU rank needs" in verdict(found)
    names = {name for name, _, _ in parts(found)}
    assert "calls of operations" in names and not names & {"gaps", "waiting for launches"}
    flops = found.time.model_flops / question.axes.size
    assert found.time.parts["matmul"] + found.time.parts["head"] >= 0.9 * flops / 1e11, "at the profile's rate"
    assert found.time.compute < 2 * flops / 1e11, "tiles of a GPU are not counted"


def test_an_open_micro_batch_on_cpus_is_what_the_trainer_plans_with() -> None:
    found = answer(ask((f"cluster={CPU}", "parallel.dp_replicate=2"), config))
    planned = micro_batches_of(found.question.config, found.question.axes, "cpu")
    assert found.micro == planned and "as none was given" in verdict(found)


@pytest.mark.parametrize("asks", [ask, ask_layouts])
def test_a_key_that_there_is_not_is_said_before_a_word_that_is_missing(asks: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match=r"^unknown key 'unknown.key'"):
        asks(("unknown.key=1",), composed)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gpus=8",), "cluster= is missing"),
        (("cluster=h200_x4", "gpus=8"), "the nearest is gpus=4"),
        (
            ("cluster=h200_x8_400g", "gpus=16", "parallel.dp_shard=4", "parallel.dp_replicate=1"),
            "gpus=16: .*the nearest is gpus=4",
        ),
        (
            ("cluster=h200_x8_400g", "gpus=24", "parallel.dp_shard=12", "parallel.dp_replicate=2"),
            "parallel.dp_shard x cp=12: .* 12 ranks do not fill such .* or a multiple of 8; the nearest size is 16",
        ),
        (("cluster=h200_x8_400g", "slowest=0.5"), "slowest=0.5 is not allowed"),
        (
            ("cluster=h200_x8_400g", "slowest=inf"),
            "slowest=inf is not allowed: the slowest GPU's time over the others', 1",
        ),
        (("cluster=h200_x8_400g", "slowest=1e30"), "slowest=1e30 is not allowed"),
        (("cluster=h200_x8_400g", "slowest=late"), "slowest=late is not allowed"),
        (("cluster=h200_x8_400g", "slow=1.1"), "did you mean slowest=1.1"),
    ],
)
def test_bad_words_are_answered_with_what_would_do(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ask(words, config)


def test_the_command_writes_page_rows_and_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "composed", config)
    out = tmp_path / "sheet"
    assert main(["plan", "step", *ON, *PIPELINE, f"out={out}", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert sorted(Path(path).name for path in said["files"]) == [
        "step.csv", "step.md", "step.png", "step.svg", "timeline.svg",
    ]  # fmt: skip
    assert "python -m study plan step cluster=h200_x8_400g" in (out / "step.md").read_text("utf-8")
    timeline = Tree.fromstring((out / "timeline.svg").read_text("utf-8"))
    boxes = [one.text or "" for one in timeline.iter("{http://www.w3.org/2000/svg}title")]
    passes = 2 * said["axes"]["pp"] * len(said["micro_batches"])
    assert len([box for box in boxes if "micro-batch" in box]) == passes, "each rank, forward and backward"
