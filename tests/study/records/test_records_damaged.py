"""Records of every kind with wrong types, given to every command: the file is named, and nothing is a traceback."""

from __future__ import annotations

import io
import json
import shutil
import zlib
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from study.__main__ import main
from study.commands import retry
from study.executors.job_spec import JobSpec
from study.records import shapes
from study.storage.layout import StudyFolder
from study.storage.secrets import redactor
from study.storage.shapes import DamagedRecord, read_record, wrong
from study.tracking.syncer import Syncer
from tests.study.support import made
from tests.study.support.fake_store import FakeStore
from tests.study.support.recorded import unpack
from tests.study.support.spoilt import PER_FILE, spoilt
from train.run import _ended

NAME = "hurt"


def study_with_all(place: Path, executor: str) -> made.Made:
    """Make a study with three runs that completed, one that was killed with a checkpoint, and one that waits."""
    study = made.make_study(place / "runs" / NAME, 5)
    folder, job = study.folder, {"cpus_per_task": 1, "time_minutes": 60}
    first = json.loads(folder.ledger.read_text()) | {"executor": executor, "resources": job}
    waits = {"event": "waiting", "keys": [study.keys[4]], "resources": job, "code": None, "parallel": 3}
    end = {"event": "ended", "name": "batch-1", "key": study.keys[3], "attempt": 1, "kind": "killed"}
    events: list[dict[str, Any]] = [
        first,
        {"event": "submitted", "name": "batch-1", "job_id": "7"},
        end | {"nodes": ["n"], "action": "stop", "why": "w", "memory_gb": None, "saved": 0},
        {"event": "excluded", "nodes": {"n": "bad"}},
        {"event": "retry", "keys": [study.keys[4]]},
        waits | {"executor": executor, "why": "full"},
    ]
    folder.ledger.write_text("".join(json.dumps({"time": made.T0, **event}) + "\n" for event in events))
    folder.study.write_text(f"cluster: {{executor: {executor}}}\ntracking: {{enabled: false}}\n")
    for index in range(4):
        run = study.run(index)
        made.start_run(run)
        about = {"executor": executor, "job_id": f"7_{index}", "world": 2, "source": "live", "memory_gb": 1.0}
        change(run.attempt(1).job, about)
        made.append(run, 1, 10)
    for index in range(3):
        made.complete(study.run(index))
        change(study.run(index).outcome, {"seconds": {"total": 9.0, "train": 8.0}, "health": {"spikes": 1}})
    killed = study.run(3)
    write(killed.left_to, {"name": "batch-1", "job_id": "7_3", "time": made.T0 + 5})
    beat = {"beats": 3, "step": 1, "phase": "train", "allow": 1.0, "median": 0.1, "own": 0.1, "where": "n"}
    for rank in range(2):
        write(killed.attempt(1).beat(rank), {**beat, "time": made.T0 + 9})
    checkpoint = killed.checkpoints / "step-000000010"
    checkpoint.mkdir(parents=True)
    (checkpoint / "__0_0.distcp").touch()
    progress = {"step": 10, "tokens": 1280, "validation_loss": 3.0, "seconds": {"train": 1.0}}
    files = {"__0_0.distcp": {"bytes": 0, "sha256": "x"}}
    write(checkpoint / "manifest.json", {"format": 1, "progress": progress, "files": files})
    write(folder.queue_note, {"time": made.T0, "why": "full", "waiting": 1})
    return study


def change(path: Path, more: dict[str, Any]) -> None:
    write(path, json.loads(path.read_text()) | more)


def write(path: Path, record: Any) -> None:
    path.write_text(json.dumps(record))


def commands(key: str) -> list[list[str]]:
    """Return every command that reads a study, each in its text; those that change it last."""
    looks = ["status", "cost", "watch", "gc", "logs"]
    words = [["list"], *([word, NAME] for word in looks), ["status", NAME, "--json"], ["show", NAME, key]]
    words += [["logs", NAME, key], ["export-curves", NAME, "curves.npz"], ["show", NAME, key, "--json"]]
    return [*words, ["cancel", NAME, "--state", "unknown"], ["retry", NAME, "--state", "unknown,interrupted"]]


def answer(words: list[str]) -> tuple[int, str]:
    """Run a command; return its exit code and what it said of what is wrong."""
    said = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(said):
        try:
            code = main(words)
        except KeyboardInterrupt:  # it would have waited for what others do
            code = 0
    return code, said.getvalue()


def sync(folder: StudyFolder) -> None:
    try:  # what it waits for is its next look
        Syncer(folder, FakeStore(), "http://h", redactor({})).sync()
    except KeyboardInterrupt:
        return
    except ValueError as error:
        assert str(folder.path) in str(error) or "point " in str(error)


@pytest.fixture
def study(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> made.Made:  # fmt: skip
    """A study in the present folder, on a cluster whose scheduler knows none of its jobs."""
    bin = tmp_path_factory.mktemp("bin")
    for name in ("squeue", "sacct", "scontrol", "sdiag", "sinfo", "scancel"):
        (bin / name).write_text("#!/bin/sh\n")
        (bin / name).chmod(0o755)
    (bin / "sbatch").write_text("#!/bin/sh\necho 99\n")
    (bin / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(retry, "follow", lambda *words, **more: 0)

    def never(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", never)
    return study_with_all(tmp_path, request.param)


FILES: dict[str, Callable[[made.Made], Path]] = {
    "outcome": lambda study: study.run(0).outcome,
    "end of an attempt": lambda study: study.run(0).attempt(1).outcome,
    "job": lambda study: study.run(3).attempt(1).job,
    "note": lambda study: study.run(3).left_to,
    "beat": lambda study: study.run(3).attempt(1).beat(0),
    "manifest": lambda study: study.run(3).checkpoints / "step-000000010" / "manifest.json",
    "queue": lambda study: study.folder.queue_note,
    "settled": lambda study: study.folder.status_cache,
    "sent": lambda study: study.folder.tracking,
    "metrics": lambda study: study.run(3).metrics,
    "ledger": lambda study: study.folder.ledger,
    "points": lambda study: study.folder.points,
}


CASES = [*(("local", kind) for kind in FILES), *(("slurm", kind) for kind in ("job", "note", "queue", "ledger"))]
"""Of a scheduler's points other things are asked; it is slow, for every look starts processes."""


@pytest.mark.filterwarnings("ignore::study.storage.shapes.DamagedRecord")
@pytest.mark.parametrize(("study", "kind"), CASES, indirect=["study"])
def test_no_command_ends_in_a_traceback(study: made.Made, kind: str) -> None:
    path, before = FILES[kind](study), study.folder.path.with_name(".before")
    assert "counts as absent" not in answer(["status", NAME])[1]
    if not path.exists():  # the store's file, and what looks remember
        sync(study.folder)
        answer(["cost", NAME])
    if not path.exists():
        pytest.skip(f"nothing is written to {path.name} here")
    shutil.copytree(study.folder.path, before)
    lines = path.read_text().splitlines() if kind in ("metrics", "ledger", "points") else [path.read_text()]
    of_lines = range(len(lines)) if kind == "ledger" else [len(lines) - 1]
    asks = (
        "slurm" in study.folder.study.read_text()
    )  # which starts processes: fewer, and of the commands those that ask
    for index in of_lines:
        for record in spoilt(json.loads(lines[index]), f"{kind}{index}", 2 if asks or kind == "ledger" else PER_FILE):
            shutil.rmtree(study.folder.path)
            shutil.copytree(before, study.folder.path)
            path.write_text("\n".join([*lines[:index], json.dumps(record), *lines[index + 1 :]]) + "\n")
            if not asks:
                sync(study.folder)
            every = commands(study.keys[0 if kind in ("outcome", "end of an attempt") else 3])
            for words in [one for one in every if one[0] in ("status", "cost", "retry")] if asks else every:
                code, said = answer(words)
                assert code in (0, 1, 2), said
                assert code != 2 or said.splitlines()[-1].startswith(f"study {words[0]}: "), said


WORST = [
    '{"state": 3, "loss": "x"}',
    "[1]",
    '{"state": "completed", "loss": {"validation_nats_per_token": "NaN"}}',
    "{}",
]


@pytest.mark.parametrize("study", ["local"], indirect=True)
@pytest.mark.parametrize("text", WORST)
def test_a_damaged_outcome_is_named_and_the_other_points_are_shown(study: made.Made, text: str) -> None:
    study.run(0).outcome.write_text(text)
    for words in (["status", NAME, "--json"], ["export-curves", NAME, "c.npz"], ["show", NAME, study.keys[0]]):
        said = answer(words)[1]
        assert f"{study.keys[0]}/outcome.json is not the outcome of a run: " in said
        assert "remove it and go on with python -m train.run --config" in said
        assert said.count("It counts as absent") == 1, "each file once"
    assert "outcome.json" in answer(["status", NAME])[1], "also of a point that a look has seen before"
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        main(["status", NAME, "--json"])
    points = {one["key"]: one for one in json.loads(out.getvalue())["points"]}
    assert points[study.keys[0]]["loss"] is None
    assert [points[key]["loss"] for key in study.keys[1:3]] == [2.5, 2.5]


def test_the_trainer_goes_on_with_a_run_whose_outcome_is_none(tmp_path: Path) -> None:
    path = tmp_path / "outcome.json"
    for text in [*WORST, '{"state": "completed", "tokens": "5"}', '{"state": 3, "tokens": 5}']:
        path.write_text(text)
        assert _ended(path) is None
    path.write_text('{"state": "completed", "tokens": 5}')
    assert _ended(path) is not None


def test_a_dry_run_of_the_study_passes_over_a_damaged_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from study.sweep.__main__ import main as sweep
    from tests.study.support.recorded import SAID

    monkeypatch.chdir(unpack(tmp_path))
    outcomes = sorted(tmp_path.glob("runs/recorded/*/outcome.json"))
    for path, record in zip(outcomes, spoilt(json.loads(outcomes[0].read_text()), "dry"), strict=False):
        write(path, record)
    assert sweep([*SAID, "study.name=recorded", "budget.tokens=8192", "dry_run=true"]) == 0
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("record", spoilt({"event": "reported", "trial": 0, "claim": 0, "value": 1.0}, "event"))
def test_an_event_of_a_search_with_wrong_types_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    monkeypatch.chdir(unpack(tmp_path))
    text = json.dumps(record).encode()
    with (tmp_path / "runs/searched/events.log").open("ab") as file:
        file.write(b"%08x %08x %s\n" % (len(text), zlib.crc32(text), text))
    for words in (["status", "searched"], ["list"], ["gc", "searched"], ["export-curves", "searched", "c.npz"]):
        code, said = answer(words)
        assert code in (0, 1, 2) and (code != 2 or "events.log" in said or "too few" in said), said


@pytest.mark.parametrize("seed", range(4))
def test_settings_of_a_search_with_wrong_types_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.chdir(unpack(tmp_path))
    path = tmp_path / "runs/searched/search.json"
    for record in spoilt(json.loads(path.read_text()), f"search {seed}"):
        write(path, record)
        for words in (["status", "searched"], ["list"], ["gc", "searched"]):
            code, said = answer(words)
            assert code in (0, 1, 2), said


def test_what_a_job_asks_has_the_forms_of_its_config() -> None:
    names = [field.name for field in fields(JobSpec)]
    asked = JobSpec(mem_gb=1.5, nice=-1, prefix=("srun",), sbatch=(("hint", "nomultithread"),), dependency="afterok:7")
    assert wrong(json.loads(json.dumps(asked.record())), shapes.resources()) == ""
    for name in [*names, "tasks"]:
        assert wrong({name: {}}, shapes.resources()).startswith(f"{name} is {{}}, not "), name
    assert wrong({"nodes": -1}, shapes.resources()) == "nodes is -1, not a whole number from 0 on"
    assert JobSpec.read(dict.fromkeys(names)) == JobSpec(), "null is what is not said"


def test_what_is_wrong_is_said_in_words(tmp_path: Path) -> None:
    right = made.outcome()
    assert wrong(right, shapes.RUN_OUTCOME) == ""
    assert wrong([right], shapes.RUN_OUTCOME).endswith("not an object")
    assert wrong(right | {"state": 3}, shapes.RUN_OUTCOME) == "state is 3, not completed or diverged"
    assert wrong(right | {"loss": {"a": "x"}}, shapes.RUN_OUTCOME) == 'loss.a is "x", not a number'
    assert wrong({"loss": None}, shapes.RUN_OUTCOME) == "state is missing"
    assert wrong(right | {"loss": {"a": float("nan")}}, shapes.RUN_OUTCOME) == "", "as a diverged run has it"
    assert wrong(right | {"tokens": float("nan")}, shapes.RUN_OUTCOME).startswith("tokens is NaN")
    path = tmp_path / "outcome.json"
    assert read_record(path, shapes.RUN_OUTCOME) is None
    write(path, right | {"tokens": True})
    with pytest.warns(DamagedRecord, match=r"outcome\.json is not .*tokens is true.*--config .*/config\.yaml"):
        assert read_record(path, shapes.RUN_OUTCOME) is None
