"""PBT's decisions one by one: who is compared where, who copies, what is noted of a stretch, what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sweeps.history import Ended, Reported, Setting, Started, Unit
from sweeps.schedulers import pb2, pbt
from sweeps.schedulers.base import Copy
from sweeps.schedulers.pbt import PbtRules, PopulationBased
from sweeps.space import Choice, Interval, Space

LR = Space({"lr": Interval(0.1, 1.0)})
R = 60


def population(members: int = 5, space: Space = LR, full: int = R, **rules: Any) -> PopulationBased:
    return PopulationBased(space, members, full, PbtRules(**{"interval": 5, **rules}), seed=1)


def run(scheduler: PopulationBased, trial: int, *reports: tuple[int, float], config: Any = None) -> None:
    """Begin a unit of a member and report; without a config it goes on as it is."""
    first = trial not in scheduler.at
    chosen = {"lr": 0.5} if first and config is None else config
    scheduler.apply(Started(Unit(trial, reports[-1][0], config=chosen)))
    for resource, value in reports:
        scheduler.apply(Reported(trial, resource, value))
    scheduler.apply(Ended(trial, "reached"))


@pytest.mark.parametrize(
    "allowed",
    [{"interval": 1}, {"burn_in": 0}, {"quantile": 0.5}, {"quantile": 1e-9}, {"resample": 0.0}, {"resample": 1.0}],
)
def test_rules_at_their_edges(allowed: dict[str, Any]) -> None:
    assert PbtRules(**{"interval": 5, **allowed})


@pytest.mark.parametrize(
    "wrong",
    [{"interval": 0}, {"burn_in": -1}, {"quantile": 0.0}, {"quantile": 0.51}, {"resample": -0.1}, {"resample": 1.1}],
)
def test_rules_beyond_them(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PbtRules(**{"interval": 5, **wrong})


def test_the_rules_unless_others_are_asked() -> None:
    assert PbtRules(7) == PbtRules(7, 0, 0.2, 0.25, (0.8, 1.2), "perturb")
    assert pbt.DRAWS == 16


def test_the_first_draw_that_no_copy_has_is_taken() -> None:
    scheduler = population()
    run(scheduler, 0, (5, 1.0))
    run(scheduler, 1, (5, 2.0))
    random = np.random.default_rng([1, 1, scheduler.looks[1], 1])
    first, second = (scheduler._explored(random, {"lr": 0.5}) for _ in range(2))
    assert scheduler._newly_varied(1, 0) == first != second
    scheduler.lineage.append(Copy(2, 0, 5, 5, first))
    assert scheduler._newly_varied(1, 0) == second


def test_populations_that_can_be_and_not() -> None:
    assert population(2).members == 2
    assert PopulationBased(LR, 2, R, PbtRules(5)).seed == 0
    assert population(full=5).decide() == Unit(
        0, 5, config=population(full=5).space.draw(np.random.default_rng([1, 0]))
    )
    with pytest.raises(ValueError, match="members=1"):
        population(1)
    with pytest.raises(ValueError, match="interval=5 is above the full resource R=4"):
        population(full=4)
    with pytest.raises(ValueError, match="explore=pb2"):
        population(space=Space({"kind": Choice((1, 2))}), explore="pb2")


def test_the_members_begin_one_after_the_other_and_are_compared_once_all_have() -> None:
    scheduler = population(3)
    for trial in range(3):
        assert [(u.trial, u.until) for u in scheduler.candidates()] == [(trial, 5)]
        run(scheduler, trial, (5, float(trial)))
    assert [unit.trial for unit in scheduler.candidates()] == [0, 1, 2]


def test_the_least_advanced_goes_on_first_and_nobody_beyond_the_end() -> None:
    scheduler = population(3, full=12)
    for trial, at in ((0, 12), (1, 10), (2, 5)):
        run(scheduler, trial, *((step, 1.0) for step in (5, 10, 12) if step <= at))
    assert [(unit.trial, unit.until) for unit in scheduler.candidates()] == [(2, 10), (1, 12)]
    scheduler.apply(Started(Unit(2, 10)))
    assert [(unit.trial, unit.until) for unit in scheduler.candidates()] == [(1, 12)]


def compared(quantile: float, reports: dict[int, list[int]], member: int = 0, burn_in: int = 0) -> set[int]:
    """Who is compared with a member, where members have come to these resources; -1: nobody."""
    scheduler = population(len(reports), quantile=quantile, burn_in=burn_in)
    for trial, levels in reports.items():
        run(scheduler, trial, *((at, 100.0 * trial + at) for at in levels))
    found = scheduler._compared(member)
    assert len({value % 100 for value in found.values()}) <= 1, "all at one resource"
    return {int(value % 100) for value in found.values()} or {-1}


FIVE_ALIKE = {trial: [5, 10] for trial in range(5)}


@pytest.mark.parametrize(
    ("quantile", "reports", "burn_in", "at"),
    [
        (0.2, FIVE_ALIKE, 0, 10),
        (0.2, {**FIVE_ALIKE, 4: [5]}, 0, 10),  # four of five are all but the bottom share
        (0.2, {**FIVE_ALIKE, 4: [5], 3: [5]}, 0, 5),
        (0.5, {**FIVE_ALIKE, 4: [5], 3: [5]}, 0, 10),  # three of five
        (0.5, {**FIVE_ALIKE, 4: [5], 3: [5], 2: [5]}, 0, 5),
        (0.19, {**FIVE_ALIKE, 4: [5]}, 0, 5),  # a share of less than one member is none
        (0.2, {**FIVE_ALIKE, 0: [5]}, 0, 5),
        (0.2, FIVE_ALIKE, 10, 10),
        (0.2, FIVE_ALIKE, 11, -1),
        (0.2, {**FIVE_ALIKE, 0: [5]}, 6, -1),
    ],
)
def test_members_are_compared_where_all_but_a_few_have_come_to(
    quantile: float, reports: dict[int, list[int]], burn_in: int, at: int
) -> None:
    assert compared(quantile, reports, burn_in=burn_in) == {at}


def test_who_diverged_is_the_worst_at_the_highest_resource_of_the_others() -> None:
    scheduler = population(5)
    for trial in range(4):
        run(scheduler, trial, (5, float(trial)), (10, 10.0 + trial))
    run(scheduler, 4, (5, math.nan))
    assert scheduler._compared(4) == {0: 10.0, 1: 11.0, 2: 12.0, 3: 13.0, 4: math.inf}
    assert scheduler._donor(4) == 0
    unit = next(iter(scheduler.candidates()))
    assert (unit.trial, unit.parent, unit.until) == (4, (0, 10), 15)


def donors(values: list[float], quantile: float, at: int = 5, **rules: Any) -> list[int | None]:
    scheduler = population(len(values), quantile=quantile, **rules)
    for trial, value in enumerate(values):
        run(scheduler, trial, (at, value))
    return [scheduler._donor(member) for member in range(len(values))]


@pytest.mark.parametrize(
    ("values", "quantile", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], 0.2, [None, None, None, None, 0]),
        ([5.0, 4.0, 3.0, 2.0, 1.0], 0.2, [4, None, None, None, None]),
        ([1.0, 2.0, 3.0, 4.0], 0.2, [None, None, None, 0]),  # one at least
        ([1.0, 1.0, 1.0, 1.0, 1.0], 0.2, [None] * 5),
        ([1.0, 2.0, 1.0, 1.0, 1.0], 0.2, [None, 0, None, None, None]),
        ([2.0, 1.0], 0.5, [1, None]),
    ],
)
def test_the_bottom_share_copies_the_top_share_where_that_is_better(
    values: list[float], quantile: float, expected: list[int | None]
) -> None:
    assert donors(values, quantile) == expected


def test_a_donor_is_drawn_from_all_of_the_top_share() -> None:
    found = [donors([1.0, 2.0, 3.0, 8.0, 9.0], 0.4)[3:]]
    scheduler = population(5, quantile=0.4)
    for trial, value in enumerate([1.0, 2.0, 3.0, 8.0, 9.0]):
        run(scheduler, trial, (5, value))
    drawn = set()
    for looks in range(30):
        scheduler.looks[4] = looks
        drawn.add(scheduler._donor(4))
    assert drawn == {0, 1}
    assert set(found[0]) <= {0, 1}


def test_before_burn_in_only_who_diverged_copies() -> None:
    assert donors([1.0, 2.0, 9.0], 0.34, burn_in=5) == [None, None, 0]
    assert donors([1.0, 2.0, 9.0], 0.34, burn_in=6) == [None, None, None]
    assert donors([1.0, 2.0, math.nan], 0.34, burn_in=6) == [None, None, 0]


def test_who_is_at_the_end_is_no_donor() -> None:
    scheduler = population(3, quantile=0.34, full=10)
    run(scheduler, 0, (5, 1.0), (10, 0.5))
    run(scheduler, 1, (5, 2.0))
    run(scheduler, 2, (5, 3.0))
    assert scheduler._donor(2) is None


def test_a_copy_takes_over_where_its_donor_is_and_what_it_had_seen() -> None:
    scheduler = population(5)
    for trial in range(5):
        run(scheduler, trial, (5, float(trial)), config={"lr": 0.2 + 0.1 * trial})
    unit = Unit(4, 10, parent=(0, 5), config={"lr": 0.24})
    scheduler.apply(Started(unit))
    assert scheduler.lineage == [Copy(4, 0, 5, 5, {"lr": 0.24})]
    assert scheduler.value[4] == 0.0 and scheduler.past[4] == {5: 0.0} and scheduler.at[4] == 5
    assert scheduler.config[4] == {"lr": 0.24} and scheduler.first[4] == {"lr": pytest.approx(0.6)}
    assert scheduler.pinned() == {(0, 5)}
    scheduler.apply(Ended(4, "lost"))
    scheduler.apply(Started(unit))
    assert len(scheduler.lineage) == 1, "the same copy again"
    assert scheduler.schedule(4) == [(0, {"lr": pytest.approx(0.2)}), (5, {"lr": 0.24})]
    assert scheduler.schedule(0) == [(0, {"lr": 0.2})]


def test_what_is_used_is_what_was_trained() -> None:
    scheduler = population(2)
    run(scheduler, 0, (5, 1.0))
    run(scheduler, 1, (3, 2.0), (5, 1.5))
    assert (scheduler.used, scheduler.looks) == (10, {0: 1, 1: 2})
    scheduler.apply(Started(Unit(1, 10, parent=(0, 5), config={"lr": 0.3})))
    scheduler.apply(Ended(1, "failed"))
    assert scheduler.used == 10 and scheduler.value[1] == math.inf and scheduler.looks[1] == 3


def test_what_a_stretch_has_gained_is_noted_for_each_interval() -> None:
    scheduler = population(2)
    run(scheduler, 0, (5, 4.0))
    assert scheduler.seen == [], "nothing is known of before the first value"
    run(scheduler, 0, (10, 3.0))
    run(scheduler, 0, (12, 2.5))
    run(scheduler, 0, (12, 2.0))
    noted = [(one.begun, one.gain, one.config) for one in scheduler.seen]
    assert noted == [(1.0, 1.0, {"lr": 0.5}), (2.0, pytest.approx(0.5 / 0.4), {"lr": 0.5})]
    run(scheduler, 1, (5, math.nan))
    scheduler.apply(Started(Unit(0, 17)))
    scheduler.apply(Ended(0, "failed"))
    assert [one.begun for one in scheduler.seen[2:]] == [0.0, 2.4]
    assert all(math.isnan(one.gain) for one in scheduler.seen[2:])


def test_a_copy_is_varied_as_no_other_of_the_same_weights() -> None:
    """Two factors without draws anew: the third copy finds only what is taken, and takes it all the same."""
    scheduler = population(5, resample=0.0)
    for trial in range(5):
        run(scheduler, trial, (5, float(trial)))
    made: list[float] = []
    for member in (1, 2, 3):
        found = scheduler._varied(member, 0)
        assert found is not None
        made.append(round(float(found["lr"]), 9))
        scheduler.apply(Started(Unit(member, 10, parent=(0, 5), config=found)))
    assert sorted(made[:2]) == [0.4, 0.6] and made[2] in (0.4, 0.6)


def test_asked_twice_between_events_it_draws_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = population(5)
    for trial in range(5):
        run(scheduler, trial, (5, float(trial)))
    asked = []
    real = scheduler._newly_varied

    def watched(member: int, donor: int) -> dict[str, Setting] | None:
        asked.append((member, donor))
        return real(member, donor)

    monkeypatch.setattr(scheduler, "_newly_varied", watched)
    first = scheduler._varied(4, 0)
    assert scheduler._varied(4, 0) == first and asked == [(4, 0)]
    scheduler._varied(4, 1)
    scheduler.apply(Reported(3, 5, 3.0))
    scheduler._varied(4, 1)
    assert asked == [(4, 0), (4, 1), (4, 1)]


@pytest.mark.parametrize("gained", [None, {"lr": 0.77}])
def test_with_pb2_a_copy_has_what_is_chosen_by_gain_where_that_can_be(
    gained: dict[str, Setting] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = population(6, explore="pb2")
    for trial in range(6):
        run(scheduler, trial, (5, float(trial)), config={"lr": 0.2 + 0.1 * trial})
    scheduler.apply(Started(Unit(3, 10)))
    scheduler.apply(Started(Unit(2, 10)))
    scheduler.apply(Ended(2, "lost"))
    asked: list[Any] = []

    def chosen(*given: Any, **named: Any) -> dict[str, Setting] | None:
        asked.append((given, named))
        return gained

    monkeypatch.setattr(pb2, "chosen", chosen)
    found = scheduler._varied(5, 0)
    (((space, config, now, seen, under_way), named),) = asked
    assert (space, now, seen) == (LR, 1.0, scheduler.seen)
    assert [one.config for one in under_way] == [{"lr": pytest.approx(0.4)}, {"lr": 0.5}], "running or lost, in order"
    assert all(one.begun == 1.0 and math.isnan(one.gain) for one in under_way)
    assert named["taken"] == [{"lr": 0.2}]
    assert named["random"].random() == np.random.default_rng([1, 5, 1, 2]).random(), "a stream of its own"
    assert found == (config if gained is None else gained)


def test_draws_depend_on_the_seed_the_member_and_its_look() -> None:
    """A stream of its own for whom to copy, and one for what to vary: a study that goes on decides as it did."""
    scheduler = population(5, quantile=0.4)
    for trial in range(5):
        run(scheduler, trial, (5, float(trial)))
    run(scheduler, 4, (5, 4.0))
    assert scheduler.looks[4] == 2
    for member, look in ((3, 1), (4, 2)):
        assert scheduler._donor(member) == [0, 1][int(np.random.default_rng([1, member, look, 0]).integers(2))]
        varied = scheduler._explored(np.random.default_rng([1, member, look, 1]), scheduler.config[0])
        assert scheduler._varied(member, 0) == varied
    fresh = population(3)
    assert fresh.decide() == Unit(0, 5, config=LR.draw(np.random.default_rng([1, 0])))


def test_a_setting_is_drawn_anew_or_multiplied_by_either_factor() -> None:
    scheduler = population(2, resample=0.3, factors=(0.9, 1.1))
    random = np.random.default_rng(0)
    found = [round(float(scheduler._explored(random, {"lr": 0.5})["lr"]), 6) for _ in range(2_000)]
    shares = [float(np.mean(np.array(found) == value)) for value in (0.45, 0.55)]
    assert shares == pytest.approx([0.35, 0.35], abs=0.04)
    assert LR.domains["lr"].holds(scheduler._explored(random, {})["lr"]), "what the donor is without is drawn"
