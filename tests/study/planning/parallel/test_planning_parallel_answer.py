"""What a search says: its tables, why the winner won, and what to change where nothing fits."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.__main__ import main
from study.planning.parallel.answer import Answer, answer, as_words, cure, needed
from study.planning.parallel.answer import settings as settings_of
from study.planning.parallel.figure import _written, draw
from study.planning.parallel.links import by_level, fullest
from study.planning.parallel.profiles import profile
from study.planning.parallel.progress import Progress, silent
from study.planning.parallel.question import Question, ask
from study.planning.parallel.room import Room
from study.planning.parallel.search import least_memory
from study.planning.parallel.space import Candidate, Space, space
from study.planning.parallel.words import fields, refusal, rows, tables, verdict
from tests.study.planning.parallel.questions import config, question
from train.spec import mesh
from train.spec.communication.messages import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, SEND, Message, bus_factor
from train.spec.config import BatchConfig, ModelConfig
from train.spec.mesh import Axes
from train.spec.resolve import resolve
from train.spec.step_time import step_time

LARGE = ModelConfig(width=4096, layers=32, head_dim=128, kv_heads=8, mlp_width=14336, qk_norm=False)


def asked(*words: str, **changes: object) -> Answer:
    return answer(question(*words, **changes), step_time)


@settings(max_examples=8, deadline=None)
@given(gpus=st.sampled_from((1, 8, 16)), memory=st.sampled_from((2, 4, 20)), top=st.integers(1, 6))
def test_what_is_listed_can_run_and_fits(gpus: int, memory: int, top: int) -> None:
    found = asked(f"gpus={gpus}", f"cluster.gpu_memory_gb={memory}", f"top={top}")
    assert len(found.best) <= top
    for one in found.best:
        mesh.check(one.candidate.config, gpus)
        assert resolve(one.candidate.config) == one.candidate.config, "as the trainer would have it"
        assert one.needed == needed(one.candidate) <= memory * 10**9
    times = [one.time.seconds for one in found.best]
    assert times == sorted(times)


def test_the_winners_words_are_the_winner() -> None:
    found = asked("gpus=16", "precision=bf16", model=LARGE)
    words = as_words(settings_of(found.best[0].candidate))
    again = asked("gpus=16", *(word for word in words if word.startswith("parallel.")), model=LARGE)
    assert {one.candidate.axes for one in again.best} == {found.best[0].candidate.axes}
    assert f"limited by {found.best[0].time.binding}" in verdict(found)
    assert "slower, mostly" in verdict(found)


def test_a_format_that_makes_another_point_is_said() -> None:
    assert "precision=bf16 keeps to bf16" in verdict(asked("gpus=8", model=LARGE))
    assert "keeps to bf16" not in verdict(asked("gpus=8", "precision=bf16", model=LARGE))


def test_tables_count_every_candidate() -> None:
    found = asked("gpus=8")
    *_, left = tables(found)
    assert sum(int(count.replace(",", "")) for _, count in left.rows) == found.space.size
    listed = tables(found)[0]
    assert len(listed.rows) == 10
    assert all(len(table.head) == len(row) for table in tables(found) for row in table.rows)


def test_rows_and_fields_say_the_same() -> None:
    found = asked("gpus=8", "top=2")
    said, (first, second) = fields(found), csv.DictReader(io.StringIO(rows(found)))
    assert json.loads(json.dumps(said)) == said
    assert float(first["seconds"]) == said["layouts"][0]["seconds"] <= float(second["seconds"])
    assert said["layouts"][0]["mfu"] == pytest.approx(
        found.best[0].time.model_flops / found.best[0].time.seconds / (8 * 989.5e12)
    )
    parts = ("compute", "launch", "bubble", "update")
    exposed = sum(value for name, value in said["layouts"][0].items() if name.startswith("exposed_"))
    assert sum(said["layouts"][0][name] for name in parts) + exposed == pytest.approx(said["layouts"][0]["seconds"])


@pytest.mark.parametrize(
    ("words", "change"),
    [
        (("gpus=1", "memory.checkpointing=none", "cluster.gpu_memory_gb=120"), "memory.checkpointing=full fits"),
        (("gpus=8", "parallel.dp_replicate=8", "cluster.gpu_memory_gb=60"), "parallel.dp_replicate=1 fits"),
        (("gpus=1", "cluster.gpu_memory_gb=100"), "gpus=2 fits"),
    ],
)
def test_where_nothing_fits_the_smallest_change_is_said(words: tuple[str, ...], change: str) -> None:
    found = asked(*words, model=LARGE)
    assert not found.best
    said = refusal(found)
    assert change in said and "GB more than the" in said and "\n" not in said
    assert found.miss is not None and found.miss[1] > found.question.memory
    assert found.cure is not None and found.cure.needed <= found.question.memory
    assert fields(found)["cure"]["words"] == found.cure.words


def test_numbers_of_gpus_that_cannot_hold_the_states_are_not_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out: list[int] = []

    def looked_at(there: Question, told: Progress = silent) -> Space:
        laid_out.append(there.gpus)
        return space(there, told)

    monkeypatch.setattr("study.planning.parallel.answer.space", looked_at)
    found = asked("gpus=1", "cluster.gpu_memory_gb=20", model=LARGE)
    assert found.cure is not None and found.cure.words == "gpus=8"
    assert laid_out == [1, 8], "weights and moments of 2 and of 4 GPUs are more than 20 GB"


def test_what_cannot_fit_by_its_bound_is_not_priced_in_search_of_what_does() -> None:
    there = question("gpus=8", model=LARGE)
    priced: list[Candidate] = []

    def size(candidate: Candidate) -> int:
        priced.append(candidate)
        return needed(candidate)

    candidates, bound = space(there).candidates, Room(there).memory
    assert least_memory(candidates, bound, size, enough=10**9) is None and priced == []


def test_a_smaller_batch_may_be_what_fits() -> None:
    there = question("parallel.pp=4", "parallel.pp_schedule=gpipe", "gpus=8", model=replace(LARGE, layers=16))
    one = replace(there.profile, levels=tuple(replace(level, ranks=8) for level in there.profile.levels[:1]))
    for memory in range(40, 2, -1):
        tight = replace(there, profile=one, memory=memory * 10**9, fixed=there.fixed | {"parallel.zero"})
        found = cure(tight)
        if found is None:
            break
        assert found.needed <= tight.memory
    else:
        raise AssertionError("nothing fits into 3 GB")


def test_where_nothing_can_run_the_nearest_that_can_is_said() -> None:
    single = ModelConfig(width=128, layers=1, head_dim=64, kv_heads=1, mlp_width=352)
    there = question("gpus=24", "parallel.cp=1", model=single, batch=BatchConfig(tokens=8 * 1024))
    with pytest.raises(ValueError, match=r"gpus=24: no layout of so many GPUs can run: .* is gpus=8") as error:
        answer(there, step_time)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("collective", [ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, BROADCAST, SEND])
def test_links_carry_what_hierarchical_collectives_send(collective: str) -> None:
    hosts = profile("h200_x8_400g")
    whole = Axes(dp_shard=16)
    sent = by_level(hosts, [Message(collective, "fsdp", 16, 1600, 3, "", "")], whole)
    parts = {
        ALL_REDUCE: (2 * 7 / 8, 2 * 1 / 2 / 8),
        ALL_GATHER: (7 / 8, 1 / 2 / 8),
        ALL_TO_ALL: (7 / 16, 8 / 16),
        BROADCAST: (1, 1),
        SEND: (0, 1),
    }[collective]
    assert list(sent.values()) == pytest.approx([3 * 1600 * part for part in parts])
    inside = by_level(hosts, [Message(collective, "tp", 8, 1600, 3, "", "")], Axes(tp=8, dp_shard=2))
    assert list(inside.values()) == pytest.approx([3 * 1600 * bus_factor(collective, 8), 0])


def test_tensor_parallelism_within_hosts_sends_nothing_between_them() -> None:
    run = resolve(config(["parallel.tp=4", "parallel.dp_shard=4"]).run())
    sent = fullest(profile("h200_x8_400g"), run, Axes(tp=4, dp_shard=4))
    alone = fullest(profile("h200_x8_400g"), resolve(config(["parallel.tp=4"]).run()), Axes(tp=4))
    assert sent["network"] > 0
    assert (alone["network"], alone["nvlink"] > 0) == (0, True)


def test_the_command_answers_in_text_json_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cluster=h200_x8_400g", "gpus=16", "model=8b", "data.vocab_size=128256", "data.sequence_length=4096"]
    words += ["batch.tokens=1048576", "top=3", f"out={tmp_path}"]
    assert main(["plan", "parallel", *words]) == 0
    text = capsys.readouterr().out
    assert "Predicted fastest: " in text and "4096 x 32 on 16 GPUs of 141 GB (h200_x8_400g, datasheet)" in text
    assert main(["plan", "parallel", "--json", *words]) == 0
    said = json.loads(capsys.readouterr().out)
    assert text.splitlines()[-1] == said["winner"]
    assert [Path(name).name for name in said["files"]] == [
        "parallel.md", "parallel.csv", "parallel.svg", "parallel.png"]  # fmt: skip
    page = (tmp_path / "parallel.md").read_text("utf-8")
    assert f"python -m study plan parallel {shlex.join(words)}" in page and said["winner"] in page
    drawn = re.findall(r">([^<>]+)</text>", (tmp_path / "parallel.svg").read_text("utf-8"))
    for layout in said["layouts"]:
        assert _written(1e3 * layout["seconds"]) in drawn, "each bar says how long the step is"
    small = [*words[:-2], "cluster.gpu_memory_gb=8", "parallel.tp=1", "parallel.pp=1"]
    assert main(["plan", "parallel", "--json", *small]) == 2
    out, error = capsys.readouterr()
    assert json.loads(out)["cure"] is not None
    assert error.startswith("study plan: no layout of gpus=16 fits: ") and error.count("\n") == 1


def test_words_reach_the_question() -> None:
    found = ask(["cluster=h200_x8_400g", "top=2", "parallel=auto"], config)
    assert found.top == 2 and found.words == ("parallel=auto",)


@pytest.mark.parametrize(("launches", "named"), [(0.0, False), (5e-5, False), (2e-2, True)])
def test_the_legend_of_layouts_names_what_can_be_seen(launches: float, named: bool, tmp_path: Path) -> None:
    parts = {"computing": 1.0, "launches": launches, "messages": 0.1, "bubble": 0.2, "update": 0.3}
    draw([("shards 8", parts), ("shards 4", {**parts, "launches": 0.0})], "", tmp_path, {})
    drawn = re.findall(r">([^<>]+)</text>", (tmp_path / "parallel.svg").read_text("utf-8"))
    assert [part for part in parts if part in drawn] == [part for part in parts if named or part != "launches"]
