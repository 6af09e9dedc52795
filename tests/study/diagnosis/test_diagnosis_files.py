"""Reading traces: any layout and size of piece gives the same events; what is no whole trace is named with its cure."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.diagnosis import trace_file
from study.diagnosis.of_traces import diagnose, read_traces
from study.diagnosis.trace_file import TraceFile
from tests.study.support import traces

EVENTS = [
    {"ph": "X", "name": 'a "b" \\ {c} [d], ]', "args": {"x": [1, {"y": "}"}]}},
    {"ph": "i", "name": "[memory]"},
    {"ph": "X", "name": "µs ✓"},
]


@given(st.integers(1, 90), st.sampled_from([None, 0, 2]))
def test_pieces_of_any_size_hold_the_same_events(
    tmp_path_factory: pytest.TempPathFactory, piece: int, indent: int | None
) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": EVENTS, "traceName": "x"}, indent=indent))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trace_file, "PIECE", piece)
        _, events = TraceFile(path).read()
        assert list(events) == EVENTS


def test_a_packed_trace_says_the_same_as_a_plain_one(tmp_path: Path) -> None:
    made = traces.bare_gather()
    plain, packed = (made.write(tmp_path / str(one), packed=one) for one in (False, True))
    one, other = (diagnose(read_traces([path])) for path in (plain, packed))
    assert (one.shares, one.kernels, one.events) == (other.shares, other.kernels, other.events)


def test_many_ranks_read_by_several_processes_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [machine.write(tmp_path) for machine in traces.straggler()]
    alone = diagnose(read_traces(paths))
    monkeypatch.setattr("study.diagnosis.of_traces.PARALLEL_BYTES", 0)
    assert diagnose(read_traces(paths)) == alone


def refused(path: Path) -> str:
    """Return the message for a trace that is refused, of one line, which names the file."""
    with pytest.raises(ValueError, match=path.name) as caught:
        diagnose(read_traces([path]))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("   \n", "is empty"),
        ("[{}]", "before Kineto"),
        ("hello", "no trace of torch's profiler"),
        ("{}", "no trace of torch's profiler"),
        ('{"schemaVersion": 1, "devi', "cut off before its first event"),
        ('{"schemaVersion": 2, "traceEvents": []}', "schemaVersion 2, version 1 is read"),
        ('{"traceEvents": []}', "has no schemaVersion, version 1 is read"),
        ('{"schemaVersion": 1, "traceEvents": []}', "has no steps"),
        (
            '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel"}]}',
            "event 1 is not one of torch's profiler",
        ),
        ('{"schemaVersion": 1, "traceEvents": [{"a": 1}, oops', "is damaged after 1 events"),
        ('{"schemaVersion": 1, "traceEvents": [', "is cut off after 0 events"),
        ('{"schemaVersion": 1, "x": , "traceEvents": []}', "its header is not JSON"),
    ],
)
def test_what_is_no_trace_is_named_with_its_cure(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    message = refused(path)
    assert said in message
    assert "record it" in message


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_that_is_cut_off_anywhere_is_refused(packed: bool, tmp_path: Path) -> None:
    whole = traces.healthy().text().encode()
    data = gzip.compress(whole) if packed else whole
    for share in (0.2, 0.5, 0.99):
        path = tmp_path / f"{share}.json"
        path.write_bytes(data[: int(len(data) * share)])
        assert "is cut off" in refused(path)


def test_a_trace_without_whole_steps_is_refused(tmp_path: Path) -> None:
    machine = traces.Machine()
    machine.launch(traces.GEMM, 10.0)
    assert "profile.start=3" in refused(machine.write(tmp_path))
    machine.host += 100.0
    machine.step(lambda m: m.phase("data", 10.0))
    assert "no operation or kernel in its steps" in refused(machine.write(tmp_path))


def test_a_rank_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    paths = [traces.healthy().write(tmp_path / name) for name in ("a", "b")]
    with pytest.raises(ValueError, match="of rank 0, as is"):
        read_traces(paths)
