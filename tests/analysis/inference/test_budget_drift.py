"""Best sizes that drift over budgets: what residuals say of it, against matrices written out, and what intervals do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis import fit_law
from analysis.estimation import fit_problem, multistart, objectives, observations
from analysis.inference import budget_drift, error_draws, resampling
from analysis.inference.budget_drift import Drift
from analysis.inference.error_draws import Around
from analysis.inputs.dataset import Rows
from analysis.laws.sum_of_powers import SURFACE
from analysis.values.blocks import Check
from benchmarks import analysis_intervals
from tests.analysis import studies


def around_of(data: Rows) -> Around:
    x = list(observations.inputs(data, SURFACE))
    problem = fit_problem.problem(SURFACE, x, data.loss, objectives.Squared())
    return Around(problem, multistart.fit_point(problem), observations.order(data, SURFACE))


def drift_of(data: Rows) -> tuple[Around, Drift]:
    around = around_of(data)
    found = budget_drift.find(around, data)
    assert found is not None
    return around, found


def study(runs: int = 20, errors: str = "normal", seed: int = 0, design: str = "isoflop") -> Rows:
    return analysis_intervals.study(design, runs, errors, seed)


def plan_of(data: Rows) -> resampling.Plan:
    how = resampling.choose(data.size, data.run_numbers)
    return budget_drift.allowing(how, around_of(data), data)


def test_sums_of_squares_are_those_of_matrices_written_out() -> None:
    around, found = drift_of(study(20, "drift"))
    n, shifts = len(found.slope), np.zeros((20, 4))
    shifts[np.arange(n), found.budget] = found.slope
    slopes = around.slopes
    left = np.eye(n) - slopes @ np.linalg.pinv(slopes)
    seen = shifts @ np.linalg.inv(shifts.T @ shifts) @ shifts.T
    rest, residual = np.eye(n) - seen, error_draws.clipped(around.residual)
    expected = {
        "between": residual @ seen @ residual,
        "within": residual @ rest @ residual,
        "between_u": np.trace(seen @ left @ shifts @ shifts.T @ left),
        "between_v": np.trace(seen @ left),
        "within_u": np.trace(rest @ left @ shifts @ shifts.T @ left),
        "within_v": np.trace(rest @ left),
    }
    for name, value in expected.items():
        assert getattr(found.parts, name) == pytest.approx(value, rel=1e-6), name
    assert found.count == 4


def test_the_slope_is_the_laws_by_ln_n_at_constant_n_d() -> None:
    data = study()
    around, found = drift_of(data)
    _, A, B, alpha, beta = around.point.constants
    params, tokens = data.params[around.order], data.tokens[around.order]
    loss = np.exp(around.fitted)[around.order]
    by_hand = (-alpha * A / params**alpha + beta * B / tokens**beta) / loss
    np.testing.assert_allclose(found.slope, by_hand, rtol=1e-5, atol=1e-9)
    plainly = budget_drift.find(replace(around, problem=replace(around.problem, plain=True)), data)
    assert plainly is not None
    np.testing.assert_allclose(plainly.slope, found.slope * loss, rtol=1e-9)


def test_the_variance_of_shifts_is_found_again() -> None:
    rng = np.random.default_rng(0)
    around, found = drift_of(study(100))
    left = np.eye(100) - around.slopes @ np.linalg.pinv(around.slopes)
    shifts = 0.2 * rng.normal(size=(4000, 10))[:, found.budget] * found.slope
    residual = (shifts + 0.003 * rng.normal(size=shifts.shape)) @ left
    each = [error_draws.split(around.slopes, row, found.budget, found.slope) for row in residual]
    between, within = (np.array([getattr(p, name) for p in each]) for name in ("between", "within"))
    p = found.parts
    squared = (between.mean() * p.within_v - within.mean() * p.between_v) / (
        p.between_u * p.within_v - p.between_v * p.within_u
    )
    assert squared == pytest.approx(0.2**2, rel=0.03)
    own = (within.mean() - p.within_u * squared) / p.within_v
    assert own == pytest.approx(0.003**2, rel=0.03)


def test_chance_is_uniform_where_nothing_drifts() -> None:
    rng = np.random.default_rng(1)
    around, found = drift_of(study(50))
    left = np.eye(49) - around.slopes @ np.linalg.pinv(around.slopes)
    chances = np.array(
        [
            replace(found, parts=error_draws.split(around.slopes, left @ row, found.budget, found.slope)).chance
            for row in rng.normal(size=(2000, 49))
        ]
    )
    for share in (0.05, 0.2, 0.5, 0.8):
        assert (chances <= share).mean() == pytest.approx(share, abs=0.03)


def test_runs_that_form_no_budgets_have_no_drift() -> None:
    for data in (study(50, design="random"), study(20).take(np.arange(20) < 10)):
        assert budget_drift.find(around_of(data), data) is None
        assert not plan_of(data).drift


def test_a_law_of_other_inputs_has_no_drift() -> None:
    table = studies.isoflop(0, noise=0.003)
    compute = fit_law({"flops": table["flops"], "loss": table["loss"]}, "compute", resamples=20)
    assert not compute.plan.drift


def test_budgets_of_a_table_without_flops_are_those_of_n_d() -> None:
    data = study(20, "drift", 2)
    bare = Rows({name: data.columns[name] for name in ("params", "tokens", "loss")}, data.size)
    _, found = drift_of(data)
    _, same = drift_of(bare)
    assert same.chance == found.chance
    assert same.count == 4


@pytest.mark.parametrize(
    ("design", "runs", "by", "shared"),
    [("isoflop", 50, "residuals", ""), ("isoflop", 100, "runs", ""), ("grid", 50, "residuals", "sizes"),
     ("grid", 100, "sizes", "")],
)  # fmt: skip
def test_a_default_plan_shifts_the_budgets_that_drift(design: str, runs: int, by: str, shared: str) -> None:
    data = study(runs, "drift", design=design)
    before = resampling.choose(data.size, data.run_numbers)
    assert (before.by, before.shared) == (by, shared)
    found = plan_of(data)
    assert (found.by, found.drift) == ("residuals", True)
    assert found.shared == ("sizes" if design == "grid" else "")
    assert "a random shift of the best size of each of " in found.text
    assert ("a random effect for each of" in found.text) is bool(found.shared)


@pytest.mark.parametrize(
    ("by", "chance", "drift"),
    [("residuals", 0.2, True), ("residuals", 0.21, False), ("runs", 0.05, True), ("runs", 0.06, False),
     ("sizes", 0.05, True), ("sizes", 0.06, False)],
)  # fmt: skip
def test_how_sure_it_has_to_be(monkeypatch: pytest.MonkeyPatch, by: str, chance: float, drift: bool) -> None:
    data = study()
    around, found = drift_of(data)
    monkeypatch.setattr(budget_drift, "find", lambda *_: found)
    monkeypatch.setattr(Drift, "chance", chance)
    assert budget_drift.allowing(resampling.Plan(by, "as it was"), around, data).drift is drift


def test_checkpoints_of_runs_keep_their_plan() -> None:
    data = study(50, "drift")
    once = replace(data, run=np.arange(len(data)) // 2)
    how = resampling.choose(once.size, once.run_numbers)
    assert budget_drift.allowing(how, around_of(data), once) == how


def test_the_order_of_rows_changes_nothing() -> None:
    table = _table(study(20, "drift", 3))
    again = {name: values[::-1] for name, values in table.items()}
    for name in ("a", "alpha", "E"):
        ends = [fit_law(t, resamples=100).conf_int().loc[name].to_numpy() for t in (table, again)]
        np.testing.assert_allclose(ends[0], ends[1], rtol=1e-9)


def test_only_what_is_resampled_by_default_allows_for_drift() -> None:
    data = study(50, "drift")
    plans = {by: fit_law(data, resamples=40, cluster=by) for by in ("auto", "residuals", "rows")}
    assert [by for by, fit in plans.items() if fit.plan.drift] == ["auto"]
    width = {by: float(np.diff(fit.conf_int().loc["a"])[0]) for by, fit in plans.items()}
    assert width["auto"] > 1.5 * width["residuals"]
    said = {by: _finding(fit) for by, fit in plans.items()}
    assert all(check is not None and check.level == "warning" for check in said.values())
    assert said["auto"] is not None
    assert said["auto"].advice.endswith("intervals allow for it")
    assert "7 budgets" in said["auto"].message
    assert said["rows"] is not None
    assert "do not allow for it: use resamples=1000 with cluster=auto" in said["rows"].advice
    assert _finding(fit_law(study(50), resamples=0)) is None


def test_intervals_hold_where_best_sizes_drift() -> None:
    held = 0
    for seed in range(20):
        ends = fit_law(study(50, "drift", seed), resamples=150, seed=seed).conf_int().loc["a"].to_numpy()
        held += bool(ends[0] <= analysis_intervals.truths(1.0)["a"] <= ends[1])
    assert held >= 17  # 60 % of them with errors that are taken as independent


def _table(data: Rows) -> dict[str, Any]:
    return {name: data.columns[name] for name in ("params", "tokens", "flops", "loss")}


def _finding(fit: Any) -> Check | None:
    return next((check for check in fit.check() if check.code == "budget_drift"), None)
