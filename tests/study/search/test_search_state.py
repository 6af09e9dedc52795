import math
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.config.compose import check
from study.search import view
from study.search.event_log import Record
from study.search.settings import load, save
from study.search.state import Search, ended, reported, started
from study.search.trial_point import trial_point
from study.search.trial_queue import TrialQueue
from study.storage.layout import StudyFolder
from sweeps.history import Unit
from sweeps.schedulers.asha_guarded import AshaGuarded
from tests.study.support.searches import make_search, search_settings


def take(search: Search, log: list[Record], worker: str = "w") -> Unit | None:
    unit = search.decide()
    if unit is not None:
        record = started(unit, f"key{unit.trial}", worker, 6.0, 0.0)
        log.append(record)
        search.apply(record)
    return unit


def finish(search: Search, log: list[Record], unit: Unit, how: str = "reached", value: float | None = 1.0) -> None:
    claim = search.claims[search.claim_of[unit.trial]]
    told = [] if value is None else [reported(claim, unit.until, value, 1.0)]
    for record in (*told, ended(claim, how, "", 1.0)):
        log.append(record)
        search.apply(record)


def test_replaying_the_records_rebuilds_the_search() -> None:
    search, log = Search(search_settings()), list[Record]()
    while (unit := take(search, log)) is not None:
        lr = float(search.trials[unit.trial].config["optim.lr"])
        if unit.trial == 3 and unit.until == 1_000:
            finish(search, log, unit, "lost", None)
            unit = take(search, log)
            assert unit is not None and unit.trial == 3
        finish(search, log, unit, value=math.inf if lr > 0.2 else abs(math.log(lr / 0.03)))
    again = Search(search_settings())
    for record in log:
        again.apply(record)
    assert view.as_json(again, make_folder()) == view.as_json(search, make_folder())
    assert again.over
    assert again.lost_units == 1


def make_folder() -> StudyFolder:
    return StudyFolder(Path("nowhere"))


def test_a_rehearsal_leaves_nothing_behind_and_is_what_is_claimed_then(tmp_path: Path) -> None:
    study = make_search(tmp_path / "s")
    queue = TrialQueue.of(study)
    queue.warm_up()
    assert not study.events.exists()
    assert study.points.read_text() == ""
    claim, other = queue.claim("w"), TrialQueue.of(make_search(tmp_path / "t")).claim("w")
    assert claim is not None and other is not None
    assert (claim.unit, claim.key) == (other.unit, other.key)


def test_the_guard_says_what_it_knows() -> None:
    search, log = Search(search_settings(scheduler="asha_guarded", trials=60)), list[Record]()
    while (unit := take(search, log)) is not None:
        finish(search, log, unit, value=random.Random(unit.trial).random() + 1e3 / unit.until)
    said = " ".join(view.text(search, make_folder()).split())
    told = view.as_json(search, make_folder())["evidence"]
    assert told["finished"] >= 5 and told["odds"] > told["needed"] == 1.0
    assert told["share"] == 0.125 and told["given"] > 0
    assert (
        f"odds that early ranks predict final ranks: {told['odds']:.3g} to 1, by {told['finished']} trials trained "
        f"to the end, {told['probes']} of them unselected; selection gets 0.125 of the tokens (nothing below odds of "
        f"1), so far {told['given']:,}; probes have earned it {told['allowed']:,.0f}" in said
    )


def test_a_guards_stake_is_the_settings() -> None:
    guard = search_settings(scheduler="asha_guarded", stake=0.25).make_scheduler()
    assert isinstance(guard, AshaGuarded)
    assert guard.stake == 0.25


def test_a_worker_that_was_given_up_changes_nothing() -> None:
    search, log = Search(search_settings()), list[Record]()
    unit = take(search, log, "first")
    assert unit is not None
    stale = search.claims[search.claim_of[unit.trial]]
    finish(search, log, unit, "lost", None)
    second = take(search, log, "second")
    assert second is not None and second.trial == unit.trial
    before = search.claims.copy()
    for record in (reported(stale, unit.until, 0.0, 2.0), ended(stale, "reached", "", 2.0)):
        search.apply(record)
    assert search.claims == before
    assert not search.trials[unit.trial].values


def test_what_does_not_fit_the_rest_of_a_budget_lets_smaller_units_go_first() -> None:
    """Three trials of 6 and three of 2 FLOPs a token, of which the best one each may go on; 4,000 FLOPs are left."""
    search, log = Search(search_settings(trials=7, budget=3 * 6_000 + 3 * 2_000 + 4_000.0)), list[Record]()
    search.price = lambda unit: 6.0 if unit.trial < 3 else 2.0
    for number in range(6):
        unit = search.decide()
        assert unit is not None and unit.trial == number  # also where the best of three may go on: that is 12,000 FLOPs
        search.apply(started(unit, f"key{number}", "w", search.price(unit), 0.0))
        finish(search, log, unit, value=float(number % 3))
    wanted = list(search.scheduler.candidates())
    assert [(unit.trial, unit.until) for unit in wanted] == [(0, 3_000), (3, 3_000), (6, 1_000)]
    unit = search.decide()
    assert unit == wanted[1]
    search.apply(started(unit, "key3", "w", 2.0, 2.0))
    assert search.decide() is None
    assert search.spent == search.settings.budget


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1_000),
    scheduler=st.sampled_from(["asha", "asha_promotion", "asha_stopping", "asha_guarded", "hyperband", "random"]),
    lots=st.floats(0.5, 12.0),
)
def test_a_hard_budget_is_never_overrun_and_ends_when_nothing_fits(seed: int, scheduler: str, lots: float) -> None:
    """Trials of unlike cost, some units lost; `lots`: the budget, in full trainings of the dearest."""
    budget, rng = lots * 27_008 * 6.0, random.Random(seed)
    search, log = Search(search_settings(scheduler=scheduler, budget=budget, trials=30)), list[Record]()
    search.price = lambda unit: (2.0, 4.0, 6.0)[unit.trial % 3]
    running: list[Unit] = []
    given_out = 0.0
    while True:
        unit = search.decide() if len(running) < 3 else None
        if unit is not None:
            at = search.trials[unit.trial].at if unit.trial in search.trials else 0
            cost = search.price(unit)
            given_out += (unit.until - at) * cost
            record = started(unit, f"key{unit.trial}", "w", cost, 0.0)
            search.apply(record)
            log.append(record)
            running.append(unit)
        elif running:
            lost = rng.random() < 0.2
            one = running.pop(rng.randrange(len(running)))
            finish(search, log, one, "lost" if lost else "reached", None if lost else rng.random())
        else:
            break
        assert search.spent == given_out <= budget
    left = [u for u in search.scheduler.candidates() if search.affordable(u, search.price(u))]
    assert left == []


def test_no_two_trials_are_alike_and_a_small_space_ends() -> None:
    space = {"optim.lr": {"kind": "choice", "values": [0.1, 0.2], "ordered": False}}
    search, log = Search(search_settings(space=space, scheduler="random")), list[Record]()
    while (unit := take(search, log)) is not None:
        finish(search, log, unit)
    assert sorted(trial.config["optim.lr"] for trial in search.trials.values()) == [0.1, 0.2]


def test_stopping_hands_nothing_out_until_resumed() -> None:
    search = Search(search_settings())
    search.apply({"event": "stopped", "time": 0.0})
    assert search.decide() is None
    search.apply({"event": "resumed", "time": 0.0})
    assert search.decide() is not None


def test_a_trials_point_is_what_the_same_overrides_would_freeze() -> None:
    settings = search_settings()
    point = trial_point(settings, {"optim.lr": 0.01, "model.layers": 2})
    assert (point.config.optim.lr, point.config.model.layers, point.config.budget.tokens) == (0.01, 2, 27_008)
    assert point.overrides == ("optim.lr=0.01", "model.layers=2")
    assert point.key == trial_point(settings, {"model.layers": 2, "optim.lr": 0.01}).key
    base = check(dict(settings.base))
    for origin in (None, "0123456789ab@1024"):  # reading only what changed comes to the same point
        whole = trial_point(settings, {"optim.lr": 1, "schedule.warmup_fraction": 0.1}, origin)
        assert trial_point(settings, {"optim.lr": 1, "schedule.warmup_fraction": 0.1}, origin, base) == whole
    with pytest.raises(ValueError, match=r"optim\.lr"):
        trial_point(settings, {"optim.lr": "fast"}, None, base)
    with pytest.raises(ValueError, match="optim"):
        trial_point(settings, {"optim.lr": "fast"})


def test_another_search_in_the_same_study_is_refused_and_more_trials_are_not(tmp_path: Path) -> None:
    study = make_search(tmp_path / "s")
    settings = load(study)
    assert settings is not None
    with pytest.raises(ValueError, match="different: eta"):
        save(study, replace(settings, eta=4))
    with pytest.raises(ValueError, match="may only grow"):
        save(study, replace(settings, trials=3))
    save(study, replace(settings, trials=20))
    assert load(study) == replace(settings, trials=20)


def test_a_silent_workers_unit_goes_to_the_next(tmp_path: Path) -> None:
    study = make_search(tmp_path / "s", lease=600.0)
    first, second = TrialQueue.of(study), TrialQueue.of(study)
    claim = first.claim("first")
    assert claim is not None
    other = second.claim("second")
    assert other is not None and other.unit.trial != claim.unit.trial
    for lease in study.leases.iterdir():
        os.utime(lease, (0, 0))  # nobody has renewed it for long
    again = second.claim("second")
    assert again is not None
    assert (again.unit, again.key) == (claim.unit, claim.key)
    assert not first.record_end(claim, "reached", value=1.0)
    assert second.record_end(again, "reached", value=2.0)
    first.refresh()
    assert first.search.trials[claim.unit.trial].value == 2.0


def test_an_open_search_sees_that_more_trials_were_allowed(tmp_path: Path) -> None:
    study = make_search(tmp_path / "s", trials=1, scheduler="random")
    queue = TrialQueue.of(study)
    assert queue.claim("w") is not None
    assert queue.claim("w") is None
    settings = load(study)
    assert settings is not None
    save(study, replace(settings, trials=2))
    assert queue.claim("w") is not None
