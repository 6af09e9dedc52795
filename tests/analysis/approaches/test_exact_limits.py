"""What lies just on either side of a limit of the approaches: options, curvatures, fewest runs, equal curves."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.approaches import (
    comparison,
    curves,
    drawn_envelope,
    parametric,
    settings,
    valley_findings,
    valley_options,
)  # fmt: skip
from analysis.approaches.drawn_envelope import Leaders
from analysis.approaches.optimum import Answers
from analysis.approaches.surface import Surface
from analysis.values.blocks import Block
from tests.analysis import studies

VALLEY_WINDOW = valley_options.KEYS[0]


def test_sizes_within_a_factor_of_eight_are_in_a_parabola_unless_another_is_asked_for() -> None:
    assert valley_options.of({}) == valley_options.Choices(8.0, "drop")
    assert VALLEY_WINDOW.default == "8"
    assert valley_options.of({"valley_window": "4", "flat_valleys": "keep"}) == valley_options.Choices(4.0, "keep")
    assert valley_options.of({"valley_window": "all"}) == valley_options.Choices(math.inf, "drop")


def test_a_window_is_a_factor_of_two_at_least_or_all() -> None:
    assert [valley_options.window(VALLEY_WINDOW, text) for text in ("2", "2.5", "all")] == ["2", "2.5", "all"]
    with pytest.raises(ValueError, match=r"valley_window=1\.9: a factor of at least 2, or all, is needed"):
        valley_options.window(VALLEY_WINDOW, "1.9")


@pytest.mark.parametrize(
    ("count", "named"),
    [
        (1, "1 valley within twice the noise of 0.5 % kept (1e18 FLOPs)"),
        (4, "4 valleys within twice the noise of 0.5 % kept (1e18, 2e18, 3e18, 4e18 FLOPs)"),
        (5, "5 valleys within twice the noise of 0.5 % kept (1e18, 2e18, 3e18, 4e18, ... FLOPs)"),
    ],
)
def test_four_flat_valleys_are_named_and_no_more(count: int, named: str) -> None:
    kept: Any = [
        SimpleNamespace(flops_budget=k * 1e18, is_flat=lambda noise: noise == 0.005) for k in range(1, count + 1)
    ]
    assert [check.message for check in valley_findings.flat_kept(kept, 0.005)] == [named]
    assert valley_findings.flat_kept(kept, 0.004) == []


@pytest.mark.parametrize(
    ("sizes", "disagreement"), [([], None), ([4e8], None), ([4e8, 1e9], 2.5), ([4e8, 2e8, 1e9], 5.0)]
)
def test_one_best_size_disagrees_with_no_other(
    sizes: list[float], disagreement: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(sizes)
    monkeypatch.setattr(comparison, "_line", lambda name, _: {"approach": name, "params": next(left, math.nan)})
    runs = studies.isoflop(3, noise=0.0)
    table = comparison.side_by_side(runs, 1e13, judged=())
    assert table["params"].dropna().tolist() == sizes
    assert table.attrs["disagreement"] == disagreement


def test_a_rate_that_changes_between_the_first_two_points_of_a_curve_changes() -> None:
    fit: Any = SimpleNamespace(
        data=SimpleNamespace(run_numbers=np.array([0, 1, 2, 3])), optimizer=SimpleNamespace(converged=True)
    )

    def found(rates: list[float]) -> list[str]:
        one: Any = SimpleNamespace(run="a", size="", steps=np.array([1, 4]), rates=np.array(rates))
        other: Any = SimpleNamespace(run="b", size="", steps=np.array([0, 4]), rates=np.full(5, 3e-3))
        return [check.code for check in curves._findings({"": fit}, [one, other], ["a"])]

    assert found([0.0, 3e-3, 3e-3, 3e-3, 3e-3]) == ["constant_schedules"], (
        "a warmup before the first point is no change"
    )
    assert found([0.0, 3e-3, 2e-3, 2e-3, 2e-3]) == []


def test_curves_as_low_as_the_leaders_but_for_rounding_are_looked_for_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of losses that are equal within rounding the smaller model's counts, though a larger one is first by a hair."""

    def promised(keys: Any, place: int, axis: int) -> Any:
        """Return an order with the right one at `place`, no larger ones before it: no more than NumPy says."""
        order = np.argsort(keys, axis=axis, kind="stable")
        return np.concatenate((order[:, : place + 1], order[:, :place:-1]), axis=1)

    monkeypatch.setattr(drawn_envelope, "LOOKED_AT", 2)
    monkeypatch.setattr(np, "argpartition", promised)
    losses = np.array([[1.0 + 1e-10], [2.0], [1.0], [3.0]])
    found = Leaders.of(losses, np.array([5.0, 6.0, 7.0, 8.0])).among(np.ones(4, dtype=bool))
    assert found.curve.tolist() == [0]


def test_more_curves_than_losses_are_put_in_order_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn_envelope, "CELLS", 2)
    losses = np.array([[3.0, 1.0], [2.0, 2.0], [1.0, 3.0]])
    found = Leaders.of(losses, np.array([5.0, 6.0, 7.0])).among(np.array([True, True, True]))
    assert (found.curve.tolist(), found.loss.tolist()) == ([2, 0], [1.0, 1.0])


def test_a_draw_of_answers_is_a_row_of_one() -> None:
    answers = Answers(*(np.array([10.0, 20.0, 30.0]) + place for place in range(5)))
    assert [getattr(answers.row(1), name).tolist() for name in answers.__dataclass_fields__] == [
        [20.0], [21.0], [22.0], [23.0], [24.0],
    ]  # fmt: skip


class ReachedError(Exception):
    """Raised where a law would be fitted."""


def test_five_constants_need_six_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fitted(*_: Any) -> Any:
        raise ReachedError

    monkeypatch.setattr(parametric, "fitted", fitted)
    held = studies.as_rows(studies.isoflop(3, noise=0.0))
    asked = {"form": "chinchilla", "loss": "huber"}
    picks = np.unique(held.size, return_index=True)[1][:6]
    six, five = (np.isin(np.arange(len(held)), picks[:count]) for count in (6, 5))
    few = parametric.surface(held.take(five), asked)
    assert isinstance(few[0], Block) and not isinstance(few[0], Surface)
    assert few[0].reason == "5 runs of 5 sizes; 5 constants need at least 6 runs of 3 sizes"
    with pytest.raises(ReachedError):
        parametric.surface(held.take(six), asked)


def grid(loss: Any) -> tuple[Any, Any]:
    """Return the logs (25, 2) of a square grid of rates and batches about the origin, and `loss(x, y)` there."""
    x, y = (axis.ravel() for axis in np.meshgrid(np.arange(-2.0, 3.0), np.arange(-2.0, 3.0)))
    return np.stack((x, y), axis=1), loss(x, y)


@pytest.mark.parametrize(("bend", "status"), [(1e-12, "saddle"), (1e-7, "minimum")])
def test_a_bend_of_a_billionth_of_the_other_has_its_sign_from_rounding(bend: float, status: str) -> None:
    logs, loss = grid(lambda x, y: 3.0 + bend * x**2 + 0.01 * y**2)
    assert settings._best(logs, loss, 0.5, "quadratic", 6)[3] == status


@pytest.mark.parametrize(("bend", "status"), [(1e-8, "saddle"), (1e-6, "minimum")])
def test_a_parabola_that_rises_by_less_than_a_billionth_of_the_loss_has_no_minimum(bend: float, status: str) -> None:
    """Over rates of 1 to e^4 a parabola rises by 16 bends. Losses that no parabola follows have their lowest inside."""
    rates, off = np.arange(5.0), 1e-5 * np.array([1.0, -4.0, 6.0, -4.0, 1.0])
    losses = 1000.0 + off + bend * (rates - 2.0) ** 2
    assert settings._envelope(np.stack((rates, np.zeros(5)), axis=1), losses, 0.01)[3] == status


def test_a_parabola_whose_minimum_lies_outside_the_rates_is_an_edge() -> None:
    """The second rate is lowest, but through all six the parabola falls on beyond the first."""
    rates, losses = np.arange(6.0), np.array([3.0001, 3.0, 3.0045, 3.009, 3.0135, 3.019])
    found = settings._envelope(np.stack((rates, np.zeros(6)), axis=1), losses, 0.01)
    assert found[2:] == (6, "edge", "the minimum lies outside the sweep")
    assert np.isnan([*found[0], found[1]]).all()
