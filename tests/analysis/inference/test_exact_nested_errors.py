"""Errors that sizes and their runs share: sums of squares by projection, variances by level, draws and coverage."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.estimation.optimizer import Array
from analysis.inference import error_draws, nested_errors
from analysis.inference.fit_law import fit_law
from analysis.inference.nested_errors import Levels
from analysis.inputs.dataset import Index
from tests.analysis import studies

EACH = [3, 2, 4, 5, 1, 2, 2, 3, 3, 4, 6]
"""Rows of every run."""
RUN = np.repeat(np.arange(11), EACH)
SIZE = np.repeat([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 4], EACH)


def around(residual: Array | None = None, slopes: Array | None = None) -> Any:
    """Return what is read of a fit: residuals (n,) and slopes (n, p), drawn where they are not given."""
    generator = np.random.default_rng(1)
    own = generator.normal(size=len(RUN)) if residual is None else residual
    drawn = generator.normal(size=(len(RUN), 4)) * np.geomspace(1.0, 1e4, 4) if slopes is None else slopes
    return SimpleNamespace(residual=own, slopes=drawn, order=np.arange(len(RUN)), generator=np.random.default_rng)


def members(groups: Index) -> Array:
    return np.asarray(np.eye(int(groups.max()) + 1)[groups])


@pytest.mark.parametrize("groups", [(SIZE, RUN), (RUN,), (np.zeros_like(RUN), SIZE, RUN)])
def test_sums_of_squares_by_projection(groups: tuple[Index, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_draws, "tamed", lambda residual, _: residual)
    at = around()
    found = nested_errors._levels(at, groups)
    basis = np.linalg.qr(at.slopes)[0]
    left = np.eye(len(RUN)) - basis @ basis.T
    effects = [members(each) for each in groups] + [np.eye(len(RUN))]
    onto = [z @ np.linalg.inv(z.T @ z) @ z.T for z in effects]
    parts = [onto[0], *(fine - coarse for coarse, fine in itertools.pairwise(onto))]
    np.testing.assert_allclose(found.squares, [at.residual @ part @ at.residual for part in parts])
    expected = [[np.trace(part @ left @ z @ z.T @ left) for z in effects] for part in parts]
    np.testing.assert_allclose(found.expected, expected, atol=1e-10)
    df = [np.trace(part @ left) ** 2 / np.trace(part @ left @ part @ left) for part in parts]
    np.testing.assert_allclose(found.df, df)


def test_two_levels_are_those_of_groups_alone() -> None:
    at = around(np.random.default_rng(4).standard_t(2, size=len(RUN)))
    found, parts = nested_errors._levels(at, (RUN,)), error_draws.parts(at, RUN)
    np.testing.assert_allclose(found.squares, [parts.between, parts.within])
    np.testing.assert_allclose(
        found.expected, [[parts.between_u, parts.between_v], [parts.within_u, parts.within_v]], atol=1e-10
    )
    np.testing.assert_allclose(found.df, [parts.between_df, parts.within_df])


def test_constants_that_are_one_are_taken_once() -> None:
    at = around()
    twice = around(slopes=np.column_stack((at.slopes, at.slopes[:, 0], 0.0 * RUN)))
    found, expected = (nested_errors.levels(each, SIZE, RUN).df for each in (twice, at))
    np.testing.assert_allclose(found, expected)


def test_variances_level_by_level_and_none_below_zero() -> None:
    expected = np.array([[20.0, 6.0, 3.0], [2.0, 9.0, 5.0], [1.0, 2.0, 30.0]])
    found = Levels((SIZE, RUN), np.zeros(3), expected, np.ones(3))
    given = np.array([[4.0, 1.0, 0.5, 0.0], [2.0, 0.0, 3.0, 0.0], [1.0, 0.25, 0.0, 7.0]])
    squares = expected @ given
    np.testing.assert_allclose(found.variances(squares), given, atol=1e-12)
    low = squares[:, :1] * [[0.01], [1.0], [1.0]]  # less between sizes than their runs bring there
    size, run, row = found.variances(low)[:, 0]
    assert size == 0.0
    np.testing.assert_allclose(expected[1:, 1:] @ [run, row], low[1:, 0])
    size = np.linalg.solve(expected, np.array([9.0, 0.0, 6.0]))[0]
    found_too = found.variances(np.array([[9.0], [0.0], [6.0]]))[:, 0]
    np.testing.assert_allclose(found_too, [size, 0.0, (6.0 - size) / 30.0])


@pytest.mark.parametrize(("of_size", "of_run", "seen"), [(0.5, 0.5, True), (0.49, 0.5, False), (0.5, 0.49, False)])
def test_levels_that_the_constants_take_up_are_not_seen(*, of_size: float, of_run: float, seen: bool) -> None:
    expected = np.array([[9.0, 3.0, of_size], [0.0, 9.0, of_run], [0.0, 0.0, 9.0]])
    assert Levels((SIZE, RUN), np.zeros(3), expected, np.ones(3)).seen is seen


def test_without_anything_to_see_of_sizes_runs_are_groups_alone() -> None:
    at = around()
    assert len(nested_errors.levels(at, SIZE, RUN).groups) == 2
    all_of_them = around(slopes=members(SIZE))
    found = nested_errors.levels(all_of_them, SIZE, RUN)
    assert found.seen
    np.testing.assert_array_equal(np.stack(found.groups), [RUN])
    assert found.df == pytest.approx(nested_errors._levels(all_of_them, (RUN,)).df)
    assert not nested_errors.levels(around(slopes=members(RUN)), SIZE, RUN).seen


def test_errors_have_the_variances_that_their_sums_of_squares_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    at, asked = around(), []

    def scales(df: float, count: int, _: Any) -> Array:
        asked.append(df)
        return np.full(count, {3.0: 2.0, 6.0: 0.5}.get(df, 1.0))

    monkeypatch.setattr(error_draws, "scales", scales)
    expected = np.array([[20.0, 6.0, 3.0], [0.0, 9.0, 5.0], [0.0, 0.0, 30.0]])
    squares = expected @ [4.0, 2.0, 1.0] * [2.0, 0.5, 1.0]
    drawn = nested_errors.drawn(at, Levels((SIZE, RUN), squares, expected, np.array([3.0, 6.0, 20.0])), 30_001)
    assert asked == [3.0, 6.0, 20.0]
    assert drawn.shape == (30_001, len(RUN))
    np.testing.assert_array_equal(drawn[:15_000], -drawn[15_001:])
    covariance = drawn.T @ drawn / len(drawn)
    same_size, same_run = (each[:, None] == each for each in (SIZE, RUN))
    off = ~np.eye(len(RUN), dtype=bool)
    assert np.abs(covariance[~same_size]).max() < 0.25
    assert covariance[same_size & ~same_run].mean() == pytest.approx(4.0, rel=0.05)
    assert covariance[same_run & off].mean() == pytest.approx(6.0, rel=0.05)
    assert 0.5 < np.diag(covariance).mean() - covariance[same_run & off].mean() < 2.0
    still = around(np.zeros(len(RUN)))
    with np.errstate(all="raise"):
        assert np.isfinite(nested_errors.drawn(still, nested_errors.levels(still, SIZE, RUN), 9)).all()


def test_one_row_far_off_is_not_what_its_run_shares() -> None:
    quiet = 0.01 * np.random.default_rng(2).normal(size=len(RUN))
    far = quiet.copy()
    far[4] = 5.0
    calm, spoilt = (nested_errors.levels(around(each), SIZE, RUN).squares for each in (quiet, far))
    assert (spoilt < 3.0 * calm + 1e-3).all()


def checkpoints(seed: int, shared: float = 0.0, sizes: int = 8, horizons: int = 4, points: int = 6) -> pd.DataFrame:
    """Return checkpoints of runs of sizes x horizons: an error of 0.4 % a run, 0.05 % a row, and `shared` a size."""
    generator = np.random.default_rng(seed)
    size, ratio = (a.ravel() for a in np.meshgrid(np.geomspace(1e6, 1e8, sizes), np.geomspace(5, 100, horizons),
                                                  indexing="ij"))  # fmt: skip
    run = np.repeat(np.arange(len(size)), points)
    params, tokens = size[run], (size * ratio)[run] * np.tile(np.geomspace(0.3, 1.0, points), len(size))
    noise = 0.004 * generator.normal(size=len(size)) + np.repeat(shared * generator.normal(size=sizes), horizons)
    value = studies.loss(studies.LAW, params, tokens) * np.exp(noise[run] + 0.0005 * generator.normal(size=len(run)))
    return pd.DataFrame({"run": [f"r{i}" for i in run], "params": params, "tokens": tokens, "loss": value})


@pytest.mark.parametrize("shared", [0.0, 0.004])
def test_checkpoints_of_several_runs_a_size_hold_their_law(shared: float) -> None:
    held = []
    for seed in range(8):
        fit = fit_law(checkpoints(seed, shared), loss="squared", resamples=60, seed=seed)
        assert (fit.plan.shared, fit.plan.within) == ("sizes", "runs")
        ends = fit.conf_int().to_numpy()
        held.append([low <= true <= high for (low, high), true in zip(ends, studies.LAW, strict=False)])
    assert (np.mean(held, axis=0) >= 0.75).all()
    assert np.mean(held) >= 0.9
    assert {check.code for check in fit.check()} >= {"few_sizes"}


def test_the_order_of_checkpoints_changes_no_interval() -> None:
    table = checkpoints(1, 0.004)
    fits = [fit_law(each, loss="squared", resamples=40) for each in (table, table.sample(frac=1.0, random_state=2))]
    first, second = (fit.conf_int().to_numpy() for fit in fits)
    np.testing.assert_allclose(first, second, rtol=1e-5)
