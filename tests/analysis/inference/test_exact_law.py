"""`fit_law`: what it refuses, what it hands on, and resamples that do not depend on the file's order."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.estimation import fit_problem, multistart, objectives, observations
from analysis.inference import error_draws, resampling
from analysis.inference import fit_law as law
from analysis.inference.fit_law import fit_law
from analysis.laws.sum_of_powers import SURFACE
from tests.analysis import studies

TABLE = studies.isoflop(1, noise=0.003)


def test_defaults_are_those_that_are_documented() -> None:
    fit_law(TABLE, resamples=0)
    found = {name: one.default for name, one in inspect.signature(fit_law).parameters.items() if name != "runs"}
    assert found == {
        "form": "chinchilla", "loss": "huber", "delta": 1e-3, "fix": None, "tie": None, "cluster": "auto",
        "interval": "bootstrap", "resamples": 1000, "seed": 0, "confidence": 0.95, "starts": multistart.STARTS,
        "workers": 1, "kinds": None, "plain": False,
    }  # fmt: skip


def test_what_was_asked_is_kept() -> None:
    found = fit_law(
        TABLE, loss="huber", delta=0.01, fix={"E": 1.9}, tie={"beta": "alpha"}, resamples=20, seed=7, confidence=0.8,
        kinds={"loss": "nats"}, plain=True, starts=4, interval="delta",
    )  # fmt: skip
    assert found.problem.loss == objectives.Huber(0.01)
    assert found.problem.plain
    assert found.params["E"] == pytest.approx(1.9)
    assert found.params["beta"] == found.params["alpha"]
    assert found.constraints == {"E": 1.9, "beta": "alpha"}
    assert (found.interval, found.confidence, found.seed, found.kinds) == ("delta", 0.8, 7, {"loss": "nats"})
    assert found.thetas.shape == (20, 5)
    assert found.optimizer.starts == 4
    assert fit_law(TABLE, resamples=0).interval == "delta", "without resamples"
    assert fit_law(TABLE, resamples=0, interval="sandwich").interval == "sandwich"
    assert fit_law(TABLE, resamples=20).interval == "bootstrap"
    assert fit_law(TABLE, "kaplan", resamples=0).form.name == "kaplan"
    assert fit_law(TABLE, resamples=0).constraints == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interval": "wald"}, "interval='wald' is not known; use bootstrap, delta, sandwich, profile"),
        ({"confidence": 1.0}, "confidence=1: a number between 0 and 1 is needed"),
        ({"confidence": 0.0}, "confidence=0: a number"),
        ({"resamples": -1}, "resamples=-1: a whole number, 0 or more"),
        ({"resamples": 19}, "resamples=19: 0 for no interval, or at least 20"),
        ({"loss": "hinge"}, "loss='hinge' is not known"),
        ({"cluster": "seeds", "resamples": 20}, "cluster=seeds: no setting was run twice"),
        ({"form": "nothing"}, "form=nothing is not known"),
    ],
)
def test_what_makes_no_sense_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_law(TABLE, **{"resamples": 0, **options})


def test_rows_have_to_outnumber_the_free_constants() -> None:
    six = TABLE.iloc[[0, 4, 7, 11, 15, 18]]
    assert fit_law(six, resamples=0).nobs == 6
    with pytest.raises(ValueError, match="5 rows for 5 free constants of chinchilla: it needs at least 6 rows"):
        fit_law(six.iloc[:5], resamples=0)
    assert fit_law(six.iloc[:5], resamples=0, fix={"E": 1.9}).nobs == 5
    with pytest.raises(ValueError, match="4 rows for 4 free constants"):
        fit_law(six.iloc[:4], resamples=0, fix={"E": 1.9})
    every = dict(zip(SURFACE.names, studies.LAW, strict=True))
    with pytest.raises(ValueError, match=r"hold every constant of chinchilla \(E, A, B, alpha, beta\): leave one free"):
        fit_law(TABLE, resamples=0, fix=every)
    with pytest.raises(ValueError, match="every row has the same loss"):
        fit_law(TABLE.assign(loss=2.0), resamples=0)


def test_seeds_need_one_setting_that_was_run_twice() -> None:
    twice = pd.concat([TABLE, TABLE.iloc[[3]].assign(loss=lambda t: 1.001 * t["loss"])])
    assert fit_law(twice, cluster="seeds", resamples=20).thetas.shape == (20, 5)
    assert fit_law(TABLE, cluster="seeds", resamples=0).thetas.shape == (0, 5)


def parts(table: pd.DataFrame, cluster: str, **options: Any) -> tuple[Any, ...]:
    data = observations.read(table, SURFACE)
    p = fit_problem.problem(SURFACE, list(observations.inputs(data, SURFACE)), data.loss, objectives.Squared())
    point = multistart.fit_point(p)
    how = resampling.choose(data.size, data.run_numbers, cluster)
    found = law.resampled(p, point, data, how, **{"resamples": 8, "seed": 3, **options})
    return p, point, data, how, found


def many(groups: int) -> pd.DataFrame:
    """Return runs of two tokens each of so many sizes, which share errors."""
    generator = np.random.default_rng(0)
    size = np.repeat(np.geomspace(1e5, 1e7, groups), 2)
    tokens = size * np.tile([5.0, 60.0], groups) * generator.uniform(0.7, 1.4, 2 * groups)
    noise = np.repeat(generator.normal(size=groups), 2) * 0.01 + 0.002 * generator.normal(size=2 * groups)
    loss = studies.loss(studies.LAW, size, tokens) * np.exp(noise)
    return pd.DataFrame({"params": size, "tokens": tokens, "flops": 6 * size * tokens, "loss": loss})


@pytest.mark.parametrize("cluster", ["rows", "sizes"])
def test_whole_groups_are_drawn_by_weights(cluster: str) -> None:
    table = many(12)
    p, point, data, how, found = parts(table, cluster)
    order = observations.order(data, SURFACE)
    groups = resampling.groups(
        how, observations.by_first(data.size[order]), observations.by_first(data.run_numbers[order])
    )
    weights = resampling.cluster_weights(groups, 8, 3)
    for r in (0, 5):
        again = np.empty(len(table))
        again[order] = weights[r]
        refit = multistart.fit_many(p, point, weights=again[None])
        np.testing.assert_allclose(found[r], refit.theta[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("cluster", ["rows", "sizes", "residuals", "auto"])
def test_the_order_of_the_rows_changes_nothing(cluster: str) -> None:
    table = many(12)
    shuffled = table.sample(frac=1.0, random_state=1).reset_index(drop=True)
    np.testing.assert_allclose(parts(table, cluster)[-1], parts(shuffled, cluster)[-1], rtol=1e-5, atol=1e-7)


def test_residuals_are_drawn_with_what_groups_share_or_without() -> None:
    p, point, data, how, found = parts(many(12), "auto")
    assert (how.by, how.shared) == ("residuals", "sizes")
    around = error_draws.Around(p, point, observations.order(data, SURFACE), 3, 1)
    groups = resampling.groups(
        how, observations.by_first(data.size[around.order]), observations.by_first(data.run_numbers[around.order])
    )
    shared = around.solved(around.targets(error_draws.shared(around, groups, 8)))
    np.testing.assert_allclose(found, shared, rtol=1e-6)
    p, point, data, how, alone = parts(many(12), "residuals")
    assert how.shared == ""
    around = error_draws.Around(p, point, observations.order(data, SURFACE), 3, 1)
    np.testing.assert_allclose(alone, around.solved(around.targets(error_draws.independent(around, 8))), rtol=1e-6)
    assert np.abs(alone - found).max() > 1e-4


def test_groups_that_the_constants_take_up_share_nothing_to_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    p, point, data, how, _ = parts(many(12), "auto")
    around = error_draws.Around(p, point, observations.order(data, SURFACE), 3, 1)
    size, run = (observations.by_first(own[around.order]) for own in (data.size, data.run_numbers))
    groups = resampling.groups(how, size, run)
    seen = error_draws.parts(around, groups).between_v
    for least, made in (
        (seen, error_draws.shared(around, groups, 8)),
        (np.nextafter(seen, np.inf), error_draws.independent(around, 8)),
    ):
        monkeypatch.setattr(error_draws, "LEAST_BETWEEN", least)
        np.testing.assert_array_equal(law._residual_errors(around, how, size, run, 8), made)


def test_repeats_alone_are_drawn_with_seeds() -> None:
    table = pd.concat([TABLE, TABLE.assign(loss=TABLE["loss"] * np.exp(0.004 * np.sin(np.arange(20))))])
    p, point, data, how, found = parts(table, "seeds")
    around = error_draws.Around(p, point, observations.order(data, SURFACE), 3, 1)
    want = around.solved(
        around.targets(error_draws.repeats(around, observations.cells(data, SURFACE)[around.order], 8))
    )
    np.testing.assert_allclose(found, want, rtol=1e-6)
    assert law.resampled(p, point, data, how, resamples=0, seed=0).shape == (0, 5)
    signature = inspect.signature(law.resampled).parameters
    assert signature["workers"].default == 1
