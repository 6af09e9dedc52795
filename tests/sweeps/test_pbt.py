import heapq
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeps.history import Ended, Reported, Setting, Started, Unit
from sweeps.schedulers.pbt import PbtRules, PopulationBased
from sweeps.space import Choice, Condition, Integers, Interval, Space, grid
from tests.sweeps.searches import drive, driven_and_retold, noise

SPACE = Space({"lr": Interval(1e-4, 1e-1, log=True), "layers": Integers(1, 4), "kind": Choice(("a", "b"))})
seeds = st.integers(0, 10_000)


def population(seed: int = 0, members: int = 10, **rules: Any) -> PopulationBased:
    return PopulationBased(SPACE, members, 60, PbtRules(5, **rules), seed)


def best_at(past: dict[int, dict[int, float]], bad: set[int], at: int, donor: int, member: int) -> bool:
    """Whether a donor is in the top fifth at a resource, and better there than a member or that one is bad."""
    there = sorted(values[at] for m, values in past.items() if at in values and m not in bad)
    top = there[: max(1, (len(there) + len(bad)) // 5)]
    return past[donor][at] in top and (member in bad or past[donor][at] < past[member][at])


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_invariants_of_a_population(seed: int) -> None:
    scheduler = population(seed)
    newest: dict[int, int] = {}
    past: dict[int, dict[int, float]] = {member: {} for member in range(10)}
    bad: set[int] = set()
    used, at = 0, dict.fromkeys(range(10), 0)
    lost: set[int] = set()
    for event in drive(scheduler, noise(seed), 150, seed, lose=0.05, fail=0.05):
        match event:
            case Started(unit) if unit.trial in lost:
                lost.remove(unit.trial)  # the same unit again: its donor's checkpoint was kept, nothing is decided
            case Started(unit):
                if unit.parent is not None:
                    donor, start = unit.parent
                    assert newest[donor] == start  # a checkpoint that exists
                    assert donor != unit.trial
                    assert donor not in bad
                    # Of the top share at some resource that both had come to, and better there: ahead is not better.
                    both = past[donor].keys() if unit.trial in bad else past[donor].keys() & past[unit.trial].keys()
                    assert any(best_at(past, bad, at, donor, unit.trial) for at in both)
                    bad.discard(unit.trial)
                    at[unit.trial] = start
                    newest[unit.trial] = start
                    past[unit.trial] = {at: v for at, v in past[donor].items() if at <= start}
                    assert unit.config is not None
                    assert 1e-4 <= float(unit.config["lr"]) <= 1e-1
                    assert unit.config["layers"] in (1, 2, 3, 4)
                assert unit.until <= at[unit.trial] + 5
            case Reported(trial, resource, value):
                used += resource - at[trial]
                at[trial] = newest[trial] = resource
                past[trial][resource] = value
            case Ended(trial, "failed"):
                bad.add(trial)
            case Ended(trial, "lost"):
                lost.add(trial)
    assert scheduler.used == used  # what was inherited is not billed again
    assert scheduler.trials.at.keys() <= set(range(10))


def trained(scheduler: PopulationBased, workers: int, speeds: dict[int, float], value: Any) -> list[Unit]:
    """Run a population on workers whose members take `speeds` times their resource; return its units."""
    busy: list[tuple[float, int, Unit]] = []
    units: list[Unit] = []
    clock = 0.0
    while True:
        while len(busy) < workers and (unit := scheduler.decide()) is not None:
            begun = scheduler.at.get(unit.trial, 0) if unit.parent is None else unit.parent[1]
            scheduler.apply(Started(unit))
            units.append(unit)
            heapq.heappush(busy, (clock + (unit.until - begun) * speeds.get(unit.trial, 1.0), len(units), unit))
        if not busy:
            return units
        clock, _, unit = heapq.heappop(busy)
        scheduler.apply(Reported(unit.trial, unit.until, value(unit.trial, unit.until)))
        scheduler.apply(Ended(unit.trial, "reached"))


@pytest.mark.parametrize("straggler", [1.0, 7.3])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 8, 16])
def test_identical_members_are_never_copied_whoever_is_ahead(workers: int, straggler: float) -> None:
    scheduler = population(members=8)
    speeds = {member: 1.0 + 0.1 * member for member in range(8)} | {3: straggler}
    units = trained(scheduler, workers, speeds, lambda _, resource: 1.0 / resource)
    assert [unit for unit in units if unit.parent is not None] == []
    assert scheduler.used == 8 * 60


@pytest.mark.parametrize("workers", [1, 4, 16])
def test_the_worst_members_still_copy_the_best_on_any_number_of_workers(workers: int) -> None:
    scheduler = population(members=8)
    units = trained(scheduler, workers, {}, lambda member, resource: 1.0 / resource + member)
    copies = [unit for unit in units if unit.parent is not None]
    assert copies and all(unit.parent is not None and unit.parent[0] < unit.trial for unit in copies)


@pytest.mark.parametrize(("high", "copies"), [(1.0, True), (0.1, False)])
def test_a_copy_that_could_only_be_identical_to_its_donor_is_none(high: float, copies: bool) -> None:
    """At the end of a range a factor changes nothing, and a range of one value has no other: that member goes on."""
    scheduler = PopulationBased(Space({"lr": Interval(0.1, high)}), 6, 60, PbtRules(5), 0)
    config: dict[int, Any] = {}

    def value(member: int, resource: int) -> float:
        return 1.0 / resource + member

    for _ in range(200):
        unit = scheduler.decide()
        if unit is None:
            break
        if unit.parent is not None:
            assert unit.config != config[unit.parent[0]]
        if unit.config is not None:
            config[unit.trial] = unit.config
        scheduler.apply(Started(unit))
        scheduler.apply(Reported(unit.trial, unit.until, value(unit.trial, unit.until)))
        scheduler.apply(Ended(unit.trial, "reached"))
    assert bool(scheduler.lineage) is copies


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_replaying_the_log_rebuilds_the_same_decisions(seed: int) -> None:
    """Also without what was lost: a copy that was lost on its way is the same copy when it is begun again."""
    scheduler, again, calm = driven_and_retold(partial(population, seed), noise(seed), 100, seed)
    assert calm.lineage == again.lineage == scheduler.lineage


def test_lineage_gives_the_winners_schedule() -> None:
    scheduler = population(seed=4, quantile=0.3)
    lived: dict[int, list[tuple[int, dict[str, Setting]]]] = {}
    for event in drive(scheduler, noise(4), 200, 4):
        if isinstance(event, Started) and event.unit.config is not None:
            unit = event.unit
            past = [] if unit.parent is None else [s for s in lived[unit.parent[0]] if s[0] < unit.parent[1]]
            since = 0 if unit.parent is None else unit.parent[1]
            lived[unit.trial] = [*past, (since, dict(unit.config or {}))]
    assert scheduler.lineage
    for member in range(10):
        assert [(at, dict(config)) for at, config in scheduler.schedule(member)] == lived[member]


def test_diverged_members_are_never_copied_and_come_back() -> None:
    scheduler = population(seed=1)
    log = drive(scheduler, lambda t, r: math.nan if t in (2, 5) and r < 15 else 1.0 + 1.0 / r, 120, workers=10)
    copies = [e.unit for e in log if isinstance(e, Started) and e.unit.parent is not None]
    assert {unit.trial for unit in copies} >= {2, 5}
    diverged = {(2, 5), (5, 5), (2, 10), (5, 10)}
    assert not diverged & {unit.parent for unit in copies if unit.parent is not None}


def test_a_donors_checkpoint_is_pinned_until_the_copy_has_ended() -> None:
    scheduler = population(members=4, quantile=0.25)
    for trial in range(4):
        unit = scheduler.decide()
        assert unit is not None
        scheduler.apply(Started(unit))
        scheduler.apply(Reported(trial, 5, float(trial)))
        scheduler.apply(Ended(trial, "reached"))
    while True:
        unit = scheduler.decide()
        assert unit is not None
        scheduler.apply(Started(unit))
        if unit.parent is not None:
            break
    assert scheduler.pinned() == {(0, 5)}
    scheduler.apply(Ended(unit.trial, "lost"))
    assert scheduler.pinned() == {(0, 5)}
    scheduler.apply(Started(unit))
    scheduler.apply(Reported(unit.trial, unit.until, 0.5))
    scheduler.apply(Ended(unit.trial, "reached"))
    assert scheduler.pinned() == set()


@pytest.mark.parametrize(
    ("value", "factor", "moved"), [(2, 1.2, 3), (1, 0.8, 1), (2, 0.8, 1), (4, 1.2, 4), (3, 1.2, 4)]
)
def test_integers_do_not_get_stuck_inside_their_range(value: int, factor: float, moved: int) -> None:
    assert Integers(1, 4).perturb(value, factor, np.random.default_rng(0)) == moved


def test_a_copy_keeps_its_donors_choice_but_for_the_stated_share() -> None:
    """A setting is drawn anew with probability 0.25; of three values a third of the draws is the donor's own."""
    space = Space({"rule": Choice(("a", "b", "c")), "width": Choice((1, 2, 3, 4), ordered=True)})
    scheduler = PopulationBased(space, 4, 60, PbtRules(5), 0)
    random = np.random.default_rng(0)
    copies = [scheduler._explored(random, {"rule": "a", "width": 2}) for _ in range(4_000)]
    assert np.mean([copy["rule"] == "a" for copy in copies]) == pytest.approx(1 - 0.25 * 2 / 3, abs=0.02)
    # Of ordered values a neighbour, up or down alike; a step further is a draw.
    assert np.mean([copy["width"] in (1, 3) for copy in copies]) == pytest.approx(0.75 + 0.25 / 2, abs=0.02)


def test_zero_is_left_and_domains_are_kept() -> None:
    random = np.random.default_rng(0)
    assert Interval(0, 1).perturb(0.0, 1.2, random) != 0.0
    assert Interval(0, 0.1).perturb(0.09, 1.2, random) == 0.1
    assert Choice((1, 2, 3), ordered=True).perturb(3, 1.2, random) == 3


def test_a_condition_governs_what_is_drawn_and_copied() -> None:
    space = Space({"optimizer": Choice(("adamw", "muon")), "momentum": Interval(0.8, 0.99)},
                  {"momentum": Condition("optimizer", ("muon",))})  # fmt: skip
    drawn = [space.draw(np.random.default_rng(seed)) for seed in range(20)]
    assert {config["optimizer"] for config in drawn} == {"adamw", "muon"}
    assert all(("momentum" in config) == (config["optimizer"] == "muon") for config in drawn)
    with pytest.raises(ValueError, match="before it"):
        Space({"a": Interval(0, 1), "b": Interval(0, 1)}, {"a": Condition("b", (1,))})


def test_a_grid_is_every_combination() -> None:
    assert grid({"a": [1, 2], "b": ["x", "y"]}) == [
        {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]  # fmt: skip


@pytest.mark.parametrize("bad", [{"quantile": 0.6}, {"quantile": 0.0}, {"resample": 1.5}, {"burn_in": -1}])
def test_rules_that_make_no_sense_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        population(**bad)
