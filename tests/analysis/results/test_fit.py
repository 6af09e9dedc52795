"""The fit command: from files to fit.json and the lines a person reads; findings with their codes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.diagnostics import backtest
from analysis.estimation import objectives
from analysis.fit import main as fit_command
from analysis.inputs import frame
from analysis.inputs.rows import from_csv
from analysis.values import study_result
from analysis.values.json_values import to_json
from tests.analysis import studies

DATA = Path(__file__).parents[1] / "data"


def run(tmp_path: Path, table: pd.DataFrame, *arguments: str) -> study_result.Fit:
    table.to_csv(tmp_path / "table.csv", index=False)
    given = [f"runs={tmp_path / 'table.csv'}", f"out={tmp_path / 'out'}", "resamples=200", "report=no"]
    code = fit_command([*given, "sensitivity=no", *arguments])
    found = study_result.load(tmp_path / "out" / "fit.json")
    assert code == (3 if any(check.level == "error" for check in found.checks) else 0)
    return found


def codes(found: study_result.Fit) -> set[str]:
    return {check.code for check in found.checks}


def test_params_in_two_units_are_told_by_their_flops(tmp_path: Path) -> None:
    table = studies.isoflop(0, noise=0.002)
    table.loc[::3, "params"] /= 1e6
    table.to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(ValueError, match=r"7 of 20 rows have one of params.*flops are 1e\+06 times 6 x params"):
        frame.used(from_csv(tmp_path / "b.csv"))
    table = studies.isoflop(0, noise=0.002)
    table.loc[::3, "params"] /= 40.0
    said = next(c for c in run(tmp_path, table).checks if c.code == "flops_not_6nd")
    assert said.message == "FLOPs are 1 to 40 times 6 N D"
    assert "have one unit in all rows" in said.advice


def test_a_study_becomes_laws_a_backtest_and_a_recommendation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs" / "isoflop"
    studies.write_study(folder, studies.isoflop(1, noise=0.003))
    assert fit_command([f"runs={folder}", f"out={tmp_path / 'out'}", "resamples=300", "seed=7", "report=no"]) == 0
    found = study_result.load(tmp_path / "out" / "fit.json")
    assert (found.runs.total, found.runs.used, found.runs.budgets) == (21, 20, 4)
    assert [(d.code, d.key) for d in found.rows_dropped] == [("failed", "f00000000000")]
    assert (found.seed, found.resamples, found.kinds.params) == (7, 300, "matmul")
    assert found.optimizer is not None
    assert found.optimizer.converged
    test, plan = found.backtest, found.recommendation
    assert test is not None
    assert plan is not None
    assert len(test.runs) == 5
    assert test.relative_error is not None
    assert abs(test.relative_error) < 0.03
    # The recommendation is for ten times the largest run: so is the test.
    assert test.extrapolation_factor == pytest.approx(1.3e13 / 1.2e12, rel=1e-6)
    assert test.recommended_factor == pytest.approx(10.0)
    assert test.covers
    assert plan.approach == "surface"
    assert plan.budget_flops == pytest.approx(1.3e14)
    assert plan.extrapolation_factor == pytest.approx(10)
    assert set(plan.by_approach) == {"valleys", "surface"}
    _, A, B, alpha, beta = studies.LAW
    size = (alpha * A / (beta * B)) ** (1 / (alpha + beta)) * (1.3e14 / 6) ** (beta / (alpha + beta))
    for proposal in plan.by_approach.values():
        interval = proposal.intervals["params"]
        assert interval is not None
        assert interval[0] < size < interval[1]
        assert interval[1] / interval[0] < 10
    blocks = found.fits
    assert blocks.envelope is not None
    assert blocks.envelope.reason == "no learning curves: the runs were validated once only (eval.count)"
    for block in (blocks.valleys, blocks.surface):
        left = (*found.rows_dropped, *block.rows_dropped)
        assert block.rows_used + len(left) == 21, "every run is used or dropped with its reason"
        assert len({row.key for row in left}) == len(left), "and named once"
        assert all(row.code and row.reason for row in left)
    assert found.record["law"]["kinds"]["params"] == "matmul"
    assert found.record["schedule"] == {"names": ["cosine"], "finished": 20, "left_out_unfinished": 0}
    assert found.record["selection"] == "every run"
    table = pd.read_csv(tmp_path / "out" / "runs.csv")
    assert int(table["used"].sum()) == 20
    good = table[table["used"]]
    expected = studies.loss(tuple(found.params[n] for n in ("E", "A", "B", "alpha", "beta")), good.params, good.tokens)
    np.testing.assert_allclose(good["predicted"], expected, rtol=1e-9)
    last = capsys.readouterr().out.strip().splitlines()
    names = [name for line in last if (name := line.split("  ")[0])]
    assert names[names.index("fitted law") :][:8] == [
        "fitted law", "frontier", "train next", "expect", "extrapolation", "best sizes", "backtest", "choices",
    ]  # fmt: skip


def test_same_seed_same_file(tmp_path: Path) -> None:
    table = studies.isoflop(2, noise=0.004)
    one = run(tmp_path, table, "workers=1")
    two = run(tmp_path, table, "workers=3")
    assert replace(one, created="") == replace(two, created="")


def test_noise_free_backtest_is_exact_by_surface(tmp_path: Path) -> None:
    found = backtest.backtest(studies.as_rows(studies.isoflop(0, budgets=(1e12, 1e13, 1e14, 1e15))), objectives.Huber())
    assert found is not None
    assert found.approach == "surface"
    assert max(abs(r.relative_error) for r in found.runs) < 1e-6
    assert abs(found.by_approach["surface"].relative_error) < 2e-3
    assert found.extrapolation_factor == pytest.approx(10, rel=1e-6)
    assert backtest.backtest(studies.as_rows(studies.isoflop(0, budgets=(1e12, 1e13))), objectives.Huber()) is None


def test_published_backtest_of_chinchilla_is_about_one_per_cent() -> None:
    table = studies.chinchilla()
    train = table["flops"] <= 1e21
    rows = studies.as_rows(table[train].reset_index(drop=True))
    held = studies.as_rows(table[~train].reset_index(drop=True))

    point = studies.surface_point(rows, objectives.Huber())
    assert point is not None
    error = studies.loss(tuple(point.constants), held.params, held.tokens) / held.loss - 1
    assert float(np.abs(error).mean()) == pytest.approx(0.0105, abs=5e-4)
    assert float(studies.exponent(point.constants)) == pytest.approx(0.548, abs=2e-3)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (studies.isoflop(0, noise=0.002).assign(flops=lambda t: 1.2 * t["flops"]), {"flops_not_6nd"}),
        (studies.isoflop(0, noise=0.002, budgets=(1e12, 1e13)), {"few_valleys", "no_backtest"}),
        (studies.isoflop(0, noise=0.002, ratios=(2.5, 10, 40), budgets=(1e12, 1e13, 1e14)), {"low_df"}),
        (studies.isoflop(0, noise=0.0005, law=(1.9, 60, 110, 0.45, 0.25)), {"asymmetry"}),
        (studies.isoflop(0, noise=0.002, ratios=(100, 200, 400, 800, 1600)), {"edge_minimum"}),
        (studies.isoflop(0).iloc[:4], {"no_surface", "no_backtest"}),
    ],
)
def test_findings_have_codes_and_advice(tmp_path: Path, table: pd.DataFrame, expected: set[str]) -> None:
    found = run(tmp_path, table)
    assert expected <= codes(found)
    assert all(check.message and check.advice for check in found.checks)


def test_a_surface_that_contradicts_the_minima_is_not_followed(tmp_path: Path) -> None:
    """Twenty measured runs whose smallest budgets are too early in training for the law to hold."""
    found = run(tmp_path, pd.read_csv(DATA / "early_training.csv"))
    assert {"surface_off", "lack_of_fit"} <= codes(found)
    assert "asymmetry" not in codes(found)
    plan, last = found.recommendation, found.fits.valleys.valleys[-1]
    assert plan is not None
    assert last.params_opt is not None
    assert (plan.approach, plan.params) == ("valleys", plan.by_approach["valleys"].params)
    assert set(plan.by_approach) == {"valleys"}, "a law that may not be advised is not set beside what is"
    assert (plan.loss, plan.loss_from) == (None, ""), "how far the loss falls hangs on a floor that is on its bound"
    said = next(check for check in found.checks if check.code == "not_advised")
    assert said.message.startswith("form=chinchilla does not qualify (E is not identified: the fit puts E on its bound")
    assert plan.params > 2 * last.params_opt
    exact = next(check for check in found.checks if check.code == "flops_not_6nd")
    assert exact.level == "note"
    floor = found.fits.frontier.identified["L_inf"]
    assert (floor.identified, floor.side) == (False, "upper")  # one degree of freedom around it leaves a floor open


def test_points_that_never_started_are_said(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "isoflop"
    studies.write_study(folder, studies.isoflop(1, noise=0.003), failed=0, waiting=3)
    assert fit_command([f"runs={folder}", f"out={tmp_path / 'out'}", "resamples=50", "report=no"]) == 0
    found = study_result.load(tmp_path / "out" / "fit.json")
    assert [c.message for c in found.checks if c.code == "not_started"] == ["3 points of the study have not started"]


def test_a_clean_study_has_no_findings(tmp_path: Path) -> None:
    found = run(tmp_path, studies.isoflop(0, noise=0.001, budgets=(1e12, 1e13, 1e14, 1e15, 1e16)))
    assert codes(found) == set()


def test_one_budget_and_few_runs_still_write_what_is_known(tmp_path: Path) -> None:
    found = run(tmp_path, studies.isoflop(0).iloc[:4])
    assert (found.status, found.params, found.recommendation) == ("not possible", {}, None)
    assert found.fits.valleys.valleys
    assert any(check.level == "error" for check in found.checks)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run=a"], "did you mean runs=?"),
        (["runs=a", "bugdet=1e9"], "did you mean budget=?"),
        (["runs=a", "budget=many"], "budget=many: a positive number"),
        (["runs=a", "budget=-1"], "a positive number"),
        (["runs=a", "resamples=1.5"], "a whole number"),
        (["budget=1"], "runs= is missing"),
        (["runs=a.csv"], "does not exist"),
        (["runs=a.csv", "delta=0"], "delta=0: a positive number"),
        (["runs=/nowhere"], "is no study"),
        (["runs"], "write runs=VALUE"),
    ],
)
def test_wrong_arguments_name_the_key(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit_command(arguments) == 2
    assert message in capsys.readouterr().err


def test_delta_and_columns_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    studies.isoflop(0).to_csv(tmp_path / "a.csv", index=False)
    for argument, message in (("delta=0", "delta=0"), ("columns=params", "NAME:VALUE"), ("where=x:1", "no column 'x'")):
        assert fit_command([f"runs={tmp_path / 'a.csv'}", argument, f"out={tmp_path}"]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "fit.json").exists()


def test_squared_loss_is_named(tmp_path: Path) -> None:
    found = run(tmp_path, studies.isoflop(0, noise=0.004), "delta=squared")
    assert found.loss_function == "squared(log residual)"


def test_import_is_light() -> None:
    code = "import sys, analysis, analysis.values.study_result, analysis.fit; print([m for m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    heavy = {"pandas", "scipy", "statsmodels", "matplotlib", "mlflow", "torch"}
    assert not heavy & {name.strip("' [],\n").partition(".")[0] for name in out.split(",")}


def test_the_example_is_what_the_dataclasses_say() -> None:
    path = DATA / "fit_example.json"
    raw = json.loads(path.read_text())
    raw["recommendation"].setdefault("optima", [])  # the example is older than these keys
    raw["backtest"].setdefault("reach", None)
    assert to_json(study_result.load(path)) == raw
    assert set(raw) == {f.name for f in fields(study_result.Fit)}


def test_load_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    with pytest.raises(ValueError, match="does not exist"):
        study_result.load(path)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"is no fit\.json"):
        study_result.load(path)
    path.write_text('{"format": 99}')
    with pytest.raises(ValueError, match="format 99"):
        study_result.load(path)
    raw = json.loads((DATA / "fit_example.json").read_text())
    del raw["fits"]["valleys"]["form"]
    path.write_text(json.dumps(raw))
    with pytest.raises(ValueError, match=r"fits\.valleys has no key 'form'"):
        study_result.load(path)
