"""The device time of a search is a hard budget: what runs has been set aside, and nothing starts that would not fit."""

import random
from pathlib import Path

import pytest

from study.search import view
from study.search.event_log import Record
from study.search.state import Search, ended, reported, started
from study.search.trial_queue import TrialQueue
from study.search.usage import FIRST_SHARE, SAFETY, DeviceTime
from study.storage.layout import StudyFolder
from tests.study.support.searches import make_search, run_worker, search_settings

HOURS = 1 / 3600.0


def end(how: str = "reached", seconds: float = 10.0, **more: object) -> Record:
    return {"how": how, "seconds": seconds, **more}


@pytest.mark.parametrize("seed", range(6))
def test_the_budget_is_never_overrun_whatever_units_take(seed: int) -> None:
    """Units take what they like up to what was set aside for them: then their worker ends them."""
    rng, budget = random.Random(seed), 2000.0
    settings = search_settings(gpu_hours=budget * HOURS, devices=2, trials=1000)
    search, log, cost = Search(settings), list[Record](), 6.0
    search.price = lambda unit: cost
    running: list[int] = []

    def apply(record: Record) -> None:
        log.append(record)
        search.apply(record)

    while True:
        unit = search.decide() if len(running) < 3 else None
        if unit is not None:
            reserved = search.reservation(unit, cost)
            assert reserved is not None
            running.append(len(log))
            apply(started(unit, f"key{unit.trial}", "w", cost, 0.0, reserved=reserved))
        elif running:
            claim = search.claims[running.pop(rng.randrange(len(running)))]
            assert claim.reserved is not None
            wanted = (3.0 + (claim.unit.until - search.trials[claim.unit.trial].at) / 1000) * rng.uniform(0.5, 2.0)
            took = min(wanted, claim.reserved / 2)
            if took < wanted:
                apply({**ended(claim, "lost", "", 0.0, seconds=took), "limited": True})
            elif rng.random() < 0.1:
                apply(ended(claim, "lost", "", 0.0, seconds=took * rng.random()))
            else:
                apply(reported(claim, claim.unit.until, rng.random(), 0.0))
                apply(ended(claim, "reached", "", 0.0, seconds=took, training=max(0.1, took - 3.0)))
        else:
            break
        assert search.usage.used + sum(search.usage.reserved.values()) <= budget + 1e-6
    assert search.over
    assert search.incumbent is not None
    assert search.usage.used > 0.3 * budget  # it is used, not merely kept
    again = Search(settings)
    again.price = search.price
    for record in log:
        again.apply(record)
    assert view.as_json(again, make_search_folder()) == view.as_json(search, make_search_folder())


def make_search_folder() -> StudyFolder:
    return StudyFolder(Path("nowhere"))


def test_before_anything_was_timed_a_unit_gets_a_share_and_then_what_it_takes() -> None:
    usage = DeviceTime(100 * HOURS, devices=1, R=1000)
    assert usage.reservation(0, 50.0) == pytest.approx(100 * FIRST_SHARE)
    usage.start(0, 100 * FIRST_SHARE)
    usage.end(0, 0, 50.0, end(seconds=6.0, training=4.0))
    assert usage.left == pytest.approx(94)
    assert usage.reservation(1, 100.0) == pytest.approx(SAFETY * (2.0 + 100 * 4.0 / 50))
    assert not usage.affordable(1, 2000.0)
    assert usage.affordable(1, 500.0)


def test_a_unit_that_ran_into_its_limit_gets_more() -> None:
    usage = DeviceTime(1000 * HOURS, devices=1, R=1000)
    usage.end(0, 0, 10.0, end(seconds=10.0))
    before = usage.reservation(3, 10.0)
    usage.end(1, 3, 10.0, end("lost", 5.0, limited=True))
    assert before is not None
    assert usage.reservation(3, 10.0) == pytest.approx(1.5 * before)
    assert usage.reservation(4, 10.0) == pytest.approx(before)


def test_start_up_is_measured_where_a_trainer_was_started() -> None:
    usage = DeviceTime(None, devices=1, R=1000)
    for seconds in (5.0, 6.0, 9.0):
        assert usage.start_up is None
        usage.end(0, 0, 100.0, end(seconds=seconds + 2.0, training=2.0))
    usage.end(0, 0, 100.0, end(seconds=2.0, training=2.0, warm=True))
    assert usage.start_up == 6.0
    assert usage.start_share(2.0) == pytest.approx(6.0 / (0.02 * 1000 * 2.0))
    assert usage.left is None and usage.affordable(0, 1e30)


def test_a_search_ends_with_its_device_time_and_the_best_so_far(tmp_path: Path) -> None:
    """Three full trainings took 20 s, so 25 s are set aside for one: far more than the stand-in takes anywhere.

    Of the budget 2 s more than that are left: a real worker goes on until its units have used most of these up.
    """
    space = {"optim.lr": {"kind": "interval", "low": 2e-3, "high": 4e-1, "log": True}}
    study = make_search(tmp_path / "s", scheduler="random", gpu_hours=(60 + 25 + 2) * HOURS, trials=200, space=space)
    queue = TrialQueue.of(study)
    for _ in range(3):
        claim = queue.claim("w")
        assert claim is not None
        assert queue.record_end(claim, "reached", value=9.0, seconds=20.0, training=20.0)
    run_worker(study, seconds=0.2)
    queue.refresh()
    search = queue.search
    assert search.over
    assert 60 < search.usage.used <= 60 + 25 + 2
    assert 3 < len(search.trials) < 200
    assert search.incumbent is not None and search.incumbent.value < 9.0
    assert "GPU-hours used" in view.line(search)
