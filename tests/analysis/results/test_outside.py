"""What a user finds who brings a file of their own: sweeps, odd files, constants that cannot be."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import analysis as sa
from analysis.backtest import main
from analysis.fit import main as fit_command
from analysis.inputs import frame, rows
from analysis.text import commandline

QUICK = ("resamples=20", "report=no", "sensitivity=no", "approach=3")


def grid() -> pd.DataFrame:
    """Return runs at four budgets and five sizes each, of a known law with a little noise."""
    budgets = np.repeat(np.array([1e18, 4e18, 1.6e19, 6.4e19]), 5)
    params = np.sqrt(budgets / 120) * np.tile(np.geomspace(0.25, 4.0, 5), 4)
    tokens = budgets / (6 * params)
    noise = np.exp(0.002 * np.random.default_rng(0).normal(size=20))
    loss = (1.8 + 480 / params**0.35 + 2100 / tokens**0.37) * noise
    return pd.DataFrame({"params": params, "tokens": tokens, "flops": budgets, "loss": loss})


def swept() -> pd.DataFrame:
    """Return the grid at three learning rates, the middle one the best."""
    table = grid()
    rates = {5e-4: 1.02, 1e-3: 1.0, 2e-3: 1.02}
    return pd.concat([table.assign(lr=rate, loss=table.loss * worse) for rate, worse in rates.items()])


def fitted(folder: Path, table: pd.DataFrame, *options: str) -> dict[str, Any]:
    """Return fit.json of a table, fitted by the command."""
    path = folder / "table.csv"
    table.to_csv(path, index=False)
    given = {option.partition("=")[0] for option in options}
    quick = [option for option in QUICK if option.partition("=")[0] not in given]
    code = fit_command([f"runs={path}", f"out={folder / 'out'}", *quick, *options])
    found: dict[str, Any] = json.loads((folder / "out" / "fit.json").read_text())
    assert code == (3 if any(check["level"] == "error" for check in found["checks"]) else 0)
    return found


def codes(found: dict[str, Any]) -> set[str]:
    return {check["code"] for check in found["checks"]}


def test_a_sweep_is_no_repeat_and_its_best_runs_can_be_selected(tmp_path: Path) -> None:
    every = fitted(tmp_path, swept())
    assert "swept_settings" in codes(every)
    assert "seed_noise" not in codes(every)
    best, alone = fitted(tmp_path, swept(), "select=best"), fitted(tmp_path, grid())
    assert "swept_settings" not in codes(best)
    assert (best["rows_used"], {row["code"] for row in best["rows_dropped"]}) == (20, {"not_best"})
    assert best["params"] == pytest.approx(alone["params"], rel=1e-6)


def test_seeds_of_the_best_setting_all_stay(tmp_path: Path) -> None:
    path = tmp_path / "seeds.csv"
    table = swept()
    pd.concat([table.assign(seed=seed, loss=table.loss * (1 + 1e-4 * seed)) for seed in (1, 2)]).to_csv(path)
    kept = frame.best(rows.from_csv(path))
    assert int(kept["used"].sum()) == 40
    assert set(kept[kept["used"]]["lr"]) == {1e-3}


def test_select_needs_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid().to_csv(tmp_path / "t.csv", index=False)
    assert fit_command([f"runs={tmp_path / 't.csv'}", "select=best"]) == 2
    assert "columns=lr:COLUMN" in capsys.readouterr().err


def test_an_impossible_constant_is_no_traceback(tmp_path: Path) -> None:
    found = fitted(tmp_path, grid(), "fix=E:9")  # above every loss: no residual has a slope
    assert found["params"]["E"] == pytest.approx(9)
    assert found["checks"]


def test_decimal_commas_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    grid().to_csv(path, index=False, sep=";", decimal=",")
    np.testing.assert_allclose(np.sort(rows.from_csv(path)["loss"]), np.sort(grid()["loss"]))


def test_too_few_resamples_and_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.csv"
    grid().to_csv(path, index=False)
    assert fit_command([f"runs={path}", "resamples=1"]) == 2
    assert "resamples=1: 0 for no interval, or at least 20" in capsys.readouterr().err
    assert main([f"runs={path}", f"out={path}/below"]) == 2
    assert "give another path" in capsys.readouterr().err


def test_no_best_size_from_an_unidentified_exponent(tmp_path: Path) -> None:
    table = grid().iloc[[0, 1, 7, 8, 13, 17]].assign(loss=lambda t: t.loss * np.array([1, 1.1, 0.9, 1.1, 1.0, 0.95]))
    found = fitted(tmp_path, table)
    plan = found["recommendation"]
    assert not found["identified"]["a"]["identified"]
    assert plan is None or plan["approach"] == "valleys" or plan["intervals"]["params"] is not None


def test_a_recommendation_beside_a_law_of_repeats_says_what_it_rests_on(tmp_path: Path) -> None:
    table = grid()
    share = np.where(np.arange(20) % 4 == 0, 3.0, 1.0)
    found = fitted(tmp_path, table.assign(unique_tokens=table.tokens / share), "form=repeats")
    said = next(check for check in found["checks"] if check["code"] == "single_epoch")
    assert "15 of 20 runs" in said["message"]


def test_approaches_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = fitted(tmp_path, grid(), "approach=all")
    lines = {line["approach"]: line for line in found["record"]["approaches"]}
    assert {"1 envelope", "1 hull", "2 parabola", "2 akima", "2 surface", "3 surface"} == set(lines)
    assert "run" in lines["1 envelope"]["reason"]
    assert "approaches     N* differs by a factor of" in capsys.readouterr().out


def test_the_recommendation_comes_from_the_form_that_was_asked(tmp_path: Path) -> None:
    found = fitted(tmp_path, grid(), "form=chinchilla_tied")
    plan, law = found["recommendation"], found["params"]
    best = (law["A"] / law["B"] * (plan["budget_flops"] / 6) ** law["alpha"]) ** (0.5 / law["alpha"])
    assert (plan["approach"], found["backtest"]["approach"]) == ("law", "law")
    assert plan["params"] == pytest.approx(best, rel=1e-3)  # the search's grid
    assert {curve["name"] for curve in found["profiles"]} == {"E", "A", "B", "alpha"}


@pytest.mark.parametrize(("form", "reason"), [("compute", "gives no loss of N and D"), ("farseer", "")])
def test_a_form_without_a_best_size_recommends_none_and_says_why(tmp_path: Path, form: str, reason: str) -> None:
    table = grid() if form == "compute" else grid().iloc[:8]  # too few rows for nine constants
    found = fitted(tmp_path, table, f"form={form}")
    said = [check for check in found["checks"] if check["code"] == "no_recommendation"]
    assert found["recommendation"] is None
    assert reason in said[0]["message"]
    assert f"form={form}" in said[0]["message"]
    assert said[0]["level"] == ("note" if reason else "error")


def test_one_approach_alone_recommends_what_it_says_itself(tmp_path: Path) -> None:
    found = fitted(tmp_path, grid(), "approach=2")
    assert (found["approach"], found["recommendation"]["approach"]) == ("valleys", "valleys")


def test_a_loss_that_never_changes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid().assign(loss=3.0).to_csv(tmp_path / "t.csv", index=False)
    assert fit_command([f"runs={tmp_path / 't.csv'}", *QUICK]) == 2
    assert "every row has the same loss, 3" in capsys.readouterr().err


def test_experts_in_a_column_of_their_own_are_no_repeats(tmp_path: Path) -> None:
    """What they differ by is no noise of seeds; a law that reads their number is asked to fit them together."""
    table = pd.concat([grid().assign(experts=e, loss=grid()["loss"] * e**-0.02) for e in (1, 4, 16)])
    found = fitted(tmp_path, table, "resamples=0")
    said = [check["message"] for check in found["checks"] if check["code"] == "mixed_settings"]
    assert said == ["experts has 3 values (1, 4, 16), which are fitted together"]
    assert "seed_noise" not in codes(found)
    table["params_active"] = table["params"]
    assert "mixed_settings" not in codes(fitted(tmp_path, table, "resamples=0", "form=moe"))


def test_a_law_of_task_errors_is_not_judged_by_losses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where sizes, tokens and FLOPs are there too, held-out errors stood against losses, and errors had their unit."""
    table = grid()
    table["error"] = 0.75 - 2.5 * np.exp(-1.0 * table["loss"])
    found = fitted(tmp_path, table, "form=downstream", "resamples=0", "loss=squared")
    assert found["params"] == pytest.approx({"eps": 0.75, "k": 2.5, "gamma": 1.0}, rel=1e-3)
    assert (found["backtest"], found["recommendation"]) == (None, None)
    assert not {"backtest_error", "backtest_bias"} & codes(found)
    reason = "a law of error was fitted, not of the loss; form=chinchilla fits that"
    assert found["fits"]["surface"]["reason"] == reason
    printed = capsys.readouterr().out
    assert "error = 0.750 - 2.50 exp(-1.00 L)" in printed
    assert "nats" not in printed and "backtest" not in printed


@pytest.mark.parametrize("command", ["fit", "plan", "next", "compare", "backtest", "score"])
def test_every_command_says_that_losses_are_none(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan of perplexities or a proposal from accuracies looked like any other, and none ended with an error's code.

    With `strict=no` too: it plans with a law whatever it lacks, which makes no losses of perplexities.
    """
    table, said = grid(), "accuracies"
    if command == "score":
        fitted(tmp_path, table, "resamples=0")
    if command == "plan":
        table["loss"], said = np.exp(4 * table["loss"]), "perplexities"
    else:
        table["loss"] = 0.25 + 0.7 * np.exp(-1.2 * (table["loss"] - 1.8))
    table.to_csv(tmp_path / "t.csv", index=False)
    options = {
        "plan": ["budget=1e21", "resamples=0", "beside=none", "strict=no"],
        "next": ["simulate=0", "count=1", f"out={tmp_path / 'next'}"],
        "compare": ["forms=chinchilla,compute"],
        "backtest": [],
        "fit": [f"out={tmp_path / 'fit'}", *QUICK],
        "score": [f"fit={tmp_path / 'out' / 'fit.json'}"],
    }[command]
    code = import_module(f"analysis.{command}").main([f"runs={tmp_path / 't.csv'}", *options])
    assert code == commandline.UNANSWERED
    assert f"look like {said}" in " ".join(capsys.readouterr().out.split())


def test_plans_and_proposals_say_which_settings_they_mix(tmp_path: Path) -> None:
    table = pd.concat([grid().assign(family=f, loss=grid()["loss"] * x) for f, x in (("a", 1.0), ("b", 1.002))])
    frame_ = sa.load(table)
    said = "family has 2 values (a, b), which are fitted together (where=family:a keeps one of them)"
    assert said in sa.plan(frame_, 1e21, resamples=0, beside=(), strict=False).notes
    proposed = sa.next_runs(frame_, count=1)
    assert [check.code for check in proposed.checks] == ["mixed_settings"]
    assert str(proposed).startswith("warning  mixed_settings: family has 2 values")
    one = sa.load(table, where={"family": "a"})
    assert not any("fitted together" in note for note in sa.plan(one, 1e21, resamples=0, beside=()).notes)
    assert sa.next_runs(one, count=1).checks == ()
