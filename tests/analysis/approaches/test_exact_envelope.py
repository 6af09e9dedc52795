"""The envelope: the hull against scipy's, the lowest curve by a plain loop, and the law that it follows."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import ConvexHull

from analysis.approaches import comparison, envelope, isoflop
from analysis.inference import resampling
from analysis.inputs.dataset import rows
from tests.analysis import studies

LAW = (1.7, 400.0, 900.0, 0.34, 0.34)


def curves(count: int = 7, points: int = 12) -> dict[str, Any]:
    size = np.repeat(np.geomspace(1e7, 1e9, count), points)
    tokens = np.tile(np.geomspace(1e8, 1e11, points), count)
    return {
        "run": np.repeat([f"r{(3 * i + 2) % count}" for i in range(count)], points), "params": size, "tokens": tokens,
        "flops": 6 * size * tokens, "loss": studies.loss(LAW, size, tokens),
    }  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 40))
def test_the_lower_hull_is_scipys(seed: int, count: int) -> None:
    generator = np.random.default_rng(seed)
    x, y = np.sort(generator.uniform(-3, 7, count)), generator.normal(2, 1, count)
    corners = {0, count - 1}
    hull = ConvexHull(np.stack((x, y), 1))
    for ends, (_, down, _) in zip(hull.simplices, hull.equations, strict=True):
        corners |= set(ends.tolist()) if down < 0 else set()
    assert set(np.flatnonzero(envelope._on_hull(x, y)).tolist()) == corners


def test_points_on_a_line_and_those_that_are_not_there_are_no_corners() -> None:
    x = np.arange(6.0)
    assert envelope._on_hull(x, 2 * x).tolist() == [True, False, False, False, False, True]
    y = np.array([np.inf, 3.0, 0.0, np.inf, 1.0, np.inf])
    assert envelope._on_hull(x, y).tolist() == [False, True, True, False, True, False]
    two = np.array([np.inf, 3.0, np.inf, np.inf, 1.0, np.inf])
    assert np.flatnonzero(envelope._on_hull(x, two)).tolist() == [1, 4]
    shifted = envelope._on_hull(x, np.array([5.0, 3.5, 3.0, 2.9, 3.5, 5.0]) + 100)
    assert shifted.all()


def test_the_lowest_curve_is_taken_unless_it_is_the_smallest_or_the_largest_there() -> None:
    inf = np.inf
    losses = np.array([
        [1.0, 3.0, 3.0, inf, 9.0, 5.0],
        [2.0, 2.0, 4.0, 2.0, 8.0, 4.0],
        [3.0, 5.0, 2.0, 3.0, 7.0, 3.0],
        [inf, inf, 9.0, inf, 6.0, inf],
    ])  # fmt: skip
    sizes = np.array([1.0, 2.0, 3.0, 4.0])
    #      smallest, inside, inside, smallest there, largest, largest there
    assert envelope._picked(losses, sizes).tolist() == [-1, 1, 2, -1, -1, -1]
    equal = np.array([1.0, 1.0 + 1e-12, 3.0, 3.0 - 1e-12])
    assert envelope._picked(losses, equal).tolist() == [-1] * 6, "sizes that differ by rounding are one"
    near = np.array([1.0, 1.0 + 1e-6, 1.0 + 2e-6, 1.0 + 3e-6])
    assert envelope._picked(losses, near).tolist() == [-1, 1, 2, -1, -1, -1]
    at = np.arange(6.0)
    # The lowest losses are 1, 2, 2, 2, 6, 3: of the picked ones only the third lies off the hull.
    assert envelope._picked(losses, sizes, at).tolist() == [-1, -1, -1, -1, -1, -1]
    bent = losses - np.array([0, 0.9, 1.5, 0, 0, 0])
    assert envelope._picked(bent, sizes, at).tolist() == [-1, -1, 2, -1, -1, -1]


def test_curves_are_interpolated_in_logs_and_end_where_they_end() -> None:
    runs: dict[str, Any] = {
        "run": ["b", "a", "b", "a", "c", "c", "d"], "params": [2.0, 1.0, 2.0, 1.0, 4.0, 4.0, 8.0],
        "tokens": [40.0, 1.0, 10.0, 16.0, 3.0, 9.0, 5.0], "flops": [125.0, 1.0, 8.0, 1000.0, 8.0, 125.0, 1e9],
        "loss": [2.0, 9.0, 4.0, 3.0, 5.0, 1.0, 0.1],
    }  # fmt: skip
    losses, sizes, tokens, at = envelope._curves(runs, 4)
    np.testing.assert_allclose(np.exp(at), [1, 10, 100, 1000])
    np.testing.assert_allclose(np.exp(sizes), [1.0, 2.0, 4.0])
    third = (3 / 9) ** (1 / 3)
    np.testing.assert_allclose(np.exp(losses[0]), [9, 9 * third, 9 * third**2, 3])
    share = np.log(10 / 8) / np.log(
        125 / 8
    )  # of the way from the first to the last checkpoint; the same at 100 from there
    np.testing.assert_allclose(np.exp(losses[1]), [np.inf, 4 * 0.5**share, 2 * 2**share, np.inf])
    np.testing.assert_allclose(np.exp(tokens[1]), [10, 10 * 4**share, 40 / 4**share, 40])
    np.testing.assert_allclose(np.exp(losses[2][1:3]), [5 * 0.2**share, 5**share])
    with pytest.raises(ValueError, match="2 runs have two or more checkpoints; an envelope needs three"):
        envelope._curves({name: values[:4] + values[6:] for name, values in runs.items()}, 4)
    with pytest.raises(ValueError, match="1 runs have two or more"):
        envelope._curves({name: values[1::2] for name, values in runs.items()}, 4)
    with pytest.raises(ValueError, match="needs the column 'run'"):
        envelope._curves({name: values for name, values in runs.items() if name != "run"}, 4)
    columns: dict[str, Any] = {
        name: np.array(runs[name], dtype=float) for name in ("params", "tokens", "flops", "loss")
    }
    held = dataclasses.replace(rows(tuple("abcdefg"), **columns, extra={}), run=np.array([1, 0, 1, 0, 2, 2, 3]))
    np.testing.assert_array_equal(envelope._curves(held, 4)[0], losses)


@pytest.mark.parametrize("hull", [False, True])
def test_the_fit_is_a_regression_through_the_points(hull: bool) -> None:
    found = envelope.fit(curves(), grid=200, resamples=40, seed=3, confidence=0.8, hull=hull)
    losses, sizes, tokens, at = envelope._curves(curves(), 200)
    picked = envelope._picked(losses, sizes, at if hull else None)
    rows_ = np.flatnonzero(picked >= 0)
    points = found.points
    np.testing.assert_allclose(points["flops"], np.exp(at[rows_]))
    np.testing.assert_allclose(points["params"], np.exp(sizes[picked[rows_]]))
    np.testing.assert_allclose(points["tokens"], np.exp(tokens[picked[rows_], rows_]))
    np.testing.assert_allclose(points["loss"], np.exp(losses[picked[rows_], rows_]))
    np.testing.assert_allclose(6 * points["params"] * points["tokens"], points["flops"], rtol=1e-9)
    slopes = envelope._slopes(losses, sizes, tokens, at, resamples=40, seed=3, hull=hull)
    used = len(np.unique(picked[rows_]))
    for name in ("params", "tokens"):
        law, line = found.exponents[name], isoflop.exponents(points, name)
        assert (law.coefficient, law.exponent, law.reference_flops, law.points) == (
            line.coefficient, line.exponent, line.reference_flops, line.points,
        )  # fmt: skip
        assert law.exponent == pytest.approx(np.polyfit(np.log(points["flops"]), np.log(points[name]), 1)[0])
        assert (law.coefficient_interval, law.bse, law.df_resid) == (None, None, used - 2)
        assert law.exponent_interval == resampling.interval(np.array(slopes[name]), law.exponent, 0.8)
    assert found.checks[0].message == (
        f"the envelope reads {len(rows_)} budgets off {used} curves before their schedules ended"
    )
    assert (found.checks[0].code, found.checks[0].level) == ("mid_schedule", "note")
    bare = envelope.fit(curves(), grid=200, resamples=0)
    assert bare.exponents["params"].exponent_interval is None
    given = inspect.signature(envelope.fit).parameters
    defaults = {name: one.default for name, one in given.items() if name != "runs"}
    assert defaults == {"grid": 1500, "resamples": 1000, "seed": 0, "confidence": 0.95, "hull": False}


@pytest.mark.parametrize("hull", [False, True])
def test_drawn_runs_by_a_plain_loop(hull: bool) -> None:
    losses, sizes, tokens, at = envelope._curves(curves(5), 60)
    found = envelope._slopes(losses, sizes, tokens, at, resamples=30, seed=5, hull=hull)
    generator = np.random.default_rng(np.random.SeedSequence([5, 6]))
    for number in range(30):
        kept = np.unique(generator.integers(5, size=5))
        chosen = envelope._picked(losses[kept], sizes[kept], at if hull else None)
        rows_ = np.flatnonzero(chosen >= 0)
        slopes = (np.nan, np.nan)
        if len(np.unique(chosen[rows_])) >= 2:
            ends = sizes[kept][chosen[rows_]], tokens[kept][chosen[rows_], rows_]
            slopes = tuple(np.polyfit(at[rows_], values, 1)[0] for values in ends)
        assert (found["params"][number], found["tokens"][number]) == pytest.approx(slopes, nan_ok=True)
    assert np.isnan(found["params"]).any()
    assert np.isfinite(found["params"]).any()


def test_an_envelope_without_a_budget_inside_is_refused() -> None:
    steep = curves(4)
    steep["loss"] = steep["params"] ** -0.1  # the largest is always the best
    with pytest.raises(ValueError, match="no budget whose best model is neither the smallest nor the largest"):
        envelope.fit(steep, grid=50, resamples=0)


def test_two_points_are_enough() -> None:
    """Four curves that all end at the same two budgets: one of the middle sizes is the lowest at each."""
    runs = {
        "run": np.repeat(["a", "b", "c", "d"], 2), "params": np.repeat([1.0, 2.0, 4.0, 8.0], 2),
        "tokens": [6.0, 60, 3, 30, 2, 20, 1, 10], "flops": [10.0, 100.0] * 4,
        "loss": [3.0, 2.0, 1.0, 0.9, 1.1, 0.8, 3.0, 2.0],
    }  # fmt: skip
    found = envelope.fit(runs, grid=2, resamples=0)
    np.testing.assert_allclose(found.points["params"], [2, 4])
    assert found.exponents["params"].exponent == pytest.approx(np.log10(2))
    with pytest.raises(ValueError, match="no budget"):
        envelope.fit(runs | {"loss": [3.0, 0.2, 1.0, 0.9, 1.1, 0.8, 3.0, 2.0]}, grid=2, resamples=0)


def crossing(lowest: tuple[tuple[str, float], ...]) -> dict[str, Any]:
    """Return three to five curves of four checkpoints, each as its run, its size and a constant loss."""
    at = np.geomspace(1e18, 1e21, 4)
    columns: dict[str, list[Any]] = {"run": [], "params": [], "tokens": [], "flops": [], "loss": []}
    sizes = {"small": 1e8, "middle": 2e8, "same": 2e8, "other": 3e8, "large": 1e9}
    for run, loss in lowest:
        columns["run"] += [run] * 4
        columns["params"] += [sizes[run]] * 4
        columns["tokens"] += (at / 6 / sizes[run]).tolist()
        columns["flops"] += at.tolist()
        columns["loss"] += [loss - 0.01 * i for i in range(4)]
    return columns


def test_an_envelope_along_one_run_has_no_exponent() -> None:
    """N* would be constant, with exponent 0, and D* grow as C: that is one run, and says nothing of sizes."""
    alone = crossing((("small", 3.5), ("middle", 3.0), ("large", 3.5)))
    with pytest.raises(ValueError, match=r"the envelope touches one run only \(200M parameters\).* no exponent"):
        envelope.fit(alone, grid=50, resamples=0)
    repeated = crossing((("small", 3.5), ("middle", 3.0), ("same", 2.995), ("large", 3.5)))
    repeated["loss"][4] = 2.9  # the repeat leads but at the first budgets
    with pytest.raises(ValueError, match=r"the envelope touches runs of one size only \(200M parameters\)"):
        envelope.fit(repeated, grid=50, resamples=0)
    two = crossing((("small", 3.5), ("middle", 3.0), ("other", 2.995), ("large", 3.5)))
    two["loss"][4] = 2.9
    assert envelope.fit(two, grid=50, resamples=0).exponents["params"].exponent > 0.02


def test_draws_along_one_size_have_no_exponent_either() -> None:
    runs = crossing((("small", 3.5), ("middle", 3.0), ("same", 2.995), ("large", 3.5)))
    runs["loss"][4] = 2.9
    drawn = envelope._slopes(*envelope._curves(runs, 50), resamples=40, seed=0, hull=False)
    assert np.isnan(drawn["params"]).all() and np.isnan(drawn["tokens"]).all()


@pytest.mark.parametrize("bad", [np.nan, 0.0])
def test_checkpoints_without_a_loss_are_no_points_of_their_curve(bad: float) -> None:
    """Their curve goes straight on between those beside them, and ends where all that follow are bad."""
    table = pd.DataFrame(curves())
    lost = [29, 40, 41, 65, 82, 83]
    damaged = table.assign(loss=table["loss"].where(~table.index.isin(lost), bad))
    expected = envelope.fit(table.drop(index=lost), resamples=20)
    found = envelope.fit(damaged, resamples=20)
    pd.testing.assert_frame_equal(found.points, expected.points)
    assert found.exponents == expected.exponents
    assert len(found.points) != len(envelope.fit(table, resamples=0).points)
    line = comparison.side_by_side(damaged, 1e19, resamples=0, judged=()).loc["1 envelope"]
    assert line["a"] == expected.exponents["params"].exponent
