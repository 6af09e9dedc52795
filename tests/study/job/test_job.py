from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from study.failures.kinds import HELD
from study.job import __main__
from study.job.__main__ import NOT_WANTED
from study.process.children import Signals
from study.records import attempts, ledger
from study.storage.files import RunLock
from study.storage.layout import AttemptFolder, RunFolder, StudyFolder
from tests.study.support.stand_ins import stand_in
from tests.study.support.studies import (
    DIVERGES,
    FAILS,
    KILLS_ITSELF,
    LIMIT_SECONDS,
    SILENT,
    SLOW,
    diary,
    environment,
    make_study,
    supervisor,
    wait_until,
)


def prepared(folder: Path, seed: int, **fields: Any) -> tuple[StudyFolder, str]:
    study, keys = make_study(folder / "s", [seed])
    values = {"name": "b", "executor": "local", "keys": [keys[seed]], "resources": {}, "code": "abc-clean", **fields}
    ledger.append(study, "intent", **values)
    ledger.append(study, "submitted", name="b", job_id="7")
    return study, keys[seed]


def start_job(study: StudyFolder, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "study.job", str(study.path), "--name", "b"],
        env={**environment(), "SLURM_ARRAY_TASK_ID": "0", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_job(study: StudyFolder, **variables: str) -> tuple[int, str]:
    process = start_job(study, **variables)
    said, _ = process.communicate(timeout=LIMIT_SECONDS)
    return process.returncode, said


def ending(study: StudyFolder, key: str, attempt: int = 1) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(study.run(key).attempt(attempt).outcome.read_text())
    return loaded


def test_a_job_makes_the_run_folder_and_everything_in_it(tmp_path: Path) -> None:
    study, key = prepared(tmp_path, 1)
    assert not study.run(key).path.exists()
    code, _ = run_job(study)
    run = study.run(key)
    assert code == 0
    point = json.loads(study.points.read_text())
    assert yaml.safe_load(run.config.read_text()) == point["config"]
    job = json.loads(run.attempt(1).job.read_text())
    assert (job["name"], job["executor"], job["code"], job["restart"]) == ("b", "local", "abc-clean", 0)
    assert job["job_id"] == f"local-{job['pid']}"
    assert ending(study, key)["state"] == "completed"
    assert "with 1 threads" in run.attempt(1).stdout(0).read_text()


def test_the_same_job_again_does_nothing(tmp_path: Path) -> None:
    study, key = prepared(tmp_path, 1)
    run_job(study)
    code, said = run_job(study)
    assert (code, "completed already" in said) == (0, True)
    assert [p.name for p in study.run(key).attempts.iterdir()] == ["1"]
    assert diary(study, key) == ["begin 0", "end 100"]


def test_a_failure_keeps_its_last_lines(tmp_path: Path) -> None:
    study, key = prepared(tmp_path, FAILS)
    assert run_job(study)[0] == 1
    end = ending(study, key)
    assert (end["state"], end["exit_code"]) == ("failed", 1)
    assert end["error"].endswith("RuntimeError: the sun was in my eyes")


def test_other_endings(tmp_path: Path) -> None:
    expected = {
        DIVERGES: (3, "diverged", None),
        SILENT: (1, "failed", "the trainer ended with exit code 0 but wrote no outcome.json"),
        KILLS_ITSELF: (137, "failed", "killed by signal 9 (SIGKILL, often the kernel or SLURM when memory ran out)"),
    }
    for seed, (code, state, error) in expected.items():
        study, key = prepared(tmp_path / str(seed), seed)
        assert run_job(study)[0] == code
        end = ending(study, key)
        assert (end["state"], end["error"]) == (state, error)


def test_a_signal_is_passed_on_and_the_next_attempt_resumes(tmp_path: Path) -> None:
    study, key = prepared(tmp_path, SLOW, executor="slurm", resources={"time_minutes": 1})
    study.study.write_text("retry: {time_limit: stop}\n")  # here it is SLURM that starts the job again
    process = start_job(study, SLURM_ARRAY_JOB_ID="7", SLURM_JOB_ID="8")
    wait_until("it trains", study.run(key).metrics.exists)
    os.kill(process.pid, signal.SIGUSR2)
    assert process.wait(LIMIT_SECONDS) == 75
    assert ending(study, key)["state"] == "time_limit"
    saved = diary(study, key)[-1]
    assert saved.startswith("saved ")
    again = start_job(study, SLURM_ARRAY_JOB_ID="7", SLURM_JOB_ID="8", SLURM_RESTART_COUNT="1")
    wait_until("it trains again", lambda: len(diary(study, key)) == 3)
    os.kill(again.pid, signal.SIGTERM)
    assert again.wait(LIMIT_SECONDS) == 75
    assert diary(study, key)[2] == f"begin {saved.split()[1]}"
    assert ending(study, key, 2)["state"] == "interrupted"
    assert json.loads(study.run(key).attempt(2).job.read_text())["restart"] == 1


def test_a_job_whose_study_is_moved_says_so_and_leaves_nothing_there(tmp_path: Path) -> None:
    study, key = prepared(tmp_path, SLOW)
    process = start_job(study)
    wait_until("it trains", study.run(key).metrics.exists)
    moved = StudyFolder(study.path.rename(tmp_path / "moved"))
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 1, said
    assert f"study.job: {study.path} is gone: it was moved or removed" in said
    assert "Traceback" not in said
    assert not study.path.exists()
    assert moved.run(key).attempt(1).job.exists()


def test_a_job_that_begins_after_its_study_was_moved_says_so(tmp_path: Path) -> None:
    study, _ = prepared(tmp_path, SLOW)
    study.path.rename(tmp_path / "moved")
    code, said = run_job(study)
    assert code == 1
    assert f"study.job: {study.path} is gone: it was moved or removed" in said
    assert "no batch" not in said
    assert not study.path.exists()


def test_a_run_that_another_attempt_holds_is_left_alone(tmp_path: Path) -> None:
    study, key = prepared(tmp_path, 1)
    study.run(key).path.mkdir()
    lock = RunLock(study.run(key).lock)
    assert lock.acquire()
    process = start_job(study)
    wait_until("it waits for the lock", lambda: any(f.path.endswith("/lock") for f in _files(process.pid)))
    os.kill(process.pid, signal.SIGTERM)
    said, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == HELD
    assert "another attempt holds" in said
    assert not study.run(key).attempts.exists()


def test_the_lock_lasts_as_long_as_the_trainer(tmp_path: Path) -> None:
    study, key = prepared(tmp_path, SLOW)
    process = start_job(study)
    wait_until("it trains", study.run(key).metrics.exists)
    assert not RunLock(study.run(key).lock).acquire()
    os.kill(supervisor(study, key), signal.SIGKILL)
    process.wait()
    wait_until("the trainer saved", lambda: diary(study, key)[-1].startswith("saved"))
    wait_until("the lock is free", lambda: RunLock(study.run(key).lock).acquire())


def test_a_batch_that_was_given_up_is_fenced_off(tmp_path: Path) -> None:
    study, key = prepared(tmp_path, 1)
    ledger.append(study, "abandoned", name="b", why="never arrived")
    code, said = run_job(study)
    assert (code, "abandoned (never arrived)" in said) == (NOT_WANTED, True)
    assert not study.run(key).path.exists()


def test_cancelled_or_replaced_points_are_not_started(tmp_path: Path) -> None:
    study, key = prepared(tmp_path, 1)
    ledger.append(study, "cancelled", keys=[key])
    assert run_job(study)[0] == NOT_WANTED
    ledger.append(study, "retry", keys=[key])
    ledger.append(study, "intent", name="newer", executor="local", keys=[key])
    code, said = run_job(study)
    assert (code, "now belongs to batch newer" in said) == (NOT_WANTED, True)
    assert not study.run(key).path.exists()


def test_a_point_that_is_cancelled_while_its_job_begins_is_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, key = prepared(tmp_path, 1)
    monkeypatch.setenv("STUDY_TRAINER", environment()["STUDY_TRAINER"])
    claim = attempts.claim

    def cancelled_meanwhile(run: RunFolder) -> tuple[int, AttemptFolder]:
        ledger.append(study, "cancelled", keys=[key])
        return claim(run)

    monkeypatch.setattr("study.job.__main__.claim", cancelled_meanwhile)
    monkeypatch.setattr(Signals, "install", lambda signals: None)
    assert __main__.main([str(study.path), "--name", "b", "--index", "0"]) == 75
    assert (ending(study, key)["state"], diary(study, key)) == ("cancelled", [])


@pytest.mark.parametrize(("told", "cancelled", "sends"), [(False, False, 1), (True, False, 0), (True, True, 1)])
def test_a_cancelled_job_submits_what_waits_and_an_interrupted_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool, cancelled: bool, sends: int
) -> None:
    study, key = prepared(tmp_path, 1)
    ledger.append(study, "waiting", keys=["another"])
    if cancelled:
        ledger.append(study, "cancelled", keys=[key])
    calls: list[Any] = []
    stand_in(monkeypatch, step=lambda folder, services, trigger: calls.append(trigger.keys))
    __main__.send_next(study, [key], told_to_end=told)
    assert calls == [[key]] * sends


def test_a_trainer_that_cannot_be_run_is_a_failure_that_says_so(tmp_path: Path) -> None:
    study, key = prepared(tmp_path, 1)
    code, _ = run_job(study, STUDY_TRAINER="/no/such/launcher")
    assert (code, ending(study, key)["state"]) == (1, "failed")
    assert "/no/such/launcher" in ending(study, key)["error"]


def ranks(study: StudyFolder, count: int) -> list[subprocess.Popen[str]]:
    variables = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_JOB_ID": "8", "SLURM_NTASKS": str(count)}
    return [
        start_job(study, SLURM_PROCID=str(r), SLURM_LOCALID=str(r % 2), **variables) for r in reversed(range(count))
    ]


def test_ranks_find_the_attempt_of_their_job_and_meet(tmp_path: Path) -> None:
    study, key = prepared(tmp_path, 1, executor="slurm", resources={"master_addr": "127.0.0.1"})
    for process in ranks(study, 3):
        assert process.wait(LIMIT_SECONDS) == 0
    attempt = study.run(key).attempt(1)
    written = json.loads(attempt.job.read_text())
    assert json.loads(attempt.stdout(2).read_text()) == {
        "RANK": "2",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(written["port"]),
    }
    assert (written["job_id"], written["world"]) == ("7_0", 3)
    assert [p.name for p in study.run(key).attempts.iterdir()] == ["1"]


def test_the_rank_that_failed_first_is_the_one_that_is_reported(tmp_path: Path) -> None:
    study, key = prepared(tmp_path, FAILS, executor="slurm")
    second, first = ranks(study, 2)
    assert first.wait(LIMIT_SECONDS) == 1
    # The first rank's exit code is the job's: SLURM must not kill it before it has said so.
    assert second.wait(LIMIT_SECONDS) == 0
    report = study.run(key).attempt(1).rank(1)
    assert "rank trouble" in json.loads(report.read_text())["error"]


def _files(pid: int) -> list[Any]:
    import psutil

    try:
        return list(psutil.Process(pid).open_files())
    except psutil.Error:
        return []


def test_a_job_starts_its_trainer_without_reading_the_schema_itself() -> None:
    """Each of thousands of processes would load it for nothing: the trainer reads the config."""
    program = "import sys, study.job.__main__; print({'analysis', 'train.spec.config'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
