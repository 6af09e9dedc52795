import math
from collections import Counter
from collections.abc import Callable

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeps.history import Ended, Reported, Started, Unit
from sweeps.rank_correlation import spearman
from sweeps.replay.decisions import decisions, undisturbed
from sweeps.replay.optuna_peer import OptunaPruned
from sweeps.rungs import Rung, always_enough, brackets, crossed, first_rung, levels
from sweeps.schedulers import SCHEDULERS, Compares
from sweeps.schedulers.asha_auto import AshaAuto
from sweeps.schedulers.asha_guarded import AshaGuarded
from sweeps.schedulers.asha_promotion import AshaPromotion
from sweeps.schedulers.asha_stopping import AshaStopping
from sweeps.schedulers.base import Scheduler, SchedulerOptions, make_scheduler
from sweeps.schedulers.hyperband import Hyperband
from sweeps.schedulers.random import FullRuns
from sweeps.space import Interval, Space
from tests.sweeps.searches import drive, noise

MAKERS: dict[str, Callable[[], Scheduler]] = {
    "promotion": lambda: AshaPromotion(1, 27, 3, limit=60),
    "stopping": lambda: AshaStopping(1, 27, 3, limit=60),
    "guarded": lambda: AshaGuarded(1, 27, 3, limit=60),
    "hyperband": lambda: Hyperband(1, 27, 3, limit=60),
    "full": lambda: FullRuns(27, limit=60),
}
every = pytest.mark.parametrize("name", list(MAKERS))
seeds = st.integers(0, 10_000)


@every
def test_what_is_simulated_changes_no_search(name: str) -> None:
    scheduler = MAKERS[name]()
    first = scheduler.decide()
    copied = scheduler.for_forecast()
    assert copied.decide() == first and first is not None
    copied.apply(Started(first))
    assert copied.decide() != first and scheduler.decide() == first


@pytest.mark.parametrize(
    ("r", "R", "eta", "skip", "expected"),
    [
        (1, 9, 3, 0, (1, 3, 9)),
        (1, 9, 3, 1, (3, 9)),
        (1, 9, 3, 2, (9,)),
        (1, 243, 3, 0, (1, 3, 9, 27, 81, 243)),  # log(243)/log(3) is 4.99… in floating point
        (1, 1000, 10, 0, (1, 10, 100, 1000)),
        (2, 50, 4, 0, (2, 8, 32, 50)),  # the last rung is exactly R
        (5, 5, 2, 0, (5,)),
    ],
)
def test_rungs_are_integer_powers_up_to_exactly_R(
    r: int, R: int, eta: int, skip: int, expected: tuple[int, ...]
) -> None:
    assert levels(r, R, eta, skip) == expected


@pytest.mark.parametrize(
    ("r", "R", "eta", "count"), [(1, 243, 3, 6), (1, 1000, 10, 4), (1, 81, 3, 5), (1, 80, 3, 5), (2428, 65_536, 3, 4)]
)
def test_there_is_a_bracket_for_each_rung_and_the_last_goes_straight_to_R(r: int, R: int, eta: int, count: int) -> None:
    assert brackets(r, R, eta) == count
    assert levels(r, R, eta, count - 1) == (R,)


@given(R=st.integers(1, 10**8), eta=st.integers(2, 5), share=st.integers(1, 10**4))
def test_rungs_counted_down_from_R_are_eta_apart_to_the_end(R: int, eta: int, share: int) -> None:
    least = max(1, R // share)
    first = first_rung(least, R, eta)
    assert least <= first <= R
    assert first in (least, R) or first < eta * least + eta
    rungs = levels(first, R, eta)
    assert R <= rungs[0] * eta ** (len(rungs) - 1) < R + eta ** len(rungs)  # none lies just before R


def test_the_first_rung_is_not_below_what_was_asked_and_the_default_is_as_it_was() -> None:
    assert first_rung(1_000, 27_008, 3) == 1_001  # 1,000 would put rungs at 27,000 and 27,008
    assert levels(1_001, 27_008, 3) == (1_001, 3_003, 9_009, 27_008)
    assert all(first_rung(-(-R // 27), R, 3) == -(-R // 27) for R in (65_536, 27_000_000, 4_096_000, 81, 27))


@pytest.mark.parametrize(("trials", "eta", "R"), [(6, 3, 9), (7, 3, 27), (20, 3, 27), (27, 3, 27), (12, 2, 16)])
def test_how_many_trials_promotion_can_and_always_does_bring_to_the_end(trials: int, eta: int, R: int) -> None:
    """Each report better than all before it is the luckiest order, each worse the unluckiest."""
    reached = []
    for sign in (-1.0, 1.0):
        scheduler, reports = AshaPromotion(1, R, eta, limit=trials), Counter[str]()

        def value(trial: int, resource: int, sign: float = sign, reports: Counter[str] = reports) -> float:
            reports["seen"] += 1
            return sign * reports["seen"]

        drive(scheduler, value, 10_000, workers=1)
        reached.append(len(scheduler.rungs[-1].of))
    rungs = len(levels(1, R, eta))
    # The top floor(n/eta) of the first n has a newcomer each time from n = eta on: a rung keeps eta - 1 of them.
    assert reached[0] == max(0, trials - (rungs - 1) * (eta - 1))
    assert (reached[1] >= 1) == (trials >= always_enough(rungs, eta))


@pytest.mark.parametrize("name", [n for n, s in SCHEDULERS.items() if s.compares is not Compares.WITH_MEMBERS])
@pytest.mark.parametrize("workers", [1, 4])
def test_as_many_trials_as_a_scheduler_needs_bring_one_to_the_end_in_the_unluckiest_order(
    name: str, workers: int
) -> None:
    """Each report is worse than all before it."""
    needed = SCHEDULERS[name].ensures.trials(len(levels(1, 9, 3)), 3)
    for trials in range(1, 12):
        scheduler, ends, reports = make_scheduler(name, SchedulerOptions(1, 9, 3, trials)), set[int](), Counter[str]()

        def value(trial: int, resource: int, ends: set[int] = ends, reports: Counter[str] = reports) -> float:
            reports["seen"] += 1
            ends.update({trial} if resource >= 9 else ())
            return float(reports["seen"])

        drive(scheduler, value, 1_000, workers=workers)
        assert bool(ends) == (trials >= needed), trials


@pytest.mark.parametrize(("r", "R", "eta", "skip"), [(0, 9, 3, 0), (10, 9, 3, 0), (1, 9, 1, 0), (1, 9, 3, 3)])
def test_impossible_rungs_are_refused(r: int, R: int, eta: int, skip: int) -> None:
    with pytest.raises(ValueError, match=r"r=|eta=|bracket"):
        levels(r, R, eta, skip)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [(0, 1, [0]), (0, 20, [0, 1, 2]), (1, 20, [1, 2]), (3, 8, []), (9, 27, [3]), (0, 0, []), (27, 27, [])],
)
def test_a_report_fills_only_the_rungs_crossed_since_the_last(before: int, now: int, expected: list[int]) -> None:
    assert list(crossed((1, 3, 9, 27), before, now)) == expected


@pytest.mark.parametrize(
    ("values", "promotable"),
    [
        ([0.5, 0.4], []),  # floor(2/3) = 0
        ([0.5, 0.4, 0.6], [1]),
        ([math.nan, math.inf, math.nan], []),  # the worst is never promoted, not even as the best of its rung
        ([0.5, math.nan, 0.6], [0]),  # but it counts
        ([0.5, 0.5, 0.5, 0.5, 0.5, 0.5], [0, 1]),  # of equal ones those that came first
        ([0.9, 0.3, 0.8, 0.1, 0.7, 0.6], [3, 1]),  # best first
    ],
)
def test_promotion_table(values: list[float], promotable: list[int]) -> None:
    rung = Rung(1)
    for trial, value in enumerate(values):
        rung.record(trial, value)
    assert list(rung.promotables(3)) == promotable


def test_a_retried_trial_replaces_its_entry() -> None:
    rung = Rung(1)
    for trial, value in enumerate([0.3, 0.2, 0.1]):
        rung.record(trial, value)
    rung.record(2, 0.9)
    assert len(rung.entries) == 3
    assert list(rung.promotables(3)) == [1]


@pytest.mark.parametrize("make", [AshaPromotion, AshaStopping, AshaAuto, Hyperband])
def test_a_retried_trials_report_replaces_what_it_had_reported(make: Callable[..., Scheduler]) -> None:
    scheduler = make(1, 9, 3)
    scheduler.apply(Started(Unit(0, 1)))
    for value in (0.3, 0.9):  # the worker died between telling its value and its end
        scheduler.apply(Reported(0, 1, value))
    scheduler.apply(Ended(0, "reached"))
    inner = scheduler.brackets[0] if isinstance(scheduler, Hyperband) else scheduler
    assert isinstance(inner, AshaPromotion | AshaStopping)
    assert inner.rungs[0].entries == [(0.9, 0, 0)]


def test_a_retry_from_an_earlier_checkpoint_replaces_no_rung_below_it() -> None:
    scheduler = AshaPromotion(1, 9, 3)
    scheduler.apply(Started(Unit(0, 9)))
    for at, value in ((1, 0.5), (4, 0.4), (3, 0.45), (4, 0.41)):
        scheduler.apply(Reported(0, at, value))
    # The rung at 3 was filled at 4; the retry has a value at 3 itself, which a later one does not replace.
    assert [rung.of.get(0, (None,))[0] for rung in scheduler.rungs] == [0.5, 0.45, None]


def test_a_stopped_trials_second_word_decides_whether_it_goes_on() -> None:
    for first, second, goes in ((0.3, 0.9, False), (0.9, 0.3, True)):
        scheduler = AshaStopping(1, 9, 3)
        for trial, value in ((0, 0.5), (1, first), (1, second)):
            scheduler.apply(Started(Unit(trial, 1)))
            scheduler.apply(Reported(trial, 1, value))
        assert (1 in scheduler.going) is goes


@pytest.mark.parametrize("make", [AshaPromotion, AshaStopping])
@given(marks=st.sets(st.integers(1, 30), min_size=1), seed=seeds)
def test_a_report_that_skips_rungs_fills_those_it_crossed_with_the_first_value_at_or_after(
    make: Callable[..., AshaPromotion | AshaStopping], marks: set[int], seed: int
) -> None:
    scheduler, value = make(1, 27, 3), noise(seed)
    scheduler.apply(Started(Unit(0, 27)))
    for mark in sorted(marks):
        scheduler.apply(Reported(0, mark, value(0, mark)))
    for rung in scheduler.rungs:
        first = min((mark for mark in marks if mark >= rung.level), default=None)
        assert [entry[0] for entry in rung.entries] == ([] if first is None else [value(0, first)])


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.1, 0.2, math.nan])), max_size=30))
def test_a_rung_holds_each_trial_once_with_its_latest_value(records: list[tuple[int, float]]) -> None:
    rung = Rung(1)
    for trial, value in records:
        rung.record(trial, value)
    latest = {trial: math.inf if math.isnan(value) else value for trial, value in records}
    assert {entry[2]: entry[0] for entry in rung.entries} == latest
    assert len(rung.entries) == len(latest) and rung.entries == sorted(rung.entries) == rung.open


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3]), min_size=1, max_size=60))
def test_ties_promote_no_more_than_their_share(values: list[float]) -> None:
    rung, promoted = Rung(1), 0
    for trial, value in enumerate(values):
        rung.record(trial, value)
    while (best := next(rung.promotables(3), None)) is not None:
        rung.promote(best)
        promoted += 1
    assert promoted == len(values) // 3


def test_nine_trials_of_hyperbands_first_bracket() -> None:
    scheduler = AshaPromotion(1, 9, 3, limit=9)
    reached: Counter[int] = Counter()
    while (unit := scheduler.decide()) is not None:
        wave = []
        while (unit := scheduler.decide()) is not None:
            scheduler.apply(Started(unit))
            wave.append(unit)
        for done in wave:
            reached[done.until] += 1
            scheduler.apply(Reported(done.trial, done.until, float(done.trial)))
            scheduler.apply(Ended(done.trial, "reached"))
    assert reached == {1: 9, 3: 3, 9: 1}
    assert scheduler.rungs[2].of.keys() == {0}


@every
@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_replaying_the_log_rebuilds_the_same_decisions(name: str, seed: int) -> None:
    """Also without what was lost: what is left to chance is the order of the reports, nothing else."""
    scheduler, again, calm = MAKERS[name](), MAKERS[name](), MAKERS[name]()
    log = drive(scheduler, noise(seed), 60, seed, lose=0.2, fail=0.05)
    assert decisions(again, log) == sum(isinstance(event, Started) for event in log)
    assert list(again.candidates()) == list(scheduler.candidates())
    calmed = undisturbed(log)
    assert not any(isinstance(event, Ended) and event.how == "lost" for event in calmed)
    decisions(calm, calmed)
    if not scheduler.trials.lost:  # type: ignore[attr-defined]
        assert list(calm.candidates()) == list(scheduler.candidates())


def test_a_decision_that_is_not_the_schedulers_is_named() -> None:
    log = drive(AshaPromotion(1, 9, 3), noise(0), 20)
    with pytest.raises(ValueError, match=r"unit \d+: Unit\(.*\) was handed out"):
        decisions(AshaPromotion(1, 9, 3), [event for event in log if event != log[2]])


@every
@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_a_trial_is_never_in_two_units_and_rises_rung_by_rung(name: str, seed: int) -> None:
    """And what it was trained in all is its highest rung: nothing is trained twice but what was lost."""
    at: dict[int, int] = {}
    running: set[int] = set()
    failed: set[int] = set()
    trained: Counter[int] = Counter()
    scheduler = MAKERS[name]()
    for event in drive(scheduler, noise(seed), 120, seed, lose=0.1, fail=0.1):
        match event:
            case Started(unit):
                assert unit.trial not in running | failed
                assert at.get(unit.trial, 0) < unit.until <= 27
                running.add(unit.trial)
            case Reported(trial, resource, _):
                trained[trial] += resource - at.get(trial, 0)
                at[trial] = resource
            case Ended(trial, how):
                running.remove(trial)
                if how == "failed":
                    failed.add(trial)
    assert trained.keys() <= at.keys()
    for trial, resource in trained.items():
        rungs = rungs_of(scheduler, trial)
        held = [rung.level for rung in rungs if rung.of.get(trial, (math.inf,))[0] < math.inf]
        assert resource == at[trial] == max(held, default=27)  # a full training has no rungs


def rungs_of(scheduler: Scheduler, trial: int) -> list[Rung]:
    """Return the rungs that a trial climbs: its bracket's, under the number that it has there; none of full runs."""
    if isinstance(scheduler, Hyperband):
        bracket, local = scheduler.place[trial]
        rungs = [Rung(rung.level) for rung in scheduler.brackets[bracket].rungs]
        for mine, theirs in zip(rungs, scheduler.brackets[bracket].rungs, strict=True):
            mine.of = {trial: theirs.of[local]} if local in theirs.of else {}
        return rungs
    return list(getattr(scheduler, "rungs", []))


@settings(max_examples=40, deadline=None)
@given(seed=seeds, workers=st.integers(1, 9))
def test_promotions_are_at_most_a_share_of_the_arrivals(seed: int, workers: int) -> None:
    scheduler = AshaPromotion(1, 27, 3)
    drive(scheduler, noise(seed), 150, seed, workers=workers, lose=0.05, fail=0.05)
    for low, high in zip(scheduler.rungs, scheduler.rungs[1:], strict=False):
        assert len(high.of) <= len(low.promoted) <= len(low.of)
    for rung in scheduler.rungs[:-1]:
        top = {trial for _, _, trial in rung.entries[: len(rung.entries) // 3]}
        done = all(trial in rung.promoted for trial in top if rung.of[trial][0] < math.inf)
        assert done or scheduler.decide() != next(
            scheduler.trials.fresh(1)
        )  # none waits while a new one would be started


@every
@settings(max_examples=15, deadline=None)
@given(seed=seeds, cut=st.integers(0, 40))
def test_what_is_reported_later_changes_no_decision(name: str, seed: int, cut: int) -> None:
    """Two searches whose values are the same up to a report, and other ones after it, decide the same up to it."""
    values, reports = noise(seed), Counter[str]()

    def other(trial: int, resource: int) -> float:
        reports["seen"] += 1
        return values(trial, resource) if reports["seen"] <= cut else -values(trial, resource)

    log, changed = drive(MAKERS[name](), values, 60, seed), drive(MAKERS[name](), other, 60, seed)
    later = [k for k, event in enumerate(log) if isinstance(event, Reported)][cut : cut + 1]
    assert log[: later[0] if later else None] == changed[: later[0] if later else None]


@every
def test_diverged_and_crashed_trials_count_but_never_go_on(name: str) -> None:
    bad = {0, 3, 4}
    scheduler = MAKERS[name]()
    log = drive(scheduler, lambda t, _: math.nan if t in bad else float(t), 200, workers=1)
    reached = Counter(event.trial for event in log if isinstance(event, Reported))
    went_on = {event.unit.trial for event in log if isinstance(event, Started) and event.unit.until == 27}
    if name == "full":
        assert all(count == 1 for count in reached.values()) and went_on == reached.keys() == set(range(60))
        return
    for trial in bad:
        entries = [rung.of[trial][0] for rung in rungs_of(scheduler, trial) if trial in rung.of]
        assert entries and all(value == math.inf for value in entries)  # it counts where it came to
    starts_at_the_end = {t for t in bad if isinstance(scheduler, Hyperband) and scheduler.place[t][0] == 3}
    assert not (bad - starts_at_the_end) & went_on
    assert went_on, "others are trained to the end"
    if name != "guarded":  # whose early rungs let everyone pass at first
        assert all(reached[trial] == 1 for trial in bad)


def test_a_crash_counts_as_the_worst_in_the_rung_it_was_heading_for() -> None:
    scheduler = AshaPromotion(1, 9, 3)
    for trial in range(3):
        scheduler.apply(Started(Unit(trial, 1)))
    scheduler.apply(Ended(2, "failed"))
    for trial in (0, 1):
        scheduler.apply(Reported(trial, 1, 0.5 + trial))
        scheduler.apply(Ended(trial, "reached"))
    assert scheduler.rungs[0].of[2][0] == math.inf
    assert scheduler.decide() == Unit(0, 3)


def test_what_was_lost_comes_first_and_unchanged() -> None:
    for make in MAKERS.values():
        scheduler = make()
        first = scheduler.decide()
        assert first is not None
        scheduler.apply(Started(first))
        scheduler.apply(Ended(first.trial, "lost"))
        assert scheduler.decide() == first


@settings(max_examples=30, deadline=None)
@given(seed=seeds, workers=st.integers(1, 6), eta=st.integers(2, 4))
def test_stopping_decides_as_optunas_pruner(seed: int, workers: int, eta: int) -> None:
    values = noise(seed)
    ours = drive(AshaStopping(1, 27, eta, limit=40), values, 120, seed, workers=workers)
    theirs = drive(OptunaPruned("halving", 1, 27, eta, limit=40), values, 120, seed, workers=workers)
    assert ours == theirs


def test_a_value_within_the_seed_noise_of_the_cut_continues() -> None:
    exact, tolerant = AshaStopping(1, 9, 3), AshaStopping(1, 9, 3, tolerance=0.05)
    for scheduler in (exact, tolerant):
        for trial, value in enumerate([0.50, 0.54]):
            scheduler.apply(Started(Unit(trial, 1)))
            scheduler.apply(Reported(trial, 1, value))
            scheduler.apply(Ended(trial, "reached"))
    assert 1 not in exact.going
    assert tolerant.going[1] == Unit(1, 3)
    assert exact.stopped(1)
    assert not tolerant.stopped(1)


def test_hyperbands_last_bracket_finishes_trials_where_27_does_not_divide_R() -> None:
    scheduler = Hyperband(2_428, 65_536, 3, limit=12)
    drive(scheduler, noise(1), 1_000, workers=2)
    assert [bracket.levels for bracket in scheduler.brackets][-1] == (65_536,)
    assert any(at == 65_536 for at in scheduler.trials.at.values())


def test_hyperbands_brackets_get_equal_resource() -> None:
    scheduler = Hyperband(1, 27, 3)
    drive(scheduler, noise(3), 2000, workers=4)
    assert max(scheduler.given) - min(scheduler.given) <= 4 * 27
    assert all(len(bracket.trials.at) > 0 for bracket in scheduler.brackets)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 2, 3], [1, 2, 3, 4], 0.9486832980505138),  # scipy.stats.spearmanr
        ([1, math.inf, 2], [1, 3, 2], 1.0),
        ([1, 2], [1, 2], None),
        ([5, 5, 5], [1, 2, 3], None),
    ],
)
def test_rank_correlation(a: list[float], b: list[float], expected: float | None) -> None:
    found = spearman(a, b)
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-12))


def test_optunas_pruner_is_the_real_one() -> None:
    peer = OptunaPruned("halving", 1, 9, 3)
    assert isinstance(peer.study.pruner, optuna.pruners.SuccessiveHalvingPruner)


def test_every_scheduler_of_the_table_is_made_by_its_name() -> None:
    space = Space({"lr": Interval(1e-4, 1e-1, True)})
    made = {name: type(make_scheduler(name, SchedulerOptions(1, 27, trials=8, space=space))) for name in SCHEDULERS}
    assert made["asha"] is AshaAuto and len(set(made.values())) == len(SCHEDULERS)
