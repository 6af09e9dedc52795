"""Runs with a recording and without one: what is found in a folder, and what step times say alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from study.__main__ import main
from study.diagnosis.recordings import find, recording, trace_commands
from study.diagnosis.step_times import read_step_times
from study.storage.layout import RunFolder
from tests.study.support import traces


def record(step: int, **metrics: float) -> dict[str, Any]:
    return {"kind": "train", "step": step, "tokens": step * 4096, "time": 0.0, "metrics": metrics}


def write(folder: Path, *records: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


def test_the_latest_recording_is_read_with_all_of_its_ranks(tmp_path: Path) -> None:
    names = [f"step-{step:09d}-rank-{rank}.json.gz" for step in (9, 1000, 20) for rank in (10, 2)]
    for name in [*names, "out-of-memory-rank-0.pickle"]:
        (tmp_path / name).touch()
    assert [path.name for path in recording(tmp_path)] == [
        "step-000001000-rank-2.json.gz",
        "step-000001000-rank-10.json.gz",
    ]
    assert [path.name for path in recording(tmp_path, 9)] == [
        "step-000000009-rank-2.json.gz",
        "step-000000009-rank-10.json.gz",
    ]
    with pytest.raises(ValueError, match="no recording that ends at step 7: there are 9, 20, 1000"):
        recording(tmp_path, 7)


def test_traces_of_others_are_taken_as_a_rank_each(tmp_path: Path) -> None:
    for name in ("b.pt.trace.json", "a.pt.trace.json.gz"):
        (tmp_path / name).touch()
    assert [path.name for path in find(str(tmp_path), [], tmp_path).traces] == ["a.pt.trace.json.gz", "b.pt.trace.json"]
    with pytest.raises(ValueError, match=r"has neither a run \(config.yaml, metrics.jsonl\) nor traces"):
        find(str(tmp_path / ".."), [], tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "RUN is empty: give a run's folder, a study, a trace"),
        ("a.json 3f9a", "'3f9a' would be the key of a point, and a.json is a trace: leave it out"),
        ("a.json top=5", "'top=5' would be the key of a point, and a.json is a trace: did you mean --top 5?"),
        (". 3f9a", "'3f9a' would be the key of a point, and . is no study: leave it out"),
    ],
)
def test_words_that_would_change_nothing_are_refused(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.json").touch()
    name, *points = words.split(" ")
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        find(name, points, tmp_path)


def test_a_step_is_not_asked_of_a_single_trace(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.touch()
    with pytest.raises(ValueError, match=r"^--step 20 chooses from several recordings, and .*a.json is one: leave it"):
        find(str(path), [], tmp_path, 20)


def test_step_times_tell_of_a_slow_loader_and_of_nothing_where_it_costs_nothing(tmp_path: Path) -> None:
    slow = [record(10 * n, seconds_step=0.1, seconds_data=0.06, seconds_graph=0.04) for n in range(1, 9)]
    found = read_step_times(write(tmp_path / "slow", *slow))
    [one] = found.findings
    assert one.cause == "input"
    assert one.share == pytest.approx(0.6)
    assert "runtime.prefetch_batches" in one.first
    assert found.tokens_per_step == 4096
    # A GPU that goes on meanwhile: its own phases fill the step.
    hidden = [record(10 * n, seconds_step=0.1, seconds_data=0.06, seconds_graph=0.099) for n in range(1, 9)]
    found = read_step_times(write(tmp_path / "hidden", *hidden))
    assert found.findings == []
    assert found.shares["data"] == pytest.approx(0.01)


def test_the_first_steps_which_compile_are_not_counted(tmp_path: Path) -> None:
    rows = [record(1, seconds_step=90.0), *(record(n, seconds_step=0.5) for n in range(2, 12))]
    assert read_step_times(write(tmp_path, *rows)).seconds_step == 0.5


def test_a_profile_record_tells_of_exposed_communication(tmp_path: Path) -> None:
    about = {"seconds_busy": 0.9, "seconds_communication": 0.5, "seconds_communication_exposed": 0.4}
    profile = {**record(11), "kind": "profile", "metrics": about}
    found = read_step_times(write(tmp_path, *(record(n, seconds_step=1.0) for n in range(1, 8)), profile))
    assert [(one.cause, one.share) for one in found.findings] == [("communication", 0.4)]
    assert found.profiled == {"communication": 0.4, "idle": pytest.approx(0.1)}


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "has not trained yet"), ("", "no timed step yet"), ('{"kind": "tr', "no timed step yet")],
)
def test_a_run_without_times_is_refused_with_its_cure(
    content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").touch()
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    assert main(["diagnose", str(tmp_path), "--json"]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert str(tmp_path / "metrics.jsonl") in json.loads(out)["error"]
    assert err.count("\n") == 1


def test_commands_that_record_begin_where_the_run_is(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "one")
    assert "profile.start=20" in trace_commands(run, None)[0]
    place = run.checkpoints / "step-000000030"
    place.mkdir(parents=True)
    (place / "manifest.json").write_text(json.dumps({"progress": {"tokens": 3000}, "files": {}}))
    branch, train, again = trace_commands(run, 100)
    assert "--same --set profile.start=35 profile.ranks=all" in branch
    assert train.endswith("one-profiled/config.yaml --until 5000")
    assert again == f"python -m study diagnose {tmp_path}/one-profiled"
    run.outcome.touch()
    assert "--tokens 2000 --set" in trace_commands(run, 100)[0]


def test_people_and_scripts_are_told_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for machine in traces.straggler():
        machine.write(tmp_path / "profile")
    write(tmp_path, *(record(n, seconds_step=0.009) for n in range(1, 8)))
    assert main(["diagnose", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0] == f"{tmp_path}: stragglers (24 % of the step)"
    assert "first thing to try: Run without the node of rank 2" in text
    assert "nsys profile --trace cuda,nvtx" in text
    assert main(["diagnose", str(tmp_path), "--json", "--top", "1"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["format"], said["command"], said["source"]) == (1, "diagnose", "trace")
    assert said["limit"]["cause"] == "stragglers"
    assert said["first"] == said["limit"]["first"]
    assert said["shares"]["waiting"] == pytest.approx(0.244, abs=0.01)
    assert [one["rank"] for one in said["ranks"]] == [0, 1, 2, 3]
    assert len(said["kernels"]) == 1
    assert said["seconds_step_unprofiled"] == 0.009


def test_a_run_without_a_trace_is_told_how_to_make_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, *(record(n, seconds_step=0.1, seconds_data=0.05, mfu=0.4) for n in range(1, 8)))
    assert main(["diagnose", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "input-bound (50 % of the step)" in text
    assert "profile.start=20" in text
    assert main(["diagnose", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["source"], said["limit"]["cause"], said["mfu"]) == ("metrics", "input", 0.4)


@pytest.mark.parametrize("name", ["nowhere/trace.json", "trace.json.gz", "/nowhere/of"])
def test_a_path_that_is_not_there_is_no_missing_study(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", name, "--runs", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"study diagnose: {name} is not there: give a run's folder, a study, a trace or a folder of traces\n"
    )
