"""Recordings of the steps that were asked for, and phases as ranges for a profiler from outside."""

from __future__ import annotations

import gzip
import json
import warnings
from pathlib import Path

import pytest
import torch
from torch.profiler import DeviceType

from train.metrics.profiler import Profiler, spans
from train.metrics.timers import Clock
from train.spec.config import ProfileConfig


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (ProfileConfig(start=1, steps=1), {1: 1}),
        (ProfileConfig(start=2, steps=2), {3: 2}),
        (ProfileConfig(start=4, steps=2, every=4), {5: 2, 9: 2}),
    ],
)
def test_traces_hold_the_steps_that_were_asked_for(
    tmp_path: Path, config: ProfileConfig, wanted: dict[int, int]
) -> None:
    profiler = Profiler(config, tmp_path, 0, lambda step, values: None)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        profiler.begin(0)
        for step in range(1, 11):
            torch.zeros(step)  # a step whose number can be seen
            profiler.boundary(step)
            profiler.begin(step)  # as where the run was paused
        profiler.close()
    assert not [one for one in said if "warmup" in str(one.message)]
    traces = {path.name: path for path in (tmp_path / "profile").iterdir()}
    assert set(traces) == {f"step-{last:09d}-rank-0.json.gz" for last in wanted}
    for last, count in wanted.items():
        events = json.loads(gzip.decompress(traces[f"step-{last:09d}-rank-0.json.gz"].read_bytes()))["traceEvents"]
        assert sum(event["name"] == "aten::zeros" for event in events) == count


def test_phases_are_nvtx_ranges_on_a_gpu_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", said.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: said.append("end"))
    for device, asked in (("cuda", True), ("cuda", False), ("cpu", True)):
        clock = Clock(torch.device(device), nvtx=asked)
        clock.begin(timed=False)
        with clock.phase("forward"), clock.phase("inner"):
            pass
    assert said == ["forward", "inner", "end", "end"]


def test_spans_are_those_of_torchs_events_without_the_ranges_that_only_have_a_name() -> None:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile, torch.profiler.record_function("a range"):
        torch.zeros(50) + 1
    found = spans(profile, DeviceType.CPU)
    expected = [one for one in profile.events() if not one.is_user_annotation]
    assert {"aten::zeros", "aten::add"} <= {name for name, _, _ in found}
    assert "a range" in {one.name for one in profile.events()}
    names = {one.name for one in expected}
    mine = sorted((start, end, name) for name, start, end in found if name in names)
    theirs = sorted((one.time_range.start, one.time_range.end, one.name) for one in expected)
    first, begin = mine[0][0], theirs[0][0]
    assert [name for _, _, name in mine] == [name for _, _, name in theirs]
    for (start, end, _), (since, until, _) in zip(mine, theirs, strict=True):
        assert (start - first, end - first) == pytest.approx(((since - begin) / 1e6, (until - begin) / 1e6), abs=1e-6)
    assert spans(profile, DeviceType.CUDA) == []
