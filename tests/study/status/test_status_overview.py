from __future__ import annotations

import json
import math
import time

import pytest

from study.commands import emit
from study.records.point import Point, point
from study.status.cost import Cost
from study.status.overview import (
    COLOURS,
    Failure,
    bad_ends,
    bars,
    code_lines,
    cost_line,
    count,
    failure_lines,
    failures,
    in_room,
    left_line,
    next_action,
    painted,
    seconds_left,
    table,
    unlike,
    waiting_lines,
)
from study.status.states import PointState, PointStatus
from study.watch.follow import MAX_REST_SECONDS, TICK_SECONDS, pause
from study.watch.progress import JsonLines, Lines, Pace, slow_lines
from tests.study.support.studies import seeded
from train.spec.config import BatchConfig, BudgetConfig, ModelConfig, RunConfig
from train.spec.resolve import resolve

POINT = seeded(1)
HALF, WHOLE = 6400, 12_800


def status(key: str, state: str, tokens: int = 0, **more: object) -> PointStatus:
    return PointStatus(key, state, tokens=tokens, budget_tokens=WHOLE, **more)  # type: ignore[arg-type]


def test_bars_are_as_long_as_their_share_and_none_is_empty() -> None:
    lines = bars({"completed": 9_998, "failed": 1, "running": 1}, 10_000)
    assert [line.split()[0] for line in lines] == ["completed", "running", "failed"]
    assert [line.count("█") for line in lines] == [30, 1, 1]
    assert lines[-1].endswith("1   <1 %")
    assert max(map(len, lines)) <= 80


def test_the_state_that_begins_a_line_has_its_colour() -> None:
    bar = "  failed      ██████          3  100 %"
    assert painted(bar) == "  \x1b[31mfailed      ██████\x1b[0m          3  100 %"
    assert painted("abcdefabcdef  completed  100 %") == "abcdefabcdef  \x1b[32mcompleted  \x1b[0m100 %"
    for other in ("    | failed to open", "python -m study retry s", "", "study: 3 points: 3 failed"):
        assert painted(other) == other
    assert set(COLOURS) == set(PointState)


def test_failures_are_grouped_by_their_kind_with_what_says_most() -> None:
    found = failures(
        [
            status("a", "failed", kind="gpu_memory", headline="CUDA out of memory"),
            status("b", "completed"),
            status("c", "failed", kind="code_error", headline="RuntimeError: no"),
            status("d", "failed", kind="gpu_memory", headline="CUDA out of memory too"),
            status("e", "unknown", why="neither squeue nor sacct knows it"),
            status("f", "failed", kind="unknown", error=("first", "last words")),
        ]
    )
    assert found == [
        Failure("gpu memory", ("a", "d"), "CUDA out of memory"),
        Failure("code error", ("c",), "RuntimeError: no"),
        Failure("unknown", ("e",), "neither squeue nor sacct knows it"),
        Failure("failed", ("f",), "last words"),
    ]
    many = failure_lines([Failure("hang", tuple(f"{n:012d}" for n in range(9)), "x" * 200)])
    assert many[0] == "  9 hang: 000000000000 000000000001 000000000002 and 6 more"
    assert len(many[1]) == 80


def test_points_that_failed_alike_are_told_of_once() -> None:
    alike = [status(f"p{n}", "failed", kind="code_error", headline="RuntimeError: no") for n in range(9)]
    other = status("q", "failed", kind="code_error", headline="KeyError: 'x'")
    assert [s.key for s in unlike([status("a", "running"), *alike, other], 5)] == ["p0", "q"]
    assert [s.key for s in unlike([*alike, other], 1)] == ["p0"]


@pytest.mark.parametrize(
    ("statuses", "seconds"),
    [
        ([status("a", "completed", WHOLE, attempt=1, seconds=10.0)], 0.0),
        ([status("a", "queued")], None),
        ([status("a", "running", HALF, attempt=1, seconds=10.0)], 10.0),
        ([status("a", "running", HALF, attempt=2, seconds=1.0)], None),
        ([status("a", "running", HALF, attempt=1, seconds=10.0), status("b", "queued")], 30.0),
        (
            [
                status("a", "running", HALF, attempt=1, seconds=10.0),
                status("b", "running", HALF, attempt=1, seconds=10.0),
                status("c", "waiting"),
            ],
            20.0,
        ),
        ([status("a", "completed", WHOLE, attempt=1, seconds=10.0), status("b", "queued")], None),
    ],
)
def test_the_time_left_follows_the_speed_of_first_attempts(statuses: list[PointStatus], seconds: float | None) -> None:
    found = seconds_left(statuses, {s.key: POINT for s in statuses})
    assert found == (None if seconds is None else pytest.approx(seconds))


def test_lines_about_time_and_cost() -> None:
    running = [status("a", "running"), status("b", "queued"), status("c", "waiting", why="MaxSubmitJobs is 2")]
    assert left_line(3700.0, running) == "time left: about 1 h 01 min (1 running, 2 waiting)"
    assert left_line(None, running).startswith("time left: cannot be told yet")
    assert left_line(0.0, []) == ""
    assert waiting_lines(running)[0] == "1 waits: MaxSubmitJobs is 2"
    assert waiting_lines([]) == []
    assert max(map(len, waiting_lines([status("w", "waiting", why="no answer " * 30)]))) <= 80
    ran = [status(f"p{n}", "running", source=source) for n, source in enumerate(["other", "live", None, "frozen"])]
    assert code_lines(ran) == ["other code than was recorded: p0 (cluster.code=frozen prevents it)"]
    assert code_lines(ran[1:]) == []
    said = cost_line(Cost("GPU-hours", asked=1200.0, used=12.345, lost=0.001))
    assert said == "GPU-hours: 12.3 used of 1,200 asked for, <0.01 of them lost to failed attempts"


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"completed": 3}, ""),
        ({"completed": 3, "failed": 1, "running": 1}, "python -m study retry s "),
        ({"time_limit": 1}, "python -m study retry s "),
        ({"running": 1, "cancelled": 1}, "python -m study watch s "),
        ({"completed": 3, "cancelled": 1}, "python -m study retry s --state cancelled "),
        ({"waiting": 1}, "python -m study watch s "),
        ({"pending": 1}, "pending: run the study's command again"),
        ({"unknown": 1}, "unknown: nothing is done"),
    ],
)
def test_the_next_action(counts: dict[str, int], said: str) -> None:
    found = next_action(counts, "s")
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_no_retry_is_advised_that_must_fail() -> None:
    hopeless = [status("a", "failed", kind="bad_config"), status("b", "completed")]
    said = next_action(count(hopeless), "s", bad_ends(hopeless))
    assert "retry" not in said and said.startswith("python -m study logs s KEY")
    mixed = [*hopeless, status("c", "interrupted", kind="interrupted")]
    assert next_action(count(mixed), "s", bad_ends(mixed)).startswith("python -m study retry s ")
    full = [status("a", "failed", kind="disk_full")]
    assert "make room first" in next_action(count(full), "s", bad_ends(full))


def test_the_table_fits_80_columns() -> None:
    long = status(
        "abcdefabcdef",
        "interrupted",
        HALF,
        loss=1.5,
        attempt=12,
        job_id="1234567_999",
        overrides=tuple(f"x{i}=1" for i in range(40)),
    )
    assert max(map(len, table([long], {}))) == 80
    assert max(map(len, table([long], {}, 140))) == 140
    assert table([], {}) == ["point  state"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_row_is_cut_within_a_word_and_no_two_look_alike(width: int) -> None:
    alike = ("data.tokenizer_from=german", "model.init_from=weights", "schedule.parent=trunk")
    rows = [
        status(f"abcdefabcde{i}", "pending", overrides=(*(f"{o}{i % 2}" for o in alike), f"seed={i}")) for i in range(8)
    ]
    shown = [line.split("pending", 1)[1] for line in table(rows, {}, width)[1:]]
    assert len(set(shown)) == 8 and max(map(len, table(rows, {}, width))) <= width
    whole = {word for row in rows for o in row.overrides for word in (o, o.rpartition(".")[2])}
    assert all(word in {*whole, "…"} for line in shown for word in line.split())


def test_of_one_override_that_is_too_long_the_end_is_shown() -> None:
    paths = [("data.source=/shared/corpora/" + "x" * 60 + f"/part-{i}",) for i in range(3)]
    assert in_room(paths, 30) == [f"data.source=…{'x' * 10}/part-{i}" for i in range(3)]
    assert in_room([("a=1", "b=2")], 7) == ["a=1 b=2"]


def sized(key: str, width: int, seed: int, *overrides: str) -> tuple[PointStatus, Point]:
    model, budget = ModelConfig(width=width, layers=2), BudgetConfig(tokens=128 * width)
    run = RunConfig(model=model, seed=seed, budget=budget, batch=BatchConfig(128))
    return status(key, "queued", overrides=overrides), point(resolve(run), overrides)


def test_rows_tell_size_tokens_and_flops_and_what_else_differs() -> None:
    made = [
        sized(f"{n:012d}", width, n, f"model.width={width}", "optim.lr_scale=0.5", f"seed={n}", "data.name=same")
        for n, width in enumerate((64, 64, 128))
    ]
    points = {s.key: p for s, p in made}
    lines = table([s for s, _ in made], points)
    assert lines[0].split() == ["point", "state", "N", "D", "C", "overrides"]
    assert lines[1].split()[2:] == ["362K", "8.19K", "1.9e10", "seed=0"]
    assert lines[3].split()[-1] == "seed=2", "the width is told by N"
    alone = table([made[0][0]], points)
    assert alone[1].endswith("lr_scale=0.5 seed=0 name=same"), "of one point all of them"
    same = [status(f"{n:012d}", "queued", overrides=("model.width=64", f"model.layers={n}")) for n in range(3)]
    assert table(same, {})[3].endswith("layers=2"), "nothing else tells them apart"
    twice = [status(f"{n:012d}", "queued", overrides=(f"optim.lr={n}", f"search.lr={n}")) for n in range(2)]
    assert table(twice, {})[1].endswith("optim.lr=0 search.lr=0"), "a name that two keys have is not shortened"


def test_columns_give_way_until_rows_can_be_told_apart() -> None:
    running = {"loss": 1.0, "attempt": 1, "job_id": "1234567_0"}
    word = "a_key_as_long_as_keys_are"
    made = [status(f"{n:012d}", "running", HALF, overrides=(f"{word}={n}", "x=1" * n), **running) for n in range(5)]
    lines = table(made, {})
    assert max(map(len, lines)) <= 80 and len({line[12:] for line in lines[1:]}) == 5
    assert "job" not in lines[0].split() and "job" in table(made, {}, 140)[0].split()


def test_watching_rests_longer_than_it_looks() -> None:
    assert pause(0.0) == TICK_SECONDS
    assert pause(1e9) == MAX_REST_SECONDS
    assert all(cpu / (cpu + pause(cpu)) < 0.01 for cpu in (0.003, 0.01, 0.1, 1.0, 1.4))


def test_who_waits_for_a_slow_rank_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    slow = [status(f"p{n}", "running", slow=f"rank {n} on n{n} takes 2.0 x") for n in range(4)]
    assert slow_lines([status("a", "running")]) == []
    assert slow_lines(slow)[0] == "slow: p0: rank 0 on n0 takes 2.0 x"
    assert slow_lines(slow)[3:] == ["slow: 1 more"]
    with Lines(Pace({}), every=0.0) as shown:
        shown.update(slow[:1])
        shown.update(slow[:1])
        shown.update([status("p0", "running")])
        shown.update(slow[:1])
    assert "".join(line[0] for line in capsys.readouterr().out.splitlines()) == "[s[[[s"


def test_progress_goes_on_where_the_clock_is_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    with Lines(Pace({}), every=0.0) as shown:
        for days in (0, 1, -2):
            monkeypatch.setattr(time, "time", lambda days=days: now + 86400 * days)
            shown.update([status("a", "running")])
    assert capsys.readouterr().out == "[0 s] train: 0/1 done, 1 running\n" * 3


def test_lines_for_machines_name_what_changed(capsys: pytest.CaptureFixture[str]) -> None:
    with JsonLines(Pace({"a": 1.0}), "s") as shown:
        shown.update([status("a", "running"), status("b", "queued")])
        shown.update([status("a", "running"), status("b", "queued")])
        shown.update([status("a", "completed"), status("b", "queued")])
        shown.report("not an object")
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["changed"] for record in records] == [{"a": "running", "b": "queued"}, {"a": "completed"}]


def test_what_is_not_a_number_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    emit("x", None, {"loss": [math.nan, 1.0], "more": {"inf": math.inf}})
    said = json.loads(capsys.readouterr().out)
    assert said == {"format": 1, "command": "x", "loss": [None, 1.0], "more": {"inf": None}}
