"""What `cancel` did to points of each kind, and what other commands say where there is nothing yet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from study.__main__ import main
from study.commands.cancel import Done, in_words, what_was_done
from study.records import ledger
from study.status.observer import observe
from study.status.states import PointState, PointStatus
from study.storage.layout import StudyFolder
from tests.study.support.stand_ins import slurm_commands
from tests.study.support.studies import make_study


@pytest.mark.parametrize(
    ("states", "told", "done", "words"),
    [
        (["running", "running"], 2, Done(told_to_stop=2), "2 told to stop, after a checkpoint"),
        (["queued"], 0, Done(taken_from_queue=1), "1 taken out of SLURM's queue"),
        (["waiting", "pending", "pending"], 0, Done(not_started=3), "3 not started"),
        (["running"], 0, Done(), "they had ended by then"),
        (
            ["unknown", "queued", "running"],
            1,
            Done(1, 1, 0, 1),
            "1 told to stop, after a checkpoint; 1 taken out of SLURM's queue; 1 of unknown state: its jobs in "
            "this SLURM are cancelled; what runs elsewhere is not reached",
        ),
    ],
)
def test_what_was_done_to_each_kind_of_point(states: list[str], told: int, done: Done, words: str) -> None:
    found = what_was_done([PointStatus(key=str(k), state=PointState(state)) for k, state in enumerate(states)], told)
    assert found == done
    assert in_words(found) == words


def test_points_that_wait_are_not_told_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study, keys = make_study(tmp_path / "s", [1, 2, 3, 4])
    told = slurm_commands(tmp_path / "slurm", monkeypatch, "7|0|PENDING|Priority|s.w\\n7|1|RUNNING|None|s.w\\n")
    first, second, third, _ = keys.values()
    ledger.append(study, "waiting", keys=[third], resources={}, code=None)
    ledger.append(study, "intent", name="s.w", executor="slurm", keys=[first, second], resources={}, code=None)
    ledger.append(study, "submitted", name="s.w", job_id="7")
    assert main(["cancel", str(study.path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["cancelled"] == list(keys.values())
    counts = {name: said[name] for name in ("told_to_stop", "taken_from_queue", "not_started", "unknown")}
    assert counts == {"told_to_stop": 1, "taken_from_queue": 1, "not_started": 2, "unknown": 0}
    assert told.read_text().split() == ["7_[0-1]"]


def test_a_job_of_anothers_name_is_left_alone_and_says_nothing_of_the_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The study was submitted on another cluster, which shares the file system and counts its jobs as this one does."""
    study, keys = make_study(tmp_path / "runs" / "s", [1, 2])
    here = "7|0|RUNNING|None|other.x\\n7|1|FAILED|NonZeroExitCode|other.x\\n"
    told = slurm_commands(tmp_path / "slurm", monkeypatch, here)
    ledger.append(study, "intent", name="s.w", executor="slurm", keys=list(keys.values()), resources={}, code=None)
    ledger.append(study, "submitted", name="s.w", job_id="7")
    assert main(["status", str(study.path), "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [point["state"] for point in points] == ["unknown", "unknown"]
    assert points[0]["why"].startswith("job 7_0 is other.x here: look on the cluster that has its job")
    assert main(["list", "--runs", str(tmp_path / "runs"), "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["studies"]
    assert "unknown" in json.dumps(listed)
    assert main(["cancel", str(study.path)]) == 0
    assert "2 of unknown state" in capsys.readouterr().out
    assert not told.exists(), "scancel was run"


def test_two_clusters_of_one_study_may_count_their_jobs_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, keys = make_study(tmp_path / "s", [1, 2, 3])
    told = slurm_commands(tmp_path / "slurm", monkeypatch, "7|0|PENDING|None|s.b\\n7|1|PENDING|None|s.b\\n")
    for name, its in (("s.a", [keys[1]]), ("s.b", [keys[2], keys[3]])):
        ledger.append(study, "intent", name=name, executor="slurm", keys=its, resources={}, code=None)
        ledger.append(study, "submitted", name=name, job_id="7")
    states = {status.key: str(status.state) for status in observe(study)}
    assert [states[keys[seed]] for seed in (1, 2, 3)] == ["unknown", "queued", "queued"]
    assert main(["cancel", str(study.path), keys[1]]) == 0
    assert not told.exists()
    assert main(["cancel", str(study.path), keys[3]]) == 0
    assert told.read_text().split() == ["7_[1]"]


def test_nothing_is_cancelled_while_the_queue_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study, keys = make_study(tmp_path / "s", [1])
    told = slurm_commands(tmp_path / "slurm", monkeypatch, "")
    (tmp_path / "slurm" / "squeue").write_text("#!/bin/bash\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    ledger.append(study, "intent", name="s.w", executor="slurm", keys=list(keys.values()), resources={}, code=None)
    ledger.append(study, "submitted", name="s.w", job_id="7")
    assert main(["cancel", str(study.path)]) == 2
    assert "no job was cancelled, as it is not known which are there" in capsys.readouterr().err
    assert not told.exists()


def test_a_folder_of_studies_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = tmp_path / "nope"
    assert main(["list", "--runs", str(gone)]) == 2
    assert f"--runs {gone}: there is no such folder" in capsys.readouterr().err
    gone.touch()
    assert main(["list", "--runs", str(gone)]) == 2, "a file is none"
    gone.unlink()
    gone.mkdir()
    assert main(["list", "--runs", str(gone)]) == 0
    assert "there are no studies in" in capsys.readouterr().out


def test_before_the_first_study_there_is_nothing_to_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["list"]) == 0
    assert "there are no studies in runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("begun", "said"),
    [(False, "MLflow shows a point from its first attempt on"), (True, "MLflow does not have it yet")],
)
def test_a_point_without_an_attempt_is_not_on_its_way_to_mlflow(
    begun: bool, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, keys = make_study(tmp_path / "s", [1])
    study.study.write_text("tracking: {enabled: true}\n")
    if begun:
        begin(study, keys[1])
    assert main(["show", str(study.path), keys[1]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("MLflow" in line for line in lines) == 1
    assert any(line.startswith(said) for line in lines)


def begin(study: StudyFolder, key: str) -> None:
    attempt = study.run(key).attempt(1)
    attempt.path.mkdir(parents=True)
    attempt.job.write_text(json.dumps({"name": "b", "executor": "slurm", "job_id": "7", "host": "h"}))


def test_the_command_that_is_offered_continues_what_was_cancelled_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study, keys = make_study(tmp_path / "runs" / "s", [1, 2, 3, 4])
    monkeypatch.chdir(tmp_path)
    assert main(["cancel", "s", keys[1]]) == 0
    assert f"retry s --state cancelled --point {keys[1]}    # continues them" in capsys.readouterr().out
    assert main(["cancel", "s", "--where", "seed<3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["next"] == "python -m study retry s --state cancelled --where 'seed<3'"
    assert main(["cancel", "s"]) == 0
    assert "python -m study retry s --state cancelled    # continues them" in capsys.readouterr().out
    assert ledger.read(study).cancelled == set(keys.values())
