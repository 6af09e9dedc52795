"""A search's device time and what it comes to, by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from study.search import outlook, retry
from study.search.course import Course, Pace, by_chance, course, ever_better
from study.search.outlook import Outlook
from study.search.usage import DeviceTime
from sweeps.history import Ended, Event, Reported, Started, Unit
from sweeps.schedulers.base import Scheduler
from sweeps.space import Choice, Interval, Space
from tests.study.support.searches import search_settings


def used(*units: tuple[float, float | None, float], hours: float | None = 1.0) -> DeviceTime:
    """Return the time of two GPUs after units (seconds, training, FLOPs)."""
    made = DeviceTime(hours, 2, 1000)
    for seconds, training, flops in units:
        made.end(0, 0, flops, {"how": "reached", "seconds": seconds, "training": training})
    return made


def test_before_anything_was_timed_a_sixteenth_of_what_is_left_is_set_aside() -> None:
    found = used()
    assert (found.left, found.expected(0, 1e9), found.start_up, found.seconds_per_flop) == (3600.0, None, None, None)
    assert found.reservation(0, 1e9) == 3600.0 / 16 == 225.0
    found.start(7, 225.0)
    assert found.left == 3375.0 and found.affordable(0, 1e30)
    found.end(7, 0, 1e9, {"how": "failed", "seconds": 12.0, "limited": True})
    assert (found.used, found.left) == (24.0, 3576.0)
    assert found.reservation(0, 1e9) == pytest.approx(3576.0 / 16 * 1.5), "it hit its limit, and gets half more"
    assert found.reservation(1, 1e9) == pytest.approx(3576.0 / 16)
    found.end(8, 0, 1e9, {"how": "lost", "seconds": 0.0, "limited": True})
    assert found.reservation(0, 1e9) == pytest.approx(3576.0 / 16 * 2.25)


def test_what_a_unit_is_expected_to_need_is_the_most_of_the_latest_and_a_quarter() -> None:
    found = used((30.0, 20.0, 10.0), (15.0, 10.0, 10.0), (22.0, 10.0, 5.0))
    # Starts of 10, 5 and 12 s; 2, 1 and 2 s a FLOP.
    assert (found.start_up, found.seconds_per_flop) == (10.0, 2.0)
    assert found.expected(0, 100.0) == 1.25 * (12 + 2 * 100) * 2
    assert found.start_share(0.05) == 10.0 / (2.0 * 1000 * 0.05)
    assert found.affordable(0, 100.0) and not found.affordable(0, 10_000.0)
    assert found.reservation(0, 10_000.0) == found.left == 3600 - 2 * 67
    assert found.reservation(0, 100.0) == 530.0
    exactly = (3466 / 2.5 - 12) / 2
    assert found.affordable(0, exactly * (1 - 1e-12)) and not found.affordable(0, exactly * (1 + 1e-9))


def test_units_that_did_not_end_or_did_nothing_are_not_timed() -> None:
    found = used()
    found.end(0, 0, 10.0, {"how": "failed", "seconds": 5.0, "training": 4.0})
    found.end(0, 0, 0.0, {"how": "reached", "seconds": 5.0, "training": 4.0})
    assert found.expected(0, 1.0) is None and found.used == 20.0
    found.end(0, 0, 10.0, {"how": "reached", "seconds": 5.0})
    assert found.seconds_per_flop == 0.5 and found.start_up is None
    found.end(0, 0, 10.0, {"how": "reached", "seconds": 5.0, "training": 6.0, "warm": True})
    assert found.expected(0, 10.0) == 1.25 * 0.6 * 10 * 2, "a warm worker started nothing"


def test_a_unit_that_took_several_attempts_is_timed_by_all_of_them() -> None:
    found = used()
    for training in (5.0, None, 3.0):
        found.end(0, 0, 10.0, {"how": "lost", "seconds": 9.0, "training": training, "limited": training is not None})
    found.end(0, 1, 10.0, {"how": "lost", "seconds": 9.0, "training": 100.0})
    found.end(0, 0, 10.0, {"how": "reached", "seconds": 3.0, "training": 2.0})
    assert found.seconds_per_flop == 1.0, "ten seconds for ten FLOPs, not two"
    assert found.expected(2, 10.0) == 1.25 * (1 + 10) * 2
    found.end(0, 0, 10.0, {"how": "reached", "seconds": 9.0, "training": 8.0})
    assert found.expected(2, 10.0) == 1.25 * (1 + 10) * 2, "what was before the last value belongs to the last unit"


def test_the_latest_thirty_two_count() -> None:
    slow = used(*[(200.0, 100.0, 10.0)] * 3, *[(3.0, 2.0, 10.0)] * 32)
    assert (slow.start_up, slow.seconds_per_flop) == (1.0, 0.2)
    assert slow.expected(0, 10.0) == 1.25 * 3.0 * 2
    one = used((200.0, 100.0, 10.0), *[(3.0, 2.0, 10.0)] * 31)
    assert one.expected(0, 10.0) == 1.25 * 200 * 2
    assert used((3.0, 2.0, 1.0), (3.0, 2.0, 1.0)).start_up is None, "three are enough, two are not"


def test_without_a_limit_nothing_is_set_aside() -> None:
    free = used(hours=None)
    assert free.left is None and free.reservation(0, 1.0) is None and free.affordable(0, 1e30)
    free.start(3, None)
    assert free.reserved == {}
    spent = used((1800.0, 1800.0, 1.0))
    assert spent.left == 0.0 and not spent.affordable(0, 1.0) and not DeviceTime(0.0, 1, 1).affordable(0, 1.0)


class Listed(Scheduler):
    """Wants units in the order given, each after its trial's report, and every trial once per unit."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units, self.seen = list(units), list[Event]()

    def apply(self, event: Event) -> None:
        """Note an event."""
        self.seen.append(event)
        if isinstance(event, Started):
            self.units.remove(event.unit)

    def candidates(self) -> Iterator[Unit]:
        """Yield what is left."""
        yield from self.units


class Lost(Listed):
    """Wants again what was lost."""

    def apply(self, event: Event) -> None:
        """Note an event."""
        super().apply(event)
        if isinstance(event, Ended) and event.how == "lost":
            self.units.append(Unit(event.trial, 8))


def ahead(
    *units: Unit, workers: int = 1, budget: float | None = None, most: int = 99, settings: int = 9,
    hours: float | None = None, pace: Pace | None = None,
) -> Course:  # fmt: skip
    asked: Any = SimpleNamespace(
        R=8, budget=budget, gpu_hours=hours, devices=2, make_scheduler=lambda: Listed(units),
        make_space=lambda: Space({"a": Choice(tuple(range(settings)))}),
    )  # fmt: skip
    return course(asked, 10.0, workers, ever_better(), most, pace=pace)


def test_a_course_by_the_clock() -> None:
    assert ahead(Unit(0, 4), Unit(1, 8), Unit(0, 8)) == Course(2, 2, 3, 160.0, 160.0, 120.0)
    assert ahead(Unit(0, 4), Unit(1, 8), Unit(0, 8), workers=2) == Course(2, 2, 3, 160.0, 80.0, 160.0)
    assert ahead(Unit(0, 4), Unit(1, 7)) == Course(2, 0, 2, 110.0, 110.0, math.inf)
    assert ahead() == Course(0, 0, 0, 0.0, 0.0, math.inf)


def test_a_copy_pays_from_where_it_was_copied() -> None:
    assert ahead(Unit(0, 4), Unit(1, 8, parent=(0, 3))).flops == 40 + 50
    assert ahead(Unit(0, 4), Unit(1, 2, parent=(0, 3))).flops == 40


def test_a_course_ends_with_its_budget_its_units_and_its_settings() -> None:
    units = (Unit(0, 4), Unit(1, 4), Unit(2, 1), Unit(0, 8))
    assert ahead(*units, budget=50.0) == Course(2, 0, 2, 50.0, 50.0, math.inf), "what still fits is taken"
    assert ahead(*units, budget=40.0).units == 1 and ahead(*units, budget=39.9).units == 1
    assert ahead(*units, most=2) == Course(2, 0, 2, 80.0, 80.0, math.inf)
    assert ahead(*units, most=0).units == 0
    assert ahead(*units, settings=2) == Course(2, 1, 3, 120.0, 120.0, 120.0), "there are no more settings to try"
    assert ahead(*units, settings=1) == Course(1, 1, 2, 80.0, 80.0, 80.0)


def test_a_course_ends_with_its_gpu_hours() -> None:
    """A worker holds two GPUs and trains 10 FLOPs a second, so 8 tokens of 10 FLOPs each take it 8 s."""
    pace, units = Pace(10.0), [Unit(trial, 8) for trial in range(9)]
    free = ahead(*units, pace=pace)
    assert free == ahead(*units) and free.finished == 9
    # Of 3,200 GPU-seconds the first unit gets 200, then each 1.25 times the 16 that the longest took: all fit.
    assert ahead(*units, pace=pace, hours=3_200 / 3600) == free
    # Of 320 the first gets 20, and the others fit while 20 are left: after 18 of them 32, after 19 16.
    many = [Unit(trial, 8) for trial in range(50)]
    assert ahead(*many, pace=pace, hours=320 / 3600, settings=50).finished == 19
    # Two at a time: the last needs 20 beside the 20 of the one before it, and finds 12.
    assert ahead(*many, workers=2, pace=pace, hours=320 / 3600, settings=50).finished == 19
    assert ahead(*many, hours=320 / 3600, settings=50).finished == 50, "without a pace nothing is known of hours"


def test_a_unit_whose_limit_comes_first_goes_on_from_where_it_was_saved() -> None:
    """Of 64 GPU-seconds it gets 4, 5.625 and so on, half of each a worker's seconds, until its 8 s are full."""
    listed = Lost([Unit(0, 8)])
    asked: Any = SimpleNamespace(R=8, budget=None, gpu_hours=64 / 3600, devices=2, make_scheduler=lambda: listed,
                                 make_space=lambda: Space({"a": Choice((1, 2))}))  # fmt: skip
    found = course(asked, 10.0, 1, ever_better(), 99, pace=Pace(10.0))
    limits, left = list[float](), 64.0
    while sum(limits) < 8:
        limits.append(left / 16 * 1.5 ** len(limits) / 2)
        left -= 2 * limits[-1]
    assert limits[:2] == [2.0, 2.8125]
    assert (found.finished, found.units) == (1, len(limits)) and found.clock == found.flops == pytest.approx(80.0)
    # Where a start takes longer than any limit, nothing is trained, and all of it is used.
    listed.units = [Unit(0, 8)]
    none = course(asked, 10.0, 1, ever_better(), 99, pace=Pace(10.0, 30.0))
    assert (none.finished, none.first) == (0, math.inf) and none.clock == pytest.approx(320.0) and none.flops == 0


def test_losses_are_reported_as_they_come() -> None:
    value = ever_better()
    assert [value(3, 1), value(1, 9), value(3, 2)] == [0.0, -1.0, -2.0]
    chance, again = by_chance(5), by_chance(5)
    assert [chance(n, 1) for n in (0, 0, 1)] == [again(n, 1) for n in (0, 0, 1)]
    assert isinstance(Reported(0, 1, chance(0, 2)).value, float)


def test_words_for_what_a_search_comes_to() -> None:
    space = Space({"a": Interval(0.0, 1.0)})
    asked: Any = SimpleNamespace(trials=12, budget=1e14, gpu_hours=1.0, enough=lambda: 1, make_space=lambda: space)
    found = Outlook(11.6, 3.456, 17.5, 1.2345e15, 7.2e14, 0.0, 4.56e14, True)
    assert outlook.lines(asked, found, 1e11, "as measured") == [
        "  about 18 units, 1.23e15 FLOPs, 2 h with these workers, as measured",
        "  about 3.5 of 12 trials trained to the end",
    ]
    none = outlook.lines(asked, Outlook(1.0, 0.0, 1.0, 1e9, 1e9, 0.25, 4.56e14, True), 1e9, "x")
    share = "  in 25 % of simulations with random losses, none was: "
    assert none[2] == f"{share}search.budget_flops=4.56e14 would do"
    none = outlook.lines(asked, Outlook(1.0, 0.0, 1.0, 1e9, 1e9, 0.25, 4.561e14, True, 1.23001), 1e9, "x")
    slow = " would do even if workers are 4 times as slow"
    assert none[2] == f"{share}search.budget_flops=4.57e14 and search.budget_gpu_hours=1.24{slow}"
    asked.budget = None
    assert outlook.lines(asked, Outlook(1.0, 0.0, 1.0, 1e9, 1e9, 0.25, 4.561e14, True, 1.23), 1e9, "x")[2] == (
        f"{share}search.budget_gpu_hours=1.23{slow}"
    )


def test_what_was_enough_still_is_once_it_is_rounded() -> None:
    values = (0.0, 1.0, 1234.0, 1230.0, 0.012301, math.inf)
    assert [outlook._up(value) for value in values] == [0.0, 1.0, 1240.0, 1230.0, pytest.approx(0.0124), math.inf]


@pytest.mark.parametrize(("units", "count"), [(1, outlook.SIMULATIONS), (outlook.MOST_UNITS, 1)])
def test_an_outlook_is_of_many_courses_unless_they_are_long(
    units: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[bool]()

    def made(*_: Any, to_first: bool = False, **__: Any) -> Course:
        asked.append(to_first)
        return Course(1, 1, units, 1.0, 1.0, 1.0)

    monkeypatch.setattr(outlook, "course", made)
    found = outlook.outlook(SimpleNamespace(seed=0), [1.0], 1)  # type: ignore[arg-type]
    assert asked == [False] * count + [True] and found.units == units and found.possible


def test_no_hours_are_enough_where_no_number_of_trials_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[float | None]()

    def made(settings: Any, *_: Any, **__: Any) -> Course:
        asked.append(settings.gpu_hours)
        assert len(asked) < 9
        return Course(1, 0, 1, 1.0, 1.0, math.inf)

    monkeypatch.setattr(outlook, "course", made)
    settings = search_settings(gpu_hours=1.0)
    assert outlook._enough(settings, 1.0, 1, Pace(1.0), 2) == (math.inf, None) and asked == [None, None]


def over(**changes: Any) -> Any:
    """Return a search that is over, whose one trial came to 4 of 8 tokens of 10 FLOPs each."""
    trial = SimpleNamespace(at=4, value=1.5, values={4: 1.5}, failed=False, flops_per_token=10.0)
    settings = SimpleNamespace(R=8, budget=50.0, gpu_hours=None, trials=1, enough=lambda: 1)
    usage = used((3.0, 2.0, 10.0))
    given = {"settings": settings, "trials": {0: trial}, "over": True, "stopped": False, "incumbent": trial,
             "waits_for_budget": True, "space": Space({"a": Interval(0.0, 1.0)}),
             "flops_per_token": 10.0, "spent": 40.0, "usage": usage}  # fmt: skip
    return SimpleNamespace(**{**given, **changes})


def test_a_search_that_finished_nothing_says_what_would_have_been_enough() -> None:
    said = "no trial was trained to the end: the budget is used up"
    assert outlook.nothing_finished(over()) == f"{said}: search.budget_flops=8e1 would have brought the best one there"
    hours: Any = SimpleNamespace(R=8, budget=None, gpu_hours=1.0)
    expected = (6.0 + 1.25 * (1 + 0.2 * 40) * 2) / 3600
    assert outlook.nothing_finished(over(settings=hours)) == (
        f"{said}: search.budget_gpu_hours={math.ceil(expected * 1e5) / 1e5:.3g} would have brought the best one there"
    )
    assert outlook.nothing_finished(over(settings=hours, usage=used())) == said
    ended_early = used()
    for seconds, longest in ((4.0, "4"), (3.0, "4")):
        ended_early.end(0, 0, 10.0, {"how": "lost", "seconds": seconds, "limited": True})
        assert outlook.nothing_finished(over(settings=hours, usage=ended_early)) == (
            f"{said}, and no unit came to its end in the time that was set aside for it, {longest} s at most: with "
            "search.budget_gpu_hours=0.534 the first one gets 60 s"
        )
    ended_early.end(0, 0, 10.0, {"how": "lost", "seconds": 30.0, "limited": True})
    assert "30 s at most: with search.budget_gpu_hours=1.07 the first one gets 120 s" in (
        outlook.nothing_finished(over(settings=hours, usage=ended_early))
    )
    enough: Any = SimpleNamespace(R=8, budget=80.0, gpu_hours=1.0)
    assert "budget_gpu_hours" in outlook.nothing_finished(over(settings=enough)), "FLOPs were not short"
    assert outlook.nothing_finished(over(incumbent=None, flops_per_token=None)) == said
    assert outlook.nothing_finished(over(waits_for_budget=False)).endswith(
        "none was among the best of enough at each rung: more search.trials continue it"
    )
    assert "none came to a loss" in outlook.nothing_finished(over(waits_for_budget=False, incumbent=None))
    assert outlook.nothing_finished(over(over=False)) == outlook.nothing_finished(over(stopped=True)) == ""


def test_a_sampler_that_finds_no_new_settings_ends_a_search() -> None:
    settings = SimpleNamespace(R=8, budget=None, gpu_hours=None, trials=3, enough=lambda: 1)
    assert outlook.nothing_finished(over(settings=settings, waits_for_budget=False)) == (
        "no trial was trained to the end: none was among the best of enough at each rung: its sampler finds no "
        "settings that were not tried: search over more values in a new study"
    )


def test_a_budget_is_not_blamed_where_there_are_too_few_trials() -> None:
    settings = search_settings(scheduler="asha_promotion", trials=2, r=1_001, budget=1e30)
    hopeless = Outlook(2.0, 0.0, 2.0, 1.0, 1.0, 1.0, 1.0, False, untimed=False)
    with pytest.raises(ValueError, match=r"^search\.trials=2 is too few to train any trial to the end"):
        outlook.refuse_the_hopeless(settings, hopeless)


def test_a_search_whose_trials_all_broke_says_so() -> None:
    broken = SimpleNamespace(at=4, value=math.inf, values={4: math.inf}, failed=False, flops_per_token=10.0)
    failed = SimpleNamespace(at=0, value=math.inf, values={}, failed=True, flops_per_token=10.0)
    said = outlook.nothing_finished(over(trials={0: broken, 1: failed}))
    assert said == "no trial was trained to the end: 2 of 2 failed or diverged"
    late = SimpleNamespace(at=8, value=math.inf, values={4: 1.0, 8: math.inf}, failed=False, flops_per_token=10.0)
    fine = SimpleNamespace(at=4, value=1.0, values={4: 1.0}, failed=False, flops_per_token=10.0)
    said = outlook.nothing_finished(over(trials={0: late, 1: fine}))
    assert "with a finite loss: 1 came there and diverged: narrow the ranges" in said
    done = SimpleNamespace(at=8, value=1.0, values={8: 1.0}, failed=False, flops_per_token=10.0)
    assert outlook.nothing_finished(over(trials={0: done})) == ""


def test_a_unit_begins_untimed_while_a_second_of_a_worker_is_left() -> None:
    for devices in (1, 4):
        least = DeviceTime(devices / 3600, devices, 1000)
        assert least.affordable(0, 1.0) and least.reservation(0, 1.0) == devices, "not a sixteenth of it"
        assert not DeviceTime(0.99 * devices / 3600, devices, 1000).affordable(0, 1.0)
    quick = used((0.1, 0.1, 10.0))
    assert quick.expected(0, 1.0) == pytest.approx(0.025) and quick.reservation(0, 1.0) == 2.0
    assert not DeviceTime(0.0, 1, 1000).affordable(0, 1.0)
    found = DeviceTime(1.0, 1, 1000)
    found.end(0, 0, 0.5, {"how": "reached", "seconds": 2.0})
    assert found.seconds_per_flop == 4.0, "however few FLOPs"


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        ({"kind": "code_error", "silent": True, "why": "killed"}, "code_error"),
        ({"silent": True, "why": "killed"}, "killed"),
        ({"kind": "killed"}, "killed"),
    ],
)
def test_the_kind_of_an_end_comes_before_what_earlier_versions_wrote(record: dict[str, Any], kind: str) -> None:
    found = retry.end_of({**record, "claim": 3, "time": 7.5, "saved": 40}, "key")
    assert found is not None and (found.kind, found.key, found.time, found.saved) == (kind, "key", 7.5, 40)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"why": "x", "limited": True}, "used up the device time that was set aside"),
        ({"why": "x", "kind": "code_error", "limited": False}, "code_error"),
        ({"why": "its worker w was silent for 130 s", "kind": "node_failure"}, "lost with their workers"),
        ({"why": "its worker w was silent for 130 s", "silent": True}, "lost with their workers"),
        ({"why": "preempted", "silent": True}, "preempted"),
        ({"why": "told to stop"}, "told to stop"),
        ({}, "no reason recorded"),
    ],
)
def test_a_unit_without_a_result_says_how_it_ended(record: dict[str, Any], said: str) -> None:
    assert retry.how_lost(record) == said
