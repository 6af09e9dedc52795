"""What status says of the time to come, and of trials between which only the user can choose."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from study.search import view
from study.search.forecast import MOST, Forecast, _Ahead, forecast
from study.search.pareto import front, front_of
from study.search.state import Search, ended, reported, started
from study.storage.layout import StudyFolder
from sweeps.history import Unit
from tests.study.support.searches import search_settings

R = 27_008
NOWHERE = StudyFolder(Path("nowhere"))


def begin(search: Search, now: float = 0.0) -> int:
    """Hand out the next unit at 1 FLOP a token; return its claim."""
    unit, number = search.decide(), search._count
    assert unit is not None
    reserved = search.reservation(unit, 1.0)
    search.apply(started(unit, f"key{unit.trial}", "w", 1.0, now, reserved=reserved))
    return number


def finish(search: Search, number: int, seconds: float = 10.0, value: float = 1.0) -> None:
    claim = search.claims[number]
    search.apply(reported(claim, claim.unit.until, value, 0.0))
    search.apply(ended(claim, "reached", "", 0.0, seconds=seconds, training=seconds))


def full_runs(ended_already: int, running: int, **changes: object) -> Search:
    """Full trainings of 10 s: some have ended, some began at 100 s."""
    search = Search(search_settings(scheduler="random", **changes))
    search.price = lambda unit: 1.0
    for _ in range(ended_already):
        finish(search, begin(search))
    for _ in range(running):
        begin(search, 100.0)
    return search


@pytest.mark.parametrize(
    ("search", "now", "expected"),
    [
        (full_runs(0, 2), 100.0, None),  # nothing has been timed
        (full_runs(12, 0), 100.0, None),  # it is over
        (full_runs(1, 1), 104.0, Forecast(11, 106.0, 1, 106.0, "trials")),
        (full_runs(1, 2), 104.0, Forecast(11, 102.0, 2, 56.0, "trials")),
        (full_runs(1, 2), 900.0, Forecast(11, 90.0, 2, 50.0, "trials")),  # longer than thought: any moment now
        (full_runs(3, 0), 100.0, Forecast(9, 90.0, 0, None, "trials")),
        (full_runs(1, 1, budget=5.5 * R), 100.0, Forecast(4, 40.0, 1, 40.0, "budget")),
        (full_runs(1, 1, budget=5.0 * R), 100.0, Forecast(4, 40.0, 1, 40.0, "budget")),  # the last takes all of it
        # 12.5 s are set aside for a unit of 10 s: five fit into 60 s, not six.
        (full_runs(1, 1, gpu_hours=60 / 3600), 100.0, Forecast(4, 40.0, 1, 40.0, "budget")),
        (full_runs(1, 1, trials=10**6), 100.0, Forecast(MOST, 10.0 * MOST, 1, 10.0 * MOST, "trials", True)),
        (
            full_runs(1, 1, space={"optim.lr": {"kind": "choice", "values": [0.1, 0.2, 0.3], "ordered": False}}),
            100.0,
            Forecast(2, 20.0, 1, 20.0, "trials"),  # no more settings than three
        ),
    ],
)
def test_time_to_the_end(search: Search, now: float, expected: Forecast | None) -> None:
    found = forecast(search, now)
    # Sums of tens of seconds in floating point.
    rounded = found and Forecast(
        found.units,
        round(found.worker_seconds, 6),
        found.workers,
        None if found.seconds is None else round(found.seconds, 6),
        found.ends_by,
        found.at_least,
    )
    assert rounded == expected


def run(search: Search, seed: int, asked: tuple[int, ...] = ()) -> tuple[list[float], list[float]]:
    """Run a search on one worker, 1 ms a token; return what each unit took, and what was left when `asked` [s]."""
    chance, took, left = random.Random(seed), list[float](), list[float]()
    while not search.over:
        if len(took) in asked:
            found = forecast(search)
            assert found is not None
            left.append(found.worker_seconds)
        number = begin(search)
        unit = search.claims[number].unit
        had = unit.parent[1] if unit.parent else search.trials[unit.trial].at
        took.append(1e-3 * (unit.until - had))
        finish(search, number, took[-1], chance.random())
    return took, left


@pytest.mark.parametrize("scheduler", ["asha", "asha_stopping", "asha_guarded", "hyperband", "pbt"])
def test_half_way_the_rest_is_what_it_then_takes(scheduler: str) -> None:
    """Over six searches what is said to be left half way is what is left to within a third.

    A third: which trials go on is chance, and a full training is a tenth of such a search or more. Seeded.
    """
    space = {"optim.lr": {"kind": "interval", "low": 1e-3, "high": 1e-1, "log": True}}
    wanted = search_settings(scheduler=scheduler, trials=12 if scheduler == "pbt" else 30, space=space)
    said = true = 0.0
    for seed in range(6):
        took, _ = run(Search(wanted), seed)
        half = len(took) // 2
        again, (middle, last) = run(Search(wanted), seed, (half, len(took) - 1))
        assert again == took
        if scheduler != "asha_guarded":  # what its last trial ends at may be against having paused others
            assert last == pytest.approx(took[-1])  # the last unit is known
        said, true = said + middle, true + sum(took[half:])
    assert said == pytest.approx(true, rel=1 / 3)


def test_a_forecast_changes_nothing_and_is_shown() -> None:
    search = full_runs(2, 1)
    before = view.as_json(search, NOWHERE, 100.0)
    assert view.as_json(search, NOWHERE, 100.0) == before
    assert before["left"]["seconds"] == pytest.approx(100.0)
    assert "about 1 min 40 s to the end with 1 worker: 10 units, then every trial has had its turn" in view.text(
        search, NOWHERE, 100.0
    )
    assert "9 units left, 1 min 30 s of one worker's time" in view.text(full_runs(3, 0), NOWHERE)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([], []),
        ([(1.0, 1.0)], [0]),
        ([(2.0, 1.0), (1.0, 2.0), (2.0, 2.0)], [1, 0]),
        ([(1.0, 1.0), (1.0, 1.0), (1.0, 2.0)], [0, 1]),  # equal ones are all on it
        ([(1.0, math.inf), (2.0, 5.0), (math.nan, 0.0)], [1]),
        ([(3.0, 3.0, 1.0), (1.0, 1.0, 2.0), (2.0, 2.0, 2.0)], [1, 0]),
    ],
)
def test_front_table(points: list[tuple[float, ...]], expected: list[int]) -> None:
    assert front(points) == expected


def test_the_front_is_of_trials_at_equal_tokens() -> None:
    both = {"sampler": "tpe", "objectives": ("loss", "gpu_seconds")}
    search = Search(search_settings(trials=9, eta=3, **both))
    for value, seconds in [(2.0, 4.0), (1.0, 9.0), (3.0, 5.0)]:  # the third is beaten by the first
        finish(search, begin(search), seconds, value)
    assert [trial.number for trial in front_of(search)] == [1, 0]
    said = view.as_json(search, NOWHERE)["front"]
    assert said[0] == {"number": 1, "key": "key1", "tokens": 1_000, "loss": 1.0, "gpu_seconds": 9.0}
    assert "at 1,000 tokens no trial is lower in one objective than these" in view.text(search, NOWHERE)
    finish(search, begin(search), 2.0, 0.5)  # one goes on: nobody else has come so far
    assert [(trial.number, trial.seconds[3_000]) for trial in front_of(search)] == [(1, 11.0)]
    assert view.as_json(full_runs(3, 0), NOWHERE)["front"] == []


def test_losses_are_drawn_as_those_that_are_known_where_there_are_two() -> None:
    search = full_runs(1, 1)
    assert _Ahead(search).like == {}, "one value has no spread"
    finish(search, begin(search), value=3.0)
    assert _Ahead(search).like == {R: (2.0, 1.0)}


def test_a_unit_whose_tokens_are_there_already_costs_nothing() -> None:
    found = _Ahead(full_runs(1, 0))
    assert found._flops(Unit(7, 4, parent=(0, 8))) == 0.0 and found._flops(Unit(7, 8, parent=(0, 4))) == 4.0


def left(search: Search, now: float | None) -> tuple[int, float, int, float, str]:
    """Return the forecast's numbers; sums of tens of seconds in floating point are rounded."""
    found = forecast(search, now)
    assert found is not None and found.seconds is not None
    return found.units, round(found.worker_seconds, 6), found.workers, round(found.seconds, 6), found.ends_by


def test_a_forecast_without_a_time_counts_running_units_whole() -> None:
    assert left(full_runs(1, 1), None) == (11, 110.0, 1, 110.0, "trials")


def test_what_units_are_expected_to_need_ends_a_search_early() -> None:
    search = full_runs(0, 0, gpu_hours=95 / 3600)
    for _ in range(3):  # 2 s to start, 8 s of training
        claim = search.claims[begin(search)]
        search.apply(reported(claim, R, 1.0, 0.0))
        search.apply(ended(claim, "reached", "", 0.0, seconds=10.0, training=8.0))
    begin(search, 100.0)
    # 55 s are left when the running one has ended, then 45, 35, 25 and 15; a quarter more than 10 s does not fit in 5.
    assert left(search, 100.0) == (6, 60.0, 1, 60.0, "budget")


def test_two_workers_set_their_units_time_aside() -> None:
    # Of 60 s 10 are used, and 12.5 of each running one set aside: two more fit beside each other, no third.
    assert left(full_runs(1, 2, gpu_hours=60 / 3600), 100.0) == (4, 40.0, 2, 20.0, "budget")
