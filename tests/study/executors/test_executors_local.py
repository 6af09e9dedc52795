from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from study.executors import local
from study.executors.local import write_batch
from study.records import ledger, outcomes
from study.status.observer import observe
from study.storage.layout import StudyFolder
from tests.processes import has_ended
from tests.study.support.studies import (
    DIVERGES,
    FAILS,
    KILLS_ITSELF,
    LIMIT_SECONDS,
    SAVES_SLOWLY,
    SLOW,
    begin,
    diary,
    end_group,
    make_study,
    run_to_end,
    saved_step,
    states,
    study_command,
    supervisor,
    wait_until,
)


def test_all_points_run_once_and_the_second_time_nothing_happens(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", range(5))
    code, said = run_to_end(study)
    assert code == 0, said
    assert set(states(study).values()) == {"completed"}
    assert said.splitlines()[0].partition("] ")[2].startswith("train: 0/5 done, 2 running")
    assert said.splitlines()[-1] == "s: 5 completed"
    before = study.ledger.read_bytes()
    code, said = run_to_end(study)
    assert (code, study.ledger.read_bytes()) == (0, before)
    assert all(diary(study, key) == ["begin 0", "end 100"] for key in keys.values())
    assert all((study.run(key).attempt(1).outcome).exists() for key in keys.values())
    assert len(study.outcomes.read_text().splitlines()) == 5


def test_a_failing_point_does_not_stop_the_others_and_makes_the_exit_code_1(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [FAILS, 1, DIVERGES, 2, KILLS_ITSELF])
    code, said = run_to_end(study)
    assert code == 1
    found = states(study)
    assert [found[key] for key in keys.values()] == ["failed", "completed", "diverged", "completed", "failed"]
    assert "RuntimeError: the sun was in my eyes" in said
    killed = keys[KILLS_ITSELF]
    assert f"{killed}: killed: tried again as it is, 2 of 2" in said
    assert decided(study, killed) == [("killed", "again"), ("killed", "again"), ("killed", "stop")]
    code, said = run_to_end(study)
    assert code == 1, "they still failed"
    assert said.startswith("2 failed: left as they are; python -m study retry s --runs ")
    assert diary(study, keys[FAILS]) == ["begin 0"], "an error of the code is not tried again unless asked to"
    assert diary(study, killed) == ["begin 0"] * 3, "a kill is, as often as the policy says"
    tries = [json.loads(study.run(killed).attempt(number).job.read_text())["pid"] for number in (1, 2, 3)]
    assert len(set(tries)) == 3, "no process stays after a bad end"


def decided(study: StudyFolder, key: str) -> list[tuple[str, str]]:
    """Return the kinds of ends that the ledger holds of a point, and what was decided of each."""
    ends = [event for event in ledger.read_events(study.ledger) if event["event"] == "ended"]
    return [(event["kind"], event["action"]) for event in ends if event["key"] == key]


def test_a_key_is_given_to_a_process_of_its_own_where_none_is_to_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    class Ended:
        pid, returncode = 1, 0

        def poll(self) -> int:
            return 0

        def send_signal(self, number: int, /) -> None: ...

    def spawn(command: list[str], *_: object) -> Ended:
        started.append(command)
        return Ended()

    monkeypatch.setattr(local, "spawn", spawn)
    study = StudyFolder(tmp_path / "s")
    slots = local.LocalSlots(study, 2)
    slots.start("b", ledger.Batch("local.1", "local", ("a", "b"), 0.0, resources={"warm": False}))
    assert slots.running == {"b"}
    assert started[0][-7:] == ["-m", "study.job", str(study.path), "--name", "local.1", "--index", "1"]
    assert slots.reap() == {"b": 0}
    assert slots.running == frozenset()
    slots.close()


def test_a_diverged_point_alone_is_a_result(tmp_path: Path) -> None:
    study, _ = make_study(tmp_path / "s", [DIVERGES])
    assert run_to_end(study)[0] == 0


def test_no_more_runs_at_once_than_slots_and_the_longest_first(tmp_path: Path) -> None:
    study, small = make_study(tmp_path / "s", [0, 1])
    _, large = make_study(tmp_path / "s", [2], width=128)
    study.study.write_text("cluster: {slots: 1}\ntracking: {enabled: false}\n")
    assert run_to_end(study)[0] == 0
    jobs = {key: json.loads(study.run(key).attempt(1).job.read_text()) for key in [*small.values(), *large.values()]}
    begun = {key: job["started"] for key, job in jobs.items()}
    assert len({job["pid"] for job in jobs.values()}) == 1  # the slot's process stays
    assert min(begun, key=lambda key: begun[key]) == large[2]
    spans = sorted((begun[key], json.loads(study.run(key).attempt(1).outcome.read_text())["ended"]) for key in begun)
    assert all(end <= start + 0.5 for (_, end), (start, _) in itertools.pairwise(spans))


def test_ctrl_c_lets_runs_save_and_the_same_command_carries_on(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [SLOW, SLOW + 1, SLOW + 2])
    process = begin(study)
    wait_until("two runs train", lambda: sum(study.run(k).metrics.exists() for k in keys.values()) == 2)
    os.kill(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130, said
    assert "waiting for the checkpoints of 2 runs" in said
    assert sorted(states(study).values()) == ["interrupted", "interrupted", "pending"]
    started = [key for key in keys.values() if diary(study, key)]
    steps = {key: saved_step(study, key) for key in started}
    again = begin(study)
    wait_until("they train again", lambda: all(len(diary(study, key)) == 3 for key in started))
    os.kill(again.pid, signal.SIGTERM)
    assert again.wait(LIMIT_SECONDS) == 130
    assert {key: diary(study, key)[2] for key in started} == {k: f"begin {n}" for k, n in steps.items()}


def test_kill_9_of_the_controller_loses_nothing_and_runs_nothing_twice(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [SLOW, 1, 2, 3, 4, 5])
    process = begin(study)
    slow = keys[SLOW]
    wait_until("the slow one trains and others ended", lambda: _progress(study, slow, keys))
    jobs = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    end_group(process)
    wait_until("its children saved and ended", lambda: all(map(has_ended, jobs)))
    assert diary(study, slow)[-1] == f"saved {saved_step(study, slow)}"
    assert states(study)[slow] == "interrupted"
    again = begin(study)
    wait_until("the slow one goes on", lambda: len(diary(study, slow)) == 3)
    quick = [key for key in keys.values() if key != slow]
    wait_until("the others are done", lambda: all(diary(study, key)[-1:] == ["end 100"] for key in quick))
    os.kill(again.pid, signal.SIGINT)
    again.wait(LIMIT_SECONDS)
    for key in quick:
        lines = diary(study, key)
        begun = [line for line in lines if line.startswith("begin")]
        assert lines[0] == "begin 0"
        assert len(begun) == 1 + sum(line.startswith("saved") for line in lines), "resumed, never begun beside itself"


def test_run_again_at_once_after_kill_9_takes_over_what_still_saves(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [SAVES_SLOWLY])
    key = keys[SAVES_SLOWLY]
    process = begin(study)
    wait_until("it trains", study.run(key).metrics.exists)
    end_group(process)
    assert states(study)[key] == "running", "it is writing its checkpoint"
    again = begin(study)
    wait_until("it goes on", lambda: len(diary(study, key)) == 3)
    os.kill(again.pid, signal.SIGINT)
    assert again.wait(LIMIT_SECONDS) == 130
    assert diary(study, key)[2] == f"begin {diary(study, key)[1].split()[1]}"


def test_a_second_controller_only_watches(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [SLOW])
    first = begin(study)
    wait_until("it trains", study.run(keys[SLOW]).metrics.exists)
    second = begin(study)
    wait_until("it has read its handlers", lambda: _handles_interrupt(second.pid))
    os.kill(second.pid, signal.SIGINT)
    said, _ = second.communicate(timeout=LIMIT_SECONDS)
    assert second.returncode == 130
    assert "another process is running s: this one only watches" in said
    assert states(study)[keys[SLOW]] == "running", "stopping to watch harms nothing"
    os.kill(first.pid, signal.SIGINT)
    assert first.wait(LIMIT_SECONDS) == 130


def test_points_that_nobody_starts_are_not_called_a_success(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [1])
    write_batch(study, list(keys.values()), None)
    done = study_command("watch", study.path, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "s: 1 pending")


def test_a_damaged_outcome_does_not_hide_the_others(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [1, 2])
    assert run_to_end(study)[0] == 0
    study.run(keys[1]).outcome.write_text('{"format": 1, "st')
    assert outcomes.export(study) == 1
    assert keys[2] in study.outcomes.read_text()


def test_a_run_that_was_killed_outright_goes_on_by_itself_and_one_told_to_stop_does_not(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [SLOW])
    key = keys[SLOW]
    process = begin(study)
    wait_until("it trains", study.run(key).metrics.exists)
    os.kill(supervisor(study, key), signal.SIGKILL)
    wait_until("it goes on", lambda: len(diary(study, key)) == 3)
    os.kill(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130, said
    assert states(study)[key] == "interrupted"
    assert decided(study, key) == [("killed", "again")], "being told to stop is no failure, and nothing follows from it"


def test_a_run_that_ends_while_it_is_looked_at_was_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, keys = make_study(tmp_path / "s", [1])
    key = keys[1]
    write_batch(study, [key], None)
    attempt = study.run(key).attempt(1)
    attempt.path.mkdir(parents=True)
    (name,) = ledger.read(study).batches
    attempt.job.write_text(json.dumps({"name": name, "executor": "local", "job_id": "local-1", "host": "h"}))

    def ends_now(job: object) -> bool:
        attempt.outcome.write_text(json.dumps({"state": "failed", "kind": "code_error"}))
        return False

    monkeypatch.setattr("study.status.observer.is_alive", ends_now)
    (status,) = observe(study)
    assert (status.state, status.kind) == ("failed", "code_error")


def test_cancel_and_retry(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [SLOW, 1])
    study.study.write_text("cluster: {slots: 1}\ntracking: {enabled: false}\n")
    slow, quick = keys[SLOW], keys[1]
    process = begin(study)
    wait_until("the first trains", lambda: bool(_running(study)))
    first = _running(study)[0]
    done = study_command("cancel", study.path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 points cancelled: 1 told to stop, after a checkpoint; 1 not started" in done.stdout or first == quick
    said, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, said
    assert states(study)[slow] == "cancelled"
    assert run_to_end(study)[0] == 0
    assert states(study)[slow] == "cancelled", "the study's own command does not revive it"
    if first == slow:
        assert diary(study, quick) == []
    before = ledger.read(study).batches
    assert study_command("retry", study.path, "--state", "completed", cwd=tmp_path).returncode == 2
    assert ledger.read(study).batches == before
    done = study_command("retry", study.path, "--point", quick, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert states(study)[quick] == "completed"


def test_retry_of_a_failure_makes_a_new_attempt(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [FAILS])
    assert run_to_end(study)[0] == 1
    done = study_command("retry", study.path, cwd=tmp_path)
    assert done.returncode == 1
    (status,) = observe(study)
    assert (status.state, status.attempt) == ("failed", 2)
    assert diary(study, keys[FAILS]) == ["begin 0", "begin 0"]


def _progress(study: object, slow: str, keys: dict[int, str]) -> bool:
    from study.storage.layout import StudyFolder

    assert isinstance(study, StudyFolder)
    ended = sum(study.run(key).outcome.exists() for key in keys.values())
    return study.run(slow).metrics.exists() and ended >= 1


def _running(study: object) -> list[str]:
    from study.storage.layout import StudyFolder

    assert isinstance(study, StudyFolder)
    return [status.key for status in observe(study) if status.state == "running" and status.step is not None]


def _handles_interrupt(pid: int) -> bool:
    """Whether the process handles SIGHUP, which Python leaves alone: so the handlers of a follower are in place."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) & 1 << (signal.SIGHUP - 1))
    return False
