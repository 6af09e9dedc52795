"""Overlap and shares of any trace against an oracle that looks at every microsecond."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.diagnosis.of_traces import diagnose, read_traces
from tests.study.support.traces import ADD, BEGIN, GEMM, LAUNCH, REDUCE, Machine

COPY = "Memcpy HtoD (Pinned -> Device)"
STREAM = {GEMM: "7", ADD: "8", REDUCE: "20", COPY: "9"}
launch = st.tuples(st.sampled_from(sorted(STREAM)), st.integers(1, 30), st.integers(0, 20))
steps = st.lists(st.lists(launch, min_size=1, max_size=6), min_size=2, max_size=4)


@settings(max_examples=60)
@given(steps)
def test_shares_and_overlap_are_what_each_microsecond_says(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[list[tuple[str, int, int]]]
) -> None:
    machine = Machine(host=0.0)
    for each in drawn:

        def launched(m: Machine, each: list[tuple[str, int, int]] = each) -> None:
            for name, took, pause in each:
                m.host += pause
                m.launch(name, float(took), stream=STREAM[name])

        machine.step(launched)
    found = diagnose(read_traces([machine.write(tmp_path_factory.mktemp("overlap"))]))
    ran = [one for one in machine.events if one["cat"] in ("kernel", "gpu_memcpy")]
    per_step = [len(each) for each in drawn]
    ends = [one["ts"] + one["dur"] for one in ran]
    begin, end = max(ends[: per_step[0]]), max(ends[-per_step[-1] :])
    if end <= begin:  # the first step's longest kernel outlives all others
        return
    at = {name: busy(ran, {name}) for name in STREAM}
    window = set(range(int(begin), int(end)))
    compute, talk = (at[GEMM] | at[ADD]) & window, at[REDUCE] & window
    copies = at[COPY] & window
    assert found.shares["compute"] == pytest.approx(len(compute) / len(window))
    assert found.shares["communication"] == pytest.approx(len(talk - compute) / len(window))
    assert found.shares["copy"] == pytest.approx(len(copies - compute - talk) / len(window))
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.overlap == (pytest.approx(len(talk & compute) / len(talk)) if talk else None)


def busy(ran: list[dict[str, object]], names: set[str]) -> set[int]:
    """Return the microseconds in which one of these kernels runs."""
    return {
        moment
        for one in ran
        if one["name"] in names
        for moment in range(int(one["ts"]), int(one["ts"]) + int(one["dur"]))  # type: ignore[call-overload]
    }


def test_the_steps_are_those_of_the_gpu_however_far_the_host_is_ahead(tmp_path: Path) -> None:
    machine = Machine()
    for _ in range(5):
        machine.step(lambda m: m.launch(GEMM, 1000.0))
    found = diagnose(read_traces([machine.write(tmp_path)]))
    assert machine.host - BEGIN == 5 * LAUNCH
    assert found.steps == 4
    assert found.seconds_step == pytest.approx(1e-3)
    assert found.shares["compute"] == pytest.approx(1.0)
