"""`python -m study bench pipeline`: the table, its sentences, files and pictures, and what is refused."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from study.__main__ import main
from study.bench import made_up, pipeline_ranks, trainer_ranks
from study.bench.pipeline_measured import about_of, earlier, keep, pairs, refused, sentence, size_of
from study.bench.pipeline_table import (
    Asked,
    Found,
    Row,
    best,
    found_of,
    full_from,
    measured_table,
    rows,
    sentences,
    table,
)
from study.planning.timeline_picture import FILLS, draw, lane, ticks_of
from study.storage.mounts import at_home
from tests.study.support import warm_ranks
from train.spec.config import ParallelConfig
from train.spec.manifest import read_manifest
from train.spec.pipeline_layout import SCHEDULES, can_split
from train.spec.pipeline_schedule.observed import observe
from train.spec.pipeline_schedule.orders import Kind, orders
from train.spec.pipeline_schedule.simulation import even_times, simulate
from train.spec.pipeline_schedule.trace import Measured

ASKED = Asked(4, (2, 8), tuple(SCHEDULES), stages=2, forward_ms=1.0, backward_ms=2.0)
SVG = "{http://www.w3.org/2000/svg}"


def by(found: list[Row], schedule: str, count: int) -> Row:
    return next(row for row in found if (row.schedule, row.micro_batches) == (schedule, count))


def test_rows_hold_idle_shares_beside_the_formula_and_what_is_kept() -> None:
    found = rows(ASKED)
    assert [(row.micro_batches, row.schedule) for row in found] == [(m, name) for m in (2, 8) for name in SCHEDULES]
    plain = by(found, "1f1b", 8)
    assert (plain.step_ms, plain.waiting, plain.stages) == (33, 4, 1)
    assert plain.idle_share == pytest.approx(plain.formula_share) == pytest.approx(3 / 11)
    assert by(found, "interleaved", 8).idle_share == pytest.approx(3 / 19)
    assert (by(found, "gpipe", 8).waiting, by(found, "1f1b", 2).run, by(found, "gpipe", 2).run) == (8, 4, 2)


def test_the_shortest_step_is_best_and_of_equal_ones_that_which_keeps_least() -> None:
    asked = Asked(4, (16,), ("gpipe", "1f1b"), stages=2, forward_ms=1.0, backward_ms=2.0)
    assert [row.schedule for row in best(rows(asked))] == ["1f1b"]
    assert full_from(rows(ASKED)) == {"gpipe": None, "1f1b": None, "interleaved": None, "zb1p": 8, "zbv": 8}
    said = sentences(ASKED, rows(ASKED))
    assert said[1] == "m=8: zb1p is shortest, 25.5 ms with 5.9 % idle and 4 kept; 1f1b takes 33 ms"
    assert said[-1] == (
        "idle at most 10 % of the time: zb1p from m=8, zbv from m=8; gpipe, 1f1b, interleaved only with more than 8"
    )


def test_messages_are_a_column_where_they_take_time() -> None:
    slow = Asked(2, (8,), ("gpipe", "1f1b"), stages=2, forward_ms=1.0, backward_ms=2.0, message_ms=0.25)
    found = rows(slow)
    assert by(found, "gpipe", 8).exposed_ms == pytest.approx(0.5)
    assert by(found, "1f1b", 8).exposed_ms > 2
    assert table(found)[0].endswith("messages [ms]")
    assert not table(rows(ASKED))[0].endswith("messages [ms]")


def test_a_picture_has_a_box_for_each_pass_where_and_as_long_as_it_runs() -> None:
    layout = ParallelConfig(pp=2, pp_schedule="zbv")
    timeline = simulate(layout, 4, even_times(layout, 1.0, 2.0))
    root = ET.fromstring(draw("a <title>", [lane("zbv", timeline, 2.0)]))
    boxes = [group for group in root.iter(f"{SVG}g") if group.find(f"{SVG}title") is not None]
    assert len(boxes) == 2 * 2 * 4 * 3
    scale = 870 / timeline.step
    for group, timed in zip(boxes, (one for rank in timeline.ranks for one in rank), strict=True):
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        assert float(rect.attrib["x"]) == pytest.approx(70 + timed.start * scale, abs=0.01)
        assert float(rect.attrib["width"]) == pytest.approx((timed.end - timed.start) * scale, abs=0.01)
        assert rect.attrib["fill"] in FILLS[timed.one.kind]
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert "a <title>" in words and "backward: weights" in words and "idle" in words


def test_numbers_that_do_not_fit_are_left_out_for_all_passes_of_a_kind() -> None:
    layout = ParallelConfig(pp=4, pp_schedule="gpipe")
    root = ET.fromstring(draw("", [lane("gpipe", simulate(layout, 16, even_times(layout, 1.0, 9.0)), 16.0)]))
    numbered = {Kind.FORWARD: 0, Kind.BACKWARD: 0}
    for group in root.iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        kind = next(kind for kind in numbered if rect.attrib["fill"] in FILLS[kind])
        numbered[kind] += group.find(f"{SVG}text") is not None
    assert numbered == {Kind.FORWARD: 0, Kind.BACKWARD: 64}


@pytest.mark.parametrize("longest", [0.013, 1.0, 7.5, 33.0, 101.0, 4800.0])
def test_axes_have_a_few_round_ticks(longest: float) -> None:
    ticks = ticks_of(longest)
    assert ticks[0] == 0 and ticks[-1] <= longest and 5 <= len(ticks) <= 13


def run(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["bench", "pipeline", *words.split()])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_command_prints_the_table_and_writes_csv_and_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(f"pp=2 micro_batches=2,4 out={tmp_path / 'new'}", capsys)
    assert code == 0 and "idle at most 10 % of the time" in out
    with (tmp_path / "new" / "pipeline.csv").open(encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    assert len(read) == 10 and float(read[0]["idle_share"]) == pytest.approx(1 / 3)
    assert ET.parse(tmp_path / "new" / "timeline-m4.svg").getroot().tag == f"{SVG}svg"


def test_json_has_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("pp=4 micro_batches=8 schedules=1f1b,zbv --json", capsys)
    said: dict[str, Any] = json.loads(out)
    assert (code, said["command"], said["what"], said["best"]) == (0, "bench", "pipeline", {"8": "zbv"})
    assert said["asked"]["pp"] == 4 and said["files"] == []
    assert [row["step_ms"] for row in said["rows"]] == [33, 25.5]


def test_help_lists_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("help", capsys)
    assert code == 0 and "message_ms" in out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("pp=1", "pp=1 is not allowed: at least 2 ranks"),
        ("pp=-2", "pp=-2: a whole number, 1 or more is needed"),
        ("stages=0", "stages=0: a whole number, 1 or more is needed"),
        ("pp=1e30", "pp=1e+30 is not allowed: at most 1,024 ranks"),
        ("stages=1e30", "stages=1e+30 is not allowed: at least 1 for each rank, at most 64"),
        ("micro_batches=1e30", "micro_batches=1e+30 is not allowed: 1 to 65,536"),
        ("pp=1024 micro_batches=65536", "makes about 671,088,640 passes to simulate, and 2,000,000 are allowed"),
        ("forward_ms=1e30", "forward_ms=1e+30 is not allowed: at most 1e+09 ms"),
        ("message_ms=1e30", "message_ms=1e+30 is not allowed: at most 1e+09 ms"),
        ("backward_ms=inf", "backward_ms=inf: a positive number is needed"),
        ("micro_batches=4,0", "micro_batches=4,0: whole numbers, 1 or more"),
        ("micro_batches=[2,x]", "micro_batches=[2,x]: whole numbers, 1 or more"),
        ("message_ms=-1", "message_ms=-1: a number, 0 or more is needed"),
        ("schedules=1f2b", "schedules=1f2b is not allowed: one of gpipe, 1f1b, "),
        ("forward_ms=0", "forward_ms=0: a positive number is needed"),
        ("weight_ms=3", "weight_ms=3 is not allowed: at most backward_ms=2, of which it is a part"),
        ("measure=yes backend=nccl", "backend=nccl is not allowed with pp=4: this machine shows "),
        ("measure=yes width=0", "width=0: a whole number, 1 or more is needed"),
        ("measure=yes layers=2", "layers=2 is not allowed with pp=4: each rank has at least one layer"),
        ("width=128", "width=128 is of the measured model: add measure=yes, or leave width= out"),
        ("backend=gloo", "backend=gloo is of the measured model: add measure=yes"),
        ("backend=mpi", "backend=mpi is not allowed: one of gloo, nccl"),
        ("measure=yes width=100", "width=100 is not allowed: a multiple of 64, the width of a head"),
        ("microbatches=4", "there is no key 'microbatches'; did you mean micro_batches=?"),
    ],
)
def test_what_cannot_be_compared_is_refused(words: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(words, capsys)
    assert (code, out) == (2, "") and error in err


def test_lists_may_stand_in_brackets_and_a_message_may_take_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    _, plain, _ = run("micro_batches=2,4 schedules=gpipe,1f1b", capsys)
    assert run("micro_batches=[2,4] schedules=[gpipe,1f1b] message_ms=0", capsys) == (0, plain, "")


def test_lines_fit_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["bench", "pipeline", "pp=2", "micro_batches=2"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 40


def test_the_home_folder_may_be_named_after_the_equals_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["bench", "pipeline", "pp=2", "micro_batches=2", "out=~/found"]) == 0
    assert (tmp_path / "found/pipeline.csv").exists() and str(tmp_path / "found") in capsys.readouterr().out
    assert at_home(["a=~/b", "a=~x", "~model", "a=b~/c", "a"]) == [f"a={tmp_path}/b", "a=~x", "~model", "a=b~/c", "a"]


def test_measured_rows_stand_beside_the_simulation_of_their_own_passes() -> None:
    layout = ParallelConfig(pp=2, pp_schedule="gpipe")
    times = even_times(layout, 1.0, 2.0)
    late = replace(times, message=1.5)  # what the held-out step had and the others do not tell
    found = found_of(layout, 4, Measured((simulate(layout, 4, late),), observe([simulate(layout, 4, times)], layout)))
    assert [found.simulated_ms, found.step_ms] == pytest.approx([15, 18])
    assert found.simulated_share == pytest.approx(found.formula_share) == pytest.approx(0.2)
    assert found.even_share == pytest.approx(found.simulated_share)
    assert found.idle_share == pytest.approx(1 - 12 / 18)
    _, row, _, said = measured_table([found])
    assert row.replace(" %", "%").split() == ["4", "gpipe", "33.3%", "20.0%", "20.0%", "20.0%", "18", "15"]
    assert said.endswith("0 of 1; median 13.3 points off, at most 13.3")
    exact = simulate(layout, 4, late)
    assert (
        "1 of 1; median 0.0" in measured_table([found_of(layout, 4, Measured((exact,), observe([exact], layout)))])[-1]
    )


@pytest.mark.slow
def test_the_trainer_runs_its_passes_in_the_simulated_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_ranks, "spawn", warm_ranks.spawn)
    layout = ParallelConfig(pp=2, pp_schedule="zbv" if can_split() else "interleaved", pp_stages=2)
    made_up.write_corpus(tmp_path, pipeline_ranks.VOCABULARY)
    found = pipeline_ranks.measure(layout, 3, tmp_path, replace(pipeline_ranks.ON_CPU, recorded=6))
    assert len(found.held_out) == 3
    for step in found.held_out:
        assert tuple(tuple(timed.one for timed in rank) for rank in step.ranks) == orders(layout, 3)
    assert 0 < found.idle_share < 1


def test_what_is_found_is_said_as_it_comes_with_what_was_simulated() -> None:
    found = Found("1f1b", 4, idle_share=0.248, simulated_share=0.231, even_share=0.2, formula_share=0.2, step_ms=61.26,
                  simulated_ms=60.0)  # fmt: skip
    assert sentence(found, 21.4) == (
        "1f1b, 4 micro-batches: 24.8 % idle, simulated 23.1 %, 20.0 % by (p-1)/(m+p-1); step 61.26 ms, simulated 60 ms "
        "(21 s)"
    )


def test_a_run_on_gpus_reads_no_text_twice(tmp_path: Path) -> None:
    layout = ParallelConfig(pp=2, pp_schedule="1f1b")
    config = pipeline_ranks.config_of(layout, 4, tmp_path, pipeline_ranks.ON_GPUS)
    assert (config.data.sequence_length, config.profile.steps, config.batch.tokens) == (8192, 8, 4 * 8192)
    assert config.budget.tokens == (pipeline_ranks.FIRST + 8) * 4 * 8192
    pipeline_ranks.write_corpus(tmp_path, 2, 4, pipeline_ranks.ON_GPUS)
    splits = read_manifest(tmp_path / f"{made_up.NAME}-bpe{pipeline_ranks.VOCABULARY}").splits
    assert splits["train"].tokens > config.budget.tokens
    assert config.eval.sequences * 8192 < splits["validation"].tokens


FOUND = Found("1f1b", 4, 0.25, 0.23, 0.2, 0.2, step_ms=61.0, simulated_ms=60.0)
PAIR = Asked(2, (4, 32), ("gpipe", "1f1b"), stages=2, forward_ms=1.0, backward_ms=2.0)


def test_pairs_that_do_not_fit_a_gpu_are_left_out_before_anything_starts() -> None:
    gpus = size_of("nccl", None, None, None)
    assert (gpus.width, gpus.length, size_of("gloo", 512, 12, None).width) == (4096, 8192, 512)
    told = {(one.pp_schedule, count): refused(one, count, gpus, 140 << 30) for one, count in pairs(PAIR)}
    why = told.pop(("gpipe", 32))
    assert why is not None and "needs 202.0 GiB by train.spec.accounting, and a GPU has 140.0" in why
    assert set(told.values()) == {None} and len(told) == 3
    assert all(refused(one, count, gpus, None) is None for one, count in pairs(PAIR)), "what is not known is tried"
    narrow = size_of("nccl", 2048, None, None)
    assert all(refused(one, count, narrow, 140 << 30) is None for one, count in pairs(PAIR))


def test_schedules_that_torch_cannot_run_are_left_out_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = []

    def stand_in(layout: ParallelConfig, count: int, folder: Path, size: Any) -> Measured:
        ran.append((layout.pp_schedule, count))
        times = even_times(layout, 1.0, 2.0)
        return Measured((simulate(layout, count, times),), observe([simulate(layout, count, times)], layout))

    monkeypatch.setattr(pipeline_ranks, "measure", stand_in)
    monkeypatch.setattr("train.spec.pipeline_layout.can_split", lambda: False)
    code, out, err = run(f"pp=2 micro_batches=4 schedules=zbv,1f1b backend=gloo measure=yes out={tmp_path}", capsys)
    assert (code, ran) == (0, [("1f1b", 4)])
    assert "zbv with 4 micro-batches was left out: parallel.pp_schedule=zbv needs torch 2.13 or newer" in out
    assert (
        err.index("zbv, 4 micro-batches: left out") < err.index("1 of 2 pairs to measure") < err.index("1 of 1: 1f1b")
    )
    assert [one["schedule"] for one in json.loads((tmp_path / "measured.json").read_text())["measured"]] == ["1f1b"]
    assert (tmp_path / "measured.csv").read_text().splitlines()[1].startswith("1f1b,4,")


def test_pairs_are_kept_as_they_end_and_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def cut(layout: ParallelConfig, count: int, folder: Path, size: Any) -> Measured:
        ran.append(layout.pp_schedule)
        if layout.pp_schedule == "interleaved" and ran.count("interleaved") == 1:
            raise KeyboardInterrupt
        if layout.pp_schedule == "gpipe":
            raise ValueError("gpipe with 4 micro-batches: rank 1 failed: CUDA out of memory")
        times = even_times(layout, 1.0, 2.0)
        return Measured((simulate(layout, count, times),), observe([simulate(layout, count, times)], layout))

    monkeypatch.setattr(pipeline_ranks, "measure", cut)
    words = f"pp=2 micro_batches=4 schedules=1f1b,gpipe,interleaved backend=gloo measure=yes out={tmp_path} --json"
    with pytest.raises(KeyboardInterrupt):
        run(words, capsys)
    capsys.readouterr()
    (kept,) = json.loads((tmp_path / "measured.json").read_text())["measured"]
    assert kept["schedule"] == "1f1b"
    code, out, err = run(words, capsys)
    assert code == 0 and ran == ["1f1b", "gpipe", "interleaved", "gpipe", "interleaved"]
    assert "2 of 3 pairs to measure, 1 known from a command that did not end" in err
    said = json.loads(out)
    assert [one["schedule"] for one in said["measured"]] == ["1f1b", "interleaved"]
    assert [(one["schedule"], one["why"]) for one in said["left_out"]] == [
        ("gpipe", "gpipe with 4 micro-batches: rank 1 failed: CUDA out of memory")
    ]
    run(words, capsys)
    assert ran[5:] == ["1f1b", "gpipe", "interleaved"], "what has come to its end is measured anew"


def test_only_pairs_of_the_same_run_are_taken_over(tmp_path: Path) -> None:
    size = size_of("gloo", None, None, None)
    about = about_of(PAIR, "gloo", size)
    keep(tmp_path, about, [FOUND], ended=False)
    assert earlier(tmp_path, about) == [FOUND]
    assert earlier(tmp_path, about_of(PAIR, "gloo", replace(size, width=512))) == []
    assert earlier(tmp_path / "elsewhere", about) == []
    keep(tmp_path, about, [FOUND], ended=True)
    assert earlier(tmp_path, about) == []
