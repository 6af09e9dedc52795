"""What schedulers share and do at their edges: units out, lost and failed; brackets' shares; correlations by hand."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sweeps.designs.isoflop import Shape
from sweeps.designs.random_nd import random_nd
from sweeps.history import Ended, Measured, Reported, Started, Unit, rank_value
from sweeps.rank_correlation import at_least, mean_ranks, spearman
from sweeps.schedulers.asha_auto import BREAK_EVEN, AshaAuto
from sweeps.schedulers.asha_promotion import AshaPromotion
from sweeps.schedulers.asha_stopping import AshaStopping
from sweeps.schedulers.base import Scheduler, Trials
from sweeps.schedulers.hyperband import Hyperband
from sweeps.schedulers.random import FullRuns
from sweeps.space import Choice, Integers, Interval


def tell(scheduler: Scheduler | Trials, *events: Started | Reported | Ended | Measured) -> None:
    for event in events:
        scheduler.apply(event)


def reach(scheduler: Scheduler | Trials, trial: int, until: int, value: float = 1.0, bracket: int = 0) -> None:
    tell(scheduler, Started(Unit(trial, until, bracket)), Reported(trial, until, value), Ended(trial, "reached"))


def test_where_every_trial_stands() -> None:
    trials = Trials(limit=4)
    tell(trials, Started(Unit(0, 5)), Started(Unit(1, 5)), Started(Unit(2, 5)))
    tell(trials, Reported(0, 5, 1.0), Reported(0, 3, 1.0), Ended(0, "reached"), Ended(1, "failed"), Ended(2, "lost"))
    assert (trials.at, trials.running) == ({0: 5, 1: 0, 2: 0}, {})
    assert (trials.failed, trials.lost) == ({1}, {2: Unit(2, 5)})
    assert list(trials.resumed()) == [Unit(2, 5)]
    tell(trials, Ended(1, "lost"))
    assert list(trials.lost) == [2], "what is not out cannot be lost"
    tell(trials, Started(Unit(2, 5)))
    assert trials.lost == {} and trials.running == {2: Unit(2, 5)}
    assert list(trials.fresh(7, 2)) == [Unit(3, 7, 2)]
    assert list(trials.fresh(7)) == [Unit(3, 7, 0)]
    tell(trials, Started(Unit(3, 7)))
    assert list(trials.fresh(7)) == []
    assert list(islice(Trials().fresh(7), 2)) == [Unit(0, 7)]


def test_what_was_lost_first_is_given_out_first() -> None:
    scheduler = FullRuns(9, limit=3)
    for trial in (0, 1, 2):
        tell(scheduler, Started(Unit(trial, 9)))
    tell(scheduler, Ended(1, "lost"), Ended(0, "lost"))
    assert [unit.trial for unit in scheduler.candidates()] == [1, 0]
    assert scheduler.decide() == Unit(1, 9)


@pytest.mark.parametrize(("value", "rank"), [(1.5, 1.5), (math.nan, math.inf), (-math.inf, math.inf)])
def test_what_is_not_finite_is_the_worst(value: float, rank: float) -> None:
    assert rank_value(value) == rank


@pytest.mark.parametrize(("share", "stops"), [(None, False), (BREAK_EVEN, False), (0.0371, True)])
def test_which_variant_decides(share: float | None, stops: bool) -> None:
    auto = AshaAuto(1, 9)
    if share is not None:
        tell(auto, Measured(share))
    assert auto.stopping is stops and BREAK_EVEN == 0.037


def test_who_goes_straight_on_and_who_does_not() -> None:
    auto = AshaAuto(1, 9, limit=9)
    tell(auto, Measured(1.0))
    assert auto.decide() == Unit(0, 1)
    reach(auto, 0, 1, 1.0)
    assert auto.going == {0: Unit(0, 3)}
    reach(auto, 1, 1, 2.0)
    assert auto.going == {0: Unit(0, 3)}, "the second best of two is none of the best"
    tell(auto, Started(Unit(0, 3)))
    assert auto.going == {}
    tell(auto, Reported(0, 3, 1.0), Ended(0, "reached"))
    assert auto.going == {0: Unit(0, 9)}
    tell(auto, Started(Unit(0, 9)), Reported(0, 9, 1.0))
    assert auto.going == {}, "there is no rung beyond the last"
    tell(auto, Started(Unit(2, 1)), Reported(2, 9, 0.5))
    assert auto.going == {}, "one report may fill every rung"
    tell(auto, Started(Unit(3, 1)), Reported(3, 3, 0.1))
    assert auto.going == {3: Unit(3, 9)} and list(auto._straight_on()) == []
    tell(auto, Ended(3, "failed"))
    assert list(auto._straight_on()) == []


def test_a_late_report_of_an_earlier_rung_sends_nobody_on() -> None:
    auto = AshaAuto(1, 9)
    tell(auto, Measured(1.0), Started(Unit(0, 3)), Reported(0, 3, 1.0), Started(Unit(0, 9)))
    tell(auto, Reported(0, 2, 0.5))
    assert auto.going == {}
    tell(auto, Reported(0, 3, 0.5))
    assert auto.going == {0: Unit(0, 9)}, "the newest word on a rung counts"


def test_a_report_between_two_rungs_changes_nothing() -> None:
    auto = AshaAuto(1, 9)
    tell(auto, Measured(1.0), Started(Unit(0, 1)), Reported(0, 1, 1.0), Reported(0, 2, 9.0))
    assert auto.going == {0: Unit(0, 3)}


@pytest.mark.parametrize(("at", "stopped"), [(1, True), (3, True), (9, False), (10, False)])
def test_a_trial_that_has_come_to_the_end_was_not_stopped(at: int, stopped: bool) -> None:
    scheduler = AshaStopping(1, 9, eta=3)
    reach(scheduler, 0, 9, 0.5)
    reach(scheduler, 1, at, 5.0)
    assert scheduler.stopped(1) is stopped
    assert scheduler.stopped(7), "nobody"


def test_a_trial_that_runs_or_goes_on_or_was_lost_was_not_stopped() -> None:
    scheduler = AshaStopping(1, 9)
    reach(scheduler, 0, 1)
    assert scheduler.going == {0: Unit(0, 3)} and not scheduler.stopped(0)
    tell(scheduler, Started(Unit(0, 3)))
    assert scheduler.going == {} and not scheduler.stopped(0)
    tell(scheduler, Ended(0, "lost"))
    assert not scheduler.stopped(0)
    tell(scheduler, Started(Unit(0, 3)), Ended(0, "failed"))
    assert scheduler.stopped(0)
    assert [len(rung.entries) for rung in scheduler.rungs] == [1, 1, 0], "the rung that it was on its way to"
    assert scheduler.rungs[1].of[0][0] == math.inf


@pytest.mark.parametrize(("tolerance", "goes"), [(0.0, False), (0.4, False), (0.5, True)])
def test_seed_noise_may_be_tolerated(tolerance: float, goes: bool) -> None:
    scheduler = AshaStopping(1, 9, tolerance=tolerance)
    reach(scheduler, 0, 1, 1.0)
    reach(scheduler, 1, 1, 1.5)
    assert (1 in scheduler.going) is goes


def test_promotion_takes_the_highest_rung_first() -> None:
    scheduler = AshaPromotion(1, 9, limit=3)
    for trial, value in enumerate((1.0, 2.0, 3.0)):
        reach(scheduler, trial, 1, value)
    assert list(scheduler.candidates()) == [Unit(0, 3)]
    tell(scheduler, Started(Unit(0, 3)))
    assert list(scheduler.candidates()) == []
    tell(scheduler, Ended(0, "failed"))
    assert scheduler.rungs[1].of[0][0] == math.inf and list(scheduler.candidates()) == []


def test_the_bracket_that_was_given_least_is_served_next() -> None:
    """Brackets of R=9 start at 1, 3 and 9: by what they were given, not by how many they were given."""
    scheduler = Hyperband(1, 9)
    seen = []
    for _ in range(13):
        unit = scheduler.decide()
        assert unit is not None
        seen.append((unit.bracket, unit.until))
        reach(scheduler, unit.trial, unit.until, 1.0 + unit.trial, unit.bracket)
    assert [bracket for bracket, _ in seen[:3]] == [0, 1, 2]
    assert (0, 3) in seen and (1, 9) in seen, "the best of a bracket goes on"
    assert [each.levels for each in Hyperband(1, 27).brackets] == [(1, 3, 9, 27), (3, 9, 27), (9, 27), (27,)]
    assert sum(scheduler.given) == sum(scheduler.trials.at.values()), "of a promoted trial what is new"
    assert max(scheduler.given) - min(scheduler.given) <= 9


def test_a_unit_that_was_lost_is_given_once() -> None:
    scheduler = Hyperband(1, 9)
    tell(scheduler, Started(Unit(0, 1, 0)))
    assert scheduler.given == [1, 0, 0]
    tell(scheduler, Ended(0, "lost"))
    assert scheduler.decide() == Unit(0, 1, 0)
    tell(scheduler, Started(Unit(0, 1, 0)))
    assert scheduler.given == [1, 0, 0]
    tell(scheduler, Reported(0, 1, 1.0), Ended(0, "reached"), Started(Unit(0, 3, 0)))
    assert scheduler.given == [3, 0, 0], "two more, for it has had one"


@pytest.mark.parametrize(
    ("correlation", "pairs", "errors", "bound"),
    [
        (0.9, 3, 1.0, -1.0),
        (0.9, 0, 1.0, -1.0),
        (0.9, 4, 1.0, math.tanh(math.atanh(0.9) - 1.0)),
        (0.5, 28, 2.0, math.tanh(math.atanh(0.5) - 0.4)),
        (-0.2, 12, 0.0, -0.2),
        (1.0, 103, 1.0, math.tanh(math.atanh(0.9999) - 0.1)),
        (-1.0, 103, 0.0, -0.9999),
    ],
)
def test_a_correlation_less_some_standard_errors(correlation: float, pairs: int, errors: float, bound: float) -> None:
    assert at_least(correlation, pairs, errors) == pytest.approx(bound)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=20))
def test_rank_correlations_are_scipys(pairs: list[tuple[int, int]]) -> None:
    a, b = ([float(pair[k]) for pair in pairs] for k in (0, 1))
    assert mean_ranks(np.array(a)) == pytest.approx(stats.rankdata(a) - 1)
    found = spearman(a, b)
    if len(set(a)) == 1 or len(set(b)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(stats.spearmanr(a, b).statistic)


def test_runs_at_random_cover_both_ranges_evenly() -> None:
    """A Latin hypercube: each of eight equal parts of either range, as logarithms, has one run."""
    family = [Shape(width, 1, width**2, 6 * width**2) for width in range(8, 200)]
    runs = random_nd([100, 30_000], [40, 5], family, 8, 0)
    for values, low, high in (
        ([float(run.shape.params) for run in runs], 100, 30_000),
        ([run.ratio for run in runs], 5, 40),
    ):
        places = [math.log(value / low) / math.log(high / low) for value in values]
        assert sorted(min(7, max(0, int(8 * place + 0.02))) for place in places) == list(range(8))
    again = random_nd([100, 30_000], [40, 5], family, 8, 1)
    assert runs != again


@pytest.mark.parametrize("domain", [Integers(1, 4, log=True), Integers(1, 4), Integers(3, 11, log=True)])
def test_each_whole_number_has_the_share_of_places_that_a_draw_gives_it(domain: Integers) -> None:
    def edge(value: float) -> float:
        low, high = (domain.low - 0.5, domain.high + 0.5)
        return math.log(value / low) / math.log(high / low) if domain.log else (value - low) / (high - low)

    for value in range(domain.low, domain.high + 1):
        begin, end = edge(value - 0.5), edge(value + 0.5)
        assert domain.at(begin + 1e-9) == domain.at(end - 1e-9) == value
        assert domain.at((begin + end) / 2) == value


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 1), st.booleans())
def test_where_a_value_of_an_interval_lies_it_is(place: float, log: bool) -> None:
    domain = Interval(0.01, 3.0, log)
    assert domain.unit(domain.at(place)) == pytest.approx(place, abs=1e-9)


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        (Interval(1e-4, 0.5), "numbers from 0.0001 to 0.5"),
        (Integers(2, 8), "whole numbers from 2 to 8"),
        (Choice(("a", 2)), "one of a, 2"),
    ],
)
def test_what_is_allowed_in_words(domain: Interval | Integers | Choice, words: str) -> None:
    assert domain.allowed() == words


def test_places_of_a_choice_are_shared_evenly() -> None:
    choice = Choice(("a", "b", "c", "d"))
    assert [choice.at(place) for place in (0.0, 0.249, 0.25, 0.5, 0.749, 0.75, 1.0)] == list("aabccdd")
    assert [choice.unit(value) for value in choice.values] == pytest.approx([0, 1 / 3, 2 / 3, 1])
