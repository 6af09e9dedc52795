"""ASHA with a guard: who is a probe, what probes earn, the odds that early ranks predict final ones."""

import itertools
import math
import random
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeps.history import Ended, How, Reported, Started, Unit
from sweeps.replay.simulate import Cluster, replay
from sweeps.schedulers.asha_guarded import DOUBT, AshaGuarded
from sweeps.schedulers.evidence import Odds, Order
from tests.sweeps.searches import drive

seeds = st.integers(0, 10_000)


@pytest.mark.parametrize(
    ("places", "values", "expected"),
    [
        ([0.5], [1.0], 1.0),  # one trial has no order
        # Weights 1 / place of 4 and 1: the first is first with a chance of 4 / 5, by chance with 1 / 2.
        ([0.25, 1.0], [1.0, 2.0], 2 * 4 / 5),
        ([0.25, 1.0], [2.0, 1.0], 2 * 1 / 5),
        ([0.25, 1.0], [1.0, 1.0], 2 * 1 / 5),  # equal values speak against the places
        ([0.25, 1.0], [1.0, math.inf], 2 * 4 / 5),
        ([0.5, 0.5, 0.5, 0.5], [3.0, 1.0, 2.0, 4.0], 1.0),  # equal places say nothing
        ([0.25, 0.5, 1.0], [1.0, 2.0, 3.0], 6 * 4 / 7 * 2 / 3),
    ],
)
def test_the_odds_are_those_of_an_order_drawn_by_early_places(
    places: list[float], values: list[float], expected: float
) -> None:
    order = Order(1.0)
    for place, value in zip(places, values, strict=True):
        order.add(place, value)
    assert math.exp(order.log) == pytest.approx(expected)


def test_odds_have_the_mean_one_where_places_do_not_tell() -> None:
    """Over all orders of five trials, of which the best three are told apart: exactly one, whatever the places."""
    ratios = []
    for values in itertools.permutations(range(5)):
        odds = Odds()
        for place, value in zip((0.1, 0.9, 0.3, 0.7, 0.05), values, strict=True):
            odds.add(place, value)
        ratios.append(odds.value)
    assert sum(ratios) / len(ratios) == pytest.approx(1.0)
    assert max(ratios) > 3


def guarded(value: Callable[[int, int], float], R: int = 81, trainings: float = 32, workers: int = 8) -> AshaGuarded:
    """A guard that ran on so many workers, with a clock, until a budget of so many trainings was over."""
    guard = AshaGuarded(1, R, 3)
    curves = np.array([[value(trial, at) for at in range(1, R + 1)] for trial in range(300)])
    replay(guard, curves, lambda trial: trial, trainings * R / workers, cluster=Cluster(workers))
    return guard


def test_a_guard_decides_without_looking_at_all_of_a_thousand_trials() -> None:
    """It takes 0.3 s of CPU time. It took 49 s: every decision looked at all trials, every end weighed all orders."""
    curves = np.random.default_rng(0).random((1000, 27))
    began = time.process_time()
    run = replay(AshaGuarded(1, 27, 3, limit=1000), curves, lambda trial: trial, 1e9, cluster=Cluster(64))
    assert len(run.segments) == 4000
    assert time.process_time() - began < 8


@pytest.mark.parametrize(("rung", "promoted"), [(0, False), (1, False), (2, True)])
def test_one_alone_is_promoted_from_the_third_rung_on(rung: int, promoted: bool) -> None:
    guard = AshaGuarded(1, 27, 3, limit=9)
    guard.contest[rung].record(4, 1.0)
    assert (Unit(4, guard.levels[rung + 1]) in guard._selecting()) is promoted


@pytest.mark.parametrize("seed", range(5))
def test_what_probes_have_earned_is_kept_up_with_every_event(seed: int) -> None:
    guard, chance, running = AshaGuarded(1, 9, 3, limit=40, stake=0.25), random.Random(seed), list[Unit]()
    while True:
        while len(running) < 6 and (unit := guard.decide()) is not None:
            guard.apply(Started(unit))
            running.append(unit)
        if not running:
            break
        unit = running.pop(chance.randrange(len(running)))
        how: How = chance.choice(("reached", "reached", "reached", "failed", "lost"))
        if how == "reached":
            guard.apply(Reported(unit.trial, unit.until, chance.choice((chance.random(), math.nan))))
        guard.apply(Ended(unit.trial, how))
        bad = {trial for rung in guard.rungs for trial, entry in rung.of.items() if entry[0] == math.inf}
        bad |= guard.trials.failed
        lengths = [guard.trials.at[trial] if trial in bad else 9 for trial in guard.earning]
        assert guard.allowed == pytest.approx(sum(lengths) / 3)
    assert guard.earning <= guard.probes.keys() and len(guard.trials.at) == 40


def unlike(early: float) -> Callable[[int, int], float]:
    """Curves whose values below the end are `early` times the final one, and noise where that is 0."""

    def value(trial: int, resource: int) -> float:
        final = random.Random(trial).random()
        if resource >= 81:
            return final
        return early * final if early else random.Random(trial * 1000 + resource).random()

    return value


@pytest.mark.parametrize(("workers", "held"), [(1, 0), (2, 0), (7, 0), (8, 1), (15, 1), (16, 2), (64, 8)])
def test_selection_holds_one_worker_in_eight(workers: int, held: int) -> None:
    guard = AshaGuarded(1, 81, 3)
    for _ in range(workers):
        unit = guard.decide()
        assert unit is not None
        guard.apply(Started(unit))
    assert sum(not unit.probe for unit in guard.trials.running.values()) == held
    assert guard.evidence().odds == 1.0


def test_a_lone_worker_selects_for_one_training_after_seven() -> None:
    guard, selected = AshaGuarded(1, 27, 3), list[bool]()
    for _ in range(200):
        unit = guard.decide()
        assert unit is not None
        at = guard.trials.at.get(unit.trial, 0)
        selected += [not unit.probe] * (unit.until - at)
        for event in (
            Started(unit),
            Reported(unit.trial, unit.until, unit.trial / unit.until),
            Ended(unit.trial, "reached"),
        ):
            guard.apply(event)
    assert sum(selected[: 7 * 27]) == 0
    assert sum(selected[: 8 * 27]) == 27
    assert sum(selected[: 15 * 27]) == 27
    assert sum(selected[: 16 * 27]) == 2 * 27


def test_seven_of_eight_workers_train_unselected_trials_to_the_end() -> None:
    """And one has screened nine and trained the best of them within a quarter more than one training."""
    guard = guarded(unlike(1.0), trainings=9.99)
    probes = [trial for trial in guard.finished if trial in guard.probes]
    assert (len(probes), len(guard.finished)) == (7, 8)


@pytest.mark.parametrize(
    ("workers", "trainings", "random", "probes"),
    [
        (1, 10, 10, 9),
        (1, 32, 32, 28),
        (4, 32, 32, 28),
        (8, 10, 8, 7),
        (8, 32, 32, 28),
        (16, 32, 32, 28),
        (12, 32, 24, 22),
    ],
)
def test_of_random_searchs_trials_seven_in_eight_end(workers: int, trainings: int, random: int, probes: int) -> None:
    guard = guarded(unlike(1.0), trainings=trainings, workers=workers)
    assert random == workers * (trainings // workers)
    assert sum(trial in guard.probes for trial in guard.finished) == probes


@settings(max_examples=20, deadline=None)
@given(
    seed=seeds,
    workers=st.integers(1, 20),
    trainings=st.integers(1, 40),
    stake=st.sampled_from([0.05, 0.125, 0.25, 0.5]),
    failures=st.sampled_from([0.0, 0.1]),
)
def test_selection_never_gets_more_than_its_stake(
    seed: int, workers: int, trainings: int, stake: float, failures: float
) -> None:
    """Whatever the values are; the trainings of probes that run count as paid, and what a lost unit took as given."""
    R, guard = 27, AshaGuarded(1, 27, 3, stake=stake)
    curves = np.random.default_rng(seed).random((1500, R))
    until = trainings * R / workers
    run = replay(guard, curves, lambda trial: trial, until, cluster=Cluster(workers, failures=failures, seed=seed))
    spent = sum(
        min(part.last - part.first, until - part.begin) for part in run.segments if part.trial in guard.selected
    )
    assert spent <= stake * workers * (until + R)


def test_the_guard_stops_selecting_where_early_values_mislead() -> None:
    telling, misleading = (guarded(unlike(early)) for early in (1.0, -1.0))
    assert telling.evidence().odds > 100
    assert telling.given == pytest.approx(4 * 81, abs=54)
    assert (telling.evidence().share, misleading.evidence().share) == (0.125, 0.0)
    assert misleading.evidence().odds < 1
    assert misleading.given < 1.5 * 81
    assert sum(trial in misleading.probes for trial in misleading.finished) >= 29


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_where_no_trial_is_left_to_start_the_paused_are_trained_by_their_numbers(sign: float) -> None:
    guard = AshaGuarded(1, 27, 3, limit=30, stake=0.5)
    log = drive(guard, lambda trial, at: (1 if at >= 27 else sign) * random.Random(trial).random(), 1000, workers=8)
    assert guard.decide() is None
    assert len(guard.finished) == 30
    selected = {event.unit.trial for event in log if isinstance(event, Started) and not event.unit.probe}
    taken_up = [
        event.unit.trial
        for event in log
        if isinstance(event, Started) and event.unit.probe and event.unit.trial in selected
    ]
    first = list(dict.fromkeys(taken_up))
    assert len(first) > 5
    assert first == sorted(first)


def test_a_contradiction_lowers_the_odds() -> None:
    """The first trials tell; from the fortieth on the order is reversed."""

    def value(trial: int, resource: int) -> float:
        final = random.Random(trial).random()
        return final if resource >= 81 or trial < 40 else 1 - final

    assert guarded(value, trainings=64).evidence().odds < guarded(value, trainings=16).evidence().odds


def test_a_probe_that_diverged_is_not_trained_on_and_earns_only_what_it_took() -> None:
    guard = AshaGuarded(1, 27, 3)
    unit = guard.decide()
    assert unit == Unit(0, 1, probe=True)
    guard.apply(Started(unit))
    assert guard.allowed == pytest.approx(27 / 7)
    guard.apply(Reported(0, 1, math.nan))
    guard.apply(Ended(0, "reached"))
    assert guard.allowed == pytest.approx(1 / 7)
    assert guard.decide() == Unit(1, 1, probe=True)


def test_equals_are_half_ahead_of_a_trial() -> None:
    guard = AshaGuarded(1, 27, 3)
    guard.rungs[1].record(9, 2.0)
    for trial, value in [(9, 2.0), (0, 1.0), (1, 2.0), (2, 2.0), (3, 3.0)]:
        guard.unselected[1].record(trial, value)
    assert guard._place(1, 9) == pytest.approx((1 + 0.5 * 2 + 1) / (4 + 2))


def test_selection_gets_its_stake_until_the_odds_say_that_it_misleads(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = AshaGuarded(1, 27, 3, stake=0.25)
    for value, share in [(DOUBT, 0.25), (2 * DOUBT, 0.25), (0.9 * DOUBT, 0.0)]:
        monkeypatch.setattr(Odds, "value", value)
        assert guard.share == share


def test_a_guard_with_one_rung_only_trains_probes_to_it() -> None:
    guard = AshaGuarded(27, 27, 3)
    for trial in range(3):
        assert guard.decide() == Unit(trial, 27, probe=True)
        guard.apply(Started(Unit(trial, 27, probe=True)))
        guard.apply(Reported(trial, 27, 3.0 - trial))
        guard.apply(Ended(trial, "reached"))
    assert guard.evidence().finished == 0, "there is no early value to judge by"


@pytest.mark.parametrize("stake", [0.0, -0.1, 1.0, math.nan])
def test_a_stake_that_is_no_share_is_refused(stake: float) -> None:
    with pytest.raises(ValueError, match=r"stake=.* is not allowed"):
        AshaGuarded(1, 27, 3, stake=stake)


def test_a_history_in_which_selection_was_given_more_goes_on_with_probes() -> None:
    """As of a version that let selection have up to nine times what probes took."""
    guard = AshaGuarded(1, 27, 3)
    for trial in range(8):
        guard.apply(Started(Unit(trial, 1, probe=trial < 2)))
    for trial in range(2, 8):
        guard.apply(Reported(trial, 1, float(trial)))
        guard.apply(Ended(trial, "reached"))
    guard.apply(Started(Unit(2, 3)))
    guard.apply(Started(Unit(3, 3)))
    assert (guard.evidence().given, guard.trials.at[2]) == (6 + 2 + 2, 1)
    for number in range(8, 14):  # with two of them selection has its worker of eight, with two of sixteen both
        assert guard.decide() == Unit(number, 1, probe=True)
        guard.apply(Started(Unit(number, 1, probe=True)))
    guard.apply(Ended(2, "lost"))
    assert guard.decide() == Unit(2, 3)


def test_a_history_whose_units_end_between_the_rungs_goes_on() -> None:
    """As of a version with a rung at two thirds: probes to there, one selected, one of them still running."""
    guard = AshaGuarded(1, 27, 3)
    for trial in range(4):
        for until in (1, 3, 9, 18):
            guard.apply(Started(Unit(trial, until, probe=True)))
            if (trial, until) != (3, 18):
                guard.apply(Reported(trial, until, float(trial)))
                guard.apply(Ended(trial, "reached"))
    guard.apply(Started(Unit(0, 27)))
    guard.apply(Reported(0, 27, 0.0))
    guard.apply(Ended(0, "reached"))
    assert guard.evidence().finished == 1 and guard.evidence().probes == 0
    assert guard.decide() == Unit(1, 27, probe=True)
    guard.apply(Ended(3, "lost"))
    assert guard.decide() == Unit(3, 18, probe=True)
