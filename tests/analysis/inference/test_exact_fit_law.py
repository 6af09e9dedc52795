"""`fit_law`: its defaults, what it refuses, and which draws each scheme of resampling makes."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from analysis.estimation import fit_problem, multistart, observations
from analysis.estimation.optimizer import Array
from analysis.inference import error_draws, nested_errors, resampling
from analysis.inference import fit_law as law
from analysis.inference.fit_law import fit_law
from analysis.inference.law_result import LawFit
from tests.analysis import studies


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Draw nothing and fit nothing: return which draws were asked for."""
    seen: list[tuple[str, Any]] = []

    def drawing(name: str) -> Any:
        def draw(around: error_draws.Around, *given: Any) -> Array:
            seen.append((name, given[-1]))
            return np.full((given[-1], len(around.order)), float(len(seen)))

        return draw

    for name in ("shared", "independent", "repeats"):
        monkeypatch.setattr(error_draws, name, drawing(name))
    monkeypatch.setattr(nested_errors, "drawn", drawing("nested"))
    monkeypatch.setattr(error_draws.Around, "solved", lambda self, y: y - self.fitted)
    return seen


def drawn(fit: LawFit, plan: resampling.Plan) -> Array:
    return law.resampled(fit.problem, fit.point, fit.data, plan, resamples=3, seed=1)


def fitted() -> LawFit:
    table = studies.isoflop(0, noise=0.002).assign(run=np.arange(20) // 2, size_group=np.arange(20) % 4)
    return fit_law(table, "frontier_no_floor", loss="squared", resamples=0)


def test_each_scheme_makes_its_draws(asked: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    fit = fitted()
    for plan, name in (
        (resampling.Plan("residuals", ""), "independent"), (resampling.Plan("residuals", "", "runs"), "shared"),
        (resampling.Plan("seeds", ""), "repeats"),
    ):  # fmt: skip
        np.testing.assert_allclose(drawn(fit, plan), float(len(asked)))
        assert asked[-1] == (name, 3)
    for left, name in ((0.5, "shared"), (0.49, "independent")):
        found = SimpleNamespace(between_v=left)
        monkeypatch.setattr(error_draws, "parts", lambda *_, found=found: found)
        drawn(fit, resampling.Plan("residuals", "", "sizes"))
        assert asked[-1] == (name, 3)
    drawn(fit, resampling.Plan("residuals", ""))
    assert asked[-1] == ("independent", 3)
    assert len(asked) == 6
    for seen, name in ((True, "nested"), (False, "independent")):
        levels = Mock(return_value=SimpleNamespace(seen=seen))
        monkeypatch.setattr(nested_errors, "levels", levels)
        drawn(fit, resampling.Plan("residuals", "", "sizes", "runs"))
        assert asked[-1] == (name, 3)
    order = observations.order(fit.data, fit.form)
    for own, there in zip(levels.call_args.args[1:], (fit.data.size, fit.data.run_numbers), strict=True):
        np.testing.assert_array_equal(own, observations.by_first(there[order]))


def test_groups_are_numbered_by_where_they_first_appear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of runs are drawn for the rows in the order of their values, and go back to that of the file."""
    fit = fitted()
    weights: list[Array] = []

    def fit_many(p: fit_problem.Problem, point: multistart.PointFit, *, weights: Array, workers: int) -> Any:
        given.append((weights, workers))
        return SimpleNamespace(theta=np.zeros((len(weights), 2)))

    given: list[tuple[Array, int]] = []
    monkeypatch.setattr(multistart, "fit_many", fit_many)

    def cluster_weights(groups: Array, count: int, _: int) -> Array:
        weights.append(groups)
        return np.tile(groups, (count, 1))

    monkeypatch.setattr(resampling, "cluster_weights", cluster_weights)
    found = drawn(fit, resampling.Plan("runs", ""))
    assert found.shape == (3, 2)
    order = observations.order(fit.data, fit.form)
    expected = observations.by_first(fit.data.run_numbers[order])
    np.testing.assert_array_equal(weights[0], expected)
    back = np.empty(20)
    back[order] = expected
    np.testing.assert_array_equal(given[0][0], np.tile(back, (3, 1)))
    assert given[0][1] == 1


def test_no_resamples_are_none() -> None:
    fit = fitted()
    empty = law.resampled(fit.problem, fit.point, fit.data, fit.plan, resamples=0, seed=0)
    assert empty.shape == (0, 2)


def test_defaults() -> None:
    known = {name: one.default for name, one in signature(fit_law).parameters.items()}
    assert {name: known[name] for name in ("form", "loss", "delta", "cluster", "interval", "plain")} == {
        "form": "chinchilla", "loss": "huber", "delta": 1e-3, "cluster": "auto", "interval": "bootstrap",
        "plain": False,
    }  # fmt: skip
    assert {name: known[name] for name in ("resamples", "seed", "confidence", "starts", "workers")} == {
        "resamples": 1000, "seed": 0, "confidence": 0.95, "starts": 8, "workers": 1,
    }  # fmt: skip


def test_laws_that_know_of_no_repeats_are_refused_repeated_tokens() -> None:
    table = studies.isoflop(0)
    with pytest.raises(ValueError, match="repeat"):
        fit_law(table.assign(unique_tokens=table["tokens"] / 8), resamples=0)


def test_some_copies_among_the_repeats_are_said() -> None:
    """Of losses with many digits; with three decimals two seeds may well have the same one."""
    study = studies.isoflop(0, noise=0.002)
    draws = np.random.default_rng(5)
    again = study.assign(loss=study["loss"] * np.exp(0.002 * draws.normal(size=len(study))))
    again.loc[:2, "loss"] = study["loss"][:3]
    table = pd.concat((study, again), ignore_index=True)
    for runs, said in ((table, True), (table.round({"loss": 3}), False), (table.drop(index=range(3)), False)):
        fit = fit_law(runs, "frontier_no_floor", cluster="seeds", resamples=20, loss="squared")
        found = [check.message for check in fit.check() if check.code == "copied_seeds"]
        message = "3 rows of 40 repeat the loss of another seed of their setting to the last digit"
        assert found == ([message] if said else [])
    rows = fit_law(table, "frontier_no_floor", cluster="rows", resamples=20, loss="squared")
    assert "copied_seeds" not in {check.code for check in rows.check()}


def test_seeds_need_a_setting_that_was_run_twice() -> None:
    table = studies.isoflop(0, noise=0.002)
    with pytest.raises(ValueError, match="no setting was run twice"):
        fit_law(table, "frontier_no_floor", cluster="seeds", resamples=20)
    twice = table.iloc[[*range(20), 3]].reset_index(drop=True)
    copies = "all repeats of a setting have the same loss, so that nothing says what seeds do; use cluster=auto"
    with pytest.raises(ValueError, match=f"cluster=seeds: {copies}"):
        fit_law(twice, "frontier_no_floor", cluster="seeds", resamples=20)
    assert fit_law(twice, "frontier_no_floor", cluster="seeds", resamples=0).plan.by == "seeds"
    more = pd.concat((twice, table.iloc[[5]].assign(loss=table["loss"].iloc[5] * (1 + 5e-10))))
    with pytest.raises(ValueError, match=copies):  # no more than rounding
        fit_law(more, "frontier_no_floor", cluster="seeds", resamples=20)
    twice["loss"] *= np.where(np.arange(21) == 20, 1.0 + 1e-4, 1.0)
    found = fit_law(twice, "frontier_no_floor", cluster="seeds", resamples=20, loss="squared")
    assert replace(found).plan.by == "seeds"
    assert found.thetas.shape == (20, 2)
