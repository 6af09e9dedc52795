"""The surface: intervals that cover, constants that are not identified, and what is compute-optimal."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.approaches import compute_optimal, parametric, surface
from analysis.approaches.cost import Cost, cost
from analysis.estimation import fit_problem, multistart, objectives
from analysis.inference import resampling
from analysis.inputs.dataset import Rows
from analysis.laws.sum_of_powers import SURFACE
from analysis.planning import recommend
from analysis.values.blocks import Block
from tests.analysis import studies


def fitted(seed: int, *, noise: float, resamples: int = 200, **study: tuple[float, ...]) -> surface.Surface:
    rows = studies.as_rows(studies.isoflop(seed, noise=noise, **study))
    return of_rows(rows, resamples=resamples, seed=seed)


def of_rows(rows: Rows, *, resamples: int, seed: int = 0) -> surface.Surface:
    found, _ = parametric.surface(rows, {**parametric.PLAIN, "resamples": resamples, "seed": seed})
    assert isinstance(found, surface.Surface)
    return found


def test_a_floor_that_the_data_cannot_see_is_not_identified() -> None:
    found = fitted(2, noise=0.02, budgets=(4e11, 8e11, 1.6e12, 3.2e12))
    verdict = found.block.identified["E"]
    assert not verdict.identified
    assert verdict.reason
    assert verdict.side == "upper"
    assert verdict.limit is not None
    assert 0 < verdict.limit < 4.5
    assert found.block.intervals["E"] is None


def test_a_law_without_a_floor_has_an_upper_limit_only() -> None:
    found = fitted(0, noise=0.005, law=(1e-9, 12.0, 20.0, 0.1, 0.12))
    verdict = found.block.identified["E"]
    assert (verdict.identified, verdict.side) == (False, "upper")
    assert found.block.intervals["E"] is None


def test_well_measured_constants_are_identified() -> None:
    found = fitted(0, noise=0.0005, budgets=(1e12, 1e13, 1e14, 1e15, 1e16, 1e17))
    assert all(v.identified for v in found.block.identified.values())
    for name, value in zip(("E", "A", "B", "alpha", "beta"), studies.LAW, strict=True):
        interval = found.block.intervals[name]
        assert interval is not None
        assert interval[0] <= value <= interval[1]


def test_a_coefficient_is_no_better_known_than_its_exponent() -> None:
    noise = np.random.default_rng(0).normal(size=20)
    found = of_rows(studies.as_rows(studies.isoflop(0).assign(loss=2.0 * np.exp(0.01 * noise))), resamples=50)
    verdicts = found.block.identified
    assert [verdicts[name].identified for name in ("alpha", "A", "beta", "B")] == [False] * 4
    assert found.block.intervals["A"] is None


def test_losses_that_never_change_are_refused() -> None:
    with pytest.raises(ValueError, match="every row has the same loss"):
        of_rows(studies.as_rows(studies.isoflop(0).assign(loss=2.0)), resamples=50)


def test_too_few_runs_say_why() -> None:
    rows = studies.as_rows(studies.isoflop(0).iloc[:5])
    found, _ = parametric.surface(rows, {**parametric.PLAIN, "resamples": 10})
    assert isinstance(found, Block)
    assert found.status == "not possible"
    assert "5 runs" in found.reason


def test_small_study_intervals_cover_the_truth() -> None:
    hits = {"a": 0, "params": 0, "loss": 0}
    count, budget, law = 80, 1.3e14, np.array([studies.LAW])
    for seed in range(count):
        rows = studies.as_rows(studies.isoflop(seed, noise=0.004))
        problem = fit_problem.problem(SURFACE, (rows.params, rows.tokens), rows.loss, objectives.Squared())
        point = multistart.fit_point(problem)
        fitted_loss = problem.form.log_value(point.theta[None], problem.x)[0]
        noise = resampling.redrawn(problem.y - fitted_loss, len(rows) - 5, 200, seed)
        noise *= resampling.student_scales(len(rows) - 5, 200, seed)[:, None]
        found = multistart.fit_many(problem, point, y=fitted_loss + noise)
        draws = SURFACE.natural(found.theta, problem.centres)
        sizes = (float(rows.params.min()), float(rows.params.max()))
        truth = [float(v[0]) for v in compute_optimal.optimum(law, cost(rows), budget, sizes)]
        drawn = compute_optimal.optimum(draws, cost(rows), budget, sizes)
        a = studies.exponent(draws)
        checks = {"a": (a, 0.30 / 0.63), "params": (drawn[0], truth[0]), "loss": (drawn[2], truth[2])}
        for name, (values, true) in checks.items():
            interval = resampling.percentile(values)
            assert interval is not None
            hits[name] += interval[0] <= true <= interval[1]
    shares = {name: hit / count for name, hit in hits.items()}
    assert all(0.86 <= share <= 1.0 for share in shares.values()), shares


def test_size_clusters_cover_where_runs_do_not() -> None:
    base = studies.chinchilla()
    rows = studies.as_rows(base)
    law = np.array([1.817218, 477.826, 2143.417, 0.347310, 0.367172])
    truth = float(studies.exponent(law))
    hits = {"sizes": 0, "runs": 0}
    count = 40
    for seed in range(count):
        generator = np.random.default_rng(seed)
        effect = generator.normal(scale=0.004, size=rows.size.max() + 1)[rows.size]
        noise = 0.0048 * generator.standard_t(3, size=len(rows)) / np.sqrt(3.0)
        values = studies.loss(tuple(law), rows.params, rows.tokens) * np.exp(effect + noise)
        problem = fit_problem.problem(SURFACE, (rows.params, rows.tokens), values, objectives.Huber())
        point = multistart.fit_point(problem)
        for name, groups in (("sizes", rows.size), ("runs", np.arange(len(rows)))):
            found = multistart.fit_many(problem, point, weights=resampling.cluster_weights(groups, 250, seed))
            interval = resampling.percentile(studies.exponent(SURFACE.natural(found.theta, problem.centres)))
            assert interval is not None
            hits[name] += interval[0] <= truth <= interval[1]
    assert hits["sizes"] / count >= 0.88
    assert hits["sizes"] >= hits["runs"]


@pytest.mark.parametrize("budget", [1e14, 1e18])
def test_the_optimum_is_the_lowest_loss_along_the_budget(budget: float) -> None:
    rows = studies.as_rows(studies.isoflop(0))
    dear = Cost(1e5, 1.0, 0.4, 0.33)
    for price in (cost(rows), dear):
        law = np.array([studies.LAW])
        size, tokens, value = (float(v[0]) for v in compute_optimal.optimum(law, price, budget, (1e5, 1e6)))
        logs = np.linspace(size - 1, size + 1, 2001)
        per_token = price.log_per_token(logs)[0]
        along = studies.loss(studies.LAW, np.exp(logs), budget / np.exp(per_token))
        assert logs[np.argmin(along)] == pytest.approx(size, abs=2e-3)
        assert value <= along.min() + 1e-12
        assert np.exp(tokens + float(price.log_per_token(np.array([size]))[0][0])) == pytest.approx(budget)


def test_chinchilla_optimum_at_the_gopher_budget() -> None:
    rows = studies.as_rows(studies.chinchilla())
    found = of_rows(rows, resamples=1000)
    proposal = recommend.by_surface(found, rows, 5.76e23)
    assert proposal is not None
    assert proposal.tokens_per_param == pytest.approx(17.9, rel=0.01)
    assert proposal.params == pytest.approx(73e9, rel=0.02)
    interval = proposal.intervals["tokens_per_param"]
    assert interval is not None
    np.testing.assert_allclose(interval, (7.3, 35.4), rtol=0.25)
