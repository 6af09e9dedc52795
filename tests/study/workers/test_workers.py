import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from study.search import view
from study.search.state import Search
from study.search.trial_queue import TrialQueue
from study.storage.layout import StudyFolder
from tests.study.support.searches import begin_worker, diary, environment, make_search, run_worker
from tests.study.support.stand_in_search_trainer import loss_at
from tests.study.support.studies import wait_until


def reached(search: Search) -> list[tuple[int, int, float]]:
    return sorted((t.number, at, value) for t in search.trials.values() for at, value in t.values.items())


def wait_for_event(study: StudyFolder, worker: "subprocess.Popen[str]") -> None:
    seen = len(TrialQueue.of(study).log.records)
    wait_until("an event", lambda: len(TrialQueue.of(study).log.records) > seen or worker.poll() is not None)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyFolder, Search]:
    study = make_search(tmp_path_factory.mktemp("search") / "s")
    run_worker(study)
    return study, TrialQueue.of(study).search


def test_a_promoted_trial_goes_on_from_its_checkpoint(undisturbed: tuple[StudyFolder, Search]) -> None:
    study, search = undisturbed
    assert search.over
    assert len(search.trials) == 12
    for trial in search.trials.values():
        steps = diary(study, trial.key)
        assert [until for _, until in steps] == sorted(trial.values)
        assert [begun for begun, _ in steps] == [0, *sorted(trial.values)[:-1]]
        lr = float(trial.config["optim.lr"])
        assert trial.values == {at: pytest.approx(loss_at(lr, at)) for at in trial.values}
    best = search.incumbent
    assert best is not None
    assert best.at == 27_008 or best.at == max(t.at for t in search.trials.values())


def test_a_trainer_takes_the_next_unit_where_that_is_of_its_run(undisturbed: tuple[StudyFolder, Search]) -> None:
    study, search = undisturbed
    ends = [record for record in TrialQueue.of(study).log.records if record["event"] == "ended"]
    warm = sum("warm" in record for record in ends)
    attempts = sum(len(list(study.run(trial.key).attempts.iterdir())) for trial in search.trials.values())
    assert warm >= 1
    assert attempts == len(ends) - warm


def test_the_log_alone_tells_it_all_again(undisturbed: tuple[StudyFolder, Search]) -> None:
    study, search = undisturbed
    before = study.events.read_bytes()
    assert "nothing left to do" in run_worker(study)
    assert study.events.read_bytes() == before
    assert reached(TrialQueue.of(study).search) == reached(search)


@pytest.mark.slow
def test_kills_at_any_moment_change_nothing_but_time(undisturbed: tuple[StudyFolder, Search], tmp_path: Path) -> None:
    """Workers one after another, killed with all that they started at random moments, decide as one left alone."""
    study, rng = make_search(tmp_path / "s", lease=0.3), random.Random(0)
    kills = 5
    for number in range(kills):
        # The first one's unit lasts until it is killed: however late that is on a busy machine, one unit is lost.
        worker = begin_worker(study, f"pool{number}", seconds=0.05 if number else 600.0)
        wait_for_event(study, worker)
        time.sleep(rng.uniform(0.0, 0.6))
        with suppress(ProcessLookupError):  # its search came to the end
            os.killpg(worker.pid, signal.SIGKILL)
        worker.communicate()
        time.sleep(0.35)
    run_worker(study)
    search = TrialQueue.of(study).search
    assert search.lost_units >= 1
    assert reached(search) == reached(undisturbed[1])
    assert {t.number: dict(t.config) for t in search.trials.values()} == {
        t.number: dict(t.config) for t in undisturbed[1].trials.values()
    }
    assert search.incumbent is not None and undisturbed[1].incumbent is not None
    assert search.incumbent.key == undisturbed[1].incumbent.key
    for trial in search.trials.values():
        assert {until for _, until in diary(study, trial.key)} == set(trial.values)


@pytest.mark.slow
def test_workers_come_and_go(tmp_path: Path) -> None:
    study = make_search(tmp_path / "s", lease=20.0)

    def claimed_by(name: str) -> bool:
        return any(r.get("worker", "").startswith(f"{name}/") for r in TrialQueue.of(study).log.records)

    first = begin_worker(study, "a", seconds=600.0)  # or it would have done everything before b comes
    wait_until("a claim of a", lambda: claimed_by("a"))
    second = begin_worker(study, "b", seconds=0.0)
    wait_until("a claim of b", lambda: claimed_by("b"))
    first.send_signal(signal.SIGTERM)
    said, _ = first.communicate(timeout=900)
    assert first.returncode in (0, 75), said
    said, _ = second.communicate(timeout=900)
    assert second.returncode == 0, said
    search = TrialQueue.of(study).search
    assert search.over
    assert len(search.trials) == 12
    assert not list(study.leases.iterdir())


def test_cancel_stops_the_workers_and_their_trials_stay(tmp_path: Path) -> None:
    study = make_search(tmp_path / "s")
    worker = begin_worker(study, seconds=120.0)
    wait_until("a claim", lambda: bool(TrialQueue.of(study).search.claims))
    claim = next(iter(TrialQueue.of(study).search.claims.values()))
    wait_until("a trainer", (study.run(claim.key).path / "diary").exists)
    said = subprocess.run(
        [sys.executable, "-m", "study", "cancel", "s", "--runs", str(tmp_path)],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert "1 workers of this machine were told" in said.stdout
    worker.communicate(timeout=900)
    search = TrialQueue.of(study).search
    assert search.stopped
    assert (search.decide(), search.lost_units) == (None, 1)
    assert "stopped" in view.text(search, study)


def test_crashes_and_divergence_end_a_trial_not_the_search(tmp_path: Path) -> None:
    space = {"optim.lr": {"kind": "choice", "values": [0.0001, 0.9, 0.03, 0.01], "ordered": False}}
    study = make_search(tmp_path / "s", space=space, trials=4, eta=2, r=13_500)
    run_worker(study)
    search = TrialQueue.of(study).search
    said = subprocess.run(
        [sys.executable, "-m", "study", "status", "s", "--runs", str(tmp_path), "--json"],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode == 1, said.stderr  # one trial failed
    verdicts = {t["config"]["optim.lr"]: t["verdict"] for t in json.loads(said.stdout)["trials"]}
    assert verdicts[0.0001] == "failed"
    assert verdicts[0.9] == "diverged"
    assert search.incumbent is not None
    assert search.incumbent.config["optim.lr"] == 0.03
    assert search.incumbent.at == 27_008


def test_jobs_of_an_earlier_version_find_the_worker_by_the_name_that_they_know() -> None:
    words = [sys.executable, "-m", "study.search.worker", "--help"]
    said = subprocess.run(words, env=environment(), check=True, capture_output=True, text=True).stdout
    assert said.startswith("usage: python -m study.workers.worker")
