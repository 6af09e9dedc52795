"""Laws of settings and of learning curves through the command: optima of sweeps, critical batch, Multi-Power law."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.approaches import settings
from analysis.fit import main as fit_command
from tests.analysis import studies


def fitted(folder: Path, table: pd.DataFrame, *given: str, ends: int = 0) -> dict[str, Any]:
    table.to_csv(folder / "t.csv", index=False)
    assert fit_command([f"runs={folder / 't.csv'}", f"out={folder}", "report=no", *given]) == ends
    found: dict[str, Any] = json.loads((folder / "fit.json").read_text())
    assert {"form", "approach", "loss_function", "objective", "params", "intervals", "checks", "rows_used"} < set(found)
    return found


def sweep(batches: tuple[float, ...] = (5e4, 1e5, 2e5, 4e5, 8e5)) -> pd.DataFrame:
    """Return sweeps whose optima are lr* = 2 N^-0.4 D^0.1 and batch* = 0.6 D^0.57; one sweep misses it."""
    rows = []
    for n in (1e7, 3e7, 1e8):
        for d in (1e9, 4e9):
            best, batch_best = 2 * n**-0.4 * d**0.1, 0.6 * d**0.57
            for lr in best * np.geomspace(0.2, 5, 7) * (20 if (n, d) == (1e8, 4e9) else 1):
                for batch in np.array(batches) if len(batches) == 1 else batch_best * np.geomspace(0.25, 4, 5):
                    value = 3 + 0.004 * np.log(lr / best) ** 2 + 0.003 * np.log(batch / batch_best) ** 2
                    rows.append({"params": n, "tokens": d, "lr": lr, "batch_tokens": batch, "loss": value})
    return pd.DataFrame(rows)


@pytest.mark.parametrize("how", ["quadratic", "envelope"])
def test_the_optima_of_sweeps_give_the_laws_they_were_made_from(tmp_path: Path, how: str) -> None:
    found = fitted(tmp_path, sweep(), "form=learning_rate", f"optimum={how}", "resamples=0")
    assert (found["params"]["p"], found["params"]["q"]) == pytest.approx((-0.4, 0.1), abs=1e-3)
    assert found["rows_used"] == 5
    assert (found["runs"]["total"], found["runs"]["used"]) == (210, 210), "runs of the sweeps, not their optima"
    assert len(found["rows_dropped"]) == 1
    assert found["rows_dropped"][0]["code"] in ("edge", "saddle", "too_few"), "the cell whose sweep misses its optimum"
    assert {"optimum_on_edge", "window_matters"} <= {check["code"] for check in found["checks"]}
    assert len(found["record"]["optima"]) == 6


def test_a_sweep_of_the_rate_alone_and_a_table_of_optima(tmp_path: Path) -> None:
    alone = fitted(tmp_path, sweep((1e5,)).drop(columns="batch_tokens"), "form=learning_rate", "resamples=0")
    assert alone["params"]["p"] == pytest.approx(-0.4, abs=1e-3)
    best = settings.optima(sweep())
    table = best[best["status"] == "minimum"][["params", "tokens", "batch_tokens"]]
    batch = fitted(tmp_path, table, "form=batch", "resamples=0")
    assert batch["params"]["r"] == pytest.approx(0.57, abs=1e-3)


def test_the_critical_batch_of_steps_to_a_loss(tmp_path: Path) -> None:
    batch = np.array([1e4, 3e4, 1e5, 3e5, 1e6, 3e6])
    table = pd.DataFrame({"B": batch, "updates": 2000 * (1 + 4e5 / batch)})
    found = fitted(tmp_path, table, "form=critical_batch", "columns=batch_tokens:B,steps:updates", "resamples=0")
    assert (found["params"]["S_min"], found["params"]["B_crit"]) == pytest.approx((2000, 4e5), rel=1e-3)
    assert found["fits"]["law"]["status"] == "ok"


def test_curves_under_schedules_predict_a_schedule_that_was_not_fitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pd.read_csv(studies.public("lr_schedule_curves_mpl/curves.csv")).query("model_millions == 100")
    shown = ("cosine_24000", "constant_24000", "wsdcon_9")
    given = ["form=multi_power", "columns=run:schedule,size_group:model_millions", f"train={'|'.join(shown)}"]
    found = fitted(tmp_path, table, *given)
    said = capsys.readouterr().out
    # 60 points of each of the three curves that are fitted, of nine in the table
    assert "held out" in said
    assert "(3 of 9 curves used, 180 points of them)" in said
    assert (found["rows_used"], found["runs"]["total"], found["runs"]["used"], found["runs"]["dropped"]) == (
        180,
        9,
        3,
        0,
    )
    scores = {line["run"]: line for line in found["record"]["curves"]}
    assert {run for run, line in scores.items() if line["fitted"]} == set(shown)
    assert max(line["mean_relative"] for line in scores.values()) < 0.005
    assert found["params"]["L_0"] == pytest.approx(2.65, abs=0.03)
    assert found["intervals"]["L_0"] is None, "three curves are no sample"
    assert "few_curves" in {check["code"] for check in found["checks"]}


def test_curves_that_cannot_be_told_apart_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pd.DataFrame({"step": [10, 20, 10, 20], "lr": 1e-3, "loss": [3.0, 2.9, 3.1, 2.8]})
    table.to_csv(tmp_path / "t.csv", index=False)
    assert fit_command([f"runs={tmp_path / 't.csv'}", "form=multi_power", f"out={tmp_path}"]) == 2
    assert "two losses at step 10: give columns=run:COLUMN" in capsys.readouterr().err
    table.drop(columns="lr").to_csv(tmp_path / "t.csv", index=False)
    assert fit_command([f"runs={tmp_path / 't.csv'}", "form=multi_power", f"out={tmp_path}"]) == 2
    assert "no column 'lr'" in capsys.readouterr().err


def test_the_command_finds_rates_on_the_edge_and_does_not_extrapolate_from_four_models(tmp_path: Path) -> None:
    table = studies.isoflop(noise=0.003, budgets=(1e17, 1e18, 1e19), law=(1.7, 400.0, 900.0, 0.34, 0.3))
    edge = pd.concat([table.assign(lr=lr, loss=table["loss"] * (1 + 5 * lr)) for lr in (1e-3, 2e-3, 4e-3)])
    found = fitted(tmp_path, edge, "resamples=0", "sensitivity=no", "select=all")
    assert {"optimum_on_edge", "swept_settings"} <= {check["code"] for check in found["checks"]}
    few = pd.DataFrame({"loss": [3.2, 3.0, 2.9, 2.8], "error": [0.8, 0.75, 0.7, 0.66]})
    found = fitted(tmp_path, few, "form=downstream", "resamples=0", ends=3)
    assert ("few_models", "error") in {(check["code"], check["level"]) for check in found["checks"]}


def test_the_page_of_a_law_alone_says_what_it_found(tmp_path: Path) -> None:
    sweep().to_csv(tmp_path / "t.csv", index=False)
    assert fit_command([f"runs={tmp_path / 't.csv'}", "form=batch", f"out={tmp_path}", "resamples=0"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "The optima of the sweeps" in page
    assert "what to train next" not in page
