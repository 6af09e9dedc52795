"""The replay by hand: tables as they are read, the clock of few units, and which decisions count as the scheduler's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeps.history import Ended, Event, Measured, Reported, Started, Unit
from sweeps.replay.curves import Table, read_table
from sweeps.replay.decisions import decisions
from sweeps.replay.policies import missing
from sweeps.replay.simulate import Cluster, Run, Segment, replay
from sweeps.schedulers.base import Scheduler
from sweeps.schedulers.evidence import Odds, Order, log_ratios


def table(folder: Path, **arrays: Any) -> Table:
    path = folder / "curves.npz"
    np.savez(path, **arrays)
    return read_table(path)


def refused(folder: Path, **arrays: Any) -> str:
    with pytest.raises(ValueError) as error:
        table(folder, **arrays)
    return str(error.value)


def test_settings_are_read_as_ranks_between_0_and_1(tmp_path: Path) -> None:
    losses = np.ones((5, 2))
    config = np.array([[1e-4, 8], [1e-2, 8], [1e-3, 2], [1e-1, 4], [1e-5, 16]])
    points = table(tmp_path, val_loss=losses, config=config).points
    assert points is not None
    assert points.tolist() == [[0.25, 0.625], [0.75, 0.625], [0.5, 0.0], [1.0, 0.25], [0.0, 1.0]]
    two = table(tmp_path, val_loss=losses[:2], config=config[:2]).points
    assert two is not None and two.tolist() == [[0.0, 0.5], [1.0, 0.5]]
    one = table(tmp_path, val_loss=losses[:1], config=config[:1]).points
    assert one is not None and one.tolist() == [[0.0, 0.0]]


def test_rows_that_begin_later_are_left_out_and_others_stay(tmp_path: Path) -> None:
    nan = math.nan
    losses = np.array([[2.0, nan, 1.0], [nan, 1.0, 0.5], [nan, nan, nan], [3.0, 2.0, math.inf]])
    found = table(tmp_path, val_loss=losses, epoch_cost=np.array([1.0, 2.0, 3.0, 4.0]))
    assert found.left_out == 1 and found.best == 1.0 and found.points is None
    assert found.cost is not None and found.cost.tolist() == [1.0, 3.0, 4.0]
    assert found.losses.shape == (3, 3)


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        (np.ones(4), "val_loss has shape (4,), wanted is (configurations, resource)"),
        (np.ones((0, 3)), "val_loss has shape (0, 3), wanted is (configurations, resource)"),
        (np.ones((2, 2, 2)), "val_loss has shape (2, 2, 2), wanted is"),
        (np.full((2, 2), math.nan), "val_loss holds no finite number"),
        (np.array([[math.nan, 1.0]]), "no row has a value from the first column on"),
        (np.array([["a", "b"]]), "val_loss is no array of numbers"),
    ],
)
def test_what_is_no_table_is_said(tmp_path: Path, losses: Any, said: str) -> None:
    assert said in refused(tmp_path, val_loss=losses)


def test_a_file_that_is_none_is_said_with_why(tmp_path: Path) -> None:
    (tmp_path / "curves.npz").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(
        ValueError, match=r"curves\.npz cannot be read as \.npz: [A-Z][\w ]+.*; python -m study export-"
    ):
        read_table(tmp_path / "curves.npz")
    assert "has no array val_loss" in refused(tmp_path, loss=np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"is a folder: give an \.npz file"):
        read_table(tmp_path)
    with pytest.raises(ValueError, match=r"does not exist: give an \.npz file"):
        read_table(tmp_path / "other.npz")


class Listed(Scheduler):
    """Hands out the units that it was given, one after the other, each once its turn has come; notes events."""

    def __init__(self, *units: Unit, after: dict[int, int] | None = None) -> None:
        self.units, self.after, self.seen = list(units), after or {}, list[Event]()

    def apply(self, event: Event) -> None:
        """Note an event."""
        self.seen.append(event)
        if isinstance(event, Started):
            self.units.remove(event.unit)

    def candidates(self) -> Iterable[Unit]:  # type: ignore[override]
        """Yield those that wait for no other trial's report."""
        done = {event.trial for event in self.seen if isinstance(event, Reported)}
        return iter([unit for unit in self.units if self.after.get(unit.trial, -1) in (-1, *done)])


CURVES = np.arange(12.0).reshape(3, 4)


def test_two_workers_by_the_clock() -> None:
    listed = Listed(Unit(0, 2), Unit(1, 4), Unit(0, 4), Unit(2, 1))
    run = replay(listed, CURVES, lambda trial: 2 - trial, 100.0, cluster=Cluster(2, 0.5), cost=[1.0, 2.0, 3.0])
    # Trial 0 is configuration 2 of three epochs each; a worker that goes on with its trial pays no start.
    assert run.segments == [
        Segment(0, 2, 0, 2, 0.5, 3.0),
        Segment(1, 1, 0, 4, 0.5, 2.0),
        Segment(0, 2, 2, 4, 6.5, 3.0),
        Segment(2, 0, 0, 1, 9.0, 1.0),
    ]
    assert [event for event in listed.seen if isinstance(event, Reported)] == [
        Reported(0, 2, 9.0), Reported(1, 4, 7.0), Reported(2, 1, 0.0), Reported(0, 4, 11.0),
    ]  # fmt: skip
    assert [event for event in listed.seen if isinstance(event, Measured)] == [Measured(0.5 / 4)]
    assert [type(event) for event in listed.seen].index(Measured) == [
        n for n, event in enumerate(listed.seen) if isinstance(event, Started)
    ][2] + 1, "after the third start"


def test_without_a_cost_of_starting_nothing_is_measured_and_nothing_is_lost() -> None:
    listed = Listed(Unit(0, 4), Unit(1, 4), Unit(2, 4), Unit(0, 4))
    run = replay(listed, CURVES, lambda trial: trial, 100.0, cluster=Cluster(1))
    assert [part.begin for part in run.segments] == [0.0, 4.0, 8.0, 12.0]
    assert not [event for event in listed.seen if isinstance(event, Measured) or event == Ended(0, "lost")]


def test_a_worker_that_found_nothing_begins_when_something_comes() -> None:
    listed = Listed(Unit(0, 2), Unit(1, 3), Unit(2, 1), after={1: 0, 2: 0})
    run = replay(listed, CURVES, lambda trial: trial, 100.0, cluster=Cluster(3))
    assert [(part.trial, part.begin) for part in run.segments] == [(0, 0.0), (1, 2.0), (2, 2.0)]


def test_the_clock_stops_where_it_is_told_to() -> None:
    for until, reports in ((3.9, 0), (4.0, 1), (8.0, 2)):
        listed = Listed(Unit(0, 4), Unit(1, 4))
        run = replay(listed, CURVES, lambda trial: trial, until, cluster=Cluster(1))
        assert run.until == until and sum(isinstance(event, Reported) for event in listed.seen) == reports


def test_units_are_lost_as_often_as_was_said() -> None:
    for failures, lost in ((0.0, 0), (1.0, 5)):
        listed = Listed(*(Unit(trial, 4) for trial in range(5)))
        replay(listed, np.ones((5, 4)), lambda trial: trial, 1e9, cluster=Cluster(2, failures=failures))
        assert sum(event.how == "lost" for event in listed.seen if isinstance(event, Ended)) == lost


def test_an_epoch_is_seen_once_it_is_over() -> None:
    curves = np.array([[5.0, math.nan, 3.0, 1.0], [4.0, 2.0, 9.0, 9.0]])
    run = Run([Segment(0, 0, 0, 3, 1.0, 2.0), Segment(1, 1, 0, 2, 10.0, 0.5), Segment(0, 0, 3, 4, 20.0, 4.0)])
    times = (2.9, 3.0, 6.9, 7.0, 10.4, 10.5, 11.0, 23.9, 24.0, 100.0)
    assert [run.best_seen(curves, time) for time in times] == [math.inf, 5, 5, 3, 3, 3, 2, 2, 1, 1]


class Parent(Scheduler):
    """Wants one unit, and two more once it has ended."""

    def __init__(self) -> None:
        self.wanted = [Unit(0, 4)]

    def apply(self, event: Event) -> None:
        """Take off what has begun."""
        if isinstance(event, Started):
            self.wanted.remove(event.unit)
        elif isinstance(event, Ended) and event.trial == 0:
            self.wanted = [Unit(1, 4), Unit(2, 4)]

    def candidates(self) -> Iterator[Unit]:
        """Yield what is left."""
        yield from self.wanted


def test_a_worker_for_which_there_was_nothing_to_do_waits() -> None:
    run = replay(Parent(), np.ones((3, 4)), lambda trial: trial, 1e9, cluster=Cluster(2))
    assert [(one.trial, one.begin) for one in run.segments] == [(0, 0.0), (1, 4.0), (2, 4.0)]


def test_what_any_table_can_replay_lacks_nothing() -> None:
    bare = Table(np.ones((1, 1)))
    assert missing("random", bare) == "" and missing("asha_density", Table(np.ones((1, 1)), np.ones((1, 1)))) == ""
    assert missing("asha_density", bare).startswith("needs the array `config`") and missing("pbt", bare) != ""


def test_an_epoch_is_over_whatever_rounding_leaves_of_it() -> None:
    """0.7 less 0.1 is 5.999999999999999 tenths."""
    run = Run([Segment(0, 0, 0, 8, 0.1, 0.1)])
    assert run.best_seen(np.array([[9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0]]), 0.7) == 4.0


def handed(unit: Unit, wanted: Unit) -> int:
    return decisions(Listed(wanted, unit) if unit != wanted else Listed(unit), [Started(unit)])


def test_settings_are_the_schedulers_where_a_unit_copies_another() -> None:
    copied = Unit(1, 4, parent=(0, 2), config={"lr": 0.1})
    assert handed(copied, copied) == 1
    assert handed(Unit(1, 4, config={"lr": 0.1}), Unit(1, 4, config={"lr": 0.2})) == 1, "the sampler's"
    assert handed(Unit(1, 4, parent=(0, 2)), Unit(1, 4, parent=(0, 2))) == 1
    for other in (
        Unit(1, 4, parent=(0, 2), config={"lr": 0.2}),
        Unit(1, 4, parent=(0, 2)),
        Unit(1, 4, parent=(2, 2), config={"lr": 0.1}),
        Unit(1, 5, parent=(0, 2), config={"lr": 0.1}),
    ):
        with pytest.raises(ValueError, match=r"unit 0: Unit\(.*\) was handed out, by the events before it Unit\("):
            handed(copied, other)


def test_an_order_by_weights_against_chance() -> None:
    # Weights 3, 2, 1: 3/6 of the first, 2/3 of the second, 1; by chance 1/3 and 1/2. Then 2, 3, 1 and 2, 1, 3.
    orders = (0.5 * 2 / 3, 1 / 3 * 3 / 4, 1 / 3 * 1 / 4)
    expected = [math.log(chance / (1 / 6)) for chance in orders]
    assert log_ratios(np.log([2.0, 1.0]).tolist(), math.log(3.0)) == pytest.approx(expected)
    assert log_ratios([], 0.7) == pytest.approx([0.0]) and log_ratios([1.0, 1.0], 1.0) == pytest.approx([0.0] * 3)


def test_a_second_trial_counts_for_and_against() -> None:
    for strength in (0.5, 1.0):
        early, late = 0.1**-strength, 0.8**-strength
        for second, weight in ((0.5, early), (2.0, late)):
            order = Order(strength)
            order.add(0.8, 1.0)
            order.add(0.1, second)
            # Where it ends, before or behind the first, is as likely as its weight says; by chance a half.
            assert order.log == pytest.approx(math.log(2 * weight / (early + late)))
    odds = Odds()
    assert odds.value == 1.0
    odds.add(0.8, 1.0)
    odds.add(0.1, 0.5)
    expected = [2 * 0.1**-s / (0.1**-s + 0.8**-s) for s in (0.5, 1.0)]
    assert odds.value == pytest.approx(sum(expected) / 2)


def test_of_positions_behind_the_best_three_it_does_not_matter_which() -> None:
    def after(value: float, top: int) -> float:
        order = Order(1.0, top)
        for place, loss in ((0.2, 1.0), (0.4, 2.0), (0.6, 3.0), (0.8, 4.0)):
            order.add(place, loss)
        order.add(0.5, value)
        return order.log

    assert Order(1.0).top == 3
    assert after(3.5, 3) == pytest.approx(after(9.0, 3)) and after(3.5, 5) != pytest.approx(after(9.0, 5))
    assert after(2.5, 3) != pytest.approx(after(3.5, 3)) and after(2.5, 2) == pytest.approx(after(3.5, 2))
