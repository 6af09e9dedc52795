import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.records.metric_names import metric_name
from study.tracking.metrics_reader import Position, Value, records
from tests.study.support.made import T0, record, rolled_back


def values(path: Path, start: Position | None = None) -> tuple[list[Value], Position]:
    found: list[Value] = []
    position = start or Position()
    for one in records(path, position):
        found += one.values
        position = one.position
    return found, position


def test_names_steps_and_milliseconds(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        record("train", 3, loss=2.5)
        + record("validation", 3, **{"bits per/byte+": 1.5})
        + record("system", 3, gpu_0_utilization_percentage=93.0)
    )
    stamp = round((T0 + 3 / 8) * 1000)
    found, _ = values(path)
    assert found == [
        Value("train/loss", 2.5, stamp, 3),
        Value("tokens", 384.0, stamp, 3),
        Value("validation/bits per/byte_", 1.5, stamp, 3),
        Value("system/gpu_0_utilization_percentage", 93.0, stamp, 3),
    ]


def test_torn_line_waits_until_it_is_whole(tmp_path: Path) -> None:
    path, line = tmp_path / "metrics.jsonl", record("train", 1, loss=1.0)
    path.write_text(line + line[:20])
    found, position = values(path)
    assert (len(found), position.offset) == (2, len(line))
    path.write_text(line + record("train", 2, loss=0.5))
    found, _ = values(path, position)
    assert [v.step for v in found] == [2, 2]


def test_a_line_that_is_nested_too_deep_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"rollback":' * 5000 + "\n" + record("train", 1, loss=2.5))
    assert [one.readable for one in records(path, Position())] == [False, True]


@pytest.mark.parametrize("wrong", [{"step": 1e30}, {"step": 2**63}, {"step": -(10**25)}, {"time": 1e300}])
def test_a_line_that_no_store_can_keep_stops_no_other(tmp_path: Path, wrong: dict[str, float]) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [{**json.loads(record("train", 1, loss=3.0)), **wrong}, json.loads(record("train", 2, loss=2.5))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = list(records(path, Position()))
    assert [one.readable for one in read] == [False, True]
    assert read[-1].position.steps == {"train": 2}


def test_unreadable_lines_are_counted_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    bad = ['{"kind": "train"}', "[]", "{oops", "", '{"kind":"train","step":1,"time":1,"metrics":{"loss":"x"}}']
    path.write_text("\n".join(bad) + "\n" + record("train", 1, loss=1.0))
    read = list(records(path, Position()))
    assert [r.readable for r in read] == [False] * 5 + [True]
    assert read[-1].position.offset == path.stat().st_size


def test_shrunken_file_is_read_again_without_its_old_steps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(record("train", step, loss=1.0) for step in range(1, 6)))
    _, position = values(path)
    path.write_text("".join(record("train", step, loss=2.0) for step in (1, 2)))
    assert values(path, position)[0] == []
    with path.open("a") as file:
        file.write("".join(record("train", step, loss=3.0) for step in range(3, 8)))
    found, _ = values(path, Position(0, position.steps))
    assert [v.step for v in found if v.name == "train/loss"] == [6, 7]


def test_a_file_that_lost_its_end_and_grew_past_it_again_is_known_to_be_another(tmp_path: Path) -> None:
    """What a crashed node had not written to disk is written again, with other times and numbers as long or longer."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(record("train", step, loss=1.0) for step in range(1, 6)))
    _, position = values(path)
    again = "".join(record("train", step, loss=2.0) for step in (1, 2, 3))
    path.write_text(again + "".join(record("train", step, loss=2.25, lr=0.5) for step in range(4, 9)))
    assert path.stat().st_size > position.offset
    found, _ = values(path, position)
    assert [v.step for v in found if v.name == "train/loss"] == [6, 7, 8]


def test_nan_and_infinity_are_values(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(record("train", 1, loss=math.nan, lr=math.inf))
    found, _ = values(path)
    assert math.isnan(found[0].value)
    assert found[1].value == math.inf


def test_a_validation_says_how_many_flops_the_run_had_come_to(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(record("train", 3, loss=2.5) + record("validation", 3, loss=2.0))
    found = [value for one in records(path, Position(), flops_per_token=1e6) for value in one.values]
    (flops,) = [value for value in found if value.name == "log10_flops"]
    assert (flops.step, flops.timestamp) == (3, found[0].timestamp)
    assert flops.value == pytest.approx(math.log10(384e6))


@pytest.mark.parametrize(
    ("kind", "name", "shown"),
    [
        ("train", "loss", "train/loss"),
        ("train", "grad_norm", "health/grad_norm"),
        ("train", "loss_scale_smallest", "health/loss_scale_smallest"),
        ("train", "seconds_forward_backward", "time/forward_backward"),
        ("train", "mfu_measured", "throughput/mfu_measured"),
        ("train", "tokens_per_second", "throughput/tokens_per_second"),
        ("train", "peak_memory_gib", "memory/peak_gib"),
        ("train", "lr", "train/lr"),
        ("validation", "loss/code", "validation/loss/code"),
        ("rollback", "to_step", "rollback/to_step"),
        ("statistics", "weight_rms blocks[0]", "statistics/weight_rms blocks_0_"),
    ],
)
def test_metrics_are_grouped(kind: str, name: str, shown: str) -> None:
    assert metric_name(kind, name) == shown


def test_missing_file_says_nothing(tmp_path: Path) -> None:
    assert values(tmp_path / "none") == ([], Position())


STEPS = st.lists(st.tuples(st.sampled_from(["train", "validation"]), st.integers(0, 20)), max_size=25)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.lists(st.integers(1, 200), max_size=8), st.integers(1, 64))
def test_read_in_any_pieces_gives_the_same(entries: list[tuple[str, int]], cuts: list[int], chunk: int) -> None:
    """However the file grows and whatever the chunk, nothing is read twice, nothing is left out."""
    text = "".join(record(kind, step, loss=step + i / 10) for i, (kind, step) in enumerate(entries)).encode()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        path.write_bytes(text)
        whole, end = values(path)
        path.write_bytes(b"")
        found: list[Value] = []
        position, written = Position(), 0
        for cut in [*cuts, len(text)]:
            with path.open("ab") as file:
                file.write(text[written : written + cut])
            written += cut
            for one in records(path, position, chunk):
                found += one.values
                position = one.position
    assert found == whole
    assert position == end
    assert end.offset == len(text)
    losses = [(v.name, v.step) for v in whole]
    assert len(losses) == len(set(losses))
    assert {kind for kind, _ in entries} == {v.name.split("/")[0] for v in whole} - {"tokens"}


def series(found: list[Value], name: str) -> list[tuple[int, float]]:
    return [(value.step, value.value) for value in found if value.name == name]


def test_of_a_run_that_went_back_the_path_taken_is_sent_each_value_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(rolled_back()))
    found, position = values(path)
    assert series(found, "train/loss") == [(step, float(step)) for step in range(1, 9)]
    assert series(found, "validation/loss") == [(step, step / 10) for step in (2, 4, 6, 8)]
    assert series(found, "tokens") == [(step, step * 128.0) for step in range(1, 9)]
    assert series(found, "rollback/to_step") == [(6, 3.0), (5, 3.0)]
    assert series(found, "spike/loss_z") == [(6, 9.0), (5, 8.0)]
    assert values(path, position)[0] == []
    # The file is known to be another one, and is read anew: nothing of it is sent again.
    assert values(path, Position(10**6, position.steps, "", position.path))[0] == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, len(rolled_back())), max_size=4).map(sorted))
def test_followed_while_it_goes_back_what_was_sent_stays_and_the_path_taken_is_whole(stops: list[int]) -> None:
    lines = rolled_back()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        path.write_text("".join(lines))
        whole, end = values(path)
        found: list[Value] = []
        position = Position()
        for stop in [*stops, len(lines)]:
            path.write_text("".join(lines[:stop]))
            new, position = values(path, position)
            found += new
    assert len(found) == len(set(found)), "no value twice"
    assert set(whole) <= set(found), "every value of the path taken"
    assert (position.offset, position.path, position.steps) == (end.offset, end.path, end.steps)
    for value in set(found) - set(whole):  # by these a reader of the store tells what was abandoned
        back = [v for v in found if v.name == "rollback/to_step"]
        assert any(value.timestamp <= v.timestamp and value.step > v.value for v in back)
